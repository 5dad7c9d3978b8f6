//! A large volume with many files, filled from a tar stream: its checks and its fill rate.

use std::{
    fs,
    io::{BufWriter, Write},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};

use super::{
    Line,
    Wanted::{AtMost, Told},
};
use crate::{
    step::Step,
    study::{filling::our_program, measure::Cost},
};

/// Environment variable with the number of files.
const FILES: &str = "BENCH_FILES";
/// Number of files without it.
const FILES_USUAL: u64 = 200_000;
/// Files of a directory.
const PER_DIRECTORY: u64 = 100;
/// Size of the volume.
const SIZE: &str = "1T";
/// Size of a header in a tar archive, in bytes.
const HEADER_BYTES: usize = 512;
/// Type of a member of a tar archive.
const FILE: u8 = b'0';
const DIRECTORY: u8 = b'5';

/// Fills a volume from a tar stream, and checks it.
pub fn lines(dir: &Path) -> Result<Vec<Line>> {
    let files = match std::env::var(FILES) {
        Ok(text) => text.parse().with_context(|| format!("{FILES}={text}"))?,
        Err(_) => FILES_USUAL,
    };
    let image = dir.join("many.img");
    let step = Step::begin(&format!("fill a volume of {SIZE} with {files} files, and check it"));
    // A usual NAT of 1 TiB has numbers for 9,551,360 nodes.
    Cost::of(Command::new(our_program()).args(["mkfs", "-f", "-q", "-i", "--size", SIZE]).arg(&image))?;
    let mut import = Command::new(our_program());
    import.args(["import", "--quiet", "-"]).arg(&image);
    let filled = Cost::fed(&mut import, |stdin| write_archive(stdin, files))?;
    let ours = Cost::of(Command::new(our_program()).args(["fsck", "--quiet"]).arg(&image))?;
    let theirs = Cost::of(Command::new("fsck.f2fs").args(["-f", "--dry-run"]).arg(&image))?;
    fs::remove_file(&image)?;
    step.end();
    let mebibytes = |cost: Cost| cost.memory_bytes as f64 / f64::from(1 << 20);
    let what = format!("{files} files on {SIZE}");
    Ok(vec![
        Line::new(format!("fsck of {what}, memory"), mebibytes(ours), "MiB", AtMost(512.0)),
        Line::new(format!("fsck.f2fs of {what}, memory"), mebibytes(theirs), "MiB", Told),
        Line::new(
            format!("fsck of {what}, time of fsck.f2fs"),
            ours.wall_s / theirs.wall_s,
            "times",
            AtMost(1.0),
        ),
        Line::new(format!("fsck of {what}, processor time"), ours.cpu_s, "s", Told),
        Line::new(format!("import of {what}, from a stream"), files as f64 / filled.wall_s, "files/s", Told),
        Line::new(format!("import of {what}, memory"), mebibytes(filled), "MiB", AtMost(256.0)),
    ])
}

/// Writes an archive of empty files in directories.
fn write_archive(out: impl Write, files: u64) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    for file in 0..files {
        let (directory, number) = (file / PER_DIRECTORY, file % PER_DIRECTORY);
        if number == 0 {
            out.write_all(&header(&format!("dir-{directory}/"), DIRECTORY))?;
        }
        out.write_all(&header(&format!("dir-{directory}/file-{number}"), FILE))?;
    }
    // Two empty headers end an archive.
    out.write_all(&[0; 2 * HEADER_BYTES])?;
    Ok(out.flush()?)
}

/// Returns the header of an empty member, in the form of POSIX (ustar).
fn header(name: &str, kind: u8) -> [u8; HEADER_BYTES] {
    const CHECKSUM: std::ops::Range<usize> = 148..156;
    let mut header = [0; HEADER_BYTES];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, if kind == DIRECTORY { b"0000755" } else { b"0000644" });
    put(108, b"0001750");
    put(116, b"0001750");
    put(124, b"00000000000");
    put(136, b"14540577400");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    // The field counts as spaces in its own sum.
    put(CHECKSUM.start, &[b' '; 8]);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn tar_lists_the_archive() {
        let mut tar =
            Command::new("tar").arg("t").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        write_archive(tar.stdin.take().unwrap(), 101).unwrap();
        let output = tar.wait_with_output().unwrap();
        let names: Vec<&str> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
        assert!(output.status.success());
        assert_eq!((names.len(), names[0], names[102]), (103, "dir-0/", "dir-1/file-0"));
    }
}
