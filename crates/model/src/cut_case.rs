//! Sequences for power cuts, and the kind of power failure in each.

use f2fs::engine::{ActiveLogs, InPlace};

use guest::op::Allocate;

use crate::{Mode, Settings, Setup, setup::Maker};

/// Power cuts in sequences of one kind.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The kind of volume.
    pub setup: Setup,
    /// The kind of power failure.
    pub mode: Mode,
    /// Operations per sequence.
    pub steps: usize,
}

impl Case {
    /// Returns all cases. Cases with torn writes have inode checksums: without them a torn inode passes for a
    /// whole one, in Linux as here.
    pub fn all() -> Vec<Case> {
        let case = |name, setup, mode, steps| Case { name, setup, mode, steps };
        let torn = |name, maker| {
            let setup = Setup { maker: Maker::Tool(maker), ..busy(name, 4, Promise::Fsync) };
            case(name, setup, Mode::Random(2), 120)
        };
        let in_new_places =
            Settings { in_place: InPlace::Never, active_logs: ActiveLogs::Six, ..Settings::default() };
        // The volume has 2560 blocks for its user, so that nearly each segment that a log opens has to be cleaned before.
        let mut full = busy("append only, full", 4, Promise::Fsync);
        full.bytes = 56 << 20;
        (full.mix.fill, full.mix.first_mib) = (true, 9);
        // In a large file these are done in parts, between which a checkpoint is written.
        full.mix.allocate.retain(|how| !matches!(how, Allocate::Collapse | Allocate::Insert));
        let sealed: &[&str] = &["-O", "extra_attr,inode_checksum"];
        vec![
            case("checkpoints in a row", busy("base", 8, Promise::Checkpoint), Mode::Linear, 250),
            case(
                "checkpoints, reordered and torn",
                busy("features", 8, Promise::Checkpoint),
                Mode::Random(4),
                200,
            ),
            case(
                "checkpoints, every choice of writes",
                busy("base", 5, Promise::Checkpoint),
                Mode::Exhaustive(256),
                60,
            ),
            case("fsyncs in a row", busy("base", 4, Promise::Fsync), Mode::Linear, 250),
            case("fsyncs, reordered and torn", busy("features", 4, Promise::Fsync), Mode::Random(4), 200),
            case(
                "fsyncs, every choice of writes",
                busy("base", 4, Promise::Fsync),
                Mode::Exhaustive(256),
                60,
            ),
            torn("quota", &["-O", "extra_attr,inode_checksum,project_quota,quota,lost_found"]),
            torn("four logs", sealed),
            torn("two logs", sealed),
            torn("sections", &["-s", "2", "-z", "2", "-O", "extra_attr,inode_checksum"]),
            torn("casefold", &["-O", "extra_attr,inode_checksum,casefold", "-C", "utf8"]),
            torn("compressed", &["-O", "extra_attr,compression,inode_checksum"]),
            case("16K blocks", busy("16K blocks", 4, Promise::Fsync), Mode::Random(2), 120),
            torn("not inline", sealed),
            torn("small cache", sealed),
            torn("write through", sealed),
            case(
                "nothing in place",
                Setup { settings: in_new_places, ..busy("features", 4, Promise::Fsync) },
                Mode::Random(3),
                200,
            ),
            case("append only, full", full, Mode::Random(2), 120),
        ]
    }

    /// Returns the case of this name.
    pub fn named(name: &str) -> Option<Case> {
        Case::all().into_iter().find(|case| case.name == name)
    }
}

/// The operation that makes data durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// Only checkpoints.
    Checkpoint,
    /// Also fsync.
    Fsync,
}

/// Makes a volume of this kind, with short writes and many promises.
fn busy(name: &str, promises: u64, by: Promise) -> Setup {
    let mut setup = Setup::named(name).expect("a kind of volume");
    setup.mix.write_bytes_max = 16 << 10;
    // Half of the fallocate calls here move blocks.
    setup.mix.allocate.extend([
        Allocate::Collapse,
        Allocate::Insert,
        Allocate::Zero,
        Allocate::Collapse,
        Allocate::Insert,
    ]);
    setup.mix.blocks_max = 600;
    (setup.mix.durable, setup.mix.fsync) = (promises, by == Promise::Fsync);
    // Otherwise short sequences would consist of these alone.
    (setup.mix.bursts, setup.mix.fill) = (false, false);
    setup
}
