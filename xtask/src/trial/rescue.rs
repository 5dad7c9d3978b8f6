//! Rescue of damaged volumes, beside PhotoRec and fsck.f2fs.
//!
//! Each case damages a copy of one volume. The files whose blocks the damage did not touch are searched for
//! in the results of the three programs: by bytes alone, and by name and bytes.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs::{self, File},
    io::Write,
    os::unix::{ffi::OsStringExt, fs::FileExt},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use block::{FileDevice, OpenOptions};
use f2fs::{
    engine::{Engine, FinalSymlink, Options},
    format::{inode::inline, node_path::NodePath, superblock::Area},
    units::Nid,
};
use guest::{Bytes, Op};
use sha2::{Digest, Sha256};

use crate::{
    interrupt,
    judge::{
        kernel::Machine,
        vm::{Disk, Vm},
    },
    workspace,
};

/// Largest file that the volume gets; it needs no double indirect node.
const FILE_BYTES_MAX: &str = "--max-size=16m";
/// Damage at the front of the volume, in bytes.
const FRONT_BYTES: u64 = 64 << 20;

/// A file of the volume: its name, its content, and the bytes of the image that it needs.
struct Wanted {
    name: String,
    hash: Hash,
    blocks: Vec<u64>,
}

type Hash = [u8; 32];

/// Damage to a volume.
struct Case {
    name: &'static str,
    /// Bytes that are overwritten, as block numbers of the volume.
    damage: fn(&Layout) -> Vec<u64>,
    removal: Removal,
    /// Share of the image that is left, in percent.
    kept_percent: u64,
}

/// Removal of a quarter of the top directories, and unmount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    None,
    /// By `flashkit rm`.
    Flashkit,
    /// By Linux in the virtual machine, without discards: a device that discards has the content no more.
    Linux,
}

/// Blocks of the areas of a volume.
struct Layout {
    block_bytes: u64,
    packs: Area,
    nat: Area,
    main_start: u64,
}

impl Case {
    const fn of(name: &'static str, damage: fn(&Layout) -> Vec<u64>) -> Case {
        Case { name, damage, removal: Removal::None, kept_percent: 100 }
    }

    fn all() -> [Case; 8] {
        [
            Case::of("both packs zeroed", |layout| blocks(layout.packs)),
            Case::of("NAT zeroed", |layout| blocks(layout.nat)),
            Case::of("first 64 MiB overwritten", |layout| (0..FRONT_BYTES / layout.block_bytes).collect()),
            Case::of("every tenth block of metadata", |layout| (0..layout.main_start).step_by(10).collect()),
            Case::of("superblocks zeroed", |_| vec![0, 1]),
            Case { removal: Removal::Flashkit, ..Case::of("rm -r and unmount", |_| Vec::new()) },
            Case {
                removal: Removal::Linux,
                ..Case::of("rm -r and unmount by Linux, nodiscard", |_| Vec::new())
            },
            Case { kept_percent: 75, ..Case::of("truncated to 75 %", |_| Vec::new()) },
        ]
    }
}

fn blocks(area: Area) -> Vec<u64> {
    (u64::from(area.start.0)..area.end()).collect()
}

/// Prints the table: for each case the files that were not overwritten, and how many of them each program
/// brings back.
///
/// # Errors
/// A program is missing or fails, or the rescue brings back less than 95 %.
pub fn rescue(tree: &Path, volume_bytes: u64, out: &mut impl Write) -> Result<()> {
    let work = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let work = work.path();
    let flashkit = built()?;
    workspace::run(
        Command::new("rsync")
            .args(["-a", "--no-links", FILE_BYTES_MAX])
            .arg(slashed(tree))
            .arg(work.join("tree")),
    )?;
    let sound = work.join("sound.img");
    let size = volume_bytes.to_string();
    workspace::run(
        Command::new(&flashkit)
            .args(["mkfs", "-q", "--size", &size])
            .arg(&sound)
            .arg("--from")
            .arg(work.join("tree")),
    )?;
    let (layout, wanted) = read(&sound, &work.join("tree"))?;
    writeln!(out, "{} files on a volume of {} MiB", wanted.len(), volume_bytes >> 20)?;
    writeln!(
        out,
        "| damage | files not overwritten | rescue: name and bytes | PhotoRec: bytes | fsck.f2fs -f -y: name and bytes |"
    )?;
    writeln!(out, "|---|---:|---:|---:|---:|")?;
    let mut short = Vec::new();
    for case in Case::all() {
        interrupt::check()?;
        let image = work.join("damaged.img");
        let safe = damaged(&case, &flashkit, &sound, &image, &layout, &wanted, &work.join("tree"))?;
        let deleted: &[&str] = if case.removal == Removal::None { &[] } else { &["--deleted"] };
        let ours = work.join("ours");
        // Exit code 1 means that a part is lost.
        Command::new(&flashkit).args(["rescue", "-q"]).args(deleted).arg(&image).arg(&ours).output()?;
        let ours = count(&safe, &found(&ours)?);
        let photorec = count(&safe, &photorec(&image, work)?);
        let repaired = count(&safe, &repaired(&flashkit, &image, work)?);
        writeln!(out, "| {} | {} | {} | {} | {} |", case.name, safe.len(), ours.0, photorec.1, repaired.0)?;
        if ours.0 * 100 < safe.len() * 95 {
            short.push(format!("{}: {} of {}", case.name, ours.0, safe.len()));
        }
        for folder in ["ours", "photorec.1", "repaired"] {
            let _ = fs::remove_dir_all(work.join(folder));
        }
    }
    ensure!(short.is_empty(), "less than 95 %: {}", short.join(", "));
    Ok(())
}

fn slashed(path: &Path) -> PathBuf {
    path.join("")
}

/// Builds the command and returns its path.
pub(super) fn built() -> Result<PathBuf> {
    workspace::run(
        Command::new(env!("CARGO"))
            .current_dir(workspace::root())
            .args(["build", "--quiet", "-p", "flashkit"]),
    )?;
    Ok(workspace::root().join("target/debug/flashkit"))
}

/// Reads where the files of a volume lie.
fn read(image: &Path, tree: &Path) -> Result<(Layout, Vec<Wanted>)> {
    let device = FileDevice::open(image, OpenOptions::default())?;
    let volume = Engine::open(Arc::new(device), Options::read_only())?;
    let sb = volume.superblock();
    let layout = Layout {
        block_bytes: sb.block_size.bytes() as u64,
        packs: sb.checkpoint,
        nat: sb.nat,
        main_start: u64::from(sb.main.start.0),
    };
    let mut wanted = Vec::new();
    for (name, path) in files(tree)? {
        let inside = path.strip_prefix(tree)?;
        let inside = [Path::new("/"), inside].iter().collect::<PathBuf>();
        let ino = volume.resolve(inside.as_os_str().as_encoded_bytes(), FinalSymlink::NoFollow)?;
        let inode = volume.inode(ino)?;
        let mut nids: Vec<Nid> = vec![ino.into()];
        let mut all = Vec::new();
        let count = match inode.has_inline(inline::DATA) {
            true => 0,
            false => inode.head().size.get().div_ceil(layout.block_bytes),
        };
        for block in 0..count {
            let addr = volume.address(&inode, block)?;
            all.extend(addr.is_real().then_some(u64::from(addr.0)));
            let mut node = volume.node(ino.into())?;
            for step in NodePath::of(&inode.layout(), block).context("within the format")?.steps() {
                let nid = node.child(step.child);
                nids.push(nid);
                node = volume.node(nid)?;
            }
        }
        nids.dedup();
        for nid in nids {
            all.push(u64::from(volume.nat_entry(nid)?.addr.0));
        }
        wanted.push(Wanted { name, hash: hash(&path)?, blocks: all });
    }
    Ok((layout, wanted))
}

/// Damages a copy of a volume, and returns the files to be found.
fn damaged<'w>(
    case: &Case,
    flashkit: &Path,
    sound: &Path,
    image: &Path,
    layout: &Layout,
    wanted: &'w [Wanted],
    tree: &Path,
) -> Result<Vec<&'w Wanted>> {
    workspace::run(Command::new("cp").arg("--sparse=always").arg(sound).arg(image))?;
    let removed = remove(case.removal, flashkit, image, tree)?;
    let file = File::options().write(true).open(image)?;
    let hit: HashSet<u64> = (case.damage)(layout).into_iter().collect();
    let noise = vec![if case.name.contains("zeroed") { 0 } else { 0xA5 }; layout.block_bytes as usize];
    for block in &hit {
        file.write_all_at(&noise, block * layout.block_bytes)?;
    }
    let end = file.metadata()?.len() / 100 * case.kept_percent / layout.block_bytes;
    if case.kept_percent < 100 {
        file.set_len(end * layout.block_bytes)?;
    }
    let is_safe = |file: &&Wanted| {
        let is_hit = |block: &u64| hit.contains(block) || case.kept_percent < 100 && *block >= end;
        let is_asked = removed.is_empty() || removed.contains(&(file.name.clone(), file.hash));
        is_asked && !file.blocks.iter().any(is_hit)
    };
    Ok(wanted.iter().filter(is_safe).collect())
}

/// Removes a quarter of the top directories of a tree from a volume. Returns names and content of their files.
fn remove(removal: Removal, flashkit: &Path, image: &Path, tree: &Path) -> Result<HashSet<(String, Hash)>> {
    if removal == Removal::None {
        return Ok(HashSet::new());
    }
    let mut tops: Vec<_> = fs::read_dir(tree)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    tops.sort();
    tops.truncate((tops.len() / 4).max(1));
    if removal == Removal::Linux {
        remove_by_linux(image, tree, &tops)?;
    } else {
        for top in &tops {
            let target = [image.as_os_str(), ":/".as_ref(), top].join("".as_ref());
            workspace::run(Command::new(flashkit).args(["rm", "-r"]).arg(target))?;
        }
    }
    let mut removed = HashSet::new();
    for top in tops {
        let inside = tree.join(top);
        let below = if inside.is_dir() { files(&inside)? } else { vec![(name_of(&inside), inside.clone())] };
        for (name, path) in below {
            removed.insert((name, hash(&path)?));
        }
    }
    Ok(removed)
}

/// Has Linux remove directories of a tree from a volume, and unmount it.
fn remove_by_linux(image: &Path, tree: &Path, tops: &[OsString]) -> Result<()> {
    let dir = Bytes::from("/mnt/0".to_string());
    let mut ops = vec![Op::Mount {
        source: "/disk/0".to_string().into(),
        dir: dir.clone(),
        fs: "f2fs".into(),
        options: "nodiscard".into(),
        read_only: false,
    }];
    for top in tops {
        removals(&tree.join(top), tree, &mut ops)?;
    }
    ops.push(Op::Unmount { dir });
    Vm::boot(Machine::Amd64, &[Disk::writable(image)])?.run_all(ops).map(drop)
}

/// Adds the operations that remove a file or directory of a tree from the volume.
fn removals(path: &Path, tree: &Path, ops: &mut Vec<Op>) -> Result<()> {
    let inside = Bytes::from(Path::new("/mnt/0").join(path.strip_prefix(tree)?).into_os_string().into_vec());
    if !path.symlink_metadata()?.is_dir() {
        ops.push(Op::Unlink { path: inside });
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        removals(&entry?.path(), tree, ops)?;
    }
    ops.push(Op::Rmdir { path: inside });
    Ok(())
}

/// Files found in a directory: how often each name with its bytes, and all bytes.
struct FoundFiles {
    named: HashSet<(String, Hash)>,
    hashes: HashSet<Hash>,
}

fn found(dir: &Path) -> Result<FoundFiles> {
    let mut found = FoundFiles { named: HashSet::new(), hashes: HashSet::new() };
    for (name, path) in files(dir).unwrap_or_default() {
        let hash = hash(&path)?;
        found.named.insert((name, hash));
        found.hashes.insert(hash);
    }
    Ok(found)
}

/// Returns how many files are there by name and bytes, and by bytes.
fn count(safe: &[&Wanted], found: &FoundFiles) -> (usize, usize) {
    let named = safe.iter().filter(|file| found.named.contains(&(file.name.clone(), file.hash)));
    let bytes = safe.iter().filter(|file| found.hashes.contains(&file.hash));
    (named.count(), bytes.count())
}

fn photorec(image: &Path, work: &Path) -> Result<FoundFiles> {
    let out = work.join("photorec");
    let orders = "partition_none,options,keep_corrupted_file_no,fileopt,everything,enable,search";
    let run = Command::new("photorec")
        .arg("/d")
        .arg(&out)
        .arg("/cmd")
        .arg(image)
        .arg(orders)
        .current_dir(work)
        .output();
    run.context("photorec, of the package testdisk")?;
    let mut all = FoundFiles { named: HashSet::new(), hashes: HashSet::new() };
    for n in 1.. {
        let folder = work.join(format!("photorec.{n}"));
        if !folder.exists() {
            return Ok(all);
        }
        all.hashes.extend(found(&folder)?.hashes);
        fs::remove_dir_all(folder)?;
    }
    Ok(all)
}

/// Repairs a copy with fsck.f2fs, and exports it.
fn repaired(flashkit: &Path, image: &Path, work: &Path) -> Result<FoundFiles> {
    let copy = work.join("repaired.img");
    workspace::run(Command::new("cp").arg("--sparse=always").arg(image).arg(&copy))?;
    model::setup::system("fsck.f2fs").args(["-f", "-y"]).arg(&copy).output().context("fsck.f2fs")?;
    let dir = work.join("repaired");
    Command::new(flashkit).args(["export", "-k", "-q"]).arg(&copy).arg(&dir).output()?;
    found(&dir)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Regular files with content below a directory, with their names.
fn files(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let (mut all, mut waiting) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() && entry.metadata()?.len() > 0 {
                all.push((name_of(&entry.path()), entry.path()));
            }
        }
    }
    Ok(all)
}

fn hash(path: &Path) -> Result<Hash> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    Ok(Sha256::digest(bytes).into())
}
