//! Directories and archives as sources, compared with real ones made by the host, GNU tar and the tar crate.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
};

mod support;

use f2fs::{format::inode::DeviceNumber, units::Time};
use f2fs_tree::{DirSource, Entry, Kind, Source, TarSource, decompressed};
use proptest::prelude::*;
use support::tree::{is_root, make_tree};

/// Reads a source to its end. Returns each entry with its data, and the offsets where the runs begin and end.
fn read_all(source: &mut dyn Source, buf_bytes: usize) -> f2fs::Result<Vec<(Entry, Vec<u8>)>> {
    let (mut all, mut buf) = (Vec::new(), vec![0; buf_bytes]);
    while let Some(entry) = source.next_entry()? {
        let mut content = Vec::new();
        if let Kind::File { size, .. } = entry.kind {
            content.resize(usize::try_from(size).unwrap().min(64 << 20), 0);
            let mut last = 0;
            while let Some(run) = source.next_run(&mut buf)? {
                assert!(run.length > 0 && run.offset >= last);
                let start = run.offset as usize;
                content[start..start + run.length].copy_from_slice(&buf[..run.length]);
                last = run.offset + run.length as u64;
            }
            assert!(last <= size);
        }
        assert_eq!(source.next_run(&mut buf)?, None);
        all.push((entry, content));
    }
    assert!(source.next_entry()?.is_none());
    Ok(all)
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Returns the entries of a tree by path. A hard link differs from its first name only by its group.
fn by_path(all: Vec<(Entry, Vec<u8>)>) -> BTreeMap<Vec<u8>, (Entry, Vec<u8>)> {
    let count = all.len();
    let map: BTreeMap<_, _> = all.into_iter().map(|item| (item.0.path.clone(), item)).collect();
    assert_eq!(map.len(), count, "a path came twice");
    map
}

#[test]
fn a_directory_is_read_with_everything_in_it() {
    let dir = scratch();
    make_tree(dir.path());
    let all = read_all(&mut DirSource::new(dir.path()).unwrap(), 4096).unwrap();
    let paths: Vec<_> = all.iter().map(|(entry, _)| entry.path.clone()).collect();
    let position =
        |path: &str| paths.iter().position(|p| p == path.as_bytes()).unwrap_or_else(|| panic!("{path}"));
    assert_eq!(position(""), 0);
    // Depth first, names in byte order: "dir" and everything in it before "dir-empty".
    let order =
        ["a-link", "dir", "dir/big", "dir/hello", "dir/sub", "dir/sub/third", "dir-empty", "empty", "fifo"];
    let positions: Vec<_> = order.iter().map(|path| position(path)).collect();
    assert!(positions.is_sorted(), "{positions:?}");

    let map = by_path(all);
    let get = |path: &str| &map[path.as_bytes()];
    assert_eq!(get("dir/hello").0.kind, Kind::HardLink { to: b"a-link".to_vec() });
    assert_eq!(get("dir/sub/third").0.kind, Kind::HardLink { to: b"a-link".to_vec() });
    assert_eq!(get("a-link").1, b"hello\n");
    assert_eq!(get("a-link").0.meta.permissions, 0o4751);
    assert_eq!(get("dir-empty").0.meta.permissions, 0o1777);
    assert_eq!(get("symlink").0.kind, Kind::Symlink { target: b"dir/hello".to_vec() });
    assert_eq!(get("empty").0.kind, Kind::File { size: 0, data: None });
    assert_eq!(get("fifo").0.kind, Kind::Fifo);
    assert_eq!(
        get("fifo").0.meta.permissions,
        fs::metadata(dir.path().join("fifo")).unwrap().mode() as u16 & 0o7777
    );
    assert!(map.contains_key(&b"not-utf8-\xff\xfe"[..]) && map.contains_key("x".repeat(255).as_bytes()));
    let (big, content) = get("dir/big");
    assert_eq!(big.meta.mtime, Time { seconds: -77, nanoseconds: 123_456_789 });
    assert_eq!(big.meta.atime, Some(Time { seconds: 1_600_000_000, nanoseconds: 1 }));
    assert_eq!(content.len(), 400_000);
    assert!(content.chunks_exact(4).enumerate().all(|(n, four)| four == (n as u32).to_le_bytes()));
    let flat: Vec<_> = big.meta.xattrs.iter().map(|x| (&x.name[..], &x.value[..])).collect();
    assert_eq!(flat, [(&b"user.a"[..], &b""[..]), (b"user.note", b"a=b\nc\0d")]);
    assert_eq!(get("a-link").0.meta.xattrs.last().unwrap().value, [9; 3000]);
    let (sparse, content) = get("sparse");
    let Kind::File { size, data: Some(data) } = &sparse.kind else { panic!("{:?}", sparse.kind) };
    assert_eq!(*size, 20 << 20);
    assert!(data.iter().map(|range| range.end - range.start).sum::<u64>() < 1 << 20, "{data:?}");
    assert!(content[4 << 20..][..8192] == [7; 8192] && content.ends_with(b"\0end"));
    if is_root() {
        assert_eq!(get("chr").0.kind, Kind::CharDevice(DeviceNumber { major: 300, minor: 70_000 }));
        assert_eq!((get("empty").0.meta.uid, get("empty").0.meta.gid), (4_000_000_000, 65_537));
        assert_eq!(get("symlink").0.meta.xattrs[0].name, b"trusted.link");
        assert_eq!(get("a-link").0.meta.xattrs[0].name, b"security.capability");
    }
}

/// Deeper than the number of file descriptors, with a path longer than the host accepts.
#[test]
fn directories_of_any_depth_are_read() {
    let dir = scratch();
    let start =
        rustix::fs::open(dir.path(), rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    let mut at = start;
    for depth in 0..1500 {
        let name = format!("d{depth:010}");
        rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::RWXU).unwrap();
        // A second name after it requires the walk to come back.
        rustix::fs::mkdirat(&at, "z", rustix::fs::Mode::RWXU).unwrap();
        at =
            rustix::fs::openat(&at, &name, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    }
    let all = read_all(&mut DirSource::new(dir.path()).unwrap(), 64).unwrap();
    assert_eq!(all.len(), 1 + 2 * 1500);
    assert_eq!(all[1500].0.path.len(), 1500 * 12 - 1);
    assert_eq!(all.last().unwrap().0.path, b"z");
    // Libraries that remove a tree by paths cannot remove this one.
    assert!(Command::new("rm").arg("-rf").arg(dir.path()).status().unwrap().success());
}

#[test]
fn unreadable_entries_are_named() {
    let dir = scratch();
    let error = DirSource::new(&dir.path().join("none")).err().unwrap().to_string();
    assert!(error.contains("none"), "{error}");
    fs::write(dir.path().join("file"), "x").unwrap();
    assert!(DirSource::new(&dir.path().join("file")).is_err());
    let mut source = DirSource::new(dir.path()).unwrap();
    source.next_entry().unwrap();
    source.next_entry().unwrap();
    File::options().write(true).open(dir.path().join("file")).unwrap().set_len(0).unwrap();
    let error = source.next_run(&mut [0; 16]).unwrap_err().to_string();
    assert!(error.contains("file") && error.contains("shorter"), "{error}");
}

/// The walk runs ahead of the reader. An error is reported at its own place in the order.
#[test]
fn errors_found_ahead_are_reported_in_the_order_of_entries() {
    let dir = scratch();
    for n in 0..100 {
        fs::write(dir.path().join(format!("file{n:02}")), format!("{n}")).unwrap();
    }
    let mut source = DirSource::new(dir.path()).unwrap();
    let mut read = 0;
    let error = loop {
        match source.next_entry() {
            Ok(Some(entry)) if entry.path.is_empty() => {}
            Ok(Some(entry)) => {
                let mut buf = [0; 8];
                let run = source.next_run(&mut buf).unwrap().unwrap();
                assert_eq!(buf[..run.length], *format!("{read}").as_bytes());
                assert_eq!(entry.path, format!("file{read:02}").into_bytes());
                read += 1;
                if read == 10 {
                    // Close enough to be already open when it is removed.
                    fs::remove_file(dir.path().join("file20")).unwrap();
                    fs::remove_file(dir.path().join("file80")).unwrap();
                }
            }
            Ok(None) => panic!("file80 is gone"),
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(read, 80);
    assert!(error.contains("file80"), "{error}");
}

fn gnu_tar(dir: &Path, args: &[&str]) -> Vec<u8> {
    let output = Command::new("tar").args(args).args(["-cf", "-", "-C"]).arg(dir).arg(".").output().unwrap();
    assert!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// An archive of GNU tar in any of its formats gives the same entries as the tree, as far as the format can
/// express them.
#[test]
fn archives_of_gnu_tar_equal_the_directory() {
    let dir = scratch();
    make_tree(dir.path());
    let direct = by_path(read_all(&mut DirSource::new(dir.path()).unwrap(), 1 << 16).unwrap());
    let full = ["--xattrs", "--xattrs-include=*", "--sort=name", "--numeric-owner"];
    for (format, sparse, precise) in [
        ("--format=pax", "--no-xattrs", true),
        ("--format=pax", "--sparse-version=1.0", true),
        ("--format=pax", "--sparse-version=0.1", true),
        ("--format=pax", "--sparse-version=0.0", true),
        ("--format=gnu", "--sparse-version=1.0", false),
        ("--format=gnu", "", false),
    ] {
        let mut args = vec![format];
        if sparse.starts_with("--sparse") {
            args.extend(["--sparse", sparse]);
        }
        if precise && sparse != "--no-xattrs" {
            args.extend(full);
        }
        let bytes = gnu_tar(dir.path(), &args);
        let packed = by_path(read_all(&mut TarSource::new(&bytes[..]), 1 << 16).unwrap());
        for (path, (expected, content)) in &direct {
            let shown = format!("{args:?} {}", String::from_utf8_lossy(path));
            if expected.kind == Kind::Socket {
                continue;
            }
            let (entry, packed_content) = packed.get(path).unwrap_or_else(|| panic!("{shown}"));
            if matches!((&entry.kind, &expected.kind), (Kind::File { .. }, Kind::File { .. })) {
                assert_eq!(packed_content, content, "{shown}");
            }
            match (&entry.kind, &expected.kind) {
                // tar has its own order, so another name of a group may come first.
                (Kind::HardLink { .. }, _) | (_, Kind::HardLink { .. }) => {}
                (Kind::File { data, size }, Kind::File { data: holes, size: full }) => {
                    assert_eq!(size, full, "{shown}");
                    if !sparse.starts_with("--sparse") {
                        assert_eq!(*data, None, "{shown}");
                    } else if holes.is_some() {
                        assert_eq!(data, holes, "{shown}");
                    }
                }
                (kind, expected) => assert_eq!(kind, expected, "{shown}"),
            }
            let (got, want) = (&entry.meta, &expected.meta);
            assert_eq!(
                (got.uid, got.gid, got.permissions),
                (want.uid, want.gid, want.permissions),
                "{shown}"
            );
            assert_eq!(got.mtime.seconds, want.mtime.seconds, "{shown}");
            if precise {
                assert_eq!(got.mtime, want.mtime, "{shown}");
            }
            if args.contains(&"--xattrs") {
                let names = |xattrs: &[f2fs_tree::Xattr]| -> Vec<_> {
                    xattrs.iter().map(|x| (x.name.clone(), x.value.clone())).collect()
                };
                let link = matches!(entry.kind, Kind::HardLink { .. });
                if !link && !matches!(expected.kind, Kind::HardLink { .. }) {
                    assert_eq!(names(&got.xattrs), names(&want.xattrs), "{shown}");
                }
            }
        }
    }
}

#[test]
fn compressed_archives_are_recognized_by_their_first_bytes() {
    let dir = scratch();
    fs::write(dir.path().join("file"), "content").unwrap();
    let plain = gnu_tar(dir.path(), &[]);
    for filter in ["-z", "-J", "--zstd"] {
        let packed = gnu_tar(dir.path(), &[filter]);
        assert_ne!(packed[..8], plain[..8]);
        let all = read_all(&mut TarSource::new(decompressed(&packed[..]).unwrap()), 100).unwrap();
        assert_eq!(all[1].1, b"content");
    }
}

/// Makes a member by hand: name, type, content, and other fields by closure.
fn member(name: &str, kind: u8, content: &[u8], set: impl Fn(&mut tar::Header)) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_mtime(1000);
    header.set_uid(1);
    header.set_gid(2);
    set(&mut header);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut content = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (1..9).map(|digits| digits + rest).find(|n| n.to_string().len() + rest == *n).unwrap();
        content.extend(format!("{length} {key}=").bytes());
        content.extend_from_slice(value);
        content.push(b'\n');
    }
    member("pax", b'x', &content, |_| {})
}

fn tar_of(parts: &[Vec<u8>]) -> Vec<u8> {
    [&parts.concat()[..], &[0; 1024]].concat()
}

#[test]
fn access_lists_come_from_texts_if_no_attribute_has_them() {
    use f2fs::format::acl::Acl;

    let text = "user::rw-,user:1000:rw-,group::r--,mask::rw-,other::r--";
    let other = Acl::from_text("user::rwx,group::r-x,other::---").unwrap();
    let bytes = tar_of(&[
        pax(&[("SCHILY.acl.access", text.as_bytes()), ("SCHILY.acl.default", other.to_text().as_bytes())]),
        member("d/", b'5', b"", |_| {}),
        pax(&[
            ("SCHILY.xattr.system.posix_acl_access", &other.to_system()),
            ("SCHILY.acl.access", text.as_bytes()),
        ]),
        member("both", b'0', b"", |_| {}),
        pax(&[("SCHILY.acl.access", other.to_text().as_bytes())]),
        member("mode", b'0', b"", |_| {}),
    ]);
    let all = read_all(&mut TarSource::new(&bytes[..]), 3).unwrap();
    let lists = |at: usize| -> Vec<_> {
        let texts = all[at].0.meta.xattrs.iter();
        texts.map(|xattr| (&xattr.name[17..], Acl::from_system(&xattr.value).unwrap().to_text())).collect()
    };
    assert_eq!(lists(0), [(&b"access"[..], text.into()), (b"default", other.to_text())]);
    assert_eq!(lists(1), [(&b"access"[..], other.to_text())]);
    assert!(lists(2).is_empty(), "the mode has all of it");
    let bad = tar_of(&[pax(&[("SCHILY.acl.access", b"nonsense")]), member("f", b'0', b"", |_| {})]);
    assert!(
        read_all(&mut TarSource::new(&bad[..]), 3).unwrap_err().to_string().contains("SCHILY.acl.access")
    );
}

/// Each of them may have had the 16 MiB of all records.
#[test]
fn long_names_of_owners_and_long_attributes_are_refused() {
    let long = vec![b'n'; 257];
    let attribute = vec![b'v'; (64 << 10) + 1];
    for (key, value, most) in [("uname", &long, 256), ("SCHILY.xattr.user.x", &attribute, 64 << 10)] {
        let read = |value: &[u8]| {
            let bytes = tar_of(&[pax(&[(key, value)]), member("f", b'0', b"", |_| {})]);
            read_all(&mut TarSource::new(&bytes[..]), 3)
        };
        let refused = read(value).unwrap_err().to_string();
        assert!(refused.contains(key), "{refused}");
        assert_eq!(read(&value[..most]).unwrap().len(), 1);
    }
}

#[test]
fn extended_headers_override_the_header() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(255));
    let bytes = tar_of(&[
        member("global", b'g', b"13 uname=bob\n", |_| {}),
        pax(&[
            ("path", long.as_bytes()),
            ("uid", b"3000000000"),
            ("gid", b"7"),
            ("mtime", b"-1.25"),
            ("atime", b"5.5"),
            ("gname", "straße".as_bytes()),
            ("SCHILY.xattr.user.bin", b"\0\n=\xff"),
            ("LIBARCHIVE.xattr.user.per%25cent", b"aGVsbG8"),
            ("SCHILY.xattr.system.nfs4_acl", b"no"),
            ("comment", b"nothing"),
        ]),
        member("short", b'0', b"data", |_| {}),
        member("second", b'0', b"", |header| header.set_username("alice").unwrap()),
    ]);
    let all = read_all(&mut TarSource::new(&bytes[..]), 3).unwrap();
    let (first, content) = &all[0];
    assert_eq!((first.path.as_slice(), content.as_slice()), (long.as_bytes(), &b"data"[..]));
    let meta = &first.meta;
    assert_eq!((meta.uid, meta.gid), (3_000_000_000, 7));
    assert_eq!(meta.mtime, Time { seconds: -2, nanoseconds: 750_000_000 });
    assert_eq!(meta.atime, Some(Time { seconds: 5, nanoseconds: 500_000_000 }));
    assert_eq!((meta.names.user.as_deref(), meta.names.group.as_deref()), (Some("bob"), Some("straße")));
    let flat: Vec<_> = meta.xattrs.iter().map(|x| (&x.name[..], &x.value[..])).collect();
    assert_eq!(flat, [(&b"user.bin"[..], &b"\0\n=\xff"[..]), (b"user.per%cent", b"hello")]);
    let second = &all[1].0.meta;
    assert_eq!((second.uid, second.names.user.as_deref(), second.atime), (1, Some("bob"), None));
}

#[test]
fn members_of_every_type_are_known() {
    let link = |target: &'static str| move |header: &mut tar::Header| header.set_link_name(target).unwrap();
    let device = |header: &mut tar::Header| {
        header.set_device_major(8).unwrap();
        header.set_device_minor(1).unwrap();
    };
    let bytes = tar_of(&[
        member("./", b'5', b"", |_| {}),
        member("volume", b'V', b"", |_| {}),
        member("/abs//./x", b'0', b"1", |_| {}),
        member("old-dir/", b'\0', b"", |_| {}),
        member("hard", b'1', b"", link("./abs/x")),
        member("sym", b'2', b"", link("../../anywhere")),
        member("chr", b'3', b"", device),
        member("blk", b'4', b"", device),
        member("fifo", b'6', b"", |_| {}),
        member("contiguous", b'7', b"22", |_| {}),
    ]);
    let kinds: Vec<_> = read_all(&mut TarSource::new(&bytes[..]), 9)
        .unwrap()
        .into_iter()
        .map(|(entry, _)| (String::from_utf8(entry.path).unwrap(), entry.kind))
        .collect();
    let number = DeviceNumber { major: 8, minor: 1 };
    let expected = [
        ("", Kind::Directory),
        ("abs/x", Kind::File { size: 1, data: None }),
        ("old-dir", Kind::Directory),
        ("hard", Kind::HardLink { to: b"abs/x".to_vec() }),
        ("sym", Kind::Symlink { target: b"../../anywhere".to_vec() }),
        ("chr", Kind::CharDevice(number)),
        ("blk", Kind::BlockDevice(number)),
        ("fifo", Kind::Fifo),
        ("contiguous", Kind::File { size: 2, data: None }),
    ];
    assert_eq!(kinds, expected.map(|(path, kind)| (path.to_string(), kind)));
}

#[test]
fn hostile_archives_are_errors_that_name_a_place() {
    let huge = |header: &mut tar::Header| header.set_size(1 << 60);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", vec![]),
        ("zeroes", vec![0; 4096]),
        ("not a tar archive", b"hello, this is no archive".repeat(100)),
        ("truncated", member("x", b'0', &[1; 2000], |_| {})[..1500].to_vec()),
        ("not a tar archive", member("x", b'0', b"", |_| {})[..100].to_vec()),
        ("points outside", tar_of(&[member("a/../../etc/passwd", b'0', b"", |_| {})])),
        ("points outside", tar_of(&[member("x", b'1', b"", |h| h.set_link_name_literal("../y").unwrap())])),
        ("more than 255 bytes", tar_of(&[pax(&[("path", &[b'n'; 256])]), member("x", b'0', b"", |_| {})])),
        ("NUL", tar_of(&[pax(&[("path", b"a\0b")]), member("x", b'0', b"", |_| {})])),
        ("header of", tar_of(&[member("x", b'x', b"", huge)])),
        ("header of", tar_of(&[member("x", b'L', b"", huge)])),
        (
            "member of",
            tar_of(&[
                pax(&[("size", b"18446744073709551615")]),
                member("x", b'1', b"", |h| h.set_link_name("y").unwrap()),
            ]),
        ),
        ("malformed extended header", tar_of(&[member("x", b'x', b"99 a=b\n", |_| {})])),
        ("malformed value of uid", tar_of(&[pax(&[("uid", b"-3")]), member("x", b'0', b"", |_| {})])),
        (
            "uid is not a valid number",
            tar_of(&[pax(&[("uid", b"4294967296")]), member("x", b'0', b"", |_| {})]),
        ),
        ("no valid target", tar_of(&[member("x", b'2', b"", |_| {})])),
        ("unknown type", tar_of(&[member("x", b'%', b"", |_| {})])),
        (
            "device 4096:0",
            tar_of(&[member("x", b'3', b"", |h| {
                h.set_device_major(4096).unwrap();
                h.set_device_minor(0).unwrap();
            })]),
        ),
        ("a tar header is missing", [member("x", b'0', b"", |_| {}), vec![1; 512]].concat()),
        (
            "map of holes",
            tar_of(&[
                pax(&[("GNU.sparse.size", b"10"), ("GNU.sparse.map", b"5,9")]),
                member("x", b'0', &[0; 9], |_| {}),
            ]),
        ),
        (
            "map of a sparse file",
            tar_of(&[
                pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"10")]),
                member("x", b'0', b"9999999999999\n", |_| {}),
            ]),
        ),
        (
            "longer than its data",
            tar_of(&[
                pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"10")]),
                member("x", b'0', b"", |_| {}),
            ]),
        ),
    ];
    for (part, bytes) in cases {
        let error = read_all(&mut TarSource::new(&bytes[..]), 512).unwrap_err().to_string();
        let place = if error.ends_with("not a tar archive") { "tar stream:" } else { "byte" };
        assert!(error.contains(part) && error.contains(place), "{part:?}: {error}");
    }
}

/// Skipped content is not read as members.
#[test]
fn unread_data_is_skipped() {
    let bytes = tar_of(&[member("a", b'0', &[1; 5000], |_| {}), member("b", b'0', &[2; 10], |_| {})]);
    let mut source = TarSource::new(&bytes[..]);
    source.next_entry().unwrap();
    source.next_run(&mut [0; 100]).unwrap();
    assert_eq!(source.next_entry().unwrap().unwrap().path, b"b");
    assert_eq!(source.next_run(&mut [0; 100]).unwrap().unwrap().length, 10);
}

/// A source with short reads, like a pipe. The result must not depend on their size.
struct Trickle<'a>(&'a [u8], usize);

impl Read for Trickle<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let length = self.1.min(buf.len()).min(self.0.len());
        buf[..length].copy_from_slice(&self.0[..length]);
        self.0 = &self.0[length..];
        self.1 = self.1 % 97 + 1;
        Ok(length)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any bytes, and any change to a valid archive, give entries or an error.
    #[test]
    fn spoiled_archives_never_panic(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8), cut in any::<prop::sample::Index>()) {
        let mut bytes = tar_of(&[
            member("d/", b'5', b"", |_| {}),
            pax(&[("path", b"d/file"), ("size", b"700"), ("SCHILY.xattr.user.a", b"b")]),
            member("x", b'0', &[7; 700], |_| {}),
            pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"100000")]),
            member("s", b'0', &[&b"2\n0\n512\n4096\n3\n"[..], &[0; 497], &[1; 515]].concat(), |_| {}),
            member("l", b'1', b"", |h| h.set_link_name("d/file").unwrap()),
        ]);
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
            // Corrects the checksum, so that the code behind it sees the change.
            let block = at / 512 * 512;
            if bytes[block + 257..].starts_with(b"ustar") {
                let mut header = tar::Header::new_old();
                header.as_mut_bytes().copy_from_slice(&bytes[block..block + 512]);
                header.set_cksum();
                bytes[block..block + 512].copy_from_slice(header.as_bytes());
            }
        }
        bytes.truncate(bytes.len() - cut.index(bytes.len()) / 8);
        let whole = read_all(&mut TarSource::new(&bytes[..]), 300);
        let trickled = read_all(&mut TarSource::new(Trickle(&bytes, 1)), 300);
        prop_assert_eq!(whole.ok(), trickled.ok());
    }

    #[test]
    fn archives_of_the_tar_crate_are_read_back(files in proptest::collection::btree_map("[a-z]{1,200}(/[a-z]{1,90}){0,3}", proptest::collection::vec(any::<u8>(), 0..3000), 0..8)) {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in &files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(9);
            builder.append_data(&mut header, path, &content[..]).unwrap();
        }
        let bytes = builder.into_inner().unwrap();
        if files.is_empty() {
            prop_assert!(read_all(&mut TarSource::new(&bytes[..]), 64).is_err());
        } else {
            let all = read_all(&mut TarSource::new(&bytes[..]), 64).unwrap();
            let got: BTreeMap<String, Vec<u8>> = all.into_iter().map(|(entry, content)| (String::from_utf8(entry.path).unwrap(), content)).collect();
            prop_assert_eq!(got, files);
        }
    }
}
