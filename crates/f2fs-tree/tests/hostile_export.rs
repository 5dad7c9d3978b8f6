//! Export of hostile volumes: neither the export nor GNU tar, which unpacks its archive, touches anything
//! outside the destination.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::Command,
    sync::Arc,
};

use block::{Device, MemoryDevice};
use f2fs::{
    Error, Place, Result,
    engine::{Caller, Engine, FinalSymlink, NewNode, Options, XattrMode},
    format::{
        BlockSize,
        block_size::{DENTRY_BYTES, NAME_SLOT_BYTES},
        dentry::Dentries,
        hash::name_hash,
        inode::{DeviceNumber, inline},
    },
    units::{Ino, Time},
};
use f2fs_tree::{DirSink, ExportOptions, Exported, Holes, Owners, Sink, TarSink, VolumeSource, export};

mod support;

const ROOT: Ino = Ino(3);
/// Offset of `i_links` in an inode's block.
const LINKS_AT: u64 = 12;
/// Offset of `i_inline` in an inode's block.
const INLINE_AT: u64 = 3;
const FILE: u16 = 0o104_777;
const DIR: u16 = 0o040_777;
const LINK: u16 = 0o120_777;

/// Returns the offsets on the device of a directory entry: the dentry and the name.
fn entry_at(volume: &Engine, dir: Ino, name: &[u8]) -> (u64, u64) {
    let inode = volume.inode(dir).expect("sound");
    let found = volume.find_entry(dir, name).expect("sound").expect("it exists");
    let (block, area) = match inode.has_inline(inline::DENTRY) {
        true => (volume.nat_entry(dir.into()).expect("sound").addr, inode.layout().inline_range()),
        false => (volume.address(&inode, found.block).expect("sound"), 0..4096),
    };
    let slots = Dentries::new(vec![0; area.len()], Place::Volume).slots();
    let names = area.end - slots * NAME_SLOT_BYTES;
    let dentries = names - slots * DENTRY_BYTES;
    let (dentry, name) = (dentries + found.slot * DENTRY_BYTES, names + found.slot * NAME_SLOT_BYTES);
    let start = u64::from(block.0) * 4096;
    (start + dentry as u64, start + name as u64)
}

/// Order of links and of the directories and files of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkOrder {
    /// The links precede, and a lookup finds them.
    First,
    /// The links follow.
    Last,
}

/// Makes a volume whose export could write into `outside`.
fn hostile(outside: &Path, order: LinkOrder) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let far = outside.as_os_str().as_encoded_bytes();
    if order == LinkOrder::First {
        make_links(&mut volume, far).expect("it fits");
    }
    make_targets(&mut volume, far).expect("it fits");
    if order == LinkOrder::Last {
        make_links(&mut volume, far).expect("it fits");
    }
    let (odd, cycle) = make_dirs(&mut volume).expect("it fits");
    volume.unmount().expect("it is written");
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a good volume");
    let rename = |dir: Ino, from: &[u8], to: &[u8]| {
        assert_eq!(from.len(), to.len());
        let (dentry, name) = entry_at(&volume, dir, from);
        device.write(name, to).expect("in memory");
        if order == LinkOrder::First {
            // With this hash, a lookup finds this name.
            device.write(dentry, &name_hash(to).to_le_bytes()).expect("in memory");
        }
    };
    for (from, to) in [(b"D", b"d"), (b"E", b"e"), (b"F", b"f"), (b"G", b"g"), (b"H", b"h")] {
        rename(ROOT, from, to);
    }
    for (from, to) in
        [(&b"x1"[..], &b".."[..]), (b"y", b"."), (b"up_canary", b"../canary"), (b"_outside", b"/outside")]
    {
        rename(odd, from, to);
    }
    rename(odd, b"z0z", b"z\0z");
    let other = volume.resolve(b"/d", FinalSymlink::NoFollow).expect("it exists");
    for (name, ino) in [(&b"self"[..], cycle), (b"above", ROOT), (b"other", other)] {
        let at = entry_at(&volume, cycle, name).0 + 4;
        device.write(at, &ino.0.to_le_bytes()).expect("in memory");
    }
    device
}

/// Makes links that lead to `far` and later get the names of directories and of a file.
fn make_links(volume: &mut Engine, far: &[u8]) -> Result<()> {
    let node = NewNode::new(LINK);
    volume.begin(Caller::ADMIN).symlink(ROOT, b"D", far, &node)?;
    volume.begin(Caller::ADMIN).symlink(ROOT, b"E", b"../outside", &node)?;
    volume.begin(Caller::ADMIN).symlink(ROOT, b"F", &[far, b"/canary"].concat(), &node).map(drop)
}

/// Makes the directories and the file of the names that the links get, further names elsewhere for files in them, and
/// devices beside links.
fn make_targets(volume: &mut Engine, far: &[u8]) -> Result<()> {
    let node = NewNode::new;
    for (dir, other) in [(&b"d"[..], &b"link-1"[..]), (b"e", b"link-2")] {
        let dir = volume.begin(Caller::ADMIN).create(ROOT, dir, &node(DIR))?;
        let file = volume.begin(Caller::ADMIN).create(dir, b"canary", &node(FILE))?;
        volume.begin(Caller::ADMIN).write(file, 0, b"overwritten")?;
        volume.begin(Caller::ADMIN).set_xattr(file, b"user.note", b"x", XattrMode::Set)?;
        volume.begin(Caller::ADMIN).link(file, ROOT, other)?;
        volume.begin(Caller::ADMIN).create(dir, b"new", &node(FILE))?;
    }
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"f", &node(FILE))?;
    volume.begin(Caller::ADMIN).write(file, 0, b"overwritten")?;
    volume.begin(Caller::ADMIN).create(
        ROOT,
        b"g",
        &NewNode { device: Some(DeviceNumber { major: 1, minor: 3 }), ..node(0o020_777) },
    )?;
    let canary = [far, b"/canary"].concat();
    volume.begin(Caller::ADMIN).symlink(ROOT, b"G", &canary, &node(LINK))?;
    volume.begin(Caller::ADMIN).create(ROOT, b"h", &node(0o010_777))?;
    volume.begin(Caller::ADMIN).symlink(ROOT, b"H", &canary, &node(LINK)).map(drop)
}

/// Makes a directory of names that later lead elsewhere, and one of directories that later contain themselves, one
/// another and their parents. Returns both.
fn make_dirs(volume: &mut Engine) -> Result<(Ino, Ino)> {
    let node = NewNode::new;
    let odd = volume.begin(Caller::ADMIN).create(ROOT, b"odd", &node(DIR))?;
    for name in [&b"x1"[..], b"y", b"up_canary", b"_outside", b"z0z"] {
        let inside = volume.begin(Caller::ADMIN).create(odd, name, &node(DIR))?;
        volume.begin(Caller::ADMIN).create(inside, b"canary", &node(FILE))?;
    }
    let cycle = volume.begin(Caller::ADMIN).create(ROOT, b"cycle", &node(DIR))?;
    for name in [&b"self"[..], b"above", b"other"] {
        volume.begin(Caller::ADMIN).create(cycle, name, &node(DIR))?;
    }
    let last = volume.begin(Caller::ADMIN).create(ROOT, b"zz-last", &node(FILE))?;
    volume.begin(Caller::ADMIN).write(last, 0, b"arrives")?;
    Ok((odd, cycle))
}

/// Records everything visible of the files in a directory, by path.
fn look(dir: &Path, except: &Path, seen: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("readable").path();
        if path == except {
            continue;
        }
        let meta = fs::symlink_metadata(&path).expect("it exists");
        let content = if meta.is_file() { fs::read(&path).expect("readable") } else { Vec::new() };
        let xattrs: Vec<_> = xattr::list(&path).map(|names| names.collect()).unwrap_or_default();
        let facts = format!(
            "{:?}",
            (
                meta.ino(),
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.nlink(),
                meta.mtime_nsec(),
                content,
                xattrs
            )
        );
        seen.insert(path.display().to_string(), facts);
        if meta.is_dir() {
            look(&path, except, seen);
        }
    }
}

/// A directory whose content must stay unchanged, beside a place for the destination.
struct Bench {
    dir: tempfile::TempDir,
    before: BTreeMap<String, String>,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).expect("a directory");
        for name in ["outside/canary", "outside/new", "canary"] {
            fs::write(dir.path().join(name), "as it was").expect("a file");
        }
        symlink("canary", outside.join("link")).expect("a link");
        let mut bench = Bench { dir, before: BTreeMap::new() };
        fs::create_dir(bench.out()).expect("a directory");
        bench.before = bench.look();
        bench
    }

    fn out(&self) -> std::path::PathBuf {
        self.dir.path().join("out")
    }

    fn look(&self) -> BTreeMap<String, String> {
        let mut seen = BTreeMap::new();
        look(self.dir.path(), &self.out(), &mut seen);
        seen
    }

    fn assert_untouched(&self, how: &str) {
        assert_eq!(self.look(), self.before, "{how}");
    }
}

/// The rule for an export that loses a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterLoss {
    Stop,
    Continue,
}

/// Exports the volume.
fn run(
    device: &Arc<dyn Device>,
    sink: &mut dyn Sink,
    after_loss: AfterLoss,
) -> (Result<Exported>, Vec<String>) {
    let volume = Engine::open(device.clone(), Options::read_only()).expect("it opens");
    let mut source = VolumeSource::new(&volume, ROOT, b"").expect("a root");
    let mut lost = Vec::new();
    let mut note = |error: &Error| lost.push(error.to_string());
    let keep_going = after_loss == AfterLoss::Continue;
    let options = ExportOptions { keep_going, lost: Some(&mut note), ..ExportOptions::default() };
    (export(&mut source, sink, options), lost)
}

#[test]
fn a_hostile_volume_stays_in_the_destination() {
    let owners = Owners::permitted();
    for (order, keep_going, overwrite) in [
        (LinkOrder::Last, false, false),
        (LinkOrder::Last, true, false),
        (LinkOrder::First, false, false),
        (LinkOrder::First, true, false),
        (LinkOrder::First, true, true),
    ] {
        let bench = Bench::new();
        let after_loss = if keep_going { AfterLoss::Continue } else { AfterLoss::Stop };
        let how = format!("links {order:?}, -k: {keep_going}, --overwrite: {overwrite}");
        let device = hostile(&bench.dir.path().join("outside"), order);
        // The second time, everything exists already.
        for _ in 0..2 {
            let mut sink = DirSink::new(&bench.out(), owners).expect("a directory");
            if overwrite {
                sink = sink.overwriting();
            }
            let (done, lost) = run(&device, &mut sink, after_loss);
            bench.assert_untouched(&how);
            assert_eq!(done.is_ok(), keep_going, "{how}: {done:?}");
            if keep_going {
                let mut names = vec!["d", "e", "f", "g", "h", "cycle/self", "cycle/above", "odd"];
                // Otherwise it leads to a directory without another name.
                names.extend((order == LinkOrder::Last).then_some("cycle/other"));
                for name in names {
                    assert!(
                        lost.iter().any(|lost| lost.starts_with(&format!("{name}: "))),
                        "{how}: {name}: {lost:#?}"
                    );
                }
                assert_eq!(fs::read(bench.out().join("zz-last")).expect("it exists"), b"arrives", "{how}");
            }
        }
    }
}

#[test]
fn the_archive_of_a_hostile_volume_is_harmless() {
    let orders = [LinkOrder::First, LinkOrder::Last];
    for (order, keep_going) in orders.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let bench = Bench::new();
        let after_loss = if keep_going { AfterLoss::Continue } else { AfterLoss::Stop };
        let how = format!("links {order:?}, -k: {keep_going}");
        let device = hostile(&bench.dir.path().join("outside"), order);
        let mut sink = TarSink::new(Vec::new(), Holes::Filled);
        let (done, _) = run(&device, &mut sink, after_loss);
        assert_eq!(done.is_ok(), keep_going, "{how}: {done:?}");
        let archive = bench.out().join("archive.tar");
        fs::write(&archive, sink.into_inner()).expect("it is written");
        // With absolute names and overwriting, tar trusts an archive most.
        for more in [&[][..], &["-P"], &["-P", "--overwrite", "--unlink-first"]] {
            let unpacked = Command::new("tar")
                .args(["-xpf", "archive.tar"])
                .args(more)
                .current_dir(bench.out())
                .output();
            let unpacked = unpacked.expect("tar is installed");
            bench.assert_untouched(&how);
            let arrived = fs::read(bench.out().join("zz-last"));
            let text = String::from_utf8_lossy(&unpacked.stderr);
            assert!(!keep_going || arrived.is_ok_and(|bytes| bytes == b"arrives"), "{how}: {text}");
        }
    }
}

#[test]
fn files_that_share_blocks_give_no_more_than_the_volume_holds() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE)).expect("room");
    volume.begin(Caller::ADMIN).write(file, 0, &[b'x'; 1 << 20]).expect("room");
    for n in 0..300 {
        volume.begin(Caller::ADMIN).link(file, ROOT, format!("link{n:03}").as_bytes()).expect("room");
    }
    volume.unmount().expect("it is written");
    // With one link told, each name looks like a file of its own.
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a good volume");
    let at = u64::from(volume.nat_entry(file.into()).expect("sound").addr.0) * 4096;
    drop(volume);
    device.write(at + LINKS_AT, &1_u32.to_le_bytes()).expect("in memory");
    let mut sink = TarSink::new(Vec::new(), Holes::Filled);
    let (done, lost) = run(&device, &mut sink, AfterLoss::Continue);
    done.expect("the export continues");
    assert!(sink.into_inner().len() < 64 << 20);
    assert!(lost.len() > 200 && lost[0].contains("share blocks"), "{:?}", lost.first());
}

#[test]
fn a_directory_with_a_second_damaged_name_is_exported_at_its_own_path() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let (first, last) = (
        volume.begin(Caller::ADMIN).create(ROOT, b"first", &NewNode::new(DIR)).expect("room"),
        volume.begin(Caller::ADMIN).create(ROOT, b"last", &NewNode::new(DIR)).expect("room"),
    );
    volume.begin(Caller::ADMIN).create(first, b"damaged", &NewNode::new(DIR)).expect("room");
    let inside = volume.begin(Caller::ADMIN).create(last, b"inside", &NewNode::new(DIR)).expect("room");
    volume.begin(Caller::ADMIN).create(inside, b"file", &NewNode::new(FILE)).expect("room");
    volume.unmount().expect("it is written");
    let at = entry_at(&volume, first, b"damaged").0 + 4;
    device.write(at, &inside.0.to_le_bytes()).expect("in memory");
    let mut sink = TarSink::new(Vec::new(), Holes::Filled);
    let (done, lost) = run(&device, &mut sink, AfterLoss::Continue);
    done.expect("the export continues");
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0].starts_with("first/damaged: ") && lost[0].contains("two names"), "{lost:?}");
    let archive = sink.into_inner();
    assert!(archive.windows(16).any(|bytes| bytes == b"last/inside/file"));
}

/// The inline area is then the inode's addresses, or the other way round.
#[test]
fn a_directory_in_which_no_name_is_found_is_a_loss() {
    for names in [3, 300] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
        let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
        let dir = volume.begin(Caller::ADMIN).create(ROOT, b"dir", &NewNode::new(DIR)).expect("room");
        for n in 0..names {
            let name = format!("a rather long name {n}");
            volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(FILE)).expect("room");
        }
        volume.unmount().expect("it is written");
        let marks = volume.inode(dir).expect("sound").head().inline;
        assert_eq!(marks & inline::DENTRY != 0, names == 3);
        let at = u64::from(volume.nat_entry(dir.into()).expect("sound").addr.0) * 4096 + INLINE_AT;
        drop(volume);
        device.write(at, &[marks ^ inline::DENTRY]).expect("in memory");
        let mut sink = TarSink::new(Vec::new(), Holes::Filled);
        let (done, lost) = run(&device, &mut sink, AfterLoss::Continue);
        assert!(done.expect("the export continues").losses > 0);
        assert!(lost.iter().any(|loss| loss.starts_with("dir: ")), "{lost:?}");

        let mut volume = Engine::open(device, Options::new(Time::default)).expect("sound otherwise");
        let errors =
            |volume: &Engine| volume.entries(dir, 0).expect("sound").filter(|entry| entry.is_err()).count();
        assert!(errors(&volume) > 0, "a listing that ends without an error");
        let removed = volume.begin(Caller::ADMIN).remove_dir(ROOT, b"dir");
        assert!(matches!(removed, Err(f2fs::Error::Corrupt { .. })), "{removed:?}");
    }
}

#[test]
fn a_program_that_does_not_keep_its_owner_gets_no_capabilities() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    let mut volume = support::format_on(device.clone(), &[], BlockSize::B4K);
    let program =
        volume.begin(Caller::ADMIN).create(ROOT, b"program", &NewNode::new(0o100_755)).expect("room");
    // Revision 2, effective, CAP_NET_RAW (linux/capability.h).
    let mut capability = [0; 20];
    (capability[0], capability[3], capability[5]) = (1, 2, 1 << 5);
    volume
        .begin(Caller::ADMIN)
        .set_xattr(program, b"security.capability", &capability, XattrMode::Set)
        .expect("room");
    volume.begin(Caller::ADMIN).set_xattr(program, b"user.note", b"stays", XattrMode::Set).expect("room");
    volume.unmount().expect("it is written");
    let bench = Bench::new();
    let mut sink = DirSink::new(&bench.out(), Owners::Caller).expect("a directory");
    let (done, lost) = run(&device, &mut sink, AfterLoss::Stop);
    assert_eq!(done.expect("the loss is tolerated").losses, 1, "{lost:?}");
    assert!(lost[0].contains("program, its attribute security.capability: "), "{lost:?}");
    let get = |name| xattr::get(bench.out().join("program"), name).expect("readable");
    assert_eq!(get("security.capability"), None);
    assert_eq!(get("user.note").as_deref(), Some(&b"stays"[..]));
}
