//! A source that reads a tar stream: ustar, GNU and pax members with all their metadata.
//!
//! The stream is read once, front to back, so it may be a pipe. Extended attributes come from `SCHILY.xattr`
//! and `LIBARCHIVE.xattr` records. ACLs come from these and from the texts of `SCHILY.acl` (GNU tar, star,
//! libarchive). Sparse files come in GNU's four formats.

use std::{collections::BTreeMap, io::Read, ops::Range};

use f2fs::{
    Error, Result,
    format::{NAME_MAX, acl::Acl, inode::DeviceNumber},
    printable,
    units::Time,
};
use zerocopy::FromBytes;

use super::{
    header::{BLOCK_BYTES, TarHeader, number, text},
    pax,
    sparse::{self, RANGES_MAX, gnu},
};
use crate::{Entry, Kind, Metadata, Names, Run, Source, Xattr, entry::storable, path::components};

/// Maximum length of a path or link target in bytes. No Linux program creates longer ones.
const PATH_BYTES_MAX: u64 = 1 << 16;
/// Maximum length of the extended headers before a member in bytes.
const PAX_BYTES_MAX: u64 = 16 << 20;
/// Maximum length of the value of an attribute in bytes (Linux, `XATTR_SIZE_MAX`).
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Maximum length in bytes of the records of global headers, which every member gets. Known writers store a
/// comment there, which is no record of a member.
const GLOBAL_BYTES_MAX: usize = 64 << 10;
/// Maximum number of extended sparse headers, which hold 21 ranges each.
const SPARSE_BLOCKS_MAX: usize = RANGES_MAX / 21;

/// A source that reads a tar stream. See the module.
pub struct TarSource<R> {
    stream: R,
    /// Name of the stream, for messages.
    name: String,
    /// Bytes read so far, for messages.
    position: u64,
    /// Records of the last global extended header.
    global: Records,
    /// Unread part of the last member: bytes of its padded data, and its runs, the next one last.
    left_bytes: u64,
    runs: Vec<Range<u64>>,
    /// Path of the last member, for messages.
    path: Vec<u8>,
    /// True once a member was read. An empty stream is not an archive.
    any: bool,
    over: bool,
}

/// Metadata of the next member from extended headers.
#[derive(Debug, Clone, Default)]
struct Records {
    path: Option<Vec<u8>>,
    link_path: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Time>,
    atime: Option<Time>,
    ctime: Option<Time>,
    names: Names,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// ACLs in text form. Those in `xattrs` take precedence.
    access: Option<Acl>,
    default: Option<Acl>,
    device_major: Option<u64>,
    device_minor: Option<u64>,
    sparse: SparseRecords,
}

/// Records about holes.
#[derive(Debug, Clone, Default)]
struct SparseRecords {
    /// True if the map precedes the data (format 1.0).
    leads: bool,
    size: Option<u64>,
    name: Option<Vec<u8>>,
    /// Format 0.1: the whole map in one record.
    map: Option<Vec<(u64, u64)>>,
    /// Format 0.0: the map in one pair of records per range.
    pairs: Vec<(u64, u64)>,
    offset: Option<u64>,
}

impl Records {
    /// Bytes of all values together.
    fn bytes(&self) -> usize {
        let length = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let name = |value: &Option<String>| value.as_ref().map_or(0, String::len);
        let acl = |value: &Option<Acl>| value.as_ref().map_or(0, |acl| size_of_val(&*acl.entries));
        let xattrs = self.xattrs.iter().map(|(name, value)| size_of::<Xattr>() + name.len() + value.len());
        let pairs = self.sparse.pairs.len() + self.sparse.map.as_ref().map_or(0, Vec::len);
        [&self.path, &self.link_path, &self.sparse.name].map(length).iter().sum::<usize>()
            + name(&self.names.user)
            + name(&self.names.group)
            + acl(&self.access)
            + acl(&self.default)
            + xattrs.sum::<usize>()
            + pairs * size_of::<(u64, u64)>()
    }
}

impl<R: Read> TarSource<R> {
    /// Starts to read an uncompressed stream. See [`decompressed`](super::decompressed) for compressed ones.
    pub fn new(stream: R) -> TarSource<R> {
        TarSource::named("tar stream", stream)
    }

    /// Does the same as [`new`](Self::new). Messages call the stream `name`.
    pub fn named(name: &str, stream: R) -> TarSource<R> {
        TarSource {
            stream,
            name: name.into(),
            position: 0,
            global: Records::default(),
            left_bytes: 0,
            runs: Vec::new(),
            path: Vec::new(),
            any: false,
            over: false,
        }
    }

    fn malformed(&self, what: impl Into<String>) -> Error {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, what.into());
        let path = match self.any {
            true => format!("{}, byte {}", self.name, self.position),
            false => self.name.clone(),
        };
        Error::Host { path, source }
    }

    fn failed(&self, source: std::io::Error) -> Error {
        let path = match self.path.is_empty() {
            true => format!("{}, byte {}", self.name, self.position),
            false => format!("{}, byte {}, {}", self.name, self.position, printable::path(&self.path)),
        };
        Error::Host { path, source }
    }

    /// Fills `buf`, or fails if the stream ends inside it.
    fn read_exact(&mut self, buf: &mut [u8]) -> Result<()> {
        self.stream.read_exact(buf).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof if !self.any => self.malformed("not a tar archive"),
            std::io::ErrorKind::UnexpectedEof => {
                self.failed(std::io::Error::new(error.kind(), "the archive is truncated here"))
            }
            _ => self.failed(error),
        })?;
        self.position += buf.len() as u64;
        Ok(())
    }

    /// Reads the next block. Returns None if the stream ends before it.
    fn next_block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>> {
        let mut block = [0; BLOCK_BYTES];
        let first = loop {
            match self.stream.read(&mut block) {
                Ok(0) => return Ok(None),
                Ok(read) => break read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.failed(error)),
            }
        };
        self.position += first as u64;
        self.read_exact(&mut block[first..])?;
        Ok(Some(block))
    }

    /// Skips the unread part of the last member.
    fn skip_rest(&mut self) -> Result<()> {
        let mut sink = [0; 16 << 10];
        while self.left_bytes > 0 {
            let length = sink.len().min(usize::try_from(self.left_bytes).unwrap_or(usize::MAX));
            self.read_exact(&mut sink[..length])?;
            self.left_bytes -= length as u64;
        }
        self.runs.clear();
        Ok(())
    }

    /// Reads the data of a header that describes the next member, at most `limit` bytes.
    fn describing_data(&mut self, size: u64, limit: u64) -> Result<Vec<u8>> {
        if size > limit {
            return Err(self.malformed(format!("header of {size} bytes, at most {limit}")));
        }
        let mut data = vec![0; size.next_multiple_of(BLOCK_BYTES as u64) as usize];
        self.read_exact(&mut data)?;
        data.truncate(size as usize);
        Ok(data)
    }

    fn apply_pax(&self, data: &[u8], records: &mut Records) -> Result<()> {
        let parsed = pax::records(data).ok_or_else(|| self.malformed("malformed extended header"))?;
        for (key, value) in parsed {
            self.apply_record(key, value, records).ok_or_else(|| {
                self.malformed(format!("malformed value of {} in an extended header", printable::name(key)))
            })?;
        }
        Ok(())
    }

    /// Applies one record. Returns None if its value is malformed. An empty value withdraws an earlier
    /// record.
    fn apply_record(&self, key: &[u8], value: &[u8], records: &mut Records) -> Option<()> {
        let bytes = (!value.is_empty()).then(|| value.to_vec());
        let decimal = || if value.is_empty() { Some(None) } else { pax::decimal(value).map(Some) };
        let time = || if value.is_empty() { Some(None) } else { pax::time(value).map(Some) };
        let acl = || match value {
            b"" => Some(None),
            _ => Acl::from_text(&String::from_utf8_lossy(value)).map(Some),
        };
        match key {
            b"path" => records.path = bytes,
            b"linkpath" => records.link_path = bytes,
            b"size" => records.size = decimal()?,
            b"uid" => records.uid = decimal()?,
            b"gid" => records.gid = decimal()?,
            b"mtime" => records.mtime = time()?,
            b"atime" => records.atime = time()?,
            b"ctime" => records.ctime = time()?,
            b"uname" => records.names.user = pax::owner(value)?,
            b"gname" => records.names.group = pax::owner(value)?,
            b"SCHILY.acl.access" => records.access = acl()?.filter(|acl| !acl.is_mode_only()),
            b"SCHILY.acl.default" => records.default = acl()?.filter(|acl| !acl.entries.is_empty()),
            b"SCHILY.devmajor" => records.device_major = decimal()?,
            b"SCHILY.devminor" => records.device_minor = decimal()?,
            b"GNU.sparse.major" => records.sparse.leads = value == b"1",
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => records.sparse.size = decimal()?,
            b"GNU.sparse.name" => records.sparse.name = bytes,
            b"GNU.sparse.map" => records.sparse.map = Some(sparse::comma_pairs(value)?),
            b"GNU.sparse.offset" => records.sparse.offset = decimal()?,
            b"GNU.sparse.numbytes" => {
                let offset = records.sparse.offset.take()?;
                records.sparse.pairs.push((offset, pax::decimal(value)?));
            }
            _ => {
                let xattr = if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    Some((pax::unescaped(name), value.to_vec()))
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    Some((pax::percent_decoded(name), pax::base64(value)?))
                } else {
                    None
                };
                let xattr = xattr.filter(|(name, _)| storable(name));
                if xattr.as_ref().is_some_and(|(_, value)| value.len() > XATTR_BYTES_MAX) {
                    return None;
                }
                records.xattrs.extend(xattr);
            }
        }
        Some(())
    }

    /// Reads the member of a header. `records` come from the extended headers before it.
    fn member(
        &mut self,
        header: &TarHeader,
        block: &[u8; BLOCK_BYTES],
        records: Records,
    ) -> Result<Option<Entry>> {
        let path =
            records.sparse.name.clone().or_else(|| records.path.clone()).unwrap_or_else(|| header.path());
        let stored = match records.size {
            Some(size) => size,
            None => unsigned(&header.size).ok_or_else(|| self.bad_number("size"))?,
        };
        self.path = self.clean(&path)?;
        let Some(kind) = self.kind(header, block, &records, &path, stored)? else { return Ok(None) };
        let meta = self.metadata(header, records, &kind)?;
        Ok(Some(Entry { path: self.path.clone(), kind, meta }))
    }

    fn bad_number(&self, what: &str) -> Error {
        self.malformed(format!("{what} is not a valid number"))
    }

    /// Returns the kind of a member; None for one that is no entry.
    fn kind(
        &mut self,
        header: &TarHeader,
        block: &[u8; BLOCK_BYTES],
        records: &Records,
        path: &[u8],
        stored: u64,
    ) -> Result<Option<Kind>> {
        Ok(Some(match header.type_flag {
            // Before ustar, a directory was a file whose name ended with a slash.
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' | b'S' => self.file(header, block, records, stored)?,
            b'1' => {
                let to = self.link(header, records, path)?;
                // Some pax writers repeat the data with a hard link. The first name has it already.
                self.left_bytes = self.padded(stored)?;
                Kind::HardLink { to: self.clean(&to)? }
            }
            b'2' => Kind::Symlink { target: self.link(header, records, path)? },
            b'3' => Kind::CharDevice(self.device(header, records, path)?),
            b'4' => Kind::BlockDevice(self.device(header, records, path)?),
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            // A volume label and the continuation of a file from another volume are not entries.
            b'V' | b'M' => {
                self.left_bytes = self.padded(stored)?;
                return Ok(None);
            }
            b'D' => {
                self.left_bytes = self.padded(stored)?;
                Kind::Directory
            }
            other => {
                let what = format!("{} is of unknown type {:?}", printable::path(path), other as char);
                return Err(self.malformed(what));
            }
        }))
    }

    /// Returns the target of a link.
    fn link(&self, header: &TarHeader, records: &Records, path: &[u8]) -> Result<Vec<u8>> {
        let target = records.link_path.clone().unwrap_or_else(|| text(&header.link_name).to_vec());
        match target.is_empty() || target.len() as u64 > PATH_BYTES_MAX {
            true => Err(self.malformed(format!("link {} has no valid target", printable::path(path)))),
            false => Ok(target),
        }
    }

    /// Returns the number of a device.
    fn device(&self, header: &TarHeader, records: &Records, path: &[u8]) -> Result<DeviceNumber> {
        let major = records.device_major.or_else(|| unsigned(&header.major));
        let major = major.ok_or_else(|| self.bad_number("major"))?;
        let minor = records.device_minor.or_else(|| unsigned(&header.minor));
        let minor = minor.ok_or_else(|| self.bad_number("minor"))?;
        // Limits of Linux and of F2FS's format (`new_encode_dev`).
        if major >= 1 << 12 || minor >= 1 << 20 {
            return Err(self.malformed(format!("device {major}:{minor} of {}", printable::path(path))));
        }
        Ok(DeviceNumber { major: major as u32, minor: minor as u32 })
    }

    /// Returns the metadata of a member of this kind.
    fn metadata(&self, header: &TarHeader, records: Records, kind: &Kind) -> Result<Metadata> {
        let id = |record: Option<u64>, header: &[u8], what: &str| {
            let value = record.or_else(|| unsigned(header)).and_then(|id| u32::try_from(id).ok());
            value.ok_or_else(|| self.bad_number(what))
        };
        let name = |record: &Option<String>, field: &[u8]| {
            let field = text(field);
            let from_header = || (!field.is_empty()).then(|| String::from_utf8_lossy(field).into_owned());
            record.clone().or_else(from_header)
        };
        let seconds = number(&header.mtime).ok_or_else(|| self.bad_number("mtime"))?;
        let mut meta = Metadata {
            permissions: (number(&header.mode).ok_or_else(|| self.bad_number("mode"))? & 0o7777) as u16,
            uid: id(records.uid, &header.uid, "uid")?,
            gid: id(records.gid, &header.gid, "gid")?,
            mtime: records.mtime.unwrap_or(Time { seconds, nanoseconds: 0 }),
            atime: records.atime,
            ctime: records.ctime,
            names: Names {
                user: name(&records.names.user, &header.user),
                group: name(&records.names.group, &header.group),
            },
            ..Metadata::default()
        };
        let acls = [
            (b"system.posix_acl_access".to_vec(), records.access),
            (b"system.posix_acl_default".to_vec(), records.default.filter(|_| *kind == Kind::Directory)),
        ];
        let acls = acls.into_iter().filter_map(|(name, acl)| Some((name, acl?.to_system())));
        // The last value of a name counts.
        let xattrs: BTreeMap<Vec<u8>, Vec<u8>> = acls.chain(records.xattrs).collect();
        meta.xattrs = xattrs.into_iter().map(|(name, value)| Xattr { name, value }).collect();
        Ok(meta)
    }

    /// Reads a regular file's map of data.
    fn file(
        &mut self,
        header: &TarHeader,
        block: &[u8; BLOCK_BYTES],
        records: &Records,
        mut stored: u64,
    ) -> Result<Kind> {
        let SparseRecords { leads, size, map, pairs, .. } = &records.sparse;
        let (map, size) = if header.type_flag == b'S' && header.is_gnu() {
            let header_size = number(&block[gnu::SIZE]).and_then(|size| u64::try_from(size).ok());
            (Some(self.gnu_map(block)?), size.or(header_size))
        } else if *leads {
            let (map, taken) = self.leading_map(stored)?;
            stored -= taken;
            (Some(map), *size)
        } else if let Some(map) = map {
            (Some(map.clone()), *size)
        } else if !pairs.is_empty() {
            (Some(pairs.clone()), *size)
        } else {
            (None, Some(stored))
        };
        let bad_map =
            || self.malformed(format!("the map of holes of {} is invalid", printable::path(&self.path)));
        let size = size.filter(|size| *size <= i64::MAX as u64).ok_or_else(bad_map)?;
        let runs = match map {
            Some(map) => sparse::checked(&map, size, stored).ok_or_else(bad_map)?,
            None if size == 0 => Vec::new(),
            None => vec![Range { start: 0, end: size }],
        };
        let dense = runs.iter().map(|run| run.end - run.start).sum::<u64>() == size;
        self.left_bytes = self.padded(stored)?;
        self.runs = runs.iter().rev().cloned().collect();
        Ok(Kind::File { size, data: (!dense).then_some(runs) })
    }

    /// Reads the map of an old GNU sparse file, from its header and the blocks after it.
    fn gnu_map(&mut self, header: &[u8; BLOCK_BYTES]) -> Result<Vec<(u64, u64)>> {
        let bad = |source: &Self| source.malformed("malformed map of a sparse file");
        let mut map = sparse::gnu_pairs(&header[gnu::MAP]).ok_or_else(|| bad(self))?;
        let mut extended = header[gnu::EXTENDED] != 0;
        for _ in 0..SPARSE_BLOCKS_MAX {
            if !extended {
                return Ok(map);
            }
            let mut more = [0; BLOCK_BYTES];
            self.read_exact(&mut more)?;
            map.extend(sparse::gnu_pairs(&more[gnu::MORE]).ok_or_else(|| bad(self))?);
            extended = more[gnu::MORE_EXTENDED] != 0;
        }
        Err(bad(self))
    }

    /// Reads the map that precedes the data of a pax 1.0 sparse file. Returns it and the number of bytes that
    /// it took of `stored`.
    fn leading_map(&mut self, stored: u64) -> Result<(Vec<(u64, u64)>, u64)> {
        let mut left = stored;
        let map = sparse::leading_pairs(|| {
            let bad = || self.malformed("the map of a sparse file is longer than its data");
            left = left.checked_sub(BLOCK_BYTES as u64).ok_or_else(bad)?;
            let mut block = [0; BLOCK_BYTES];
            self.read_exact(&mut block)?;
            Ok(block)
        })?;
        map.ok_or_else(|| self.malformed("malformed map of a sparse file"))
    }

    /// Returns the size in the stream of `stored` bytes of data.
    fn padded(&self, stored: u64) -> Result<u64> {
        let padded = stored.checked_next_multiple_of(BLOCK_BYTES as u64);
        padded.ok_or_else(|| self.malformed(format!("member of {stored} bytes")))
    }

    /// Cleans a path, relative to the root of the tree. Fails if it leads out of the tree or is not a path.
    fn clean(&self, path: &[u8]) -> Result<Vec<u8>> {
        let refused = |why: &str| self.malformed(format!("path {:?} {why}", printable::path(path)));
        if path.len() as u64 > PATH_BYTES_MAX {
            return Err(self.malformed(format!("path of {} bytes", path.len())));
        }
        if path.contains(&0) {
            return Err(refused("contains a NUL"));
        }
        let mut clean = Vec::with_capacity(path.len());
        for name in components(path).filter(|name| *name != b".") {
            if name == b".." {
                return Err(refused("points outside the archive"));
            }
            if name.len() > NAME_MAX {
                return Err(refused("has a name of more than 255 bytes"));
            }
            if !clean.is_empty() {
                clean.push(b'/');
            }
            clean.extend_from_slice(name);
        }
        Ok(clean)
    }

    /// Applies a global extended header, whose records hold for all members after it.
    fn apply_global(&mut self, data: &[u8]) -> Result<()> {
        let mut global = std::mem::take(&mut self.global);
        self.apply_pax(data, &mut global)?;
        if global.path.is_some() || global.link_path.is_some() || global.sparse.name.is_some() {
            return Err(self.malformed("a global header that gives every member the same path"));
        }
        if global.bytes() > GLOBAL_BYTES_MAX {
            let bytes = global.bytes();
            let what = format!("global headers of {bytes} bytes, at most {GLOBAL_BYTES_MAX}");
            return Err(self.malformed(what));
        }
        self.global = global;
        Ok(())
    }

    /// Reads the next header: its block and its fields. Returns `None` at the end of the archive.
    fn next_header(&mut self) -> Result<Option<([u8; BLOCK_BYTES], TarHeader)>> {
        let Some(block) = self.next_block()? else {
            self.over = true;
            return match self.any {
                true => Ok(None),
                false => Err(self.malformed("empty, not a tar archive")),
            };
        };
        if block == [0; BLOCK_BYTES] {
            if !self.any {
                return Err(self.malformed("zeroes, not a tar archive"));
            }
            self.over = true;
            self.drain()?;
            return Ok(None);
        }
        let header = TarHeader::read_from_bytes(&block).expect("a header is a block");
        if !header.checksum_holds(&block) {
            return Err(self.malformed(match self.any {
                true => "a tar header is missing here",
                false => "not a tar archive",
            }));
        }
        self.any = true;
        Ok(Some((block, header)))
    }

    /// Reads the padding after the end of the archive, so that a process that writes into a pipe does not
    /// fail.
    fn drain(&mut self) -> Result<()> {
        const PADDING_MAX: u64 = 4 << 20;
        std::io::copy(&mut self.stream.by_ref().take(PADDING_MAX), &mut std::io::sink())
            .map(drop)
            .map_err(|error| self.failed(error))
    }
}

impl<R: Read> Source for TarSource<R> {
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        if self.over {
            return Ok(None);
        }
        self.skip_rest()?;
        self.path.clear();
        let mut records = self.global.clone();
        // Bytes of extended headers that the next member may still have.
        let mut left = PAX_BYTES_MAX;
        loop {
            let Some((block, header)) = self.next_header()? else { return Ok(None) };
            let size = || {
                let size = number(&header.size).and_then(|size| u64::try_from(size).ok());
                size.ok_or_else(|| self.malformed("size is not a valid number"))
            };
            match header.type_flag {
                b'x' | b'X' => {
                    let data = self.describing_data(size()?, left)?;
                    left -= data.len() as u64;
                    self.apply_pax(&data, &mut records)?;
                }
                b'g' => {
                    let data = self.describing_data(size()?, PAX_BYTES_MAX)?;
                    self.apply_global(&data)?;
                    records = self.global.clone();
                }
                b'L' => {
                    let data = self.describing_data(size()?, PATH_BYTES_MAX)?;
                    records.path.get_or_insert_with(|| text(&data).to_vec());
                }
                b'K' => {
                    let data = self.describing_data(size()?, PATH_BYTES_MAX)?;
                    records.link_path.get_or_insert_with(|| text(&data).to_vec());
                }
                _ => match self.member(&header, &block, records)? {
                    Some(entry) => return Ok(Some(entry)),
                    None => {
                        self.skip_rest()?;
                        (records, left) = (self.global.clone(), PAX_BYTES_MAX);
                    }
                },
            }
        }
    }

    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<Run>> {
        let Some(mut run) = self.runs.pop() else { return Ok(None) };
        let length = buf.len().min(usize::try_from(run.end - run.start).unwrap_or(usize::MAX));
        self.read_exact(&mut buf[..length])?;
        self.left_bytes -= length as u64;
        let offset = run.start;
        run.start += length as u64;
        if run.start < run.end {
            self.runs.push(run);
        }
        Ok((length > 0).then_some(Run { offset, length }))
    }
}

/// Parses a number of a header that must not be negative.
fn unsigned(field: &[u8]) -> Option<u64> {
    number(field).and_then(|value| u64::try_from(value).ok())
}
