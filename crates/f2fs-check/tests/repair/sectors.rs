//! Parts of nodes that were overwritten.

use std::collections::BTreeMap;

use f2fs::format::node::NodeFooter;

use super::*;

/// Bytes of a footer.
const FOOTER_BYTES: usize = BLOCK - FOOTER;

/// Paths with mode, owner, links, size, content and attributes.
fn listed(d: &Damaged) -> BTreeMap<String, String> {
    let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
    let entries = model::manifest::manifest_of(&volume).entries.into_iter();
    let line = |entry: &guest::Entry| {
        format!(
            "{:o} {} {} {} {:?} {:?}",
            entry.mode, entry.uid, entry.nlink, entry.size, entry.sha256, entry.xattrs
        )
    };
    entries.map(|entry| (format!("{:?}", entry.path), line(&entry))).collect()
}

#[test]
fn a_footer_of_zeroes_or_ones_loses_nothing() {
    let sound = Damaged::new();
    let attributes = sound.volume().inode(sound.ino("/attributes")).unwrap().xattr_nid();
    let inodes = [
        "/plain",
        "/big",
        "/far",
        "/many",
        "/few",
        "/few/small",
        "/few/other",
        "/link",
        "/attributes",
        "/compressed",
    ];
    let inodes = inodes.map(|path| (path, Nid::from(sound.ino(path))));
    let nodes = [
        ("the xattr node", attributes),
        ("a direct node", sound.child(sound.ino("/big"), 0)),
        ("an indirect node", sound.child(sound.ino("/far"), 2)),
    ];
    let all: Vec<(&str, Nid)> = inodes.into_iter().chain(nodes).collect();
    for byte in [0, 0xFF] {
        let d = Damaged::new();
        all.iter().for_each(|(_, nid)| d.put_node(*nid, FOOTER, &[byte; FOOTER_BYTES]));
        let plan = repair_of(&d.device);
        assert_eq!(plan.losses, Vec::<String>::new(), "{byte:#x}");
        plan.apply(&*d.device).unwrap();
        let report = support::report(d.device.clone());
        assert!(report.is_clean(), "{byte:#x}: {}", support::lines(&report));
        model::fsck::fsck(&d.device).expect("fsck.f2fs finds nothing");
        assert_eq!(listed(&d), listed(&sound), "{byte:#x}");
        let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        for (name, nid) in &all {
            let found = NodeFooter::of(&d.block(volume.nat_entry(*nid).unwrap().addr));
            let right = NodeFooter::of(&sound.block(sound.addr(*nid)));
            // The mark decides on the log, and Linux rolls only that of cold nodes forward.
            assert_eq!(found.cold, right.cold, "{name}, {byte:#x}");
        }
    }
}
