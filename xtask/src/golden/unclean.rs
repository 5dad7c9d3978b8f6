//! Volumes after a power cut: data promised by fsync is present, and the checkpoint is older than it.

use anyhow::Result;
use guest::{Content, Op, op::Allocate};

use super::{
    Fill, Recipe,
    stage::{At, Stage},
    tree,
};

const PLAIN: Recipe = Recipe {
    name: "",
    about: "",
    mkfs: &[],
    mib: 64,
    more_mib: &[],
    sector_bytes: 512,
    blocks_16k: false,
    fill: Fill::Kernel(checkpoint),
};
const FEATURES: &[&str] =
    &["-O", "extra_attr,inode_checksum,flexible_inline_xattr,inode_crtime,project_quota,quota,sb_checksum"];

/// All of them.
pub const RECIPES: &[Recipe] = &[
    Recipe { name: "unclean-checkpoint", about: "cut after a checkpoint, nothing to recover", ..PLAIN },
    Recipe {
        name: "unclean-lost",
        about: "cut with much written and nothing synced",
        fill: Fill::Kernel(lost),
        ..PLAIN
    },
    Recipe { name: "unclean-create", about: "new files, synced", fill: Fill::Kernel(create), ..PLAIN },
    Recipe {
        name: "unclean-overwrite",
        about: "old files overwritten and extended, synced",
        fill: Fill::Kernel(overwrite),
        ..PLAIN
    },
    Recipe { name: "unclean-rename", about: "renamed, then synced", fill: Fill::Kernel(rename), ..PLAIN },
    Recipe {
        name: "unclean-inline",
        about: "inline data that appears, changes and leaves the inode",
        fill: Fill::Kernel(inline),
        ..PLAIN
    },
    Recipe {
        name: "unclean-xattr",
        about: "attributes in inode and node",
        fill: Fill::Kernel(xattr),
        ..PLAIN
    },
    Recipe {
        name: "unclean-truncate",
        about: "shrunk, grown, punched",
        fill: Fill::Kernel(truncate),
        ..PLAIN
    },
    Recipe {
        name: "unclean-orphan",
        about: "files removed while open, in the checkpoint",
        fill: Fill::Kernel(orphan),
        ..PLAIN
    },
    Recipe {
        name: "unclean-orphans",
        about: "more orphans than one block holds",
        fill: Fill::Kernel(orphans),
        ..PLAIN
    },
    Recipe {
        name: "unclean-names",
        about: "directories changed, names taken by other files",
        fill: Fill::Kernel(names),
        ..PLAIN
    },
    Recipe {
        name: "unclean-large",
        about: "through direct and indirect nodes",
        fill: Fill::Kernel(large),
        ..PLAIN
    },
    Recipe {
        name: "unclean-many",
        about: "a chain of hundreds of synced nodes over several segments",
        fill: Fill::Kernel(many),
        ..PLAIN
    },
    Recipe {
        name: "unclean-features",
        about: "inodes with all extra attributes, quota",
        mkfs: FEATURES,
        fill: Fill::Kernel(features),
        ..PLAIN
    },
    Recipe { name: "unclean-strict", about: "fsync_mode=strict", fill: Fill::Kernel(strict), ..PLAIN },
    Recipe {
        name: "unclean-nobarrier",
        about: "fsync_mode=nobarrier",
        fill: Fill::Kernel(nobarrier),
        ..PLAIN
    },
    Recipe {
        name: "unclean-disabled",
        about: "checkpoint=disable, cut while disabled",
        fill: Fill::Kernel(disabled),
        ..PLAIN
    },
    Recipe {
        name: "unclean-compressed",
        about: "compressed files, whose fsync is a checkpoint",
        mkfs: &["-O", "extra_attr,compression"],
        fill: Fill::Kernel(compressed),
        ..PLAIN
    },
    Recipe {
        name: "unclean-casefold",
        about: "new names in a directory that folds case",
        mkfs: &["-O", "casefold", "-C", "utf8"],
        fill: Fill::Kernel(casefold),
        ..PLAIN
    },
    Recipe {
        name: "unclean-atomic",
        about: "atomic writes, committed and not",
        fill: Fill::Kernel(atomic),
        ..PLAIN
    },
    Recipe { name: "unclean-lfs", about: "mode=lfs", fill: Fill::Kernel(lfs), ..PLAIN },
    Recipe {
        name: "unclean-fastboot",
        about: "cut after a fastboot checkpoint",
        fill: Fill::Kernel(fastboot),
        ..PLAIN
    },
];

/// Operations before the power cut, by name. They come after [`old`] and include fsyncs of their own.
pub const SEQUENCES: &[(&str, Sequence)] = &[
    ("append", append_ops),
    ("create", create_ops),
    ("inline", inline_ops),
    ("large", large_ops),
    ("many", many_ops),
    ("names", names_ops),
    ("overwrite", overwrite_ops),
    ("rename", rename_ops),
    ("truncate", truncate_ops),
    ("xattr", xattr_ops),
];

/// Operations below a directory.
pub type Sequence = fn(&At) -> Vec<Op>;

/// Files made before the last checkpoint.
pub fn old(at: &At) -> Vec<Op> {
    let mut ops = tree::little(at);
    ops.extend((0..8).map(|n| at.prose(format!("old-{n}"), 2000 + 3000 * n)));
    ops.extend([at.mkdir("old-dir"), at.text("old-dir/file", "old"), Op::Sync, at.checkpoint()]);
    ops
}

/// Mounts, makes the old files, runs `ops` and cuts the power.
fn after(stage: &mut Stage, options: &str, ops: Sequence) -> Result<()> {
    stage.mount(options)?;
    let at = stage.at();
    stage.run(old(&at))?;
    stage.run(ops(&at))?;
    stage.cut()
}

pub(super) fn checkpoint(stage: &mut Stage) -> Result<()> {
    after(stage, "", checkpoint_ops)
}

fn checkpoint_ops(at: &At) -> Vec<Op> {
    vec![at.prose("new", 10_000), at.checkpoint()]
}

fn lost(stage: &mut Stage) -> Result<()> {
    after(stage, "", lost_ops)
}

fn lost_ops(at: &At) -> Vec<Op> {
    vec![
        at.prose("new", 100_000),
        at.write("old-3", 100, Content::Noise { seed: 1, length: 5000 }),
        at.unlink("old-4"),
        at.rename("old-5", "renamed"),
    ]
}

pub(super) fn create(stage: &mut Stage) -> Result<()> {
    after(stage, "", create_ops)
}

fn create_ops(at: &At) -> Vec<Op> {
    vec![
        at.text("new-empty", ""),
        at.fsync("new-empty"),
        at.text("new-inline", "inline"),
        at.fsync("new-inline"),
        at.prose("new-blocks", 5 * at.block() + 1),
        at.fsync("new-blocks"),
        at.prose("dir/new-below", 2 * at.block()),
        at.chown("dir/new-below", 11, 12),
        at.chmod("dir/new-below", 0o600),
        at.fsync("dir/new-below"),
        at.prose("new-not-synced", 2 * at.block()),
        at.prose("new-data-only", 3 * at.block()),
        at.datasync("new-data-only"),
        at.write("new-sparse", 40 * at.block(), Content::Prose { seed: 1, length: 100 }),
        at.fsync("new-sparse"),
        at.text("n".repeat(255), "longest name"),
        at.fsync(&"n".repeat(255)),
    ]
}

pub(super) fn overwrite(stage: &mut Stage) -> Result<()> {
    after(stage, "", overwrite_ops)
}

fn overwrite_ops(at: &At) -> Vec<Op> {
    vec![
        at.write("old-5", 0, Content::Noise { seed: 1, length: 5000 }),
        at.fsync("old-5"),
        at.write("old-6", 10_000, Content::Noise { seed: 2, length: 30_000 }),
        at.fsync("old-6"),
        at.write("old-7", 0, Content::Noise { seed: 3, length: 100 }),
        at.datasync("old-7"),
        at.write("old-7", 8192, Content::Noise { seed: 4, length: 100 }),
        at.fsync("old-7"),
        at.write("blocks", 0, Content::Noise { seed: 5, length: 100 }),
        at.fsync("blocks"),
        at.write("blocks", 0, Content::Noise { seed: 6, length: 5000 }), // not synced
        at.times("old-4", (5, 5), (6, 6)),
        at.chmod("old-4", 0o4711),
        at.fsync("old-4"),
    ]
}

pub(super) fn rename(stage: &mut Stage) -> Result<()> {
    after(stage, "", rename_ops)
}

fn rename_ops(at: &At) -> Vec<Op> {
    vec![
        at.rename("old-1", "dir/moved"),
        at.fsync("dir/moved"),
        at.rename("old-2", "old-3"),
        at.fsync("old-3"),
        at.prose("new-a", 5000),
        at.rename("new-a", "new-b"),
        at.fsync("new-b"),
        at.prose("temporary", 9000),
        at.fsync("temporary"),
        at.rename("temporary", "old-4"),
        at.fsync("old-4"),
        Op::Exchange { from: at.path("old-5"), to: at.path("old-6") },
        at.fsync("old-5"),
        at.rename("old-7", "not-synced"),
    ]
}

pub(super) fn inline(stage: &mut Stage) -> Result<()> {
    after(stage, "", inline_ops)
}

fn inline_ops(at: &At) -> Vec<Op> {
    vec![
        at.text("inline", "changed in place"),
        at.fsync("inline"),
        at.prose("empty", 50),
        at.fsync("empty"),
        at.prose("block", 5000), // leaves the inode
        at.fsync("block"),
        at.truncate("old-0", 0),
        at.text("old-0", "inline again?"),
        at.fsync("old-0"),
        at.text("new", "one"),
        at.fsync("new"),
        at.prose("new", 3400),
        at.fsync("new"),
    ]
}

pub(super) fn xattr(stage: &mut Stage) -> Result<()> {
    after(stage, "", xattr_ops)
}

fn xattr_ops(at: &At) -> Vec<Op> {
    vec![
        at.user("old-1", "user.small", "small"),
        at.fsync("old-1"),
        at.xattr("old-2", "user.big", Content::Noise { seed: 1, length: 2000 }),
        at.fsync("old-2"),
        at.xattr("old-2", "user.big", Content::Noise { seed: 2, length: 2500 }),
        at.fsync("old-2"),
        at.prose("new", 5000),
        at.xattr("new", "user.big", Content::Noise { seed: 3, length: 1500 }),
        at.user("new", "security.selinux", "u:object_r:x:s0\0"),
        at.fsync("new"),
        Op::RemoveXattr { path: at.path("inline"), name: "user.short".into() },
        at.fsync("inline"),
    ]
}

pub(super) fn truncate(stage: &mut Stage) -> Result<()> {
    after(stage, "", truncate_ops)
}

fn truncate_ops(at: &At) -> Vec<Op> {
    vec![
        at.truncate("old-7", 5000),
        at.fsync("old-7"),
        at.truncate("old-6", 1_000_000),
        at.fsync("old-6"),
        at.truncate("old-5", 0),
        at.fsync("old-5"),
        at.allocate("old-4", Allocate::Punch, at.block(), at.block()),
        at.fsync("old-4"),
        at.allocate("old-3", Allocate::KeepSize, 0, 20 * at.block()),
        at.fsync("old-3"),
        at.allocate("old-2", Allocate::Extend, 0, 20 * at.block()),
        at.write("old-2", 15 * at.block(), Content::Prose { seed: 1, length: 100 }),
        at.fsync("old-2"),
        at.allocate("blocks", Allocate::Collapse, 0, at.block()),
        at.fsync("blocks"),
    ]
}

pub(super) fn orphan(stage: &mut Stage) -> Result<()> {
    after(stage, "", orphan_ops)
}

fn orphan_ops(at: &At) -> Vec<Op> {
    vec![
        at.open("old-5", 0),
        at.open("old-6", 1),
        at.unlink("old-5"),
        at.unlink("old-6"),
        at.checkpoint(),
        Op::WriteOpen { handle: 1, offset: 0, content: Content::Noise { seed: 1, length: 9000 } },
        Op::FsyncOpen { handle: 1 },
        at.prose("new", 5000),
        at.fsync("new"),
    ]
}

fn orphans(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run(old(&at))?;
    stage.run([at.mkdir("gone")])?;
    let gone = at.below("gone");
    stage.run((0..1100).map(|n| gone.text(format!("{n}"), "")))?;
    stage.run((0..1100).map(|n| gone.open(&format!("{n}"), 100 + n)))?;
    stage.run((0..1100).map(|n| gone.unlink(&format!("{n}"))))?;
    stage.run([at.checkpoint()])?;
    stage.cut_with_open(100..1200)
}

pub(super) fn names(stage: &mut Stage) -> Result<()> {
    after(stage, "", names_ops)
}

fn names_ops(at: &At) -> Vec<Op> {
    vec![
        at.mkdir("new-dir"),
        at.text("new-dir/a", "a"),
        at.fsync("new-dir/a"), // its parent is not in a checkpoint, so this writes one
        at.text("new-dir/b", "b"),
        at.fsync("new-dir/b"),
        at.unlink("old-1"),
        at.prose("old-1", 7000), // another file of that name
        at.fsync("old-1"),
        at.unlink("old-dir/file"),
        at.fsync("old-dir"),
        at.link("old-2", "old-2-link"),
        at.fsync("old-2"), // two links, so this writes a checkpoint
        at.unlink("old-3"),
        at.text("many/entry-000", "again"),
        at.fsync("many/entry-000"),
        at.mkdir("not-synced"),
    ]
}

pub(super) fn large(stage: &mut Stage) -> Result<()> {
    after(stage, "", large_ops)
}

fn large_ops(at: &At) -> Vec<Op> {
    let block =
        |n: u64| at.write("large", n * at.block(), Content::Fill { byte: n as u8 | 1, length: at.block() });
    let mut ops = vec![block(0), at.fsync("large")];
    for n in [922, 923, 1940, 1941, 2958, 2959, 3977, 60_000, 1_039_284, 2_075_608, 3_000_000] {
        ops.extend([block(n), at.fsync("large")]);
    }
    ops.push(at.write("old-7", 1500 * at.block(), Content::Prose { seed: 1, length: 3 * at.block() }));
    ops.push(at.fsync("old-7"));
    ops.push(at.truncate("large", 60_001 * at.block()));
    ops.push(at.fsync("large"));
    ops
}

/// Appends blocks to files without changing anything else in the inode: recovery finds the size from the
/// block.
fn append_ops(at: &At) -> Vec<Op> {
    let block = |name: &str, n: u64| {
        at.write(name, n * at.block(), Content::Fill { byte: n as u8 | 1, length: at.block() })
    };
    let mut ops = vec![at.prose("new", 925 * at.block()), at.fsync("new")];
    ops.extend((925..940).flat_map(|n| [block("new", n), at.fsync("new")]));
    ops.extend([at.truncate("new", 930 * at.block()), at.fsync("new"), block("new", 930), at.fsync("new")]);
    ops.extend([at.prose("old-3", 1000 * at.block()), at.fsync("old-3"), at.checkpoint()]);
    ops.extend((1000..1010).flat_map(|n| [block("old-3", n), at.fsync("old-3")]));
    // Not synced, so these writes must have no effect.
    ops.push(block("new", 931));
    ops
}

pub(super) fn many(stage: &mut Stage) -> Result<()> {
    after(stage, "", many_ops)
}

fn many_ops(at: &At) -> Vec<Op> {
    let mut ops = Vec::new();
    for n in 0..700_u64 {
        let name = format!("new-{}", n % 150);
        ops.push(at.write(&name, n / 150 * 3000, Content::Prose { seed: n, length: 3000 }));
        ops.push(at.fsync(&name));
    }
    ops
}

pub(super) fn features(stage: &mut Stage) -> Result<()> {
    after(stage, "", features_ops)
}

fn features_ops(at: &At) -> Vec<Op> {
    let mut ops = create_ops(at);
    ops.extend([
        at.project("old-1", 77),
        at.chown("old-1", 5, 6),
        at.fsync("old-1"),
        at.xattr("old-2", "user.big", Content::Noise { seed: 1, length: 2000 }),
        at.fsync("old-2"),
    ]);
    ops
}

fn strict(stage: &mut Stage) -> Result<()> {
    after(stage, "fsync_mode=strict", create_ops)
}

fn nobarrier(stage: &mut Stage) -> Result<()> {
    after(stage, "fsync_mode=nobarrier", create_ops)
}

fn lfs(stage: &mut Stage) -> Result<()> {
    after(stage, "mode=lfs", create_ops)
}

fn disabled(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run(old(&at))?;
    stage.unmount()?;
    stage.mount("checkpoint=disable")?;
    stage.run(create_ops(&at))?;
    stage.run([at.unlink("old-1"), Op::Sync])?;
    stage.cut()
}

fn compressed(stage: &mut Stage) -> Result<()> {
    after(stage, "compress_algorithm=lz4,compress_log_size=2", |at| {
        vec![
            at.mkdir("c"),
            at.flags("c", 0x4, 0),
            at.prose("c/new", 20 * at.block()),
            at.fsync("c/new"),
            at.write("c/new", 4 * at.block(), Content::Noise { seed: 1, length: 6 * at.block() }),
            at.fsync("c/new"),
            at.prose("c/lost", 20 * at.block()),
        ]
    })
}

fn casefold(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run([at.mkdir("fold"), at.flags("fold", 0x4000_0000, 0), at.text("fold/OLD", "old")])?;
    stage.run(old(&at))?;
    stage.run([
        at.text("fold/Ünew", "new"),
        at.fsync("fold/Ünew"),
        at.rename("fold/OLD", "fold/old"),
        at.fsync("fold/old"),
    ])?;
    stage.cut()
}

fn atomic(stage: &mut Stage) -> Result<()> {
    after(stage, "", atomic_ops)
}

fn atomic_ops(at: &At) -> Vec<Op> {
    let write =
        |handle, seed| Op::WriteOpen { handle, offset: 4096, content: Content::Noise { seed, length: 8192 } };
    vec![
        at.open("old-6", 0),
        at.open("old-7", 1),
        Op::Atomic { handle: 0, commit: false },
        Op::Atomic { handle: 1, commit: false },
        write(0, 1),
        write(1, 2),
        Op::Atomic { handle: 0, commit: true },
        at.prose("new", 100),
        at.fsync("new"),
    ]
}

fn fastboot(stage: &mut Stage) -> Result<()> {
    after(stage, "fastboot", |at| vec![at.prose("new", 10_000), at.fsync("new"), at.checkpoint()])
}
