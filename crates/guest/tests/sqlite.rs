//! SQLite itself: its calls on its files are, one by one, those of [`flashkit_guest::workload::Database`].

use std::{collections::HashMap, path::Path, process::Command};

use flashkit_guest::workload::{Change, Database, Journal, Step};

/// Number of transactions: enough to checkpoint and restart the log, and for new leaves.
fn transactions(journal: Journal) -> u64 {
    if journal == Journal::Wal { 1200 } else { 150 }
}

#[test]
fn sqlite_makes_the_calls_of_the_model() {
    for program in ["sqlite3", "strace"] {
        if Command::new(program).arg("--version").output().is_err() {
            eprintln!("skipped: no {program}");
            return;
        }
    }
    for journal in Journal::ALL {
        let mut database = Database::new("test.db", journal);
        let mut random = flashkit_guest::content::SplitMix(7);
        let (mut wanted, mut changes) = (Vec::new(), Vec::new());
        for _ in 0..transactions(journal) {
            changes.push(database.change(&mut random, &mut wanted));
        }
        database.close(&mut wanted);
        assert!(changes.iter().any(|change| matches!(change, Change::Update(_))));

        let dir = memory_dir().expect("a directory");
        let Some(seen) = recorded(dir.path(), journal, &changes) else {
            eprintln!("skipped: strace may not look at programs here");
            return;
        };
        // Closing has no call of its own to compare, and a file is created by its first write.
        let made_empty =
            |step: &Step| matches!(step, Step::Truncate { path, size: 0 } if path.ends_with("-wal"));
        wanted.retain(|step| !matches!(step, Step::Close { .. }) && !made_empty(step));
        let differs = wanted.iter().zip(&seen).position(|(wanted, seen)| wanted != seen);
        if let Some(n) = differs {
            let around = n.saturating_sub(12)..n + 3;
            panic!("{journal:?}, call {n}: {:#?} instead of {:#?}", &seen[around.clone()], &wanted[around]);
        }
        assert_eq!(seen.len(), wanted.len(), "{journal:?}: ends with {:?}, {:?}", seen.last(), wanted.last());
    }
}

/// Makes a directory in memory if possible, so that the test does not wait for a disk.
fn memory_dir() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

/// Returns SQLite's calls that change files, for these transactions.
fn recorded(dir: &Path, journal: Journal, changes: &[Change]) -> Option<Vec<Step>> {
    use flashkit_guest::workload::{FIRST_ROW, ROWS, VALUE_BYTES};
    let last = FIRST_ROW + ROWS - 1;
    let make = format!(
        "PRAGMA journal_mode={}; CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB NOT NULL);
         WITH RECURSIVE n(i) AS (SELECT {FIRST_ROW} UNION ALL SELECT i+1 FROM n WHERE i<{last})
         INSERT INTO t SELECT i, zeroblob({VALUE_BYTES}) FROM n;",
        journal.name()
    );
    let made = Command::new("sqlite3").current_dir(dir).arg("test.db").arg(make).status();
    assert!(made.expect("it was found before").success());

    let mut sql = format!("PRAGMA journal_mode={};\n", journal.name());
    for change in changes {
        sql += &match change {
            Change::Insert(row) => format!("INSERT INTO t VALUES({row}, randomblob({VALUE_BYTES}));\n"),
            Change::Update(row) => {
                format!("UPDATE t SET v=randomblob({VALUE_BYTES}) WHERE id={row};\n")
            }
        };
    }
    std::fs::write(dir.join("changes.sql"), sql).expect("a file");
    let status = Command::new("strace")
        .current_dir(dir)
        .args(["-o", "calls", "-s", "0", "-e"])
        .arg("trace=openat,close,pwrite64,fsync,fdatasync,ftruncate,unlink")
        .args(["sqlite3", "test.db", ".read changes.sql"])
        .status();
    if !status.is_ok_and(|status| status.success()) {
        return None;
    }
    let calls = std::fs::read_to_string(dir.join("calls")).expect("strace has written it");
    Some(steps(&calls, dir))
}

/// Parses calls on files in a directory, and on the directory itself, as steps.
fn steps(calls: &str, dir: &Path) -> Vec<Step> {
    let mut open: HashMap<&str, String> = HashMap::new();
    let mut steps = Vec::new();
    let within = |path: &str| {
        let path = Path::new(path);
        let path = if path.is_absolute() { path.strip_prefix(dir).ok()? } else { path };
        let path = path.to_str()?.to_owned();
        (path.is_empty() || path.starts_with("test.db")).then_some(path)
    };
    for line in calls.lines() {
        let Some((name, rest)) = line.split_once('(') else { continue };
        let Some((arguments, result)) = rest.rsplit_once(") ") else { continue };
        let result = result.trim_start_matches([' ', '=']);
        let words: Vec<&str> = arguments.split(", ").collect();
        let number = |n: usize| words[n].parse::<u64>().expect("a number");
        let path = open.get(words[0]).cloned();
        match (name, path) {
            ("openat", _) => {
                open.remove(result);
                if let Some(path) = within(words[1].trim_matches('"')) {
                    open.insert(result, path);
                }
            }
            ("close", _) => drop(open.remove(words[0])),
            ("unlink", _) => {
                if let Some(path) = within(words[0].trim_matches('"')) {
                    steps.push(Step::Remove { path });
                }
            }
            ("pwrite64", Some(path)) => steps.push(Step::Write { path, at: number(3), length: number(2) }),
            ("ftruncate", Some(path)) => steps.push(Step::Truncate { path, size: number(1) }),
            ("fdatasync", Some(path)) => steps.push(Step::Fdatasync { path }),
            ("fsync", Some(path)) => steps.push(Step::Fsync { path }),
            _ => {}
        }
    }
    steps
}
