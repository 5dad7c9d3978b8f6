//! Paths in a tree: names separated by `/`, empty for the root.

use f2fs::{Error, Result};

/// Refuses a path that could lead out of the root.
pub(crate) fn check_components(path: &[u8]) -> Result<()> {
    let leads_down = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
    match path.split(|byte| *byte == b'/').all(leads_down) {
        true => Ok(()),
        false => Err(Error::Invalid("a path with an empty name, a NUL, \".\" or \"..\" in it".into())),
    }
}

/// Returns the directory and the name of a path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Returns the path of a name in a directory.
pub(crate) fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// The names on a path; none for the root.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// Returns true if `path` is the directory `dir` or lies in it.
pub(crate) fn is_inside(path: &[u8], dir: &[u8]) -> bool {
    dir.is_empty()
        || path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}
