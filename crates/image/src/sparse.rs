//! Android sparse images (AOSP, system/core/libsparse/sparse_format.h), read in place and written.
//!
//! *Invariant*: memory is bounded by the number of chunks, of which there are at most [`CHUNKS_MAX`].

use std::{
    io::{self, Seek, SeekFrom, Write},
    ops::Range,
    sync::Arc,
};

use block::{Device, FileDevice, Geometry, data_ranges};
use crc32fast::Hasher;

use crate::bytes::{invalid, little, never_written, read as read_bytes};

/// First bytes of a sparse image.
pub const MAGIC: [u8; 4] = [0x3A, 0xFF, 0x26, 0xED];
const HEADER_BYTES: u64 = 28;
const CHUNK_HEADER_BYTES: u64 = 12;
const RAW: u64 = 0xCAC1;
const FILL: u64 = 0xCAC2;
const DONT_CARE: u64 = 0xCAC3;
const CRC32: u64 = 0xCAC4;
/// Maximum number of chunks that are kept, which take 100 MiB.
const CHUNKS_MAX: usize = 4 << 20;
/// Maximum number of parts in an answer about holes.
const PARTS_MAX: usize = 4096;
/// Block of a written image in bytes, as img2simg has it.
const BLOCK_BYTES: usize = 4096;
/// Bytes read and written at once.
const STEP_BYTES: usize = 1 << 20;
/// Maximum length of a written chunk in blocks: img2simg's.
const CHUNK_BLOCKS_MAX: u64 = (64 << 20) / BLOCK_BYTES as u64;

/// Content of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Bytes of the file from this offset on.
    Raw(u64),
    /// A pattern, repeated.
    Fill([u8; 4]),
}

/// A run of bytes of the image. The image has zeroes between the chunks.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    start: u64,
    end: u64,
    content: Content,
}

/// A part of a range: its content, or None for zeroes, and its bytes.
type Piece = (Option<Content>, Range<u64>);

/// The content of a sparse image, to be read only.
pub struct SparseImage {
    file: Arc<FileDevice>,
    size_bytes: u64,
    chunks: Vec<Chunk>,
}

/// Chunks under construction, with the sums of the content before a place.
#[derive(Default)]
struct Index {
    chunks: Vec<Chunk>,
    /// The end of the content so far, the expected sum of all of it, and the place of the sum in the file.
    sums: Vec<(u64, u32, u64)>,
}

impl SparseImage {
    /// Reads the headers of all chunks, and checks the sums of the content if the image has any.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with the place of damage; errors of the file.
    pub fn open(file: Arc<FileDevice>) -> io::Result<SparseImage> {
        let header = read_bytes(&*file, 0, HEADER_BYTES as usize)?.ok_or_else(|| cut_off(0))?;
        let major = little(&header[4..6]);
        let (header_bytes, chunk_header_bytes) = (little(&header[8..10]), little(&header[10..12]));
        let (block_bytes, blocks) = (little(&header[12..16]), little(&header[16..20]));
        let is_known = major == 1 && header_bytes >= HEADER_BYTES && chunk_header_bytes >= CHUNK_HEADER_BYTES;
        if !is_known || block_bytes == 0 || block_bytes % 4 != 0 {
            return Err(invalid(format!(
                "Android sparse image: header with version {major}, {header_bytes} and {chunk_header_bytes} bytes of headers, \
                 blocks of {block_bytes} bytes"
            )));
        }
        let mut index = Index::default();
        let (mut at, mut content_at) = (header_bytes, 0);
        for _ in 0..little(&header[20..24]) {
            let blocks_left = blocks - content_at / block_bytes;
            (at, content_at) =
                index.add(&file, at, content_at, (chunk_header_bytes, block_bytes, blocks_left))?;
        }
        let size_bytes = blocks * block_bytes;
        if content_at != size_bytes {
            return Err(invalid(format!(
                "Android sparse image: the chunks have {content_at} bytes and the header {size_bytes}"
            )));
        }
        let image = SparseImage { file, size_bytes, chunks: index.chunks };
        image.check_sums(&index.sums)?;
        Ok(image)
    }

    /// Splits a range at the ends of the chunks.
    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + use<'_> {
        let mut next = self.chunks.partition_point(|chunk| chunk.end <= range.start);
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let from = at;
            let chunk = self.chunks.get(next).filter(|chunk| chunk.start < range.end);
            match chunk {
                Some(chunk) if chunk.start <= at => {
                    at = chunk.end.min(range.end);
                    next += 1;
                    let content = match chunk.content {
                        Content::Raw(source) => Content::Raw(source + (from - chunk.start)),
                        Content::Fill(mut pattern) => {
                            pattern.rotate_left(((from - chunk.start) % 4) as usize);
                            Content::Fill(pattern)
                        }
                    };
                    Some((Some(content), from..at))
                }
                other => {
                    at = other.map_or(range.end, |chunk| chunk.start);
                    Some((None, from..at))
                }
            }
        })
    }

    /// Compares the sums with the content. A reader of libsparse counts a gap as zeroes, its writer leaves gaps out; either
    /// sum is right.
    fn check_sums(&self, sums: &[(u64, u32, u64)]) -> io::Result<()> {
        let (mut with_gaps, mut without_gaps, mut done) = (Hasher::new(), Hasher::new(), 0);
        let mut buf = Vec::new();
        for (end, expected, place) in sums {
            for (content, range) in self.pieces(done..*end) {
                let length = range.end - range.start;
                let part = match content {
                    None => {
                        with_gaps.combine(&repeated([0; 4], length / 4));
                        continue;
                    }
                    Some(Content::Fill(pattern)) => repeated(pattern, length / 4),
                    Some(Content::Raw(source)) => self.sum_of(source, length, &mut buf)?,
                };
                with_gaps.combine(&part);
                without_gaps.combine(&part);
            }
            done = *end;
            if ![&with_gaps, &without_gaps].iter().any(|sum| (*sum).clone().finalize() == *expected) {
                return Err(invalid(format!(
                    "Android sparse image: the checksum at byte {place} does not match the content before it"
                )));
            }
        }
        Ok(())
    }

    fn sum_of(&self, source: u64, length: u64, buf: &mut Vec<u8>) -> io::Result<Hasher> {
        let mut hasher = Hasher::new();
        buf.resize(STEP_BYTES, 0);
        for step in (0..length).step_by(STEP_BYTES) {
            let part = &mut buf[..(length - step).min(STEP_BYTES as u64) as usize];
            self.file.read(source + step, part)?;
            hasher.update(part);
        }
        Ok(hasher)
    }
}

impl Index {
    /// Reads a chunk at `at`. Returns the end of the chunk in the file, and the end of the content so far.
    fn add(
        &mut self,
        file: &FileDevice,
        at: u64,
        content_at: u64,
        (header_bytes, block_bytes, blocks_left): (u64, u64, u64),
    ) -> io::Result<(u64, u64)> {
        let header = read_bytes(file, at, header_bytes as usize)?.ok_or_else(|| cut_off(at))?;
        let (kind, blocks, length) = (little(&header[..2]), little(&header[4..8]), little(&header[8..12]));
        let body = match kind {
            RAW => blocks * block_bytes,
            FILL | CRC32 => 4,
            _ => 0,
        };
        let adds = if kind == CRC32 { 0 } else { blocks };
        let is_known = [RAW, FILL, DONT_CARE, CRC32].contains(&kind);
        if !is_known || adds > blocks_left || length != header_bytes + body {
            return Err(invalid(format!(
                "Android sparse image: chunk at byte {at} of type {kind:#06x} with {blocks} blocks in {length} bytes; \
                 {blocks_left} blocks are left"
            )));
        }
        let (body_at, next) = (at + header_bytes, at + header_bytes + body);
        if !file.geometry().contains(body_at, body) {
            return Err(cut_off(body_at));
        }
        let end = content_at + adds * block_bytes;
        let word = || -> io::Result<[u8; 4]> {
            let mut word = [0; 4];
            file.read(body_at, &mut word)?;
            Ok(word)
        };
        match kind {
            RAW => self.push(content_at, end, Content::Raw(body_at)),
            FILL => self.push(content_at, end, Content::Fill(word()?)),
            CRC32 => self.sums.push((end, u32::from_le_bytes(word()?), at)),
            _ => {}
        }
        if self.chunks.len() + self.sums.len() > CHUNKS_MAX {
            return Err(invalid(format!(
                "Android sparse image: more than {CHUNKS_MAX} chunks; convert it with simg2img"
            )));
        }
        Ok((next, end))
    }

    /// Adds a chunk, or continues the last one.
    fn push(&mut self, start: u64, end: u64, content: Content) {
        match self.chunks.last_mut() {
            _ if start == end => {}
            Some(last) if last.end == start && last.content == content => last.end = end,
            _ => self.chunks.push(Chunk { start, end, content }),
        }
    }
}

fn cut_off(at: u64) -> io::Error {
    invalid(format!("Android sparse image: it ends before the content at byte {at}; is the image cut off?"))
}

/// Returns the sum of a word repeated `count` times, in logarithmic time.
fn repeated(word: [u8; 4], mut count: u64) -> Hasher {
    let (mut sum, mut power) = (Hasher::new(), Hasher::new());
    power.update(&word);
    while count > 0 {
        if count & 1 == 1 {
            sum.combine(&power);
        }
        let half = power.clone();
        power.combine(&half);
        count >>= 1;
    }
    sum
}

impl Device for SparseImage {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes, sector_bytes: block::ATOMIC_BYTES as u32 }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        for (content, range) in self.pieces(offset_bytes..offset_bytes + buf.len() as u64) {
            let part = &mut buf[(range.start - offset_bytes) as usize..(range.end - offset_bytes) as usize];
            match content {
                None => part.fill(0),
                Some(Content::Raw(source)) => self.file.read(source, part)?,
                Some(Content::Fill(pattern)) => {
                    part.iter_mut().zip(pattern.iter().cycle()).for_each(|(byte, fill)| *byte = *fill);
                }
            }
        }
        Ok(())
    }

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        let pieces = self.pieces(range).take(PARTS_MAX);
        let is_hole = |content| matches!(content, None | Some(Content::Fill([0, 0, 0, 0])));
        pieces.map(|(content, bytes)| (bytes.end - bytes.start, is_hole(content))).collect()
    }

    never_written!();
}

/// A sparse image under construction.
struct Writer<'a, W> {
    out: &'a mut W,
    /// The run of blocks that is not yet a chunk: its type, its pattern and its length in blocks.
    run: Option<(u64, [u8; 4], u64)>,
    /// Place of the run's header.
    run_at: u64,
    chunks: u32,
}

/// An error of [`write`].
#[derive(Debug)]
pub enum WriteError {
    /// The device cannot be read.
    Source(io::Error),
    /// The image cannot be written.
    Image(io::Error),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> WriteError {
        WriteError::Image(error)
    }
}

/// Writes `device` as a sparse image. Blocks outside of the `used` ranges, which ascend, get no content: a program that
/// writes the image to a device leaves them as they are. `progress` is called with the bytes done.
///
/// # Errors
/// [`WriteError::Source`] with an error of the device, [`WriteError::Image`] with one of `out` or with
/// [`io::ErrorKind::Unsupported`] for a device of 16 TiB or more.
pub fn write<W: Write + Seek>(
    device: &dyn Device,
    used: impl IntoIterator<Item = Range<u64>>,
    out: &mut W,
    mut progress: impl FnMut(u64),
) -> Result<(), WriteError> {
    let size = device.geometry().size_bytes;
    let unit = BLOCK_BYTES as u64;
    let blocks = u32::try_from(size.div_ceil(unit))
        .map_err(|_| io::Error::new(io::ErrorKind::Unsupported, "a sparse image has less than 16 TiB"))?;
    let start = out.stream_position()?;
    out.write_all(&[0; HEADER_BYTES as usize])?;
    let mut writer = Writer { out, run: None, run_at: 0, chunks: 0 };
    let mut buf = vec![0; STEP_BYTES];
    let mut done = 0;
    for range in used {
        // Whole blocks, each once.
        let first = (range.start / unit).max(done);
        let last = range.end.min(size).div_ceil(unit);
        if first >= last {
            continue;
        }
        writer.add(DONT_CARE, [0; 4], first - done, &[])?;
        done = first;
        for data in data_ranges(device, first * unit..size.min(last * unit)) {
            let start = (data.start / unit).max(done);
            writer.add(FILL, [0; 4], start - done, &[])?;
            done = data.end.div_ceil(unit).max(start);
            for at in (start * unit..done * unit).step_by(STEP_BYTES) {
                let step = &mut buf[..(done * unit - at).min(STEP_BYTES as u64) as usize];
                let held = (size - at).min(step.len() as u64) as usize;
                device.read(at, &mut step[..held]).map_err(WriteError::Source)?;
                step[held..].fill(0);
                writer.add_blocks(step)?;
                progress(at + held as u64);
            }
        }
        // A hole is zeroes that a program must write.
        writer.add(FILL, [0; 4], last - done, &[])?;
        done = last;
    }
    writer.add(DONT_CARE, [0; 4], u64::from(blocks) - done, &[])?;
    writer.end_run()?;
    let chunks = writer.chunks;
    let mut header = Vec::from(MAGIC);
    header.extend([1, 0, 0, 0, HEADER_BYTES as u8, 0, CHUNK_HEADER_BYTES as u8, 0]);
    for number in [BLOCK_BYTES as u32, blocks, chunks, 0] {
        header.extend(number.to_le_bytes());
    }
    let end = out.stream_position()?;
    out.seek(SeekFrom::Start(start))?;
    out.write_all(&header)?;
    out.seek(SeekFrom::Start(end))?;
    Ok(())
}

impl<W: Write + Seek> Writer<'_, W> {
    /// Adds whole blocks with content, as few runs as possible.
    fn add_blocks(&mut self, bytes: &[u8]) -> io::Result<()> {
        let kind = |block: &[u8]| {
            let word: [u8; 4] = block[..4].try_into().expect("a block has a word");
            block.chunks_exact(4).all(|other| other == word).then_some(word)
        };
        let mut from = 0;
        while from < bytes.len() {
            let first = kind(&bytes[from..from + BLOCK_BYTES]);
            let rest = bytes[from..].chunks_exact(BLOCK_BYTES);
            let blocks = rest.take_while(|block| kind(block) == first).count();
            let end = from + blocks * BLOCK_BYTES;
            match first {
                Some(word) => self.add(FILL, word, blocks as u64, &[])?,
                None => self.add(RAW, [0; 4], blocks as u64, &bytes[from..end])?,
            }
            from = end;
        }
        Ok(())
    }

    fn add(&mut self, kind: u64, word: [u8; 4], mut blocks: u64, mut bytes: &[u8]) -> io::Result<()> {
        while blocks > 0 {
            let is_same = self.run.is_some_and(|run| (run.0, run.1) == (kind, word));
            let room = match self.run.filter(|_| is_same) {
                Some((RAW, _, length)) => CHUNK_BLOCKS_MAX - length,
                Some((_, _, length)) => u64::from(u32::MAX) - length,
                None => 0,
            };
            if room == 0 {
                self.end_run()?;
                self.run_at = self.out.stream_position()?;
                self.out.write_all(&[0; CHUNK_HEADER_BYTES as usize])?;
                self.run = Some((kind, word, 0));
                continue;
            }
            let part = room.min(blocks);
            if kind == RAW {
                let (now, later) = bytes.split_at(part as usize * BLOCK_BYTES);
                self.out.write_all(now)?;
                bytes = later;
            }
            if let Some((_, _, length)) = &mut self.run {
                *length += part;
            }
            blocks -= part;
        }
        Ok(())
    }

    /// Completes the chunk of the run.
    fn end_run(&mut self) -> io::Result<()> {
        let Some((kind, word, blocks)) = self.run.take() else { return Ok(()) };
        if kind == FILL {
            self.out.write_all(&word)?;
        }
        let end = self.out.stream_position()?;
        let mut header = Vec::from((kind as u16).to_le_bytes());
        header.extend([0, 0]);
        header.extend((blocks as u32).to_le_bytes());
        header.extend(((end - self.run_at) as u32).to_le_bytes());
        self.out.seek(SeekFrom::Start(self.run_at))?;
        self.out.write_all(&header)?;
        self.out.seek(SeekFrom::Start(end))?;
        self.chunks += 1;
        Ok(())
    }
}
