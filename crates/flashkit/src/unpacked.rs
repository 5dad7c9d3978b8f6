//! Compressed images: a temporary file without a name holds the decompressed image while a verb reads it.

// Only mounts, which Windows does not have, need all of it.
#![cfg_attr(windows, allow(dead_code))]

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};
use f2fs_tree::{decompressed, is_compressed};
use image::{Format, Source};
use indicatif::BinaryBytes;

use crate::{host, progress};

/// Bytes decompressed at once, and the unit of holes.
const STEP_BYTES: usize = 1 << 20;
const HOLE_BYTES: usize = 4096;
/// Maximum size of a decompressed image: 2^32 blocks of 16 KiB, more than any volume of F2FS.
const IMAGE_BYTES_MAX: u64 = 1 << 46;
/// Share of the free space of the temporary directory that stays free for others.
const KEPT_SHARE: u64 = 16;

/// Purpose of opening an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The image is read.
    Read,
    /// The image is changed in place.
    Change,
    /// The image is mounted for changes.
    Mount,
}

impl Purpose {
    /// Returns the advice for a compressed image, or None if the purpose allows one.
    fn advice(self) -> Option<&'static str> {
        const DECOMPRESS: &str =
            "decompress it (flashkit convert IMAGE NEW.img), change that, and compress it again";
        match self {
            Purpose::Read => None,
            Purpose::Change => Some(DECOMPRESS),
            Purpose::Mount => Some("-o ro mounts it for reading"),
        }
    }
}

/// The decompressed images of this process by the paths of their files, because a verb may open its image several times.
/// Their temporary files end with the process.
static DONE: Mutex<Vec<(PathBuf, Temporary)>> = Mutex::new(Vec::new());

/// An open temporary file, and a path that reaches it meanwhile.
struct Temporary {
    _open: File,
    reached_by: PathBuf,
}

/// A decompressed image.
pub struct Unpacked {
    /// The same part of the temporary file, whose path is valid while this process lives.
    pub source: Source,
}

impl Unpacked {
    /// Decompresses an image. Returns `None` if it is not compressed, or the caller wants its bytes as they are.
    ///
    /// # Errors
    /// A compressed image is refused if it is to be changed.
    pub fn of(source: &Source, purpose: Purpose) -> Result<Option<Unpacked>> {
        let path = source.path();
        if source.format() == Some(Format::Raw) || !path.is_file() {
            return Ok(None);
        }
        let name = || path.display().to_string();
        let packed = File::open(path).with_context(name)?;
        if !is_packed(&packed).with_context(name)? {
            return Ok(None);
        }
        if let Some(advice) = purpose.advice() {
            bail!("{}: a compressed image is only read; {advice}", path.display());
        }
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        let reached_by = match done.iter().find(|(other, _)| other == path) {
            Some((_, temporary)) => temporary.reached_by.clone(),
            None => {
                let temporary = unpack(&packed).with_context(name)?;
                let reached_by = temporary.reached_by.clone();
                done.push((path.to_path_buf(), temporary));
                reached_by
            }
        };
        Ok(Some(Unpacked { source: source.with_path(reached_by) }))
    }
}

/// Returns true if a file is compressed in a known format.
fn is_packed(mut file: &File) -> io::Result<bool> {
    let mut start = [0; 8];
    let read = fill(&mut file, &mut start)?;
    file.rewind()?;
    Ok(is_compressed(&start[..read]))
}

/// Decompresses a file to a new temporary file, in which zeroes are holes.
fn unpack(packed: &File) -> Result<Temporary> {
    let folder = host::temporary_folder();
    let in_folder = || cannot_write(&folder);
    let (mut file, reached_by) = host::temporary_file(&folder).with_context(in_folder)?;
    // A small file may decompress to any size, by mistake or on purpose.
    let free = host::free_bytes(&file).with_context(in_folder)?;
    let most = free.map_or(u64::MAX, |free| free - free / KEPT_SHARE);
    let bar = progress::bytes("decompressing", Some(packed.metadata()?.len()), false);
    let mut stream = decompressed(BufReader::new(bar.wrap_read(packed)))?;
    write_sparse(&mut *stream, &mut file, most, &folder)?;
    bar.finish_and_clear();
    Ok(Temporary { _open: file, reached_by })
}

/// Begins the message of an error of the temporary file.
fn cannot_write(folder: &Path) -> String {
    format!("cannot decompress it to {} (TMPDIR names another directory)", folder.display())
}

/// Writes a stream to an empty file in `folder`, in which zeroes are holes. Other data may have at most `most` bytes.
fn write_sparse(stream: &mut dyn Read, file: &mut File, most: u64, folder: &Path) -> Result<()> {
    let in_folder = || cannot_write(folder);
    let mut step = vec![0; STEP_BYTES];
    let (mut at, mut data) = (0, 0);
    loop {
        let length = fill(stream, &mut step).context("the compressed data is damaged or cut off")?;
        if length == 0 {
            break;
        }
        if at + length as u64 > IMAGE_BYTES_MAX {
            bail!("it decompresses to more than {} TiB, which no volume has", IMAGE_BYTES_MAX >> 40);
        }
        for (n, block) in step[..length].chunks(HOLE_BYTES).enumerate() {
            if block.iter().all(|byte| *byte == 0) {
                continue;
            }
            data += block.len() as u64;
            if data > most {
                let most = BinaryBytes(most);
                bail!("{}: its data takes more than the {most} that may be used there", in_folder());
            }
            file.seek(SeekFrom::Start(at + (n * HOLE_BYTES) as u64)).with_context(in_folder)?;
            file.write_all(block).with_context(in_folder)?;
        }
        at += length as u64;
    }
    file.set_len(at).with_context(in_folder)
}

/// Reads until a buffer is full or the stream ends. Returns the number of bytes.
fn fill(stream: &mut dyn Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match stream.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// `a volume`, as gzip compresses it.
    const PACKED: [u8; 28] = [
        31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 75, 84, 40, 203, 207, 41, 205, 77, 5, 0, 173, 42, 134, 190, 8, 0, 0,
        0,
    ];

    #[test]
    fn data_beyond_the_limit_is_refused_and_zeroes_do_not_count() {
        let content = |data: usize| [vec![0; 9 << 20], vec![7; data], vec![0; 5000]].concat();
        let write = |data: usize| {
            let mut file = tempfile::tempfile().unwrap();
            let written =
                write_sparse(&mut &content(data)[..], &mut file, 3 * HOLE_BYTES as u64, Path::new("/t"));
            (written, file)
        };
        let (written, mut file) = write(3 * HOLE_BYTES);
        written.unwrap();
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert!(bytes == content(3 * HOLE_BYTES));
        let (refused, file) = write(3 * HOLE_BYTES + 1);
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("/t (TMPDIR names another directory): its data takes more than the 12.00 KiB")
        );
        assert!(file.metadata().unwrap().len() <= (9 << 20) + 3 * HOLE_BYTES as u64);
    }

    #[test]
    fn an_image_that_is_opened_twice_is_decompressed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.img.gz");
        std::fs::write(&path, PACKED).unwrap();
        let open = || Unpacked::of(&Source::parse(&path), Purpose::Read).unwrap().unwrap().source;
        let (first, second) = (open(), open());
        assert_eq!(first.path(), second.path());
        assert_eq!(std::fs::read(first.path()).unwrap(), b"a volume");
    }
}
