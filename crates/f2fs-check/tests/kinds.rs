//! Every kind of finding has a damage that causes it: in `support/cases.rs`, `support/inode_cases.rs` or here.

use std::{mem::offset_of, sync::Arc};

use block::{Device, Fault, Faulty, Verb};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options, SyncScope},
    format::{
        BLOCKS_PER_SEGMENT, BlockSize, checkpoint::raw::Checkpoint, sit::SegmentType, superblock::Features,
    },
    units::{BlockAddr, Ino, SegNo},
};
use f2fs_check::{
    Kind, Report, Severity,
    repair::{Planned, plan},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged, NOW};

/// The cases of the macro `damage!`, which name the kinds of errors in quotes.
const CASES: [&str; 2] = [include_str!("support/cases.rs"), include_str!("support/inode_cases.rs")];

/// Outcome of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// There is nothing to repair.
    Clean,
    /// It is planned.
    Planned,
    /// A person has to decide.
    Refused,
}

type Case = (Kind, Outcome, fn() -> Arc<dyn Device>);

/// Kinds that are no error, that need a device with errors, or that come with others.
const OTHER_CASES: &[Case] = &[
    (Kind::FeatureNeeds, Outcome::Refused, feature_without_extra_attributes),
    (Kind::PackUnfinished, Outcome::Clean, unfinished_pack),
    (Kind::PackUnfinished, Outcome::Clean, || old_pack(0, &[0; BLOCK])),
    (Kind::PackUnfinished, Outcome::Clean, || old_pack(8, &[0xEE])),
    (Kind::NotUnmounted, Outcome::Clean, || used(0)),
    (Kind::ChainPending, Outcome::Clean, || used(2)),
    (Kind::ChainGap, Outcome::Clean, broken_chain),
    (Kind::CheckpointDisabled, Outcome::Clean, || with_flags(0x1000)),
    (Kind::NatBits, Outcome::Planned, wrong_nat_bits),
    (Kind::TableUnreadable, Outcome::Planned, || unreadable(|d| d.nat_place(d.ino("/plain").into()).0)),
    (Kind::SummaryUnreadable, Outcome::Planned, || unreadable(closed_summary)),
    (Kind::NodeUnreadable, Outcome::Planned, || unreadable(|d| d.addr(d.ino("/few/other").into()))),
    (Kind::DirUnreadable, Outcome::Planned, || unreadable(|d| d.data(d.ino("/many"), 2))),
    (Kind::BlockTwice, Outcome::Planned, block_with_two_owners),
    (Kind::SectionMixed, Outcome::Planned, mixed_section),
    (Kind::PastSize, Outcome::Clean, data_past_the_size),
    (Kind::EncryptionContext, Outcome::Clean, names_without_a_context),
];

fn report_of(device: &Arc<dyn Device>) -> Report {
    support::report(device.clone())
}

#[test]
fn each_kind_has_a_case_that_causes_it() {
    for kind in Kind::ALL {
        let quoted = format!("\"{}\"", kind.name());
        let is_case = CASES.iter().any(|cases| cases.contains(&quoted));
        let is_here = OTHER_CASES.iter().any(|(other, ..)| other == kind);
        assert!(is_case || is_here, "{} has no damaging test", kind.name());
    }
}

#[test]
fn the_other_kinds_are_found_and_repaired_or_left_to_a_person() {
    for (kind, outcome, case) in OTHER_CASES {
        let device = case();
        let report = report_of(&device);
        assert!(report.count(*kind) > 0, "{}: {}", kind.name(), support::lines(&report));
        let found = match plan(&device, NOW, &mut |_| {}).unwrap() {
            Planned::Clean(_) => Outcome::Clean,
            Planned::Repair(_) => Outcome::Planned,
            Planned::Refused(_) => Outcome::Refused,
        };
        assert_eq!(found, *outcome, "{}: {}", kind.name(), support::lines(&report));
        assert_eq!(*outcome == Outcome::Clean, kind.severity() == Severity::Notice, "{}", kind.name());
    }
}

fn feature_without_extra_attributes() -> Arc<dyn Device> {
    let device = Arc::new(model::Setup::named("base").unwrap().make().unwrap());
    for copy in [0, BLOCK as u64] {
        let at = copy + 1024 + 2180;
        let mut feature = [0; 1];
        device.read(at, &mut feature).unwrap();
        device.write(at, &[feature[0] | 0x20]).unwrap();
    }
    device
}

/// A directory with the mark of encryption, a name that may be encrypted, and no context.
fn names_without_a_context() -> Arc<dyn Device> {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let few = d.ino("/few");
    volume.begin(Caller::ADMIN).create(few, &[0xF1; 16], &NewNode::new(0o100_644)).unwrap();
    volume.unmount().unwrap();
    drop(volume);
    let d = Damaged::copy_of(&d.device);
    d.put_inode(few, 2, &[d.volume().inode(few).unwrap().head().advise | 4]);
    d.add_features(Features::ENCRYPT);
    d.device.clone()
}

fn unfinished_pack() -> Arc<dyn Device> {
    let d = Damaged::new();
    let (number, checkpoint) = d.checkpoint();
    d.put_head(1 - number, 0, &(checkpoint.version.0 + 1).to_le_bytes());
    d.device.clone()
}

/// A volume whose older pack has a damaged head.
fn old_pack(at: usize, bytes: &[u8]) -> Arc<dyn Device> {
    let d = Damaged::new();
    d.put(d.pack(1 - d.checkpoint().0), at, bytes);
    d.device.clone()
}

/// A volume that was not unmounted after its last checkpoint, with some fsyncs.
fn used(fsyncs: u64) -> Arc<dyn Device> {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let ino = volume.begin(Caller::ADMIN).create(Ino(3), b"new", &NewNode::new(0o100_644)).unwrap();
    volume.checkpoint().unwrap();
    for n in 0..fsyncs {
        volume.begin(Caller::ADMIN).write(ino, n, b"x").unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
    }
    d.device.clone()
}

/// A volume whose chain of fsynced nodes has lost its first block.
fn broken_chain() -> Arc<dyn Device> {
    let d = Damaged::new();
    let mut volume = Engine::open(d.device.clone(), Options::new(|| NOW)).unwrap();
    let ino = volume.begin(Caller::ADMIN).create(Ino(3), b"new", &NewNode::new(0o100_644)).unwrap();
    volume.checkpoint().unwrap();
    let start = volume.geometry().next_block(volume.last_checkpoint().logs[SegmentType::WarmNode.index()]);
    for n in 0..3 {
        volume.begin(Caller::ADMIN).write(ino, n, b"x").unwrap();
        volume.fsync(ino, SyncScope::Everything).unwrap();
    }
    d.put(start, 0, &[0; BLOCK]);
    d.device.clone()
}

fn with_flags(flags: u32) -> Arc<dyn Device> {
    let d = Damaged::new();
    let flags = d.checkpoint().1.flags.0 | flags;
    d.put_checkpoint(offset_of!(Checkpoint, ckpt_flags), &flags.to_le_bytes());
    d.device.clone()
}

/// Maps that say that every block of the NAT is full and empty.
fn wrong_nat_bits() -> Arc<dyn Device> {
    let d = Damaged::new();
    let flags = d.checkpoint().1.flags.0 | 0x80;
    d.put_checkpoint(offset_of!(Checkpoint, ckpt_flags), &flags.to_le_bytes());
    let (number, checkpoint) = d.checkpoint();
    let start = d.pack(number);
    let head = d.block(start);
    let at = checkpoint.checksum_offset as usize;
    let sum = u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    let version = checkpoint.version.0 | u64::from(sum) << 32;
    let map = d.volume().superblock().nat_blocks() as usize / 8;
    let bytes = [&version.to_le_bytes()[..], &vec![0xFF; 2 * map]].concat();
    let first = BLOCKS_PER_SEGMENT - bytes.len().div_ceil(BlockSize::B4K.bytes()) as u32;
    d.put(BlockAddr(start.0 + first), 0, &bytes);
    d.device.clone()
}

/// A volume on a device on which one block cannot be read.
fn unreadable(block: fn(&Damaged) -> BlockAddr) -> Arc<dyn Device> {
    let d = Damaged::new();
    let at = u64::from(block(&d).0) << 12;
    let fault = Fault::ErrorIn { verb: Verb::Read, range: at..at + BLOCK as u64 };
    Arc::new(Faulty::new(d.device.clone(), vec![fault]))
}

fn closed_summary(d: &Damaged) -> BlockAddr {
    let segments = (0..1500).map(|block| d.position(d.data(d.ino("/big"), block)).0);
    let closed: Option<SegNo> = segments.into_iter().find(|segment| !d.is_log(*segment));
    d.ssa(closed.expect("the file fills segments"))
}

/// A file names a block of another one, and nothing tells its own block.
fn block_with_two_owners() -> Arc<dyn Device> {
    let d = Damaged::new();
    let plain = d.ino("/plain");
    let (segment, offset) = d.position(d.data(plain, 1));
    let byte = usize::from(offset) / 8;
    d.put_sit(segment, 2 + byte, &[d.sit(segment).map[byte] & !(0x80 >> (offset % 8))]);
    d.put_inode(plain, 396 + 4, &d.data(d.ino("/big"), 9).0.to_le_bytes());
    d.device.clone()
}

fn mixed_section() -> Arc<dyn Device> {
    let d = Damaged::with_sections(2);
    d.move_data(d.free_beside_nodes());
    d.device.clone()
}

fn data_past_the_size() -> Arc<dyn Device> {
    let d = Damaged::new();
    d.put_inode(d.ino("/plain"), 16, &100u64.to_le_bytes());
    d.device.clone()
}
