//! Each kind of damage is repaired: the next check finds nothing, fsck.f2fs neither, every file that the damage did not
//! touch is as before, and undo brings the damaged volume back.

use std::{collections::BTreeMap, sync::Arc};

use block::{Device, MemoryDevice};
use f2fs::{
    engine::{Engine, Options},
    format::BLOCKS_PER_SEGMENT,
    units::{BlockAddr, Ino, Nid, SegNo},
};
use f2fs_check::{
    Report,
    repair::{Plan, Planned, Undo, plan},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW};

/// Kinds that a person has to resolve.
const REFUSED: [&str; 2] = ["feature-unknown", "resize-unfinished"];

/// Plans a repair.
fn planned(device: &Arc<MemoryDevice>) -> Planned {
    let device: Arc<dyn Device> = device.clone();
    plan(&device, NOW, &mut |_| {}).expect("an F2FS volume")
}

fn repair_of(device: &Arc<MemoryDevice>) -> Plan {
    match planned(device) {
        Planned::Repair(plan) => plan,
        Planned::Clean(report) => panic!("nothing to repair: {}", support::lines(&report)),
        Planned::Refused(refusal) => panic!("{}\n{}", refusal.reason, support::lines(&refusal.report)),
    }
}

/// All paths with kind, size and content.
fn contents(device: &Arc<MemoryDevice>) -> BTreeMap<String, String> {
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a volume");
    let entries = model::manifest::manifest_of(&volume).entries.into_iter();
    let line = |entry: &guest::Entry| {
        format!("{:?} {} {:?} {:?}", entry.kind, entry.size, entry.sha256, entry.errors)
    };
    entries.map(|entry| (format!("{:?}", entry.path), line(&entry))).collect()
}

/// Repairs a damaged volume and judges the result. Returns the paths that are not as before.
fn repaired(damaged: &Damaged) -> Vec<String> {
    let before = damaged.device.to_vec();
    let plan = repair_of(&damaged.device);
    let undo = Undo::of(plan.requests(), &*damaged.device).unwrap();
    assert!(damaged.device.to_vec() == before, "a plan writes nothing");
    plan.apply(&*damaged.device).unwrap();
    let report: Report = support::report(damaged.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    if let Err(error) = model::fsck::fsck(&damaged.device) {
        panic!("fsck.f2fs: {error:#}");
    }
    let (sound, found) = (contents(&Damaged::new().device), contents(&damaged.device));
    let mut stored = Vec::new();
    undo.store(&mut stored).unwrap();
    Undo::load(&mut &stored[..]).unwrap().apply(&*damaged.device).unwrap();
    assert!(damaged.device.to_vec() == before, "undo brings every byte back");
    let mut differing: Vec<String> = sound
        .iter()
        .filter(|(path, line)| found.get(*path) != Some(line))
        .map(|(path, _)| path.clone())
        .collect();
    differing.extend(found.keys().filter(|path| !sound.contains_key(*path)).map(|path| format!("+{path}")));
    differing
}

macro_rules! damage {
    ($($test:ident => [$($kind:literal),*]: |$damaged:ident| $damage:block)*) => {$(
        #[test]
        fn $test() {
            let $damaged = Damaged::new();
            $damage
            let kinds: Vec<&str> = vec![$($kind),*];
            if kinds.is_empty() {
                assert!(matches!(planned(&$damaged.device), Planned::Clean(_)));
            } else if kinds.iter().any(|kind| REFUSED.contains(kind)) {
                let before = $damaged.device.to_vec();
                assert!(matches!(planned(&$damaged.device), Planned::Refused(_)));
                assert!($damaged.device.to_vec() == before);
            } else {
                let differing = repaired(&$damaged);
                assert_eq!(differing, lost_by(stringify!($test)), "the files that are not as before");
            }
        }
    )*};
}

include!("support/cases.rs");

#[test]
fn a_block_of_a_file_that_a_directory_names_keeps_its_content() {
    let d = Damaged::new();
    d.put_inode(d.ino("/many"), ADDRS + 8, &le(d.data(d.ino("/big"), 9).0));
    assert_eq!(repaired(&d), Vec::<String>::new(), "the files that are not as before");
}

#[test]
fn a_damaged_head_of_the_newest_pack_is_not_repaired_without_a_person() {
    let d = Damaged::new();
    let newest = d.pack(d.checkpoint().0);
    d.put(newest, 200, &[0xEE; 8]);
    assert_eq!(repair_of(&d.device).certainty(), f2fs_check::Certainty::Unclear);
}

/// Paths that a damage changes although it is repaired; with a plus those that are new.
fn lost_by(test: &str) -> Vec<String> {
    let paths: &[&str] = match test {
        // The nodes of the chain are empty, and fsyncs count.
        "a_chain_that_loops" => &["\"big\""],
        "a_dentry_without_a_name" => &["\"few/small\""],
        // Every name of "few" outside of it is gone.
        "a_directory_inside_itself" => &[
            "\"few\"",
            "\"few/below\"",
            "\"few/other\"",
            "\"few/small\"",
            "+\"lost+found/below\"",
            "+\"lost+found/few\"",
            "+\"lost+found/few/other\"",
            "+\"lost+found/few/small\"",
        ],
        "a_doubled_name" => &["\"few/other\"", "+\"few/small~1\""],
        "a_name_with_a_slash" => &["\"few/small\"", "+\"few/s_all\""],
        // The size is lost; the content gets the largest one.
        "an_inode_whose_inline_data_does_not_fit" => &["\"few/small\"", "\"small too\""],
        _ => &[],
    };
    paths.iter().map(|path| (*path).to_owned()).collect()
}
