//! Hostile archives: memory and work are bounded by the bytes of the stream.

mod support;

use std::fs::File;

use f2fs::{
    Error, Result, engine,
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::Ino,
};
use f2fs_tree::{FillOptions, Filled, Source, TarSource, fill};
use support::{NOW, device};

const MIB: usize = 1 << 20;

/// Makes a member of a type with its content.
fn member(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..4].copy_from_slice(b"name");
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_mtime(1000);
    header.set_uid(1);
    header.set_gid(2);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// Makes an extended header of a type with one record.
fn extended(kind: u8, key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (1..9).map(|digits| digits + rest).find(|n| n.to_string().len() + rest == *n).unwrap();
    member(kind, &[format!("{length} {key}=").as_bytes(), value, b"\n"].concat())
}

/// Reads the entries of an archive to its end.
fn read(parts: &[Vec<u8>]) -> Result<Vec<f2fs_tree::Entry>> {
    let bytes = [&parts.concat()[..], &[0; 1024]].concat();
    let mut source = TarSource::new(&bytes[..]);
    let mut entries = Vec::new();
    while let Some(entry) = source.next_entry()? {
        entries.push(entry);
    }
    Ok(entries)
}

/// Fills a new volume from an archive with one directory at this path.
fn fill_with(path: &[u8]) -> Result<Filled> {
    let bytes = [extended(b'x', "path", path), member(b'5', b""), vec![0; 1024]].concat();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (image, size) = (dir.path().join("image"), 256 * MIB as u64);
    File::create(&image).and_then(|file| file.set_len(size)).unwrap();
    let options = mkfs::Options::new([0x5A; 16]);
    let plan = Plan::new(&options, &[DeviceSize { path: String::new(), bytes: size }]).unwrap();
    let options = engine::Options::new(|| NOW);
    let mut new = NewVolume::begin(device(&image), &plan, DeviceContent::Zeroes, options)?;
    fill(new.volume(), Ino(3), &mut TarSource::new(&bytes[..]), FillOptions::default())
}

#[test]
fn a_deep_path_takes_memory_for_its_bytes_only() {
    let path = |depth: usize| vec!["d"; depth].join("/").into_bytes();
    assert_eq!(fill_with(&path(10_000)).unwrap().entries, 10_000);
    // With a copy of the path for each directory above it, this takes 2 GiB.
    let error = fill_with(&path(32_767)).unwrap_err();
    assert!(matches!(&error, Error::Invalid(what) if what.contains("nested directories")), "{error}");
}

#[test]
fn extended_headers_are_limited_together() {
    let value = vec![b'v'; 6 * MIB];
    let header = |n: u32| extended(b'x', &format!("comment.{n}"), &value);
    let error = read(&[header(1), header(2), header(3), member(b'0', b"")]).unwrap_err();
    assert!(error.to_string().contains("header of"), "{error}");
    // Each member has its own limit.
    let two = [header(1), header(2), member(b'0', b"")].concat();
    assert_eq!(read(&[two.clone(), two]).unwrap().len(), 2);
}

#[test]
fn global_headers_are_limited_together() {
    let global = |n: u32| extended(b'g', &format!("SCHILY.xattr.user.{n}"), &[b'v'; 20_000]);
    assert_eq!(read(&[global(1), global(2), member(b'0', b"")]).unwrap()[0].meta.xattrs.len(), 2);
    let error = read(&[global(1), global(2), global(3), global(4), member(b'0', b"")]).unwrap_err();
    assert!(error.to_string().contains("global headers"), "{error}");
    // What no member gets does not count.
    let comment = extended(b'g', "comment", &vec![b'c'; MIB]);
    let foreign = extended(b'g', "SCHILY.xattr.system.nfs4_acl", &vec![b'c'; MIB]);
    assert_eq!(read(&[comment, foreign, member(b'0', b"")]).unwrap()[0].meta.xattrs, []);
}

#[test]
fn a_global_header_with_a_path_is_refused() {
    for key in ["path", "linkpath", "GNU.sparse.name"] {
        let error = read(&[extended(b'g', key, b"a/b"), member(b'0', b"")]).unwrap_err();
        assert!(error.to_string().contains("every member the same path"), "{key}: {error}");
    }
}
