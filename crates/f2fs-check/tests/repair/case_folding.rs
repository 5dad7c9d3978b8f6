//! Directories that lose or gain the flag of case folding: the hashes of their names tell.

use f2fs::{
    engine::{Caller, Engine, FinalSymlink, NewNode, Options, SetAttr},
    format::inode::flag,
};
use f2fs_check::{Certainty, Kind};

use crate::{
    ROOT, repair_of, support,
    volume::{Damaged, contents},
};

/// Byte offset of i_flags.
const FLAGS: usize = 80;
const FEATURES: &str = "casefold";

/// Makes two directories of 300 and of five files, which fold case ("Folded", "Few folded") and do not ("Plain", "Few plain").
/// Those that do not have "README" beside "readme".
fn fill(volume: &mut Engine) -> f2fs::Result<()> {
    let many: Vec<String> = (0..300).map(|n| format!("File Number {n:04}")).collect();
    let few = ["README", "Makefile", "Notes.TXT", "Überblick", "plain"].map(String::from);
    for (name, files) in [("Folded", &many[..]), ("Plain", &many), ("Few folded", &few), ("Few plain", &few)]
    {
        let dir = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o040_755))?;
        let folds = name.to_lowercase().contains("folded");
        if folds {
            let set = SetAttr { flags: Some(flag::CASEFOLD), ..SetAttr::default() };
            volume.begin(Caller::ADMIN).set_attr(dir, &set)?;
        }
        for file in files.iter().map(String::as_str).chain((!folds).then_some("readme")) {
            let ino = volume.begin(Caller::ADMIN).create(dir, file.as_bytes(), &NewNode::new(0o100_644))?;
            volume.begin(Caller::ADMIN).write(ino, 0, file.as_bytes())?;
        }
    }
    Ok(())
}

fn flip_flag(d: &Damaged, path: &str) {
    let ino = d.ino(path);
    let flags = d.volume().inode(ino).unwrap().head().flags.get() ^ flag::CASEFOLD;
    d.put_node(ino.into(), FLAGS, &flags.to_le_bytes());
}

#[test]
fn a_wrong_flag_of_case_folding_is_restored_by_the_hashes() {
    let sound = Damaged::filled(128 << 20, FEATURES, fill);
    for path in ["/Folded", "/Plain", "/Few folded", "/Few plain"] {
        let d = Damaged::copy_of(&sound.device);
        flip_flag(&d, path);
        let plan = repair_of(&d.device);
        let told = support::lines(&plan.report);
        assert_eq!(plan.certainty(), Certainty::Certain, "{path}: {told}");
        assert_eq!(plan.report.count(Kind::DentryHash), 0, "{path}: {told}");
        plan.apply(&*d.device).unwrap();
        assert!(support::report(d.device.clone()).is_clean());
        model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
        let inode = |d: &Damaged| {
            let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
            volume.inode(d.ino(path)).unwrap().bytes().to_vec()
        };
        assert_eq!(inode(&d)[..100], inode(&sound)[..100], "{path}");
        assert_eq!(contents(&d.device), contents(&sound.device), "{path}");
        let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        let other_spelling = volume.resolve(b"/Few folded/NOTES.txt", FinalSymlink::NoFollow);
        assert_eq!(other_spelling.ok(), Some(sound.ino("/Few folded/Notes.TXT")), "{path}");
    }
}

/// Most of its names tell that the flag was wrong when the others were made.
#[test]
fn a_directory_with_hashes_of_both_kinds_is_left_to_a_person() {
    for (before, after, folds) in [(6, 2, false), (2, 6, true)] {
        let d = Damaged::filled(128 << 20, FEATURES, |volume| {
            let dir = volume.begin(Caller::ADMIN).create(ROOT, b"Mixed", &NewNode::new(0o040_755))?;
            (0..before + after).try_for_each(|n| {
                let name = format!("Name {n}");
                volume.begin(Caller::ADMIN).create(dir, name.as_bytes(), &NewNode::new(0o100_644)).map(drop)
            })
        });
        let dir = d.ino("/Mixed");
        for n in before..before + after {
            let folded = f2fs::format::hash::name_hash(format!("name {n}").as_bytes());
            d.put_dentry(dir, d.slot(dir, &format!("Name {n}")), 0, &folded.to_le_bytes());
        }
        let plan = repair_of(&d.device);
        assert_eq!(plan.certainty(), Certainty::Unclear, "{}", support::lines(&plan.report));
        plan.apply(&*d.device).unwrap();
        assert!(support::report(d.device.clone()).is_clean());
        let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        assert_eq!(volume.inode(dir).unwrap().has_flag(flag::CASEFOLD), folds);
        let names = (0..before + after).map(|n| format!("Name {n}"));
        names.for_each(|name| assert!(volume.find_entry(dir, name.as_bytes()).unwrap().is_some(), "{name}"));
    }
}
