//! Changes of encrypted files and directories without their key: all are refused, and nothing clear reaches the volume.

use std::{collections::BTreeMap, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::{
    Error, FileType, Key, Keyring,
    engine::{
        Caller, Engine, FileSize, FinalSymlink, NewNode, Options, Policy, RenameMode, SetAttr, Transaction,
        XattrMode,
    },
    format::{
        BlockSize,
        inode::{Algorithm, advise, flag},
        node::NodeBlock,
        quota::QuotaKind,
        xattr::{ENCRYPTION_NAME, index},
    },
    units::{Ino, Time},
};

#[path = "support/golden.rs"]
mod golden;
mod support;

const ROOT: Ino = Ino(3);
const BLOCK: u64 = 4096;

/// The keys at hand, and the error that every change must give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    Right,
    None,
    Wrong,
}

impl Keys {
    const ALL: [Keys; 3] = [Keys::Right, Keys::None, Keys::Wrong];

    /// The keys of both golden images: those of policies of version 1 have the descriptor of the first.
    fn ring(self) -> Keyring {
        let key = Key::new(&[0x5A; 64]).expect("a key");
        let counted: Vec<u8> = (0x5A..0x9A).collect();
        let counted = Key::new(&counted).expect("a key").with_descriptor(key.descriptor());
        let wrong = Key::new(&[0x77; 64]).expect("a key");
        let mut ring = Keyring::default();
        match self {
            Keys::Right => [key, counted].into_iter().for_each(|key| ring.add(key)),
            Keys::Wrong => ring.add(wrong),
            Keys::None => {}
        }
        ring
    }

    fn is_expected(self, error: &Error) -> bool {
        match self {
            Keys::Right => false,
            Keys::None => matches!(error, Error::NoKey),
            Keys::Wrong => matches!(error, Error::OtherKey(_)),
        }
    }
}

fn open(device: &Arc<dyn Device>, keys: Keys) -> Engine {
    let now = || Time { seconds: 1_700_000_000, nanoseconds: 0 };
    Engine::open(device.clone(), Options { keys: keys.ring(), ..Options::new(now) }).expect("a volume")
}

/// Everything encrypted on a volume as the right keys decrypt it: the path, with the type, the context as stored, and the
/// content or target. A clear byte where an encrypted one belongs makes it differ.
type Stored = BTreeMap<Vec<u8>, (FileType, Vec<u8>, Vec<u8>)>;

fn stored(device: &Arc<dyn Device>) -> Stored {
    let options = Options { keys: Keys::Right.ring(), ..Options::read_only() };
    let volume = Engine::open(device.clone(), options).expect("a volume");
    let mut found = Stored::new();
    add_stored(&volume, ROOT, b"", &mut found);
    found
}

fn add_stored(volume: &Engine, dir: Ino, path: &[u8], found: &mut Stored) {
    for entry in volume.entries(dir, 0).expect("a directory").map(|entry| entry.expect("an entry")) {
        if matches!(&*entry.name, b"." | b"..") {
            continue;
        }
        let path = [path, b"/", &entry.name].concat();
        let stat = volume.stat(entry.ino).expect("attributes");
        if stat.encrypted {
            let context =
                volume.stored_xattr(entry.ino, index::ENCRYPTION, ENCRYPTION_NAME).expect("readable");
            let mut content = vec![0; stat.size as usize];
            match stat.kind {
                FileType::Regular => {
                    volume.read(entry.ino, 0, &mut content).expect("readable");
                }
                FileType::Symlink => content = volume.read_link(entry.ino).expect("a target"),
                _ => content.clear(),
            }
            found.insert(path.clone(), (stat.kind, context.expect("a context"), content));
        }
        if stat.kind == FileType::Directory {
            add_stored(volume, entry.ino, &path, found);
        }
    }
}

/// A regular file in an encrypted directory: the directory, the name as shown, and the inode number.
type EncryptedFile = (Ino, Vec<u8>, Ino);

/// The encrypted directories of a volume, and the regular files in them.
fn encrypted(volume: &Engine) -> (Vec<Ino>, Vec<EncryptedFile>) {
    let (mut dirs, mut files, mut rest) = (Vec::new(), Vec::new(), vec![ROOT]);
    while let Some(dir) = rest.pop() {
        let is_encrypted = volume.stat(dir).expect("attributes").encrypted;
        dirs.extend(is_encrypted.then_some(dir));
        for entry in volume.entries(dir, 0).expect("a directory").map(|entry| entry.expect("an entry")) {
            match volume.stat(entry.ino).expect("attributes").kind {
                FileType::Directory if !matches!(&*entry.name, b"." | b"..") => rest.push(entry.ino),
                FileType::Regular if is_encrypted => files.push((dir, entry.name, entry.ino)),
                _ => {}
            }
        }
    }
    (dirs, files)
}

type Perform<'a> = dyn Fn(Transaction<'_>) -> f2fs::Result<()> + 'a;
type Operation<'a> = (&'a str, Box<Perform<'a>>);

fn operation<'a, T>(
    name: &'a str,
    perform: impl Fn(Transaction<'_>) -> f2fs::Result<T> + 'a,
) -> Operation<'a> {
    (name, Box::new(move |transaction| perform(transaction).map(drop)))
}

/// Every operation that changes the content of a file.
fn on_content(ino: Ino) -> Vec<Operation<'static>> {
    let clear = b"clear text";
    vec![
        operation("write", move |change| change.write(ino, 0, clear)),
        operation("write past the end", move |change| change.write(ino, 1 << 20, clear)),
        operation("overwrite_cached", move |change| change.overwrite_cached(ino, 0, clear)),
        operation("write_cached", move |change| change.write_cached(ino, 1, clear)),
        operation("truncate to nothing", move |change| change.truncate(ino, 0)),
        operation("truncate inside a block", move |change| change.truncate(ino, 3)),
        operation("grow", move |change| change.truncate(ino, 1 << 20)),
        operation("punch_hole", move |change| change.punch_hole(ino, 1, 2)),
        operation("allocate_range", move |change| change.allocate_range(ino, 0, 9 * BLOCK, FileSize::Grows)),
        operation("reserve past the end", move |change| {
            change.allocate_range(ino, 1 << 20, BLOCK, FileSize::Stays)
        }),
        operation("zero_range", move |change| change.zero_range(ino, 1, 2, FileSize::Stays)),
        operation("collapse_range", move |change| change.collapse_range(ino, 0, BLOCK)),
        operation("insert_range", move |change| change.insert_range(ino, 0, BLOCK)),
        operation("fill_inode", move |change| change.fill_inode(ino, clear)),
    ]
}

/// Every operation on the compression of a file.
fn on_compression(ino: Ino) -> Vec<Operation<'static>> {
    vec![
        operation("release_saved", move |change| change.release_saved(ino)),
        operation("reserve_saved", move |change| change.reserve_saved(ino)),
        operation("choose_compression", move |change| change.choose_compression(ino, Algorithm::Lz4, 2)),
    ]
}

/// Every operation that enters a name into a directory. `plain` is a file of the name `plain` in the root.
fn into_directory(dir: Ino, plain: Ino) -> Vec<Operation<'static>> {
    let new = |mode: u16| NewNode::new(mode);
    vec![
        operation("create", move |change| change.create(dir, b"new", &new(0o100_644))),
        operation("make a directory", move |change| change.create(dir, b"new", &new(0o040_755))),
        operation("make a pipe", move |change| change.create(dir, b"new", &new(0o010_644))),
        operation("create_for", move |change| change.create_for(dir, b"new", &new(0o100_644), 0)),
        operation("symlink", move |change| change.symlink(dir, b"new", b"clear", &new(0o120_777))),
        operation("symlink_for", move |change| change.symlink_for(dir, b"new", b"clear", &new(0o120_777))),
        operation("create_nameless", move |change| change.create_nameless(dir, &new(0o100_644))),
        operation("create_nameless_for", move |change| change.create_nameless_for(dir, &new(0o100_644), 0)),
        operation("link", move |change| change.link(plain, dir, b"new")),
        operation("enter_inode", move |change| change.enter_inode(dir, b"new", plain)),
        operation("rename into", move |change| {
            change.rename(ROOT, b"plain", dir, b"new", RenameMode::Replace)
        }),
        operation("rename into, without replacing", move |change| {
            change.rename(ROOT, b"plain", dir, b"new", RenameMode::NoReplace)
        }),
        operation("rename_leaving into", move |change| {
            change.rename_leaving((ROOT, b"plain"), (dir, b"new"), RenameMode::Replace, &new(0o020_000))
        }),
    ]
}

/// Every operation that moves an existing name of an encrypted directory, or moves another over it.
fn on_name(dir: Ino, name: &[u8]) -> Vec<Operation<'_>> {
    let device = NewNode::new(0o020_000);
    vec![
        operation("rename inside", move |change| change.rename(dir, name, dir, b"new", RenameMode::Replace)),
        operation("rename out", move |change| change.rename(dir, name, ROOT, b"new", RenameMode::Replace)),
        operation("rename over", move |change| change.rename(ROOT, b"plain", dir, name, RenameMode::Replace)),
        operation("exchange", move |change| change.rename(ROOT, b"plain", dir, name, RenameMode::Exchange)),
        operation("rename_leaving out", move |change| {
            change.rename_leaving((dir, name), (ROOT, b"new"), RenameMode::Replace, &device)
        }),
    ]
}

fn refuse(volume: &mut Engine, keys: Keys, of: &str, operations: Vec<Operation<'_>>) {
    for (name, perform) in operations {
        match perform(volume.begin(Caller::ADMIN)) {
            Ok(()) => panic!("{name} of {of} with {keys:?}: it was not refused"),
            Err(error) => assert!(keys.is_expected(&error), "{name} of {of} with {keys:?}: {error}"),
        }
    }
}

#[test]
fn nothing_is_written_into_an_encrypted_file_or_directory_without_its_key() {
    for image in ["encrypted", "encrypted-modes"] {
        let device = golden::device(image);
        let before = stored(&device);
        assert!(before.len() > 100, "{} encrypted inodes", before.len());
        for keys in [Keys::None, Keys::Wrong] {
            if image == "encrypted-modes" && keys == Keys::Wrong {
                // A wrong key for a descriptor of version 1 is not recognized.
                continue;
            }
            let mut volume = open(&device, keys);
            let plain = match volume.lookup(ROOT, b"plain") {
                Ok(ino) => ino,
                Err(_) => volume
                    .begin(Caller::ADMIN)
                    .create(ROOT, b"plain", &NewNode::new(0o100_644))
                    .expect("a new file"),
            };
            let (dirs, files) = encrypted(&volume);
            assert!(!dirs.is_empty() && !files.is_empty());
            for dir in dirs {
                refuse(&mut volume, keys, "a directory", into_directory(dir, plain));
            }
            for (dir, name, ino) in files.iter().step_by(1 + files.len() / 40) {
                refuse(&mut volume, keys, "a file", on_content(*ino));
                if image == "encrypted-modes" {
                    refuse(&mut volume, keys, "a file", on_compression(*ino));
                }
                refuse(&mut volume, keys, "a name", on_name(*dir, name));
            }
            volume.clean(u32::MAX, Policy::Greedy).expect("blocks that move");
            volume.unmount().expect("a checkpoint");
            assert!(stored(&device) == before, "{image} with {keys:?}");
        }
    }
}

#[test]
fn attributes_change_but_never_the_context_or_the_mark_of_encryption() {
    let device = golden::device("encrypted");
    let before = stored(&device);
    for keys in Keys::ALL {
        let mut volume = open(&device, keys);
        let locked = volume.resolve(b"locked", FinalSymlink::Follow).expect("a directory");
        let file = encrypted(&volume).1[0].2;
        for ino in [locked, file] {
            for name in ["c", "encryption.c", "security", "system.c"] {
                let change = volume.begin(Caller::ADMIN);
                assert!(change.set_xattr(ino, name.as_bytes(), &[0; 40], XattrMode::Set).is_err(), "{name}");
                assert!(volume.begin(Caller::ADMIN).remove_xattr(ino, name.as_bytes()).is_err(), "{name}");
            }
            volume
                .begin(Caller::ADMIN)
                .set_xattr(ino, b"user.note", b"clear", XattrMode::Set)
                .expect("a note");
            let set = SetAttr { flags: Some(flag::NODUMP), permissions: Some(0o700), ..SetAttr::default() };
            volume.begin(Caller::ADMIN).set_attr(ino, &set).expect("attributes");
            let set = SetAttr { flags: Some(flag::CASEFOLD), ..SetAttr::default() };
            let refused = volume.begin(Caller::ADMIN).set_attr(ino, &set);
            // The directory has entries, and a file has no names.
            assert!(matches!(refused, Err(Error::NotPermitted | Error::NotEmpty)), "{refused:?}");
            assert!(volume.stat(ino).expect("attributes").encrypted);
        }
        volume.unmount().expect("a checkpoint");
        assert!(stored(&device) == before, "{keys:?}");
    }
}

#[test]
fn encrypted_files_are_removed_with_and_without_the_key() {
    for keys in Keys::ALL {
        let device = golden::device("encrypted");
        let mut expected = stored(&device);
        let mut volume = open(&device, keys);
        let (_, files) = encrypted(&volume);
        let count = files.len();
        let names: Vec<&Vec<u8>> = files.iter().map(|(_, name, _)| name).collect();
        assert_eq!(count, 255, "{names:?}");
        for (dir, name, ino) in &files {
            match volume.begin(Caller::ADMIN).unlink(*dir, name) {
                Ok(()) => assert!(!volume.is_inode(*ino).expect("a number")),
                Err(error) => panic!("{keys:?}: {error}"),
            }
        }
        volume.unmount().expect("a checkpoint");
        expected.retain(|_, (kind, _, _)| *kind != FileType::Regular);
        assert!(stored(&device) == expected, "{keys:?}");
    }
}

#[test]
fn a_quota_file_that_is_marked_as_encrypted_is_damage_and_is_not_written() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &["quota"], BlockSize::B4K);
    volume.begin(Caller::ADMIN).create(ROOT, b"before", &NewNode::new(0o100_644)).expect("a new file");
    volume.unmount().expect("a checkpoint");
    let ino = volume.quota_ino(QuotaKind::User).expect("a quota file");
    let advise_at = u64::from(volume.nat_entry(ino.into()).expect("an entry").addr.0) * BLOCK + 2;
    drop(volume);
    let mut marks = [0];
    device.read(advise_at, &mut marks).expect("memory");
    device.write(advise_at, &[marks[0] | advise::ENCRYPT]).expect("memory");
    let device: Arc<dyn Device> = device;
    let content = |volume: &Engine| {
        let mut content = vec![0; volume.stat(ino).expect("attributes").size as usize];
        volume.read_raw(ino, 0, &mut content).expect("readable");
        content
    };
    for keys in Keys::ALL {
        let mut volume = open(&device, keys);
        let before = content(&volume);
        let refused = volume.quota_records(QuotaKind::User).expect_err("it is damage");
        assert!(refused.to_string().contains("the quota file is encrypted"), "{refused}");
        let name = format!("{keys:?}");
        let new = volume.begin(Caller::USER).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644));
        volume.begin(Caller::USER).write(new.expect("a new file"), 0, &[1; 9000]).expect("space");
        volume.checkpoint().expect("a checkpoint");
        assert!(content(&volume) == before);
        volume.unmount().expect("a checkpoint");
    }
}

/// The name in the inode is encrypted, so it was never that of the caller.
#[test]
fn an_inode_that_loses_its_name_in_an_encrypted_directory_is_marked() {
    for keys in Keys::ALL {
        let device = golden::device("encrypted");
        let volume = open(&device, keys);
        let (dir, name, ino) = encrypted(&volume).1.swap_remove(0);
        let addr = volume.nat_entry(ino.into()).expect("it is sound").addr;
        let mut node = NodeBlock::clone(&volume.inode(ino).expect("it is sound"));
        drop(volume);
        node.head_mut().links.set(2);
        node.seal();
        device.write(u64::from(addr.0) * BLOCK, node.bytes()).expect("in memory");
        let mut volume = open(&device, keys);
        volume.begin(Caller::ADMIN).unlink(dir, &name).expect("names can be removed");
        assert!(volume.inode(ino).expect("it has a name left").has_advise(advise::LOST_PINO), "{keys:?}");
    }
}
