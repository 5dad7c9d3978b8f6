//! The manifest of a volume as this library reads it, in the form of the judge's kernel.

use f2fs::{
    Error,
    engine::{Engine, Stat},
    format::FileType,
    units::{Ino, Time},
};
use guest::{
    Bytes, Entry, Kind, Manifest,
    manifest::{self, WHOLE_BYTES},
};
use sha2::{Digest, Sha256};

/// Unit of `sparse_sha256`.
const PIECE_BYTES: usize = 4096;

/// Reads a whole volume. Parts that cannot be read are reported in the entries' `errors`.
pub fn manifest_of(volume: &Engine) -> Manifest {
    let space = volume.space();
    let mut found = Manifest {
        kernel: String::new(),
        volume: manifest::Volume {
            magic: 0xF2F5_2010,
            block_bytes: volume.superblock().block_size.bytes() as u64,
            blocks: space.blocks,
            free_blocks: space.free_blocks,
            available_blocks: space.free_blocks,
            files: space.inodes,
            free_files: space.free_inodes,
            name_bytes: 255,
        },
        entries: Vec::new(),
    };
    let mut pending = vec![(b".".to_vec(), volume.superblock().root_ino)];
    while let Some((path, ino)) = pending.pop() {
        let mut entry = match look(volume, &path, ino) {
            Ok(entry) => entry,
            Err(error) => panic!("{}: {error}", Bytes(path)),
        };
        if entry.kind == Kind::Dir {
            for child in volume.entries(ino, 0).expect("a directory") {
                let child = match child {
                    Ok(child) => child,
                    Err(error) => {
                        entry.errors.push(format!("readdir: {error}"));
                        continue;
                    }
                };
                if child.name == b"." || child.name == b".." {
                    continue;
                }
                assert_eq!(volume.lookup(ino, &child.name).ok(), Some(child.ino), "{}", Bytes(child.name));
                let kind = volume.stat(child.ino).map(|stat| stat.kind).ok();
                assert_eq!(kind, child.kind, "{}", Bytes(child.name));
                let path = if path == b"." { child.name } else { [&path, &b"/"[..], &child.name].concat() };
                pending.push((path, child.ino));
            }
        }
        found.entries.push(entry);
    }
    found.sort();
    found
}

/// Copies the kernel's times of directories changed by recovery, if they are later than the times on the
/// volume. The kernel stamps them with the time of day, so no two recoveries agree on them.
pub fn excuse_recovered_directories(kernel: &Manifest, ours: &mut Manifest) {
    for (theirs, own) in kernel.entries.iter().zip(&mut ours.entries) {
        let stamped = theirs.mtime == theirs.ctime && theirs.mtime > own.mtime;
        if theirs.path == own.path && theirs.kind == Kind::Dir && stamped {
            (own.mtime, own.ctime) = (theirs.mtime, theirs.ctime);
        }
    }
}

fn look(volume: &Engine, path: &[u8], ino: Ino) -> f2fs::Result<Entry> {
    let stat = volume.stat(ino)?;
    let time = |time: Time| (time.seconds, time.nanoseconds);
    let mut entry = Entry {
        path: Bytes(path.to_vec()),
        kind: match stat.kind {
            FileType::Regular => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::CharDevice => Kind::Char,
            FileType::BlockDevice => Kind::Block,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::Symlink => Kind::Symlink,
        },
        ino: ino.0.into(),
        mode: u32::from(stat.mode) & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        nlink: stat.links,
        size: stat.size,
        blocks: stat.sectors,
        rdev: stat.device.map(|device| (device.major, device.minor)),
        atime: time(stat.atime),
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        btime: stat.crtime.map(time),
        ..Entry::default()
    };
    entry.xattrs = volume.xattrs(ino)?.into_iter().map(|(name, value)| (Bytes(name), Bytes(value))).collect();
    for name in volume.list_xattrs(ino)? {
        assert_eq!(entry.xattrs[&Bytes(name.clone())].0, volume.get_xattr(ino, &name)?);
    }
    match stat.kind {
        FileType::Symlink => entry.target = Some(Bytes(volume.read_link(ino)?)),
        FileType::Directory => (entry.flags, entry.project) = (stat.shown_flags(), stat.project),
        FileType::Regular => read_content(volume, &stat, &mut entry)?,
        _ => {}
    }
    Ok(entry)
}

fn read_content(volume: &Engine, stat: &Stat, entry: &mut Entry) -> f2fs::Result<()> {
    match volume.require_key(stat.ino) {
        Ok(()) => {}
        Err(Error::NoKey | Error::OtherKey(_) | Error::UnusableKey(_)) => {
            let read = volume.read(stat.ino, 0, &mut [0]);
            assert!(matches!(read, Err(Error::NoKey | Error::OtherKey(_) | Error::UnusableKey(_))));
            entry.errors.push("open: ENOKEY".to_owned());
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    (entry.flags, entry.project) = (stat.shown_flags(), stat.project);
    let compressed = entry.flags & 4 != 0;
    if compressed {
        entry.compressed_blocks = stat.compression.map(|_| stat.saved_blocks);
    }
    let runs = if compressed { vec![(0, stat.size)] } else { data_runs(volume, stat)? };
    if stat.size <= WHOLE_BYTES {
        entry.sha256 = Some(digest_whole(volume, stat)?);
    } else {
        entry.sparse_sha256 = Some(digest_pieces(volume, stat, &runs)?);
    }
    if stat.size > 0 && runs != [(0, stat.size)] {
        entry.data = Some(runs);
    }
    Ok(())
}

fn data_runs(volume: &Engine, stat: &Stat) -> f2fs::Result<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some(start) = volume.seek_data(stat.ino, at)? {
        let end = volume.seek_hole(stat.ino, start)?.expect("data lies before the end");
        assert!(end > start);
        runs.push((start, end - start));
        at = end;
    }
    Ok(runs)
}

/// Reads in steps of an odd size, so that reads start and end anywhere.
fn digest_whole(volume: &Engine, stat: &Stat) -> f2fs::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0xEE; 1_000_003];
    let mut at = 0;
    loop {
        let read = volume.read(stat.ino, at, &mut buffer)?;
        if read == 0 {
            assert_eq!(at, stat.size);
            return Ok(hexadecimal(hash));
        }
        hash.update(&buffer[..read]);
        at += read as u64;
    }
}

fn digest_pieces(volume: &Engine, stat: &Stat, runs: &[(u64, u64)]) -> f2fs::Result<String> {
    let piece = PIECE_BYTES as u64;
    let mut hash = Sha256::new();
    let mut next = 0;
    for &(start, length) in runs {
        let end = (start + length).next_multiple_of(piece);
        let mut at = (start / piece * piece).max(next);
        while at < end {
            let mut bytes = [0; PIECE_BYTES];
            volume.read(stat.ino, at, &mut bytes)?;
            if bytes.iter().any(|byte| *byte != 0) {
                hash.update((at / piece).to_le_bytes());
                hash.update(bytes);
            }
            at += piece;
        }
        next = next.max(end);
    }
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
