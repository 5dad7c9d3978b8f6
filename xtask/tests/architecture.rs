//! Comparison of ARCHITECTURE.md with the workspace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The crates of the workspace that each crate depends on.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Parses the list in the fenced block `dependencies`: `crate -> crate crate`.
fn documented(page: &str) -> Graph {
    let block = page.split("```dependencies\n").nth(1).expect("the page has the list");
    let block = block.split("```").next().expect("the list ends");
    let line = |line: &str| {
        let (from, to) = line.split_once("->").expect("a line is `crate -> crates`");
        (from.trim().to_owned(), to.split_whitespace().map(str::to_owned).collect())
    };
    block.lines().map(line).collect()
}

/// Returns the crates below `crates/` by the names of their folders, with the `[dependencies]` of their
/// manifests among them.
fn declared(crates: &Path) -> Graph {
    let entries = fs::read_dir(crates).expect("the workspace has crates").flatten();
    let folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let parse = |folder: &PathBuf| {
        let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a crate has a manifest");
        let manifest: toml::Table = text.parse().expect("a manifest is TOML");
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        (name, dependencies.map(|table| table.keys().cloned().collect()).unwrap_or_default())
    };
    let all: BTreeMap<String, BTreeSet<String>> = folders.iter().map(parse).collect();
    let names: BTreeSet<String> = all.keys().cloned().collect();
    all.into_iter().map(|(name, used)| (name, &used & &names)).collect()
}

#[test]
fn the_documented_dependencies_are_those_of_the_manifests() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page exists");
    assert_eq!(documented(&page), declared(&root().join("crates")));
}

#[test]
fn published_packages_have_names_of_their_own() {
    for name in declared(&root().join("crates")).into_keys() {
        let path = root().join("crates").join(&name).join("Cargo.toml");
        let text = fs::read_to_string(path).expect("it was read");
        let manifest: toml::Table = text.parse().expect("it is TOML");
        // The others inherit that they are not published.
        if manifest["package"].get("publish").is_none() {
            let package = manifest["package"]["name"].as_str().expect("a package has a name");
            let is_own = ["f2fs", "f2fs-tree"].contains(&name.as_str());
            assert_eq!(package, if is_own { name } else { format!("flashkit-{name}") });
        }
    }
}

#[test]
fn the_documented_dependencies_have_no_cycle() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page exists");
    let mut graph = documented(&page);
    while !graph.is_empty() {
        let leaves: BTreeSet<String> =
            graph.iter().filter(|(_, used)| used.is_empty()).map(|(name, _)| name.clone()).collect();
        assert!(!leaves.is_empty(), "these crates depend on each other: {:?}", graph.keys());
        graph.retain(|name, _| !leaves.contains(name));
        graph.values_mut().for_each(|used| used.retain(|name| !leaves.contains(name)));
    }
}

/// The layers of the engine and their files, as the page's table lists them.
fn documented_layers(page: &str) -> Vec<(String, BTreeSet<String>)> {
    let table = page.split("| layer | files |").nth(1).expect("the page has the engine's layers");
    let table = table.split("\n\n").next().expect("the table ends");
    let rows = table.lines().skip(2).map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let files = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    rows.map(|cells| (cells[1].to_owned(), files(cells[2]))).collect()
}

#[test]
fn the_documented_files_of_the_engine_exist() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    let layers = documented_layers(&page);
    let names: Vec<&str> = layers.iter().map(|(layer, _)| layer.as_str()).collect();
    assert_eq!(names, ["disk", "segments", "nodes", "files", "names", "engine"]);
    for (layer, documented) in layers {
        let folder = root().join("crates/f2fs/src").join(&layer);
        let entries = fs::read_dir(folder).expect("a layer has a folder").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let stems = names.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned));
        let present: BTreeSet<String> = stems.filter(|name| name != "mod").collect();
        assert_eq!(documented, present, "files of the layer {layer}");
    }
}
