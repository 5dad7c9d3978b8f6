//! One golden image for each feature.

use anyhow::Result;
use guest::{Content, Op, op::Policy};

use super::{
    Fill, Recipe,
    stage::{At, Stage},
    tree,
};

const FS_COMPR_FL: u32 = 0x4;
const FS_CASEFOLD_FL: u32 = 0x4000_0000;

const PLAIN: Recipe = Recipe {
    name: "",
    about: "",
    mkfs: &[],
    mib: 64,
    more_mib: &[],
    sector_bytes: 512,
    blocks_16k: false,
    fill: Fill::Kernel(little),
};

/// All recipes except the unclean ones, which are in [`super::unclean`].
pub const RECIPES: &[Recipe] = &[
    Recipe {
        name: "empty",
        about: "as mkfs.f2fs leaves it, mounted once",
        fill: Fill::Kernel(nothing),
        ..PLAIN
    },
    Recipe { name: "fresh", about: "as mkfs.f2fs leaves it, never mounted", fill: Fill::Nothing, ..PLAIN },
    Recipe {
        name: "base",
        about: "every kind of entry, content, attribute and name",
        fill: Fill::Kernel(base),
        ..PLAIN
    },
    Recipe {
        name: "crowd",
        about: "a directory of three thousand names",
        fill: Fill::Kernel(crowd),
        ..PLAIN
    },
    Recipe {
        name: "fragmented",
        about: "written in fragments, half removed, cleaned",
        fill: Fill::Kernel(fragmented),
        ..PLAIN
    },
    Recipe {
        name: "no-inline",
        about: "mounted without inline data, directories and attributes",
        fill: Fill::Kernel(no_inline),
        ..PLAIN
    },
    Recipe { name: "tools", about: "filled by sload.f2fs", fill: Fill::Sload, ..PLAIN },
    Recipe {
        name: "extra-attr",
        about: "extra attributes",
        mkfs: &["-O", "extra_attr"],
        fill: Fill::Kernel(base),
        ..PLAIN
    },
    Recipe {
        name: "inode-checksum",
        about: "inodes with checksums",
        mkfs: &["-O", "extra_attr,inode_checksum"],
        ..PLAIN
    },
    Recipe {
        name: "flexible-xattr",
        about: "inline attributes of another size",
        mkfs: &["-O", "extra_attr,flexible_inline_xattr"],
        fill: Fill::Kernel(flexible_xattr),
        ..PLAIN
    },
    Recipe { name: "crtime", about: "times of creation", mkfs: &["-O", "extra_attr,inode_crtime"], ..PLAIN },
    Recipe { name: "quota", about: "user and group quota", mkfs: &["-O", "quota"], ..PLAIN },
    Recipe {
        name: "project-quota",
        about: "projects, and quota of all three kinds",
        mkfs: &["-O", "extra_attr,project_quota,quota"],
        fill: Fill::Kernel(projects),
        ..PLAIN
    },
    Recipe { name: "lost-found", about: "a directory lost+found", mkfs: &["-O", "lost_found"], ..PLAIN },
    Recipe {
        name: "sb-checksum",
        about: "superblocks with checksums",
        mkfs: &["-O", "sb_checksum"],
        ..PLAIN
    },
    Recipe {
        name: "label",
        about: "a label, and 20 % overprovision",
        mkfs: &["-l", "Etikett ñ", "-o", "20"],
        ..PLAIN
    },
    Recipe {
        name: "casefold",
        about: "directories whose names fold case",
        mkfs: &["-O", "casefold", "-C", "utf8"],
        fill: Fill::Kernel(casefold),
        ..PLAIN
    },
    Recipe {
        name: "casefold-strict",
        about: "the same, where every name is valid UTF-8",
        mkfs: &["-O", "casefold", "-C", "utf8:strict"],
        fill: Fill::Kernel(casefold_strict),
        ..PLAIN
    },
    Recipe {
        name: "compress-lzo",
        about: "compressed by LZO",
        mkfs: COMPRESSION,
        fill: Fill::Kernel(lzo),
        ..PLAIN
    },
    Recipe {
        name: "compress-lzo-rle",
        about: "compressed by LZO-RLE",
        mkfs: COMPRESSION,
        fill: Fill::Kernel(lzo_rle),
        ..PLAIN
    },
    Recipe {
        name: "compress-lz4",
        about: "compressed by LZ4, with checksums",
        mkfs: COMPRESSION,
        fill: Fill::Kernel(lz4),
        ..PLAIN
    },
    Recipe {
        name: "compress-lz4hc",
        about: "compressed by LZ4HC",
        mkfs: COMPRESSION,
        fill: Fill::Kernel(lz4hc),
        ..PLAIN
    },
    Recipe {
        name: "compress-zstd",
        about: "compressed by zstd, clusters of 16 blocks",
        mkfs: COMPRESSION,
        fill: Fill::Kernel(zstd),
        ..PLAIN
    },
    Recipe {
        name: "compress-all",
        about: "each algorithm on one volume, all features of inodes",
        mkfs: &[
            "-O",
            "extra_attr,compression,inode_checksum,flexible_inline_xattr,inode_crtime,project_quota,sb_checksum",
        ],
        fill: Fill::Kernel(compress_all),
        ..PLAIN
    },
    Recipe {
        name: "encrypted",
        about: "files and names encrypted by fscrypt, to be read without the key",
        mkfs: &["-O", "encrypt"],
        fill: Fill::Kernel(encrypted),
        ..PLAIN
    },
    Recipe {
        name: "encrypted-casefold",
        about: "encrypted directories whose names fold case",
        mkfs: &["-O", "encrypt,casefold", "-C", "utf8"],
        fill: Fill::Kernel(encrypted_casefold),
        ..PLAIN
    },
    Recipe {
        name: "encrypted-modes",
        about: "one directory for each kind of fscrypt policy",
        mkfs: &["-O", "encrypt,extra_attr,compression"],
        fill: Fill::Kernel(encrypted_modes),
        ..PLAIN
    },
    Recipe {
        name: "verity",
        about: "files under fs-verity",
        mkfs: &["-O", "verity"],
        fill: Fill::Kernel(verity),
        ..PLAIN
    },
    Recipe { name: "large-nat", about: "a large NAT bitmap", mkfs: &["-i"], ..PLAIN },
    Recipe {
        name: "devices",
        about: "a volume on three devices",
        more_mib: &[40, 64],
        fill: Fill::Kernel(devices),
        ..PLAIN
    },
    Recipe {
        name: "sections",
        about: "sections of 4 segments, zones of 2 sections",
        mkfs: &["-s", "4", "-z", "2"],
        mib: 512,
        ..PLAIN
    },
    Recipe { name: "two-logs", about: "mounted with two active logs", fill: Fill::Kernel(two_logs), ..PLAIN },
    Recipe {
        name: "four-logs",
        about: "mounted with four active logs",
        fill: Fill::Kernel(four_logs),
        ..PLAIN
    },
    Recipe {
        name: "read-only",
        about: "the read-only layout, filled by sload.f2fs",
        mkfs: &["-O", "ro"],
        fill: Fill::Sload,
        ..PLAIN
    },
    Recipe {
        name: "android",
        about: "mkfs.f2fs -g android on sectors of 4096 bytes",
        mkfs: &["-g", "android", "-w", "4096"],
        mib: 256,
        sector_bytes: 4096,
        fill: Fill::Kernel(projects),
        ..PLAIN
    },
];

const COMPRESSION: &[&str] = &["-O", "extra_attr,compression"];

pub(super) fn nothing(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    stage.unmount()
}

pub(super) fn little(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    stage.run(tree::little(&stage.at()))?;
    stage.unmount()
}

/// Returns the operations that make the source directory of [`Fill::Sload`].
pub fn source(at: &At) -> Vec<Op> {
    [tree::little(at), tree::kinds(at), tree::metadata(at)].concat().into_iter().filter(not_twice).collect()
}

/// Leaves out names that both trees have.
fn not_twice(op: &Op) -> bool {
    !matches!(op, Op::Mknod { path, mode: 0o010_600, .. } if path.0.ends_with(b"/fifo"))
}

pub(super) fn base(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run(tree::kinds(&at))?;
    stage.run(tree::metadata(&at))?;
    stage.run(tree::contents(&at))?;
    stage.run(tree::attributes(&at))?;
    stage.run(tree::names(&at))?;
    stage.unmount()
}

fn no_inline(stage: &mut Stage) -> Result<()> {
    stage.mount("noinline_data,noinline_dentry,noinline_xattr,noextent_cache")?;
    let at = stage.at();
    stage.run(tree::little(&at))?;
    stage.run(tree::attributes(&at))?;
    stage.unmount()
}

pub(super) fn crowd(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    stage.run(tree::crowd(&stage.at()))?;
    stage.unmount()
}

fn two_logs(stage: &mut Stage) -> Result<()> {
    stage.mount("active_logs=2")?;
    stage.run(tree::little(&stage.at()))?;
    stage.unmount()
}

fn four_logs(stage: &mut Stage) -> Result<()> {
    stage.mount("active_logs=4")?;
    stage.run(tree::little(&stage.at()))?;
    stage.unmount()
}

/// Makes segments with gaps, which exercises threaded logging, cleaning and both tables' journals.
pub(super) fn fragmented(stage: &mut Stage) -> Result<()> {
    stage.mount("mode=fragment:block")?;
    let at = stage.at();
    for round in 0..4 {
        let file = |n: u64| format!("round-{round}-{n}");
        stage
            .run((0..40).map(|n| at.write(file(n), 0, Content::Prose { seed: n, length: 6000 + 500 * n })))?;
        stage.run([Op::Sync])?;
        stage.run((0..40).filter(|n| n % 3 != round % 3).map(|n| at.unlink(&file(n))))?;
        stage.run([Op::Sync])?;
        stage.collect()?;
    }
    stage.unmount()
}

fn flexible_xattr(stage: &mut Stage) -> Result<()> {
    stage.mount("inline_xattr_size=100")?;
    let at = stage.at();
    stage.run(tree::attributes(&at))?;
    stage.unmount()?;
    stage.mount("inline_xattr_size=20")?;
    stage.run([at.mkdir("small")])?;
    stage.run(tree::attributes(&at.below("small")))?;
    stage.run(tree::little(&at.below("small")))?;
    stage.unmount()
}

pub(super) fn projects(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run(tree::little(&at))?;
    stage.run([
        at.mkdir("project"),
        Op::Project { path: at.path("project"), id: 42, inherit: true },
        at.prose("project/heir", 10_000),
        at.mkdir("project/dir"),
        at.text("project/dir/heir", "42"),
        at.prose("other", 5000),
        at.project("other", 4_000_000_000),
        at.prose("owned", 50_000),
        at.chown("owned", 3000, 4000),
    ])?;
    stage.unmount()
}

const FOLDED: [&str; 14] = [
    "README",
    "Straße",
    "GRÜN",
    "Ελλάδα",
    "İstanbul",
    "ﬁne",
    "e\u{301}t\u{e9}",
    "Ångström",
    "ДОМ",
    "日本語",
    "ǅ",
    "ΣΊΣΥΦΟΣ",
    "K",
    "emoji 🚀",
];

fn folded(at: &At) -> Vec<Op> {
    let mut ops = vec![at.mkdir("fold"), at.flags("fold", FS_CASEFOLD_FL, 0), at.mkdir("fold/Crowd")];
    let (fold, crowd) = (at.below("fold"), at.below("fold/Crowd"));
    ops.extend(FOLDED.map(|name| fold.text(name, name)));
    ops.extend((0..300).map(|n| crowd.text(format!("Entry Ñ {n}"), "")));
    ops
}

pub(super) fn casefold(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run(tree::little(&at))?;
    stage.run(folded(&at))?;
    stage.run([at.text(*b"fold/\xFFA\xFE", "not UTF-8")])?;
    stage.unmount()
}

fn casefold_strict(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run(folded(&at))?;
    stage.unmount()
}

fn compress(stage: &mut Stage, options: &str) -> Result<()> {
    stage.mount(options)?;
    let at = stage.at();
    stage.run(tree::compressed(&at))?;
    stage.unmount()
}

fn lzo(stage: &mut Stage) -> Result<()> {
    compress(stage, "compress_algorithm=lzo,compress_log_size=2")
}

fn lzo_rle(stage: &mut Stage) -> Result<()> {
    compress(stage, "compress_algorithm=lzo-rle,compress_log_size=3,compress_chksum")
}

pub(super) fn lz4(stage: &mut Stage) -> Result<()> {
    compress(stage, "compress_algorithm=lz4,compress_log_size=2,compress_chksum")
}

fn lz4hc(stage: &mut Stage) -> Result<()> {
    compress(stage, "compress_algorithm=lz4:9,compress_log_size=3")
}

pub(super) fn zstd(stage: &mut Stage) -> Result<()> {
    compress(stage, "compress_algorithm=zstd:6,compress_log_size=4,compress_chksum")
}

pub(super) fn compress_all(stage: &mut Stage) -> Result<()> {
    stage.mount("compress_algorithm=lz4,compress_log_size=2")?;
    let at = stage.at();
    stage.run(tree::little(&at))?;
    for algorithm in 0..4 {
        for log_cluster in if algorithm == 2 { &[2, 4, 8][..] } else { &[2, 6] } {
            let name = format!("algorithm-{algorithm}-{log_cluster}");
            stage.run([
                at.text(&name, ""),
                at.flags(&name, FS_COMPR_FL, 0),
                Op::Compression { path: at.path(&name), algorithm, log_cluster: *log_cluster },
                at.prose(&name, (3 << log_cluster) * at.block() / 2 + 99),
                at.user(&name, "user.name", &name),
            ])?;
        }
    }
    stage.unmount()
}

fn secrets(at: &At) -> Vec<Op> {
    let mut ops = vec![at.text("plain", "open to all\n"), at.mkdir("locked")];
    let locked = at.below("locked");
    ops.push(Op::Encrypt { dir: at.path("locked"), byte: 0x5A, policy: Policy::USUAL });
    ops.extend([
        locked.text("empty", ""),
        locked.text("short", "secret\n"),
        locked.prose("long", 10 * at.block() + 1),
        locked.text("n".repeat(255), "a long name"),
        locked.symlink("short", "symlink"),
        locked.mknod("fifo", 0o010_600, 0, 0),
        locked.mkdir("dir"),
        locked.text("dir/child", "child"),
        locked.user("short", "user.open", "attributes are not encrypted"),
    ]);
    ops.push(locked.mkdir("crowd"));
    let crowd = locked.below("crowd");
    ops.extend((0..250).map(|n| crowd.text(format!("{n}"), "")));
    ops
}

pub(super) fn encrypted(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run(secrets(&at))?;
    stage.unmount()
}

fn encrypted_casefold(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run([
        at.mkdir("both"),
        Op::Encrypt { dir: at.path("both"), byte: 0x5A, policy: Policy::USUAL },
        at.flags("both", FS_CASEFOLD_FL, 0),
    ])?;
    let both = at.below("both");
    stage.run(FOLDED.map(|name| both.text(name, name)))?;
    stage.unmount()
}

/// The kinds of policies, by the name of their directory. The descriptor is that of another key. Debian's kernels
/// have no HCTR2 (`CONFIG_CRYPTO_HCTR2`).
pub const POLICIES: [(&str, Policy); 9] = {
    const V1: Option<[u8; 8]> = Some([0x37, 0xD1, 0xA5, 0xA4, 0x55, 0x57, 0x97, 0x2C]);
    const fn of(descriptor: Option<[u8; 8]>, contents: u8, names: u8, flags: u8) -> Policy {
        Policy { descriptor, contents, names, flags }
    }
    [
        ("v1-aes-256", of(V1, 1, 4, 0)),
        ("v1-aes-128", of(V1, 5, 6, 1)),
        ("v1-adiantum-direct", of(V1, 9, 9, 4)),
        ("v2-aes-256", of(None, 1, 4, 0)),
        ("v2-aes-128", of(None, 5, 6, 2)),
        ("v2-adiantum", of(None, 9, 9, 0)),
        ("v2-adiantum-direct", of(None, 9, 9, 7)),
        ("v2-ino-lblk-64", of(None, 1, 4, 8)),
        ("v2-ino-lblk-32", of(None, 1, 4, 0x10)),
    ]
};

fn encrypted_modes(stage: &mut Stage) -> Result<()> {
    stage.mount("compress_algorithm=lz4,compress_log_size=2")?;
    let at = stage.at();
    for (name, policy) in POLICIES {
        stage.run(encrypted_directory(&at, name, policy))?;
    }
    stage.unmount()
}

/// Makes a directory under a policy, with entries of all kinds.
pub fn encrypted_directory(at: &At, name: &str, policy: Policy) -> Vec<Op> {
    let dir = at.below(name);
    let mut ops = vec![at.mkdir(name), Op::Encrypt { dir: at.path(name), byte: 0x5A, policy }];
    // Lengths of names around the ends of blocks of the ciphers.
    let lengths = [1, 15, 16, 17, 21, 31, 32, 33, 63, 100, 255];
    ops.extend(lengths.map(|length| dir.text("n".repeat(length), name)));
    ops.extend([
        dir.prose("prose", 3 * at.block() + 100),
        dir.symlink("a/target/of/some/length", "link"),
        dir.text("compressed", ""),
        dir.flags("compressed", FS_COMPR_FL, 0),
        dir.prose("compressed", 9 * at.block() + 5),
        dir.mkdir("below"),
        dir.text("below/child", name),
    ]);
    ops
}

pub(super) fn verity(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    for (name, length) in [("small", 100), ("block", at.block()), ("tree", 1_228_809)] {
        let enable = Op::Verity { path: at.path(name) };
        stage.run([at.prose(name, length), at.fsync(name), enable])?;
    }
    stage.run([at.text("without", "no tree\n")])?;
    stage.unmount()
}

/// Writes enough data for more than the first device.
fn devices(stage: &mut Stage) -> Result<()> {
    stage.mount("")?;
    let at = stage.at();
    stage.run(tree::little(&at))?;
    stage.run(
        (0..12).map(|n| at.write(format!("big-{n}"), 0, Content::Fill { byte: n + 1, length: 5 << 20 })),
    )?;
    stage.unmount()
}
