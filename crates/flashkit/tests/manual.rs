//! Help, man pages and completions.

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use support::ok;

/// Returns all pages with their files: `flashkit-mkfs.8`.
fn pages(dir: &Path) -> BTreeMap<String, PathBuf> {
    let sections = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = sections.flat_map(|section| fs::read_dir(section).unwrap());
    files.map(|entry| entry.unwrap()).map(|it| (it.file_name().into_string().unwrap(), it.path())).collect()
}

/// Returns the references in a text to our own pages: `flashkit-mkfs(8)` as `flashkit-mkfs.8`.
fn references(text: &str) -> impl Iterator<Item = String> {
    let plain = text.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-");
    let words: Vec<String> = plain.split([' ', ',', '\n', ';', '.']).map(str::to_owned).collect();
    words.into_iter().filter_map(|word| {
        let (name, section) = word.strip_suffix(')')?.split_once('(')?;
        name.starts_with("flashkit").then(|| format!("{name}.{section}"))
    })
}

#[test]
fn every_verb_has_help_with_examples() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let help = ok(dir, &["--help"]);
    assert!(help.contains("130  interrupted") && help.contains("flashkit-filling(7)"), "{help}");
    ok(dir, &["man", "pages"]);
    let pages = pages(&dir.join("pages"));
    let verbs: Vec<&str> =
        pages.keys().filter_map(|page| page.split_once('.')).map(|(name, _)| name).collect();
    assert!(verbs.len() > 45, "{verbs:?}");
    for verb in verbs {
        let words: Vec<&str> = verb.split('-').skip(1).collect();
        if let ["filling" | "json" | "names"] = words[..] {
            continue;
        }
        let help = ok(dir, &[&words[..], &["--help"]].concat());
        assert!(help.contains("Example"), "{verb} has no example");
        for reference in references(&help) {
            assert!(pages.contains_key(&reference), "{verb} names {reference}");
        }
        assert!(!help.contains("docs/"), "{verb} names a document that is not installed: {help}");
    }
}

#[test]
fn pages_have_their_sections_and_name_pages_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["man", "pages"]);
    let pages = pages(&dir.join("pages"));
    for page in
        ["flashkit.1", "flashkit-mkfs.8", "flashkit-mount.8", "flashkit-card-new.1", "flashkit-filling.7"]
    {
        assert!(pages.contains_key(page), "{page}: {:?}", pages.keys());
    }
    for (name, path) in &pages {
        let text = fs::read_to_string(path).unwrap();
        let title = text.lines().find(|line| line.starts_with(".TH ")).unwrap();
        let wanted = name.rsplit_once('.').unwrap();
        assert!(title.starts_with(&format!(".TH {} {} ", wanted.0.to_uppercase(), wanted.1)), "{title}");
        assert!(title.contains("2026") && title.contains("flashkit 0."), "{title}");
        let mut headings = vec!["NAME", "DESCRIPTION", "SEE ALSO"];
        if !name.ends_with(".7") {
            headings.extend(["SYNOPSIS", "EXIT STATUS", "EXAMPLES"]);
        }
        let has = |heading: &str| {
            let bare = format!(".SH {heading}");
            let quoted = format!(".SH \"{heading}\"");
            text.lines().any(|line| line == bare || line == quoted)
        };
        for heading in headings {
            assert!(has(heading), "{name} has no {heading}");
        }
        assert!(!has("EXTRA"), "{name}");
        for reference in references(&text) {
            assert!(pages.contains_key(&reference), "{name} names {reference}");
        }
    }
    let mkfs = fs::read_to_string(&pages["flashkit-mkfs.8"]).unwrap();
    assert!(mkfs.contains("SOURCE_DATE_EPOCH") && mkfs.contains("\\fIPERCENT\\fR"), "values in the synopsis");
    assert!(fs::read_to_string(&pages["flashkit-mount.8"]).unwrap().contains("mount.fuse.flashkit"));
}

#[test]
fn pages_are_formatted_without_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if Command::new("man").arg("--version").output().is_err() {
        return eprintln!("skipped: man is not installed");
    }
    ok(dir, &["man", "pages"]);
    for (name, path) in pages(&dir.join("pages")) {
        let mut man = Command::new("man");
        let man = man.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").args(["--warnings", "-l"]).arg(path);
        let output = man.output().unwrap();
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{name}: {warnings}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("[-o ]") && !text.contains("EXTRA"), "{name}: {text}");
    }
}

#[test]
fn pages_are_reproducible_and_have_the_given_date() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let make = |to: &str, epoch: Option<&str>| -> Vec<Vec<u8>> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashkit"));
        command.current_dir(dir).args(["man", to]).env_remove("SOURCE_DATE_EPOCH");
        epoch.map(|epoch| command.env("SOURCE_DATE_EPOCH", epoch));
        assert!(command.status().unwrap().success());
        pages(&dir.join(to)).values().map(|path| fs::read(path).unwrap()).collect()
    };
    assert!(make("a", None) == make("b", None));
    let dated = make("c", Some("86400"));
    assert!(dated.iter().all(|page| String::from_utf8_lossy(page).contains("1970-01-02")));
}

#[test]
fn completions_include_values() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = ok(dir.path(), &["completions", shell]);
        for value in
            ["transcend-16g-desktop", "extra_attr", "buffered_write", "desktop", "nodiscard", "fsync_mode="]
        {
            assert!(script.contains(value), "{shell}: {value}");
        }
    }
    // The values are suggestions: a file can be a profile, too.
    let dir = dir.path();
    fs::write(dir.join("mine.toml"), ok(dir, &["card", "show", "bergmann-stick"])).unwrap();
    assert!(ok(dir, &["card", "show", "mine.toml"]).contains("bergmann"));
}

#[test]
fn the_readme_names_every_verb_and_documents_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, table) = readme.split_once("| verb | does |\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.split('|').nth(1));
    let mut named: Vec<&str> = columns.flat_map(|column| column.split('`').skip(1).step_by(2)).collect();
    // The text below the table describes these.
    named.extend(["completions", "help", "man"]);
    named.sort_unstable();
    let help = ok(root, &["--help"]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| !line.is_empty());
    let mut verbs: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    verbs.sort_unstable();
    assert_eq!(named, verbs);
    for link in readme.split("](").skip(1) {
        let path = link.split([')', '#']).next().unwrap();
        assert!(path.starts_with("http") || root.join(path).exists(), "{path}");
    }
}
