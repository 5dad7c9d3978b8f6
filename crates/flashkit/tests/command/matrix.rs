//! A matrix of cells, and cells as jobs of a workflow engine.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::support::{fails, flashkit, ok};

const MATRIX: &str = "experiments = [\"mount\", \"write_fsync\"]\ncards = [\"survey-a1\"]\nsizes = [\"1M\"]\n\
                      card_size = \"256M\"\n[[file_systems]]\nkind = \"flashkit\"\nmount = [\"mode=lfs\", \"mode=adaptive\"]\n";

/// Returns the paths below a directory with their contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => drop(all.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    all
}

#[test]
fn cells_one_by_one_leave_the_records_of_a_whole_study_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("m.toml"), MATRIX).unwrap();
    ok(dir, &["study", "--matrix", "m.toml", "-o", "whole", "-j", "2"]);
    let listed = ok(dir, &["study", "--matrix", "m.toml", "--list", "--json"]);
    let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.len(), 4);
    for cell in &listed {
        let id = cell["id"].as_str().unwrap();
        let text = ok(dir, &["study", "--matrix", "m.toml", "-o", "single", "--cell", id]);
        assert!(text.contains("survey-a1"), "{text}");
        let record = Path::new("single").join(cell["record"].as_str().unwrap());
        assert!(dir.join(record).is_file());
        let words: Vec<&str> =
            cell["command"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        assert_eq!(words[1..], ["study", "--matrix", "m.toml", "--cell", id]);
        assert!(cell["expected_memory_bytes"].as_u64().unwrap() > 1 << 20);
        assert!(cell["expected_seconds"].as_f64().unwrap() > 0.0);
        assert_eq!(cell["inputs"], serde_json::json!(["m.toml"]));
    }
    let of = |study: &str| {
        let cells = files(&dir.join(study).join("cells")).into_iter();
        cells.map(|(path, text)| (path.file_name().unwrap().to_owned(), text)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(of("whole"), of("single"), "byte for byte");
    let all = files(&dir.join("single"));
    assert_eq!(all.len(), 2 * 4, "a record and its circumstances a cell: {:?}", all.keys());

    // A finished cell is left as it is; a study with a part of the records is gathered with another.
    let first = listed[0]["id"].as_str().unwrap();
    let again = flashkit(dir, &["study", "--matrix", "m.toml", "-o", "single", "--cell", first]);
    assert!(String::from_utf8(again.stderr).unwrap().contains("its record exists"));
    fs::create_dir_all(dir.join("part/cells")).unwrap();
    let name = format!("cells/{first}.json");
    fs::rename(dir.join("single").join(&name), dir.join("part").join(&name)).unwrap();
    assert_eq!(ok(dir, &["report", "single", "part", "--csv"]), ok(dir, &["report", "whole", "--csv"]));
    ok(dir, &["report", "single", "part", "--cells", "cells.html"]);
    assert!(fs::read_to_string(dir.join("cells.html")).unwrap().contains("card+survey-a1"));
    ok(dir, &["report", "single", "part", "--html", "page.html"]);
    assert!(
        fs::read_to_string(dir.join("page.html")).unwrap().contains(&format!("part&#x2f;cells&#x2f;{first}"))
    );
    let other = fs::read_to_string(dir.join("part").join(&name)).unwrap();
    fs::write(
        dir.join("part").join(&name),
        other.replace("\"seed\": 2012,\n  \"scale\"", "\"seed\": 1,\n  \"scale\""),
    )
    .unwrap();
    let told = fails(dir, &["report", "whole", "part"]);
    assert!(told.contains("differs between whole and part"), "{told}");
}

#[test]
fn an_invalid_matrix_is_reported_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("m.toml"), MATRIX.replace("survey-a1", "no-such-card")).unwrap();
    let told = fails(dir, &["study", "--matrix", "m.toml", "--list"]);
    assert!(told.contains("m.toml:2: cards:") && told.contains("no-such-card"), "{told}");
    fs::write(dir.join("m.toml"), MATRIX).unwrap();
    let told = fails(dir, &["study", "--matrix", "m.toml", "--cell", "no.such.cell"]);
    assert!(told.contains("no.such.cell: no such cell"), "{told}");
    assert!(fails(dir, &["study", "--matrix", "none.toml"]).contains("none.toml"));
}

#[test]
fn a_stopped_cell_exits_with_75_and_leaves_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let large = MATRIX.replace("1M", "1G").replace("256M", "4G");
    fs::write(dir.join("m.toml"), large).unwrap();
    fs::create_dir(dir.join("w")).unwrap();
    let listed = ok(dir, &["study", "--matrix", "m.toml", "--list"]);
    let id = listed.lines().find(|id| id.starts_with("write_fsync")).unwrap();
    let mut cell = std::process::Command::new(env!("CARGO_BIN_EXE_flashkit"))
        .args(["study", "--matrix", "m.toml", "-o", "s", "--work", "w", "--cell", id])
        .current_dir(dir)
        .spawn()
        .unwrap();
    // The cell takes many seconds after it has made its card.
    while fs::read_dir(dir.join("w")).unwrap().next().is_none() {
        assert!(cell.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let process = cell.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
    assert_eq!(cell.wait().unwrap().code(), Some(75));
    assert_eq!(fs::read_dir(dir.join("s/cells")).unwrap().count(), 0);
}

#[test]
fn a_users_workload_is_measured_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let matrix = "sizes = [\"1M\"]\ncard_size = \"256M\"\n[[file_systems]]\nkind = \"flashkit\"\n\
                  [[workloads]]\nname = \"log\"\nsteps = \"log.steps\"\n[[workloads]]\nname = \"disk\"\ntrace = \"disk.txt\"\n";
    fs::write(dir.join("m.toml"), matrix).unwrap();
    let write = "{\"write\": {\"path\": \"log\", \"at\": 0, \"length\": 8192}}\n{\"fsync\": {\"path\": \"log\"}}\n\"done\"\n";
    fs::write(dir.join("log.steps"), write).unwrap();
    fs::write(
        dir.join("disk.txt"),
        "8,0 0 1 0.000000000 1 D W 2048 + 8 [a]\n8,0 0 2 0.000100000 1 D R 2056 + 16 [a]\n",
    )
    .unwrap();
    ok(dir, &["study", "--matrix", "m.toml", "-o", "s", "-j", "1"]);
    let records: Vec<serde_json::Value> = serde_json::from_str(&ok(dir, &["report", "s", "--json"])).unwrap();
    assert_eq!(records.len(), 2);
    for (record, written) in records.iter().zip([4096, 8192]) {
        assert!(record["check"]["clean"].is_object(), "{record}");
        let phase = &record["phases"][0];
        assert!(phase["totals"]["written_bytes"].as_u64().unwrap() >= written, "{record}");
        assert!(record["cell"]["point"]["workload"]["sha256"].is_string());
    }
}

#[test]
fn a_bundle_is_repeated_and_differences_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("m.toml"), MATRIX.replace("\"mount\", ", "")).unwrap();
    ok(dir, &["study", "--matrix", "m.toml", "-o", "s", "-j", "2"]);
    ok(dir, &["report", "s", "--bundle", "b.tar.zst", "--matrix", "m.toml"]);
    let told = ok(dir, &["study", "--from", "b.tar.zst", "-o", "again", "-j", "2"]);
    assert_eq!(told, "2 cells equal, 0 different\n");

    let changed = fs::read_dir(dir.join("s/cells")).unwrap().next().unwrap().unwrap().path();
    let record = fs::read_to_string(&changed).unwrap();
    let value = record.lines().find(|line| line.contains("\"value\":")).unwrap();
    fs::write(&changed, record.replacen(value, "\"value\": 1.5,", 1)).unwrap();
    ok(dir, &["report", "s", "--bundle", "b.tar.zst", "--matrix", "m.toml"]);
    let run = flashkit(dir, &["study", "--from", "b.tar.zst", "-o", "again", "-j", "2"]);
    let told = String::from_utf8(run.stdout).unwrap();
    assert!(told.contains(": differs") && told.ends_with("1 cell equal, 1 different\n"), "{told}");
    assert_eq!(run.status.code(), Some(1));

    ok(dir, &["report", "s", "--bundle", "bare.tar.zst"]);
    assert!(fails(dir, &["study", "--from", "bare.tar.zst"]).contains("contains no matrix"));
    assert!(fails(dir, &["study", "--from", "m.toml"]).contains("m.toml"));
}

#[test]
fn commands_of_a_bundle_run_only_if_it_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let matrix = MATRIX.replace("\"mount\", ", "");
    fs::write(dir.join("m.toml"), &matrix).unwrap();
    ok(dir, &["study", "--matrix", "m.toml", "-o", "s", "-j", "2"]);
    let own = "[[file_systems]]\nkind = \"ext2\"\nname = \"own\"\nmake = \"touch made {image}\"\n";
    fs::write(dir.join("m.toml"), format!("{matrix}\n{own}")).unwrap();
    ok(dir, &["report", "s", "--bundle", "b.tar.zst", "--matrix", "m.toml"]);
    let told = fails(dir, &["study", "--from", "b.tar.zst", "-o", "again"]);
    assert!(told.contains("--trust"), "{told}");
    assert!(!dir.join("again").exists() && !dir.join("made").exists());
}
