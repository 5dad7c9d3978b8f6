//! A sink that writes a tar stream in POSIX pax format, as GNU tar, bsdtar and star read it.
//!
//! Data that does not fit a ustar header goes to an extended header before it: long or unusual names, large
//! numbers, times with nanoseconds, and extended attributes. An attribute is `SCHILY.xattr.NAME`, escaped as
//! GNU tar does. ACLs are also stored as `SCHILY.acl.access` and `SCHILY.acl.default`, the only form that GNU
//! tar reads. Sparse files can be stored as GNU tar does (pax format 1.0). tar cannot store sockets, so they
//! are lost.

use std::{collections::VecDeque, io::Write, ops::Range};

use f2fs::{Error, Result, format::acl::Acl, printable, units::Time};
use zerocopy::{FromZeros, IntoBytes};

use super::{
    header::{BLOCK_BYTES, TarHeader},
    pax,
    sparse::{self, RANGES_MAX},
};
use crate::{
    Entry, Kind, Metadata,
    export::{Loss, Sink},
    path::check_components,
};

/// A stream's length is a multiple of this many bytes. Tape drives once required it, and tar still writes it.
const RECORD_BYTES: u64 = 10_240;

/// Minimum number of bytes of holes in a file whose holes are large.
const LARGE_HOLES_BYTES: u64 = 1 << 20;

/// The holes of files in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// They stay holes, which not every reader of archives supports.
    Kept,
    /// Those of a file stay holes if they are at least 1 MiB and more than its data; others become zeroes. So the zeroes
    /// of a stream are not more than its data, and 1 MiB for each file.
    LargeKept,
    /// They become zeroes.
    Filled,
}

impl Holes {
    /// Returns true if a file with these ranges of data keeps its holes.
    fn stay(self, data: &[Range<u64>], size: u64) -> bool {
        let data_bytes: u64 = data.iter().map(|range| range.end - range.start).sum();
        match self {
            Holes::Kept => true,
            Holes::LargeKept => size - data_bytes >= data_bytes.max(LARGE_HOLES_BYTES),
            Holes::Filled => false,
        }
    }
}

/// A stream that is being written. See the module.
pub struct TarSink<W> {
    stream: W,
    /// Bytes written.
    position: u64,
    holes: Holes,
    member: Option<Member>,
    losses: Vec<Loss>,
    /// True if the stream has ended early.
    is_broken: bool,
}

/// The file whose data is being written.
struct Member {
    path: Vec<u8>,
    /// Stored ranges of the file that are still to be written, in order.
    stored: VecDeque<Range<u64>>,
}

impl<W: Write> TarSink<W> {
    /// Makes a sink that writes to `stream`, which should be buffered.
    pub fn new(stream: W, holes: Holes) -> TarSink<W> {
        TarSink { stream, position: 0, holes, member: None, losses: Vec::new(), is_broken: false }
    }

    /// Returns the stream. The sink must be finished.
    pub fn into_inner(self) -> W {
        self.stream
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Err(source) = self.stream.write_all(bytes) {
            self.is_broken = true;
            return Err(Error::Host { path: format!("tar stream, byte {}", self.position), source });
        }
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn zeroes(&mut self, mut count: u64) -> Result<()> {
        let zeroes = [0; 16 << 10];
        while count > 0 {
            let length = count.min(zeroes.len() as u64);
            self.write(&zeroes[..length as usize])?;
            count -= length;
        }
        Ok(())
    }

    fn pad(&mut self, unit: u64) -> Result<()> {
        self.zeroes(self.position.next_multiple_of(unit) - self.position)
    }

    /// Completes the last member. Bytes that no run covered are zero.
    fn finish_member(&mut self) -> Result<()> {
        let Some(member) = self.member.take() else { return Ok(()) };
        for range in member.stored {
            self.zeroes(range.end - range.start)?;
        }
        self.pad(BLOCK_BYTES as u64)
    }

    fn begin_file(&mut self, entry: &Entry, size: u64, data: Option<&[Range<u64>]>) -> Result<()> {
        let kept = data.filter(|data| self.holes.stay(data, size));
        let stored = match kept {
            Some(data) => sparse::fewer(data, RANGES_MAX),
            None => Vec::from_iter((size > 0).then_some(0..size)),
        };
        let length: u64 = stored.iter().map(|range| range.end - range.start).sum();
        let mut records = Records::default();
        if kept.is_some() {
            let map = sparse_map(&stored, size);
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", &entry.path);
            records.add(b"GNU.sparse.realsize", size.to_string().as_bytes());
            let path = sparse_path(&entry.path);
            self.header(&path, &entry.meta, b'0', length + map.len() as u64, b"", None, records)?;
            self.write(&map)?;
        } else {
            self.header(&entry.path, &entry.meta, b'0', length, b"", None, records)?;
        }
        self.member = Some(Member { path: entry.path.clone(), stored: stored.into() });
        Ok(())
    }

    /// Writes a header, preceded by an extended header for everything that does not fit into it.
    #[allow(clippy::too_many_arguments)]
    fn header(
        &mut self,
        path: &[u8],
        meta: &Metadata,
        type_flag: u8,
        size: u64,
        link: &[u8],
        device: Option<(u32, u32)>,
        mut records: Records,
    ) -> Result<()> {
        let mut header = TarHeader::new_zeroed();
        header.magic = *b"ustar\x0000";
        header.type_flag = type_flag;
        if !put_path(&mut header, path) {
            records.add(b"path", path);
        }
        if !put_text(&mut header.link_name, link) {
            records.add(b"linkpath", link);
        }
        let mut number = |field: &mut [u8], value: u64, key: &[u8]| {
            if !put_number(field, value) {
                records.add(key, value.to_string().as_bytes());
            }
        };
        number(&mut header.mode, meta.permissions.into(), b"mode");
        number(&mut header.uid, meta.uid.into(), b"uid");
        number(&mut header.gid, meta.gid.into(), b"gid");
        number(&mut header.size, size, b"size");
        let (major, minor) = device.unwrap_or_default();
        number(&mut header.major, major.into(), b"SCHILY.devmajor");
        number(&mut header.minor, minor.into(), b"SCHILY.devminor");
        let seconds = u64::try_from(meta.mtime.seconds).ok();
        let fits = seconds.is_some_and(|seconds| put_number(&mut header.mtime, seconds));
        if !fits {
            put_number(&mut header.mtime, 0);
        }
        if !fits || meta.mtime.nanoseconds != 0 {
            records.add(b"mtime", decimal_time(meta.mtime).as_bytes());
        }
        // A hard link is a further name; the member of the first name has these records.
        if type_flag != b'1' {
            for (key, time) in [(&b"atime"[..], meta.atime), (b"ctime", meta.ctime)] {
                if let Some(time) = time {
                    records.add(key, decimal_time(time).as_bytes());
                }
            }
            for xattr in &meta.xattrs {
                records.add(&[b"SCHILY.xattr.", &*pax::escaped(&xattr.name)].concat(), &xattr.value);
                if let Some(which) = xattr.name.strip_prefix(b"system.posix_acl_") {
                    if let Ok(acl) = Acl::from_system(&xattr.value) {
                        records.add(&[b"SCHILY.acl.", which].concat(), acl.to_text().as_bytes());
                    }
                }
            }
        }
        if !put_text(&mut header.user, meta.names.user.as_deref().unwrap_or("").as_bytes())
            || !put_text(&mut header.group, meta.names.group.as_deref().unwrap_or("").as_bytes())
        {
            records.add(b"uname", meta.names.user.as_deref().unwrap_or("").as_bytes());
            records.add(b"gname", meta.names.group.as_deref().unwrap_or("").as_bytes());
        }
        if !records.bytes.is_empty() {
            self.extended(&records.bytes, &header)?;
        }
        self.put_header(header)
    }

    fn extended(&mut self, records: &[u8], of: &TarHeader) -> Result<()> {
        let mut header = TarHeader::new_zeroed();
        header.magic = of.magic;
        header.type_flag = b'x';
        header.mtime = of.mtime;
        put_text(&mut header.name, b"PaxHeaders/entry");
        for field in [&mut header.mode, &mut header.uid, &mut header.gid] {
            put_number(field, 0);
        }
        put_number(&mut header.mode, 0o644);
        if !put_number(&mut header.size, records.len() as u64) {
            return Err(Error::Unsupported("an extended header of more than 8 GiB".into()));
        }
        self.put_header(header)?;
        self.write(records)?;
        self.pad(BLOCK_BYTES as u64)
    }

    fn put_header(&mut self, mut header: TarHeader) -> Result<()> {
        header.checksum = [b' '; 8];
        let sum: u32 = header.as_bytes().iter().map(|byte| u32::from(*byte)).sum();
        header.checksum[..7].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.write(header.as_bytes())
    }
}

impl<W: Write> Sink for TarSink<W> {
    fn entry(&mut self, entry: &Entry) -> Result<bool> {
        self.finish_member()?;
        if !entry.path.is_empty() {
            check_components(&entry.path)?;
        }
        let plain = |sink: &mut Self, type_flag, link: &[u8], device| {
            sink.header(&entry.path, &entry.meta, type_flag, 0, link, device, Records::default())
        };
        match &entry.kind {
            Kind::Directory => {
                let path = if entry.path.is_empty() { b"./".to_vec() } else { [&*entry.path, b"/"].concat() };
                self.header(&path, &entry.meta, b'5', 0, b"", None, Records::default())
            }
            Kind::File { size, data } => self.begin_file(entry, *size, data.as_deref()),
            Kind::HardLink { to } => check_components(to).and_then(|()| plain(self, b'1', to, None)),
            Kind::Symlink { target } => plain(self, b'2', target, None),
            Kind::CharDevice(number) => plain(self, b'3', b"", Some((number.major, number.minor))),
            Kind::BlockDevice(number) => plain(self, b'4', b"", Some((number.major, number.minor))),
            Kind::Fifo => plain(self, b'6', b"", None),
            Kind::Socket => {
                let error = Error::Unsupported("tar archives cannot contain sockets".into());
                self.losses.push(Loss { path: entry.path.clone(), error, is_tolerated: true });
                return Ok(false);
            }
        }?;
        Ok(true)
    }

    fn run(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut offset, mut bytes) = (offset, bytes);
        while !bytes.is_empty() {
            let member = self.member.as_mut().expect("runs come after a file's entry");
            let Some(range) = member.stored.front_mut() else {
                let what = format!("{}: data past its end", printable::path(&member.path));
                return Err(Error::Invalid(what.into()));
            };
            // Bytes that no run covered are zero, or belong to a hole that is not stored.
            let before = offset.min(range.end).saturating_sub(range.start);
            range.start += before;
            let length = (range.end - range.start).min(bytes.len() as u64) as usize;
            range.start += length as u64;
            if range.start == range.end {
                member.stored.pop_front();
            }
            self.zeroes(before)?;
            let (now, rest) = bytes.split_at(length);
            self.write(now)?;
            (offset, bytes) = (offset + length as u64, rest);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.finish_member()?;
        self.zeroes(2 * BLOCK_BYTES as u64)?;
        self.pad(RECORD_BYTES)?;
        self.stream
            .flush()
            .map_err(|source| Error::Host { path: format!("tar stream, byte {}", self.position), source })
    }

    fn losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }
}

/// Records of an extended header.
#[derive(Default)]
struct Records {
    bytes: Vec<u8>,
}

impl Records {
    /// Adds `LENGTH KEY=VALUE\n`. LENGTH includes its own digits.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut digits = 1;
        while (rest + digits).to_string().len() != digits {
            digits += 1;
        }
        self.bytes.extend_from_slice((rest + digits).to_string().as_bytes());
        self.bytes.extend_from_slice(&[b" ", key, b"=", value, b"\n"].concat());
    }
}

/// Formats the map that precedes a sparse file's data: one number per line, padded to whole blocks.
fn sparse_map(stored: &[Range<u64>], size: u64) -> Vec<u8> {
    // Like GNU tar, marks the end by an empty range if the data does not reach it.
    let end = stored.last().is_none_or(|range| range.end < size).then_some(size..size);
    let ranges: Vec<&Range<u64>> = stored.iter().chain(&end).collect();
    let mut map = format!("{}\n", ranges.len());
    for range in ranges {
        map += &format!("{}\n{}\n", range.start, range.end - range.start);
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK_BYTES), 0);
    map
}

/// Returns the name that a reader without support for sparse files sees.
fn sparse_path(path: &[u8]) -> Vec<u8> {
    let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    [&path[..at], b"GNUSparseFile.0/", &path[at..]].concat()
}

/// Stores a path in name and prefix. Returns `false` if a reader would not get the same path back.
fn put_path(header: &mut TarHeader, path: &[u8]) -> bool {
    if put_text(&mut header.name, path) {
        return true;
    }
    // The part before the slash may have 155 bytes, the part after it 100.
    let from = path.len().saturating_sub(header.name.len() + 1).max(1);
    let slash = (from..path.len().saturating_sub(1)).find(|at| path[*at] == b'/');
    match slash.filter(|at| *at <= header.tail.len() && path.is_ascii()) {
        Some(at) => {
            header.name = [0; 100];
            put_text(&mut header.tail, &path[..at]) && put_text(&mut header.name, &path[at + 1..])
        }
        None => false,
    }
}

/// Stores as much of a text as fits into a field. Returns `false` if the text also needs an extended header:
/// it does not fit, or it is not ASCII, whose encoding only the extended header defines.
fn put_text(field: &mut [u8], text: &[u8]) -> bool {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text[..length]);
    length == text.len() && text.is_ascii() && !text.contains(&0)
}

/// Stores a number in octal digits. If it does not fit, stores zero and returns `false`.
fn put_number(field: &mut [u8], value: u64) -> bool {
    let digits = field.len() - 1;
    let text = format!("{value:0digits$o}");
    let fits = text.len() == digits;
    let text = if fits { text } else { "0".repeat(digits) };
    field[..digits].copy_from_slice(text.as_bytes());
    field[digits] = 0;
    fits
}

/// Formats a time with all digits of the fraction. Before 1970, the fraction counts towards zero.
fn decimal_time(time: Time) -> String {
    match (time.seconds, time.nanoseconds) {
        (seconds, 0) => seconds.to_string(),
        (-1, nanoseconds) => format!("-0.{:09}", 1_000_000_000 - nanoseconds),
        (seconds @ ..0, nanoseconds) => format!("{}.{:09}", seconds + 1, 1_000_000_000 - nanoseconds),
        (seconds, nanoseconds) => format!("{seconds}.{nanoseconds:09}"),
    }
}
