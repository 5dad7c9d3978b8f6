//! Rescued files in their printed forms: as rows of a list, and as lines of a timeline.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use f2fs::format::FileType;
use f2fs_rescue::{Certainty, Choice, Found};
use serde::Serialize;

use crate::{
    record,
    render::{self, Name, keyed},
};

/// A rescued inode in its printed form.
#[derive(Serialize)]
pub struct Row {
    #[serde(flatten, serialize_with = "keyed::path")]
    path: Name,
    inode: Option<u32>,
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    size_bytes: u64,
    accessed: String,
    modified: String,
    changed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    checkpoint: u32,
    grade: &'static str,
    reasons: String,
    agreeing_blocks: u64,
    unproven_blocks: u64,
    contradicted_blocks: u64,
    reused_blocks: u64,
    unmapped_blocks: u64,
    uncharted_blocks: u64,
    missing_blocks: u64,
    unreadable_blocks: u64,
    unproven_nodes: u64,
    outdated_nodes: u64,
}

impl Row {
    /// Makes the record of an inode.
    pub fn of(found: &Found) -> Row {
        let certainty = found.certainty.as_ref();
        let blocks = |count: fn(&Certainty) -> u64| certainty.map_or(0, count);
        Row {
            path: Name([b"/", found.path.as_slice()].concat()),
            inode: found.ino.map(|ino| ino.0),
            kind: found.kind.name(),
            mode: format!("{:04o}", found.mode & 0o7777),
            uid: found.uid,
            gid: found.gid,
            size_bytes: found.size,
            accessed: record::time(found.atime),
            modified: record::time(found.mtime),
            changed: record::time(found.ctime),
            created: found.crtime.map(record::time),
            checkpoint: found.checkpoint,
            grade: certainty.map_or("", |certainty| certainty.grade().name()),
            reasons: certainty.map(ToString::to_string).unwrap_or_default(),
            agreeing_blocks: blocks(|certainty| certainty.agreeing),
            unproven_blocks: blocks(|certainty| certainty.unproven),
            contradicted_blocks: blocks(|certainty| certainty.contradicted),
            reused_blocks: blocks(|certainty| certainty.reused),
            unmapped_blocks: blocks(|certainty| certainty.unmapped),
            uncharted_blocks: blocks(|certainty| certainty.uncharted),
            missing_blocks: blocks(|certainty| certainty.missing),
            unreadable_blocks: blocks(|certainty| certainty.unreadable),
            unproven_nodes: blocks(|certainty| certainty.unproven_nodes),
            outdated_nodes: blocks(|certainty| certainty.outdated_nodes),
        }
    }

    /// Writes one line.
    pub fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let modified = self.modified.get(..19).unwrap_or(&self.modified);
        writeln!(out, "{:8} {:>12} {modified} {} ({})", self.grade, self.size_bytes, self.path, self.reasons)
    }
}

/// The list of all rescued inodes in a file, if one was requested.
pub struct Manifest {
    file: Option<(PathBuf, BufWriter<File>)>,
    rows: u64,
    failed: Option<io::Error>,
}

impl Manifest {
    /// Creates the file.
    pub fn create(path: Option<&Path>) -> Result<Manifest> {
        let file = path.map(|path| -> Result<_> {
            let file = File::create(path).with_context(|| path.display().to_string())?;
            Ok((path.to_path_buf(), BufWriter::new(file)))
        });
        Ok(Manifest { file: file.transpose()?, rows: 0, failed: None })
    }

    /// Adds an inode. An error is reported by [`finish`](Self::finish).
    pub fn add(&mut self, found: &Found) {
        let Some((_, file)) = &mut self.file else { return };
        let start = if self.rows == 0 { "[\n" } else { ",\n" };
        self.rows += 1;
        let written = serde_json::to_string(&Row::of(found))
            .map_err(io::Error::from)
            .and_then(|row| write!(file, "{start}{}", f2fs::printable::json(&row)));
        self.failed = self.failed.take().or(written.err());
    }

    /// Completes the file.
    pub fn finish(self) -> Result<()> {
        let Some((path, mut file)) = self.file else { return Ok(()) };
        let end: &[u8] = if self.rows == 0 { b"[]\n" } else { b"\n]\n" };
        let written =
            self.failed.map_or(Ok(()), Err).and_then(|()| file.write_all(end)).and_then(|()| file.flush());
        written.with_context(|| path.display().to_string())
    }
}

/// Writes an inode in the body format of The Sleuth Kit 3: `MD5|name|inode|mode|UID|GID|size|atime|mtime|
/// ctime|crtime`. The name of a removed file ends in `(deleted)`.
pub fn body_line(found: &Found, out: &mut dyn Write) -> io::Result<()> {
    let (Some(ino), Some(certainty)) = (found.ino, found.certainty) else { return Ok(()) };
    let letter = match found.kind {
        FileType::Regular => 'r',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 'h',
    };
    let mode = render::mode(u32::from(found.mode));
    // The bar separates fields.
    let name = render::name(&found.path).replace('|', "\\x7c");
    let deleted = if certainty.choice == Choice::Removed { " (deleted)" } else { "" };
    writeln!(
        out,
        "0|/{name}{deleted}|{}|{letter}/{letter}{}|{}|{}|{}|{}|{}|{}|{}",
        ino.0,
        &mode[1..],
        found.uid,
        found.gid,
        found.size,
        found.atime.seconds,
        found.mtime.seconds,
        found.ctime.seconds,
        found.crtime.map_or(0, |time| time.seconds)
    )
}

#[cfg(test)]
mod tests {
    use f2fs::units::{Ino, Time};

    use super::*;

    #[test]
    fn a_line_of_the_timeline_has_eleven_fields() {
        let time = |seconds| Time { seconds, nanoseconds: 0 };
        let certainty = Certainty {
            choice: Choice::Removed,
            has_bad_checksum: false,
            is_inline: true,
            unproven_nodes: 0,
            outdated_nodes: 0,
            agreeing: 0,
            unproven: 0,
            contradicted: 0,
            reused: 0,
            unmapped: 0,
            uncharted: 0,
            has_bad_size: false,
            has_doubtful_size: false,
            missing: 0,
            unreadable: 0,
        };
        let found = Found {
            path: b"a|b".to_vec(),
            ino: Some(Ino(9)),
            kind: FileType::Regular,
            mode: 0o100_644,
            uid: 1,
            gid: 2,
            links: 1,
            size: 3,
            atime: time(4),
            mtime: time(5),
            ctime: time(6),
            crtime: None,
            checkpoint: 7,
            certainty: Some(certainty),
        };
        let mut line = Vec::new();
        body_line(&found, &mut line).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), "0|/a\\x7cb (deleted)|9|r/rrw-r--r--|1|2|3|4|5|6|0\n");
    }
}
