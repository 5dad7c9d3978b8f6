//! Volumes whose newest checkpoint pack has a damaged head: files are read from the older checkpoint, which nothing may
//! continue, because that would overwrite the newest one.

use f2fs::{
    Error,
    engine::{Caller, Engine, NewNode, Options},
    units::{BlockAddr, Ino},
};
use f2fs_check::{
    Certainty,
    repair::{Planned, plan},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{Damaged, NOW};

const ROOT: Ino = Ino(3);

/// Damages a volume whose newest pack has its head in this block.
type Damage<'a> = &'a dyn Fn(&Damaged, BlockAddr);

/// Opens a volume for writing and makes a file.
fn write(d: &Damaged) -> f2fs::Result<()> {
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW))?;
    volume.begin(Caller::ADMIN).create(ROOT, b"new", &NewNode::new(0o100_644))?;
    volume.unmount()
}

#[test]
fn a_newest_pack_without_its_head_prevents_writes_until_it_is_repaired() {
    let old = |d: &Damaged| (d.checkpoint().1.version.0 - 2).to_le_bytes();
    let damages: [Damage<'_>; 4] = [
        // The checksum is wrong, or the version also says that the pack is the older one.
        &|d, head| d.put(head, 200, &[0xEE; 8]),
        &|d, head| d.put(head, 0, &[0; 8]),
        &|d, head| d.put(head, 0, &old(d)),
        // The whole head is that of the checkpoint before the last one.
        &|d, _| d.put_head(d.checkpoint().0, 0, &old(d)),
    ];
    for damage in damages {
        let d = Damaged::new();
        let (number, version) = (d.checkpoint().0, d.checkpoint().1.version);
        damage(&d, d.pack(number));
        let before = d.device.to_vec();
        assert!(matches!(write(&d), Err(Error::ReadOnly(_))));
        assert!(d.device.to_vec() == before, "nothing is written");
        let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        assert_eq!(volume.headless_checkpoint(), Some(version));
        let device: std::sync::Arc<dyn block::Device> = d.device.clone();
        let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
        assert_eq!(plan.certainty(), Certainty::Certain);
        plan.apply(&*d.device).unwrap();
        write(&d).unwrap();
        assert!(support::report(d.device.clone()).is_clean());
    }
}

#[test]
fn a_copy_of_an_earlier_volume_at_the_end_of_a_pack_does_not_count() {
    let d = Damaged::new();
    let (number, checkpoint) = d.checkpoint();
    let other = d.pack(1 - number);
    d.put_head(1 - number, 0, &(checkpoint.version.0 + 100).to_le_bytes());
    let head = d.block(other);
    let blocks = u32::from_le_bytes(head[136..140].try_into().unwrap());
    d.put(BlockAddr(other.0 + blocks - 1), 0, &head);
    d.put(other, 0, &[0xEE; 4096]);
    let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
    assert_eq!(volume.headless_checkpoint(), None);
    assert_eq!(volume.last_checkpoint().version, checkpoint.version);
    drop(volume);
    let device: std::sync::Arc<dyn block::Device> = d.device.clone();
    let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
    plan.apply(&*d.device).unwrap();
    let volume = f2fs::OpenOptions::new().open(d.device.clone()).unwrap();
    assert_eq!(volume.read("/plain").unwrap(), [3; 5 * 4096]);
    drop(volume);
    write(&d).unwrap();
    assert!(support::report(d.device.clone()).is_clean());
}

#[test]
fn a_pack_that_a_power_cut_left_unfinished_prevents_no_write() {
    for is_torn in [false, true] {
        let d = Damaged::new();
        let (number, checkpoint) = d.checkpoint();
        // Behind the head, the pack before the last one still has its end.
        d.put_head(1 - number, 0, &(checkpoint.version.0 + 1).to_le_bytes());
        if is_torn {
            d.put(d.pack(1 - number), 512, &[0xEE; 512]);
        }
        let volume = Engine::open(d.device.clone(), Options::read_only()).unwrap();
        assert_eq!(volume.headless_checkpoint(), None);
        write(&d).unwrap();
        assert!(support::report(d.device.clone()).is_clean());
    }
}
