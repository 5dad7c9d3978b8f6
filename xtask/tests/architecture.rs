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
/// manifests, on any system, among them.
fn declared(crates: &Path) -> Graph {
    let entries = fs::read_dir(crates).expect("the workspace has crates").flatten();
    let folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let parse = |folder: &PathBuf| {
        let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a crate has a manifest");
        let manifest: toml::Table = text.parse().expect("a manifest is TOML");
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        let systems = manifest.get("target").and_then(toml::Value::as_table).into_iter();
        let systems = systems.flat_map(toml::Table::values);
        let whole = toml::Value::Table(manifest.clone());
        let tables = std::iter::once(&whole).chain(systems);
        let tables = tables.filter_map(|table| table.get("dependencies")?.as_table());
        (name, tables.flat_map(toml::Table::keys).cloned().collect())
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

/// Returns the crates that are published, by the names of their folders, with their tables `package`.
fn published() -> BTreeMap<String, toml::Table> {
    let crates = root().join("crates");
    let package = |name: String| {
        let text = fs::read_to_string(crates.join(&name).join("Cargo.toml")).expect("it was read");
        let manifest: toml::Table = text.parse().expect("it is TOML");
        (name, manifest["package"].as_table().expect("it is a table").clone())
    };
    let all = declared(&crates).into_keys().map(package);
    // The others inherit that they are not published.
    all.filter(|(_, package)| !package.contains_key("publish")).collect()
}

#[test]
fn published_packages_have_names_of_their_own() {
    for (name, package) in published() {
        let package = package["name"].as_str().expect("a package has a name");
        let is_own = ["f2fs", "f2fs-tree"].contains(&name.as_str());
        assert_eq!(package, if is_own { name } else { format!("flashkit-{name}") });
    }
}

#[test]
fn published_packages_describe_themselves_and_contain_their_licences() {
    for (name, package) in published() {
        for key in ["description", "readme", "keywords", "categories", "license"] {
            assert!(package.contains_key(key), "{name}: no {key}");
        }
        let keywords = package["keywords"].as_array().map_or(0, Vec::len);
        assert!((1..=5).contains(&keywords), "{name}: crates.io takes at most five keywords");
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(root().join("crates").join(&name).join(file).is_file(), "{name}: no {file}");
        }
    }
}

#[test]
fn released_crates_that_read_untrusted_bytes_check_for_overflow() {
    // The others run programs, models and loads of their own, or pass values on.
    let others = ["flash", "flashkit", "fuse", "guest", "lab", "model"];
    let parse = |path: PathBuf| -> toml::Table {
        fs::read_to_string(path).expect("it exists").parse().expect("it is TOML")
    };
    let workspace = parse(root().join("Cargo.toml"));
    let settings = &workspace["profile"]["release"]["package"];
    for name in declared(&root().join("crates")).into_keys().filter(|name| !others.contains(&name.as_str())) {
        let manifest = parse(root().join("crates").join(&name).join("Cargo.toml"));
        let package = manifest["package"]["name"].as_str().expect("a package has a name");
        let checks = settings.get(package).and_then(|setting| setting.get("overflow-checks"));
        assert_eq!(checks.and_then(toml::Value::as_bool), Some(true), "{package}");
    }
}

/// Maximum number of lines of a source file. Clippy keeps the length of functions, by clippy.toml.
const FILE_LINES_MAX: usize = 600;

/// The source files in a folder and below it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder can be read").flatten().map(|entry| entry.path());
    let below = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    };
    entries
        .flat_map(below)
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

#[test]
fn source_files_are_short() {
    let folders = ["crates", "xtask", "fuzz/src"].map(|folder| root().join(folder));
    for path in folders.iter().flat_map(|folder| sources(folder)) {
        let lines = fs::read_to_string(&path).expect("a source file is text").lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines", path.display());
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

/// Sections of the page that list modules, with the folders of their sources.
const LISTED: [(&str, &str); 10] = [
    ("`crates/f2fs-tree`", "crates/f2fs-tree/src"),
    ("`crates/f2fs-check`", "crates/f2fs-check/src"),
    ("`crates/block`", "crates/block/src"),
    ("`crates/flash`", "crates/flash/src"),
    ("`crates/fuse`", "crates/fuse/src"),
    ("`crates/posix`", "crates/posix/src"),
    ("`crates/lab`", "crates/lab/src"),
    ("`crates/guest`", "crates/guest/src"),
    ("`crates/model`", "crates/model/src"),
    ("`xtask` and `fuzz`", "xtask/src"),
];

/// Sections that name every module of their crate.
const COMPLETE: [&str; 4] = ["`crates/lab`", "`crates/guest`", "`crates/model`", "`xtask` and `fuzz`"];

/// Returns a section of the page, by its title.
fn section<'a>(page: &'a str, title: &str) -> &'a str {
    let start = page.find(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("no section {title}"));
    let body = &page[start + 1..];
    body.find("\n## ").map_or(body, |end| &body[..end])
}

/// Returns the names at the start of a list's items: `` - `one`, `two/` and `three`: ``.
fn listed(section: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in section.lines().filter_map(|line| line.strip_prefix("- `")) {
        let mut parts = item.split('`');
        while let (Some(name), Some(between)) = (parts.next(), parts.next()) {
            names.insert(name.trim_end_matches('/').to_owned());
            if ![", ", " and "].contains(&between) {
                break;
            }
        }
    }
    names
}

/// Returns all names in backticks of a section.
fn named(section: &str) -> BTreeSet<&str> {
    section.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches('/')).collect()
}

#[test]
fn the_listed_modules_of_the_other_crates_exist() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    for (title, sources) in LISTED {
        let sources = root().join(sources);
        let names = listed(section(&page, title));
        assert!(!names.is_empty(), "{title} lists no module");
        for name in names {
            let file = if name.ends_with(".rs") { name.clone() } else { format!("{name}.rs") };
            let exists = sources.join(&file).is_file() || sources.join(&name).is_dir();
            assert!(exists, "{title}: no module `{name}`");
        }
    }
}

#[test]
fn the_table_of_operations_names_every_file() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    let table = page.split("| file | operations |").nth(1).expect("the page has the table");
    let rows = table.lines().skip(2).take_while(|row| row.starts_with('|'));
    let documented: BTreeSet<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let entries = fs::read_dir(root().join("crates/posix/src/file_system")).expect("it has files").flatten();
    let files: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let present: BTreeSet<&str> = files.iter().filter_map(|file| file.strip_suffix(".rs")).collect();
    assert_eq!(documented, present);
}

#[test]
fn the_sections_of_development_name_every_module() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    for (title, sources) in LISTED.into_iter().filter(|(title, _)| COMPLETE.contains(title)) {
        let named = named(section(&page, title));
        for entry in fs::read_dir(root().join(sources)).expect("a crate has sources").flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            let module = file.strip_suffix(".rs").unwrap_or(&file);
            assert!(module == "lib" || module == "main" || named.contains(module), "{title}: `{module}`");
        }
    }
}
