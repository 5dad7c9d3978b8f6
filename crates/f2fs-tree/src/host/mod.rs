//! Directories of a Linux host.

mod sink;
mod source;

use f2fs::printable;
pub use sink::{DirSink, Owners, make_private};
pub use source::DirSource;

/// Formats the host's path of an entry for messages.
fn shown(root: &[u8], path: &[u8]) -> String {
    let root = printable::name(root);
    if path.is_empty() {
        root.into_owned()
    } else {
        format!("{}/{}", root.trim_end_matches('/'), printable::path(path))
    }
}
