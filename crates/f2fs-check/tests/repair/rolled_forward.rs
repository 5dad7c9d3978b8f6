//! Damage beside fsyncs after the checkpoint: the roll-forward hides nothing of what spoke against the SIT.

use f2fs::{
    engine::{Caller, Engine, FileSize, NewNode, Options, SyncScope},
    units::{BlockAddr, Ino},
};
use f2fs_check::{Certainty, Kind};

use crate::{
    ROOT,
    directories::{all_paths, faults_after_repair},
    repair_of, support,
    volume::{BLOCK, Damaged, NOW},
};

/// Features without and with checksums of inodes.
const FEATURES: [&str; 2] = ["extra_attr", "extra_attr,inode_checksum"];

/// Syncs of the file "other" after the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fsync {
    /// There is none.
    Missing,
    /// It is to be rolled forward.
    Pending,
}

fn file(volume: &mut Engine, name: &str, blocks: usize) -> f2fs::Result<Ino> {
    let ino = volume.begin(Caller::ADMIN).create(ROOT, name.as_bytes(), &NewNode::new(0o100_644))?;
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; blocks * BLOCK])?;
    Ok(ino)
}

/// A volume with the files that `fill` makes, and "other".
fn volume(features: &str, fsync: Fsync, fill: impl FnOnce(&mut Engine) -> f2fs::Result<()>) -> Damaged {
    let d = Damaged::filled(64 << 20, features, |volume: &mut Engine| {
        file(volume, "other", 5)?;
        fill(volume)
    });
    if fsync == Fsync::Pending {
        let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
        let other = d.ino("/other");
        file(&mut volume, "checkpointed", 1).unwrap();
        volume.checkpoint().unwrap();
        volume.begin(Caller::ADMIN).write(other, 5 * BLOCK as u64, &[3; 2 * BLOCK]).unwrap();
        volume.fsync(other, SyncScope::Everything).unwrap();
    }
    let d = d.at_last_checkpoint();
    let pending = support::report(d.device.clone()).count(Kind::ChainPending);
    assert_eq!(pending > 0, fsync == Fsync::Pending);
    d
}

#[test]
fn blocks_that_an_older_inode_does_not_name_are_a_loss_beside_an_fsync() {
    for features in FEATURES {
        let losses = [Fsync::Missing, Fsync::Pending].map(|fsync| {
            let (mut ino, mut older) = (ROOT, BlockAddr::NULL);
            let d = volume(features, fsync, |volume| {
                ino = file(volume, "rewritten", 30)?;
                volume.checkpoint()?;
                older = volume.nat_entry(ino.into())?.addr;
                volume.begin(Caller::ADMIN).write(ino, 3 * BLOCK as u64, &[2; 9 * BLOCK])
            });
            d.put_node(ino.into(), 0, &d.block(older));
            let plan = repair_of(&d.device);
            assert_eq!(plan.certainty(), Certainty::Unclear);
            plan.losses
        });
        assert!(losses[0].iter().any(|loss| loss.starts_with("up to 9 blocks are freed")), "{losses:?}");
        assert_eq!(losses[0], losses[1], "{features}");
    }
}

/// Discarded content came back.
#[test]
fn reserved_places_stay_reserved_beside_an_old_block_of_the_sit_and_an_fsync() {
    for features in FEATURES {
        let (mut ino, mut nodes, mut older) = (ROOT, Vec::new(), Vec::new());
        let d = volume(features, Fsync::Pending, |volume| {
            ino = file(volume, "reserved", 5)?;
            // With the inode of "other", these are just enough for an old block.
            nodes = (0..7).map(|n| file(volume, &format!("node {n}"), 1)).collect::<Result<_, _>>()?;
            volume.checkpoint()?;
            let inode = volume.inode(ino)?;
            older = (0..5).map(|n| volume.address(&inode, n)).collect::<Result<_, _>>()?;
            volume.begin(Caller::ADMIN).zero_range(ino, 0, 5 * BLOCK as u64, FileSize::Stays)
        });
        assert_eq!(d.data(ino, 0), BlockAddr::NEW);
        let paths = all_paths(&d);
        older.iter().for_each(|addr| d.flip_mark(*addr));
        nodes.push(d.ino("/other"));
        nodes.iter().for_each(|ino| d.flip_mark(d.addr((*ino).into())));
        assert_eq!(faults_after_repair(&d, &paths), Vec::<String>::new(), "{features}");
    }
}
