//! The tables of docs/DEVICE-MODEL.md that tests make.

use std::{fs, path::PathBuf};

/// Returns the path of a file of the repository.
pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Compares the part of the document between two marks with the table. With `BLESS=1`, writes it there.
pub fn check_document(mark: &str, table: &str) {
    let path = repository("docs/DEVICE-MODEL.md");
    let document = fs::read_to_string(&path).expect("the document exists");
    let (start, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let from = document.find(&start).unwrap_or_else(|| panic!("no mark {mark}")) + start.len();
    let to = from + document[from..].find(&end).unwrap_or_else(|| panic!("no end of {mark}"));
    if std::env::var_os("BLESS").is_some() {
        let changed = [&document[..from], table, &document[to..]].concat();
        fs::write(&path, changed).expect("the document can be written");
    } else {
        assert_eq!(&document[from..to], table, "run with BLESS=1 to take the new table over");
    }
}
