//! Damaged sectors and blocks of directories: every name that its inode carries comes back, and none leads to another file.

use std::collections::BTreeMap;

use block::Rng;
use f2fs::{
    Place,
    engine::{Caller, Engine, NewNode},
    format::{
        FileType,
        dentry::{Dentries, SlotUse},
    },
    units::{BlockAddr, Ino},
};
use f2fs_check::{Certainty, Kind, repair::Planned};

use crate::{
    ROOT, planned, repair_of, support,
    volume::{BLOCK, Damaged, contents},
};

const FILE: u16 = 0o100_644;
const DIR: u16 = 0o040_755;
const SECTOR: usize = 512;
const FEATURES: &str = "extra_attr,inode_checksum";

fn make(volume: &mut Engine, dir: Ino, name: &str) -> f2fs::Result<()> {
    let file = volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(FILE))?;
    volume.begin(Caller::ADMIN).write(file, 0, format!("{} {name}", dir.0).as_bytes()).map(drop)
}

fn make_dir(volume: &mut Engine, dir: Ino, name: &str) -> f2fs::Result<Ino> {
    volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(DIR))
}

/// Makes a directory of files ("files"), one with directories among them ("tree"), and an inline one ("inline").
fn fill(volume: &mut Engine) -> f2fs::Result<()> {
    let files = make_dir(volume, ROOT, "files")?;
    // Entries of removed files stay in free slots, and their numbers belong to other files later.
    for n in 0..300 {
        make(volume, files, &format!("removed {n:03}"))?;
    }
    for n in 0..300 {
        volume.begin(Caller::ADMIN).unlink(files, format!("removed {n:03}").as_bytes())?;
    }
    for n in 0..420 {
        make(volume, files, &format!("the file {n:03}"))?;
    }
    let tree = make_dir(volume, ROOT, "tree")?;
    for n in 0..400 {
        make(volume, tree, &format!("leaf {n:03}"))?;
        if n % 10 == 0 {
            let dir = make_dir(volume, tree, &format!("branch {n:03}"))?;
            make(volume, dir, "twig")?;
        }
    }
    let few = make_dir(volume, ROOT, "inline")?;
    for n in 0..40 {
        make(volume, few, &format!("small file {n:02}"))?;
    }
    let below = make_dir(volume, few, "below")?;
    make(volume, below, "deep")?;
    // The inode of the root is written again, behind those of the directories, which a check therefore reads before it.
    volume.checkpoint()?;
    make_dir(volume, ROOT, "last").map(drop)
}

fn sound() -> Damaged {
    static SOUND: std::sync::OnceLock<Damaged> = std::sync::OnceLock::new();
    let sound = SOUND.get_or_init(|| Damaged::filled(64 << 20, FEATURES, fill));
    Damaged::copy_of(&model::setup::copy(&sound.device).expect("memory"))
}

/// New content of a damaged range.
#[derive(Debug, Clone, Copy)]
enum Fill {
    Zeroes,
    Random(u64),
}

impl Fill {
    fn bytes(self, length: usize) -> Vec<u8> {
        match self {
            Fill::Zeroes => vec![0; length],
            Fill::Random(seed) => {
                let mut rng = Rng::new(seed);
                (0..length).map(|_| rng.below(256) as u8).collect()
            }
        }
    }
}

const FILLS: [Fill; 3] = [Fill::Zeroes, Fill::Random(1), Fill::Random(2)];

/// The blocks of a directory.
fn blocks(d: &Damaged, dir: Ino) -> Vec<BlockAddr> {
    let size = d.volume().inode(dir).expect("sound").head().size.get();
    let all = (0..size.div_ceil(BLOCK as u64)).map(|block| d.data(dir, block));
    all.filter(|addr| addr.is_real()).collect()
}

/// All paths with kind, size and content, and the paths of directories: their size may change.
pub fn all_paths(d: &Damaged) -> BTreeMap<String, String> {
    let without_size = |line: String| if line.starts_with("Dir ") { "Dir".into() } else { line };
    contents(&d.device).into_iter().map(|(path, line)| (path, without_size(line))).collect()
}

/// Repairs a damaged volume. Returns the paths that are not as before, with a plus those that are new; losses, and the
/// reason if it is not repaired.
pub fn faults_after_repair(d: &Damaged, sound: &BTreeMap<String, String>) -> Vec<String> {
    let plan = match planned(&d.device) {
        Planned::Repair(plan) => plan,
        Planned::Clean(_) => return Vec::new(),
        Planned::Refused(refusal) => return vec![refusal.reason, support::lines(&refusal.report)],
    };
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    if !report.is_clean() {
        return vec![format!("the next check: {}", support::lines(&report))];
    }
    let found = all_paths(d);
    let differing = sound.iter().filter(|(path, line)| found.get(*path) != Some(line));
    let differing = differing.map(|(path, _)| path.clone());
    let new = found.keys().filter(|path| !sound.contains_key(*path)).map(|path| format!("+{path}"));
    differing.chain(new).chain(plan.losses).collect()
}

/// A damage: its description, and the bytes that are put into a block.
type Damage = (String, BlockAddr, usize, Vec<u8>);

/// Repairs copies of the volume, each with one damage. Expects all files at their places, without a loss.
fn expect_all_back(damages: Vec<Damage>) {
    let sound_paths = all_paths(&sound());
    let mut failed = Vec::new();
    for (shown, addr, at, bytes) in damages {
        let d = sound();
        d.put(addr, at, &bytes);
        let faults = faults_after_repair(&d, &sound_paths);
        if !faults.is_empty() {
            let last = faults.last().filter(|_| faults.len() > 4).into_iter();
            let some: Vec<&String> = faults.iter().take(4).chain(last).collect();
            failed.push(format!("{shown}: {} faults: {some:#?}", faults.len()));
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
}

/// Damages of each sector of some blocks.
fn sectors(name: &str, blocks: &[BlockAddr], fills: &[Fill]) -> Vec<Damage> {
    let mut damages = Vec::new();
    for (n, addr) in blocks.iter().enumerate() {
        for sector in 0..BLOCK / SECTOR {
            for fill in fills {
                let shown = format!("{name}, block {n}, sector {sector}, {fill:?}");
                damages.push((shown, *addr, sector * SECTOR, fill.bytes(SECTOR)));
            }
        }
    }
    damages
}

/// The first block, one in the middle, and the last block of a directory.
fn three_blocks(path: &str) -> Vec<BlockAddr> {
    let d = sound();
    let all = blocks(&d, d.ino(path));
    assert!(all.len() >= 4, "{} blocks", all.len());
    vec![all[0], all[all.len() / 2], all[all.len() - 1]]
}

#[test]
fn a_bad_sector_in_a_directory_of_files_takes_no_name() {
    expect_all_back(sectors("files", &three_blocks("/files"), &FILLS));
}

#[test]
fn a_bad_sector_in_a_directory_of_directories_takes_no_name() {
    expect_all_back(sectors("tree", &three_blocks("/tree"), &FILLS));
}

#[test]
fn a_bad_sector_in_an_inline_directory_takes_no_name() {
    let d = sound();
    let ino = d.ino("/inline");
    let range = d.volume().inode(ino).expect("sound").layout().inline_range();
    // The inode shares the first sector and the last.
    let own = |damage: &Damage| (range.start..range.end - SECTOR).contains(&damage.2);
    let all = sectors("inline", &[d.addr(ino.into())], &FILLS).into_iter();
    let damages: Vec<Damage> = all.filter(own).collect();
    assert_eq!(damages.len(), 6 * FILLS.len());
    expect_all_back(damages);
}

/// All contents of files are there, and no path has that of another one.
#[test]
fn a_bad_sector_in_the_inode_of_an_inline_directory_takes_no_content() {
    let sound_paths = all_paths(&sound());
    let inode = sound().addr(sound().ino("/inline").into());
    let all = sectors("inline", &[inode], &FILLS).into_iter();
    for (shown, addr, at, bytes) in all.filter(|damage| [0, 7 * SECTOR].contains(&damage.2)) {
        let d = sound();
        d.put(addr, at, &bytes);
        faults_after_repair(&d, &sound_paths);
        let found = all_paths(&d);
        for (path, line) in &sound_paths {
            let now = found.get(path).unwrap_or(line);
            assert_eq!(now, line, "{shown}: {path} has another content");
            assert!(found.values().any(|other| other == line), "{shown}: the content of {path} is gone");
        }
    }
}

/// Blocks that a lost or misdirected write leaves in place of one of a directory. The last two are of another directory.
fn foreign_blocks(d: &Damaged, dir: &[BlockAddr], other: &[BlockAddr]) -> [(&'static str, Vec<u8>); 10] {
    let inode = |path| d.block(d.addr(d.ino(path).into()));
    [
        ("zeroes", vec![0; BLOCK]),
        ("random bytes", Fill::Random(3).bytes(BLOCK)),
        ("text", b"some text of a file\n".iter().copied().cycle().take(BLOCK).collect()),
        ("the inode of a file", inode("/files/the file 007")),
        ("the inode of a directory", inode("/inline")),
        ("the first block", d.block(dir[0])),
        ("the second block", d.block(dir[1])),
        ("the last block", d.block(dir[dir.len() - 1])),
        ("the first block of another directory", d.block(other[0])),
        ("the second block of another directory", d.block(other[1])),
    ]
}

#[test]
fn a_block_of_a_directory_that_foreign_content_overwrote_takes_no_name() {
    let d = sound();
    let [files, tree] = ["/files", "/tree"].map(|path| blocks(&d, d.ino(path)));
    let mut damages = Vec::new();
    for (path, dir, other) in [("/files", &files, &tree), ("/tree", &tree, &files)] {
        let foreign = foreign_blocks(&d, dir, other);
        for n in [0, 1, dir.len() - 1] {
            let damage = |(shown, bytes): &(&str, Vec<u8>)| {
                (format!("{path}, block {n}: {shown}"), dir[n], 0, bytes.clone())
            };
            damages.extend(foreign.iter().map(damage));
        }
    }
    expect_all_back(damages);
}

#[test]
fn a_name_of_an_inline_directory_stays_while_another_file_is_repaired() {
    let d = Damaged::filled(64 << 20, FEATURES, |volume| {
        let dir = make_dir(volume, ROOT, "dir")?;
        let file = volume.begin(Caller::ADMIN).create(ROOT, b"file", &NewNode::new(FILE))?;
        volume.begin(Caller::ADMIN).write(file, 0, &[5; 9 * BLOCK])?;
        volume.begin(Caller::ADMIN).link(file, dir, b"second")
    });
    let paths = all_paths(&d);
    let (dir, file) = (d.ino("/dir"), d.ino("/file"));
    let inode = d.volume().inode(dir).unwrap();
    let range = inode.layout().inline_range();
    let mut area = Dentries::new(inode.inline_area().to_vec(), Place::Volume);
    let slot = d.slot(dir, "second");
    // The name lies in the slot of "..".
    let hash = area.raw(slot).hash.get();
    [1, slot].into_iter().for_each(|slot| area.set_use(slot, SlotUse::Free));
    area.insert(1, hash, file, FileType::Regular, b"second");
    d.put_inode(dir, range.start, &area.into_inner());
    // This repair comes before those of directories.
    d.put_inode(file, d.volume().inode(file).unwrap().layout().addrs_at() + 4, &[9; 4]);
    assert_eq!(faults_after_repair(&d, &paths), Vec::<String>::new());
}

#[test]
fn a_directory_without_a_mode_stays_a_link_of_its_parent() {
    let d = Damaged::new();
    d.put_inode(d.ino("/few/below"), 0, &[0; 2]);
    let plan = repair_of(&d.device);
    let kinds = plan.report.findings().iter().chain(&plan.uncovered).map(|finding| finding.kind);
    assert_eq!(kinds.filter(|kind| *kind == Kind::LinkCount).count(), 0);
}

#[test]
fn a_directory_with_two_names_and_a_wrong_parent_keeps_the_name_that_its_inode_confirms() {
    let d = Damaged::filled(64 << 20, FEATURES, |volume| {
        for name in ["one", "two"] {
            let dir = make_dir(volume, ROOT, name)?;
            make(volume, dir, "file")?;
            let below = make_dir(volume, dir, "below")?;
            make(volume, below, "deep")?;
        }
        Ok(())
    });
    let sound_paths = all_paths(&d);
    for (own, other) in [("/one", "/two"), ("/two", "/one")] {
        let d = Damaged::copy_of(&d.device);
        let (below, other) = (d.ino(&format!("{own}/below")), d.ino(other));
        d.put_dentry(other, d.slot(other, "file"), 4, &below.0.to_le_bytes());
        d.put_dentry(other, d.slot(other, "file"), 10, &[FileType::Directory.dentry_code()]);
        // ".." confirms neither name.
        d.put_dentry(below, 1, 4, &ROOT.0.to_le_bytes());
        assert_eq!(faults_after_repair(&d, &sound_paths), Vec::<String>::new(), "{own}");
    }
}

#[test]
fn a_file_that_moves_to_lost_and_found_is_a_loss() {
    const ADVISE: usize = 2;
    let d = Damaged::new();
    let (few, other) = (d.ino("/few"), d.ino("/few/other"));
    d.put_inode(other, ADVISE, &[f2fs::format::inode::advise::LOST_PINO]);
    d.put_dentry(few, d.slot(few, "other"), 0, &[0; 11]);
    let plan = repair_of(&d.device);
    assert_eq!(
        plan.losses,
        [
            "up to 1 files and directories move to lost+found, or to the root if the volume is full, because nothing tells \
          their place"
        ]
    );
    assert_eq!(plan.certainty(), Certainty::Unclear);
}

/// lost+found takes blocks, and the repair was refused without a reason.
#[test]
fn a_file_without_a_place_comes_to_the_root_of_a_full_volume() {
    const ADVISE: usize = 2;
    let d = Damaged::filled(64 << 20, "extra_attr,inode_checksum", |volume| {
        let few = make_dir(volume, ROOT, "few")?;
        make(volume, few, "nameless")?;
        let filler = volume.begin(Caller::ADMIN).create(ROOT, b"filler", &NewNode::new(FILE))?;
        let mut at = 0;
        for blocks in [64, 1] {
            loop {
                match volume.begin(Caller::ADMIN).write(filler, at, &vec![1; blocks * BLOCK]) {
                    Ok(_) => at += (blocks * BLOCK) as u64,
                    Err(f2fs::Error::NoSpace { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    });
    let (few, file) = (d.ino("/few"), d.ino("/few/nameless"));
    d.put_inode(file, ADVISE, &[f2fs::format::inode::advise::LOST_PINO]);
    d.put_dentry(few, d.slot(few, "nameless"), 0, &[0; 11]);
    let mut expected = all_paths(&d);
    let plan = repair_of(&d.device);
    plan.apply(&*d.device).unwrap();
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    let found = all_paths(&d);
    expected.retain(|path, line| found.get(path) != Some(line));
    assert_eq!(expected, BTreeMap::new());
    assert!(found.contains_key("\"nameless\""), "{:?}", found.keys());
}

/// The first visit restored a name of one byte, the second one replaced it by one of five bytes.
#[test]
fn a_block_that_a_directory_names_twice_is_no_panic() {
    let d = sound();
    let dir = d.ino("/files");
    let first = d.data(dir, 0);
    // The length of the name of ".".
    d.put(first, 30 + 8, &5_u16.to_le_bytes());
    let at = d.volume().inode(dir).unwrap().layout().addrs_at() + 4 * 2;
    d.put_inode(dir, at, &first.0.to_le_bytes());
    d.seal(dir);
    assert!(!matches!(planned(&d.device), Planned::Clean(_)));
}

/// The second of two equal names got another one, whichever was the wrong one.
#[test]
fn of_two_equal_names_that_one_changes_which_its_inode_does_not_carry() {
    for (wrong, right) in [("one", "two"), ("two", "one")] {
        let d = Damaged::filled(64 << 20, "extra_attr,inode_checksum", |volume| {
            for (name, byte) in [("one", 1), ("two", 2)] {
                let ino =
                    volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644))?;
                volume.begin(Caller::ADMIN).write(ino, 0, &[byte; 100])?;
            }
            Ok(())
        });
        let before = all_paths(&d);
        let slots = [wrong, right].map(|name| d.slot(ROOT, name));
        let (addr, at) = d.dentry_at(ROOT, slots[1]);
        let hash = d.block(addr)[at..at + 4].to_vec();
        let (names, place) = d.name_at(ROOT, slots[0]);
        d.put(names, place, right.as_bytes());
        d.put_dentry(ROOT, slots[0], 0, &hash);
        assert_eq!(faults_after_repair(&d, &before), Vec::<String>::new(), "{wrong} became {right}");
    }
}
