//! The layers of the engine: each names only layers below itself, and keeps its fields to itself.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The layers from the device upwards: the folder of each, and the struct that owns the layer below.
const LAYERS: [(&str, &str); 6] = [
    ("disk", "Disk"),
    ("segments", "Segments"),
    ("nodes", "Nodes"),
    ("files", "Files"),
    ("names", "Names"),
    ("engine", "Engine"),
];
/// Modules and types of the crate above the layers.
const ABOVE: [&str; 6] = ["front", "walk", "mkfs", "Volume", "File", "OpenOptions"];
/// Maximum number of fields of `Engine`.
const ENGINE_FIELDS_MAX: usize = 10;

fn engine() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the workspace").join("crates/f2fs/src")
}

/// The source files in a folder and below it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a layer has a folder").flatten();
    let below = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(|entry| below(entry.path())).collect()
}

/// The files of a layer with their text, without comments and unit tests.
fn files(layer: &str) -> Vec<(String, String)> {
    let text = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file is text");
        let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        (path.display().to_string(), lines.collect::<Vec<_>>().join("\n"))
    };
    sources(&engine().join(layer)).into_iter().map(text).collect()
}

/// Splits a list such as the body of `use crate::{a::b, c::{d, e}};` at the commas outside of inner braces.
fn items(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0, 0, Vec::new());
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                items.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(list[start..].trim());
    items.retain(|item| !item.is_empty());
    items
}

/// Returns the length of a text up to the brace that closes its first one.
fn braces_end(text: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && byte == b'}' {
            return at;
        }
    }
    text.len()
}

/// The modules of the crate that a source file names, by `crate::module` or in the list of `use crate::{...}`.
fn named(code: &str) -> Vec<String> {
    let first = |path: &str| {
        path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned()
    };
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => {
                found.extend(items(&list[..braces_end(rest).saturating_sub(1)]).into_iter().map(first))
            }
            None => found.push(first(rest)),
        }
    }
    found
}

#[test]
fn paths_are_found_in_lists_and_by_themselves() {
    let code =
        "use crate::{\n    Error, disk::{Io, Disk},\n    format::{a, b},\n};\nfn f() { crate::names::g(); }";
    assert_eq!(named(code), ["Error", "disk", "format", "names"]);
}

#[test]
fn each_layer_names_only_layers_below_it() {
    for (height, (layer, _)) in LAYERS.iter().enumerate() {
        for (path, code) in files(layer) {
            for module in named(&code) {
                let other = LAYERS.iter().position(|(name, _)| *name == module);
                let is_below = other.is_none_or(|other| other <= height);
                assert!(is_below && !ABOVE.contains(&&*module), "{path} names {module}");
            }
            assert!(!code.contains("super::super::"), "{path} leaves its layer by super::super");
        }
    }
}

#[test]
fn the_structs_own_one_another_and_have_private_fields() {
    for (height, (layer, name)) in LAYERS.iter().enumerate() {
        let code = fs::read_to_string(engine().join(layer).join("mod.rs")).expect("a layer has a mod.rs");
        let body =
            code.split(&format!("struct {name} {{\n")).nth(1).expect("the layer's struct is in its mod.rs");
        let body = body.split("\n}").next().expect("the struct ends");
        let fields: Vec<&str> = body
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//") && line.contains(": "))
            .collect();
        assert!(fields.iter().all(|field| !field.starts_with("pub")), "a field of {name} is not private");
        if let Some((below, owned)) = height.checked_sub(1).map(|below| LAYERS[below]) {
            assert!(fields.contains(&&*format!("{below}: {owned},")), "{name} does not own {owned}");
        }
        assert!(*name != "Engine" || fields.len() <= ENGINE_FIELDS_MAX, "{name} has {} fields", fields.len());
    }
}
