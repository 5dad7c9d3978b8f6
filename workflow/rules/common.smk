# The list of cells, and their needs.
import json
import math
import subprocess

RESULTS = config["results"]
STUDY = ["--matrix", config["matrix"], "--guest", config["guest"], "--output", RESULTS]


def listed():
    """Returns the cells of the matrix by name, as `flashkit study --list --json` describes them."""
    command = [config["flashkit"], "study", *STUDY, "--list", "--json"]
    cells = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {cell["id"]: cell for cell in cells}


def megabytes(cell):
    """Returns the expected memory of a cell in whole megabytes."""
    return math.ceil(cell["expected_memory_bytes"] / 1e6)


def minutes(cell):
    """Returns a limit of the time of a cell, which is several times the expectation, in whole minutes."""
    return 2 + math.ceil(cell["expected_seconds"] * 4 / 60)


CELLS = listed()


wildcard_constraints:
    cell="[^/]+",
