//! Trees in golden images.

use f2fs::format::inode::flag;
use guest::{Bytes, Content, Op, op::Allocate};

use super::stage::At;

/// Addresses of an inode without extra attributes or inline xattrs, and those of a direct node.
const IN_INODE: u64 = 923;
const IN_NODE: u64 = 1018;

/// A small tree with every kind of content, for each feature that changes the layout of inodes.
pub fn little(at: &At) -> Vec<Op> {
    let mut ops = vec![
        at.text("empty", ""),
        at.text("inline", "a few bytes\n"),
        at.prose("block", 3000),
        at.prose("blocks", 3 * at.block() + 5),
        at.mkdir("dir"),
        at.text("dir/child", "child\n"),
        at.link("inline", "dir/link"),
        at.symlink("dir/child", "symlink"),
        at.mknod("null", 0o020_666, 1, 3),
        at.mknod("fifo", 0o010_600, 0, 0),
        at.user("inline", "user.short", "value"),
        at.chown("block", 1000, 1001),
        at.chmod("dir", 0o2750),
        at.times("blocks", (1_000_000_000, 1), (1_500_000_000, 999_999_999)),
    ];
    ops.push(at.mkdir("many"));
    let many = at.below("many");
    ops.extend((0..160).map(|n| many.text(format!("entry-{n:03}"), "")));
    ops.extend((0..160).step_by(3).map(|n| many.unlink(&format!("entry-{n:03}"))));
    ops
}

/// Every kind of entry.
pub fn kinds(at: &At) -> Vec<Op> {
    const LONG: &str = "long/";
    vec![
        at.symlink("short", "symlink-short"),
        at.symlink(LONG.repeat(600), "symlink-inline"),
        at.symlink(LONG.repeat(818), "symlink-block"),
        at.symlink(vec![0xFF, b'\\', b'\n'], "symlink-odd"),
        at.mknod("char-old", 0o020_640, 1, 3),
        at.mknod("block-old", 0o060_640, 8, 255),
        at.mknod("char-new", 0o020_640, 300, 70_000),
        at.mknod("block-new", 0o060_640, 259, 300),
        at.mknod("fifo", 0o010_644, 0, 0),
        at.mknod("socket", 0o140_755, 0, 0),
        at.text("linked", "three names\n"),
        at.link("linked", "linked-2"),
        at.mkdir("links"),
        at.link("linked", "links/linked-3"),
        at.mknod("links/fifo", 0o010_644, 0, 0),
        at.link("links/fifo", "fifo-linked"),
    ]
}

/// Owners, modes and times at their limits.
pub fn metadata(at: &At) -> Vec<Op> {
    let mut ops = Vec::new();
    for (name, uid, gid) in [("small", 1, 2), ("large", 65_536, 100_000), ("largest", 4_294_967_294, 65_535)]
    {
        let name = format!("owner-{name}");
        ops.extend([at.text(&name, ""), at.chown(&name, uid, gid)]);
    }
    for mode in [0, 0o111, 0o644, 0o4755, 0o2755, 0o1777, 0o7777] {
        let name = format!("mode-{mode:04o}");
        ops.extend([at.text(&name, ""), at.chmod(&name, mode)]);
    }
    let times = [
        ("epoch", (0, 0)),
        ("before", (-1, 1)),
        ("1901", (-2_147_483_648, 0)),
        ("2038", (2_147_483_648, 999_999_999)),
        ("far", (16_000_000_000, 123_456_789)),
    ];
    for (name, time) in times {
        let name = format!("time-{name}");
        ops.extend([at.text(&name, ""), at.times(&name, time, time)]);
    }
    ops.push(at.symlink("nowhere", "time-symlink"));
    ops.push(at.chown("time-symlink", 7, 8));
    ops.push(at.times("time-symlink", (5, 6), (7, 8)));
    ops
}

/// Contents of every layout: in the inode, direct, one and two levels of indirection, holes, reservations.
pub fn contents(at: &At) -> Vec<Op> {
    let bytes = at.block();
    let one = |name: &str, block: u64| {
        at.write(name, block * bytes, Content::Bytes(format!("block {block}").into()))
    };
    let mut ops = Vec::new();
    for length in [0, 1, 100, 3488, 3489, 4095, 4096, 4097, 40_000] {
        ops.push(at.prose(format!("size-{length}"), length));
    }
    ops.push(at.prose("direct", (IN_INODE + 3) * 2048));
    // The last block of one level and the first of the next.
    let direct_2 = IN_INODE + IN_NODE;
    let indirect = direct_2 + IN_NODE;
    let indirect_2 = indirect + IN_NODE * IN_NODE;
    let double = indirect_2 + IN_NODE * IN_NODE;
    for (n, start) in [IN_INODE, direct_2, indirect, indirect_2, double].into_iter().enumerate() {
        ops.extend([one(&format!("level-{}", n + 1), start - 1), one(&format!("level-{}", n + 1), start)]);
    }
    ops.extend(
        [0, 1, IN_INODE, direct_2, indirect + 5, indirect_2 + 7, double + 9, double + 9_000_000]
            .map(|b| one("levels", b)),
    );

    ops.extend([
        one("holes", 0),
        one("holes", 2),
        one("holes", 300),
        at.truncate("holes", 3 * 1024 * 1024 + 17),
    ]);
    ops.extend([at.text("only-hole", ""), at.truncate("only-hole", 1_000_000)]);
    ops.extend([
        at.prose("punched", 20 * bytes),
        at.allocate("punched", Allocate::Punch, 2 * bytes + 100, 5 * bytes),
    ]);
    ops.extend([at.text("reserved", "x"), at.allocate("reserved", Allocate::Extend, 0, 10 * bytes)]);
    ops.extend([at.text("beyond", "x"), at.allocate("beyond", Allocate::KeepSize, 0, 10 * bytes)]);
    ops.extend([at.prose("zeroed", 8 * bytes), at.allocate("zeroed", Allocate::Zero, bytes, 2 * bytes)]);
    ops.extend([
        at.prose("collapsed", 8 * bytes),
        at.allocate("collapsed", Allocate::Collapse, bytes, 2 * bytes),
    ]);
    ops.extend([
        at.prose("inserted", 8 * bytes),
        at.allocate("inserted", Allocate::Insert, bytes, 2 * bytes),
    ]);
    ops.extend([at.prose("shrunk", 30_000), at.truncate("shrunk", 10)]);
    ops.extend([at.prose("photo.jpg", 5000), at.prose("hot.db", 5000)]);
    ops
}

/// Extended attributes: in the inode, in a node, ACLs, capabilities, none left.
pub fn attributes(at: &At) -> Vec<Op> {
    let acl = |entries: &[(u16, u16, u32)]| {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            value.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        Content::Bytes(Bytes(value))
    };
    const NOBODY: u32 = u32::MAX;
    let access =
        acl(&[(1, 6, NOBODY), (2, 4, 1000), (4, 5, NOBODY), (8, 6, 2000), (16, 6, NOBODY), (32, 0, NOBODY)]);
    let default = acl(&[(1, 7, NOBODY), (2, 5, 1001), (4, 5, NOBODY), (16, 5, NOBODY), (32, 0, NOBODY)]);
    // Version 2, effective: CAP_NET_RAW permitted.
    let capability = [0x0200_0001_u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
    let bytes = |bytes: &[u8]| Content::Bytes(bytes.into());
    vec![
        at.text("x-short", "x"),
        at.user("x-short", "user.a", "1"),
        at.user("x-short", "user.empty", ""),
        at.xattr("x-short", "user.binary", bytes(&[0, 1, 254, 255])),
        at.user("x-short", "trusted.t", "trusted"),
        at.user("x-short", "security.selinux", "system_u:object_r:etc_t:s0\0"),
        at.text("x-long", "x"),
        at.xattr("x-long", "user.big", Content::Prose { seed: 1, length: 3000 }),
        at.user("x-long", "user.after", "after"),
        at.text("x-many", "x"),
        at.xattr("x-many", "user.0", Content::Noise { seed: 2, length: 100 }),
        at.xattr("x-many", "user.1", Content::Noise { seed: 3, length: 100 }),
        at.xattr("x-many", "user.2", Content::Noise { seed: 4, length: 500 }),
        at.user("x-many", &format!("user.{}", "n".repeat(250)), "longest name"),
        at.text("x-gone", "x"),
        at.xattr("x-gone", "user.gone", Content::Noise { seed: 5, length: 1000 }),
        Op::RemoveXattr { path: at.path("x-gone"), name: "user.gone".into() },
        at.text("x-capability", "x"),
        at.xattr("x-capability", "security.capability", bytes(&capability)),
        at.text("x-acl", "x"),
        at.xattr("x-acl", "system.posix_acl_access", access),
        at.mkdir("x-dir"),
        at.xattr("x-dir", "system.posix_acl_default", default),
        at.user("x-dir", "user.dir", "directory"),
        at.text("x-dir/heir", "inherits"),
        at.mkdir("x-dir/heir-dir"),
        at.symlink("x", "x-symlink"),
        at.user("x-symlink", "trusted.link", "on a symlink"),
        at.mknod("x-fifo", 0o010_644, 0, 0),
        at.user("x-fifo", "trusted.fifo", "on a fifo"),
    ]
}

/// Names and directories: longest and unusual names, inline and hashed directories, depth.
pub fn names(at: &At) -> Vec<Op> {
    let mut ops = vec![
        at.mkdir("d-empty"),
        at.mkdir("d-inline"),
        at.text("d-inline/one", "1"),
        at.text("d-inline/two", "2"),
        at.mkdir("d-names"),
    ];
    let odd = at.below("d-names");
    ops.push(odd.text("n".repeat(255), "255 bytes"));
    ops.push(odd.text("n".repeat(254), "254 bytes"));
    for name in ["grün", "日本語", "a b", " ", "back\\slash", "new\nline", "...", "-rf", "\u{1}"] {
        ops.push(odd.text(name, name));
    }
    ops.push(odd.text([0xFF, 0xFE, b'x'], "not UTF-8"));
    for length in [1, 7, 8, 9, 16, 17, 24, 25, 40] {
        ops.push(odd.text("s".repeat(length), ""));
    }
    ops.push(at.mkdir("d-hashed"));
    let hashed = at.below("d-hashed");
    ops.extend((0..300).map(|n| hashed.text(format!("a-name-of-some-length-{n}"), "")));
    ops.push(at.mkdir("d-sparse"));
    let sparse = at.below("d-sparse");
    ops.extend((0..400).map(|n| sparse.text(format!("{n}"), "")));
    ops.extend((0..400).filter(|n| n % 50 != 0).map(|n| sparse.unlink(&format!("{n}"))));
    let mut deep = String::from("d-deep");
    ops.push(at.mkdir(&deep));
    for _ in 0..30 {
        deep.push_str("/x");
        ops.push(at.mkdir(&deep));
    }
    ops.push(at.text(format!("{deep}/bottom"), "bottom"));
    ops
}

/// One directory with thousands of names, most of them links.
pub fn crowd(at: &At) -> Vec<Op> {
    let mut ops = vec![at.mkdir("crowd")];
    let crowd = at.below("crowd");
    for n in 0..3000 {
        let name = format!("{n}");
        if n % 100 == 0 {
            ops.push(crowd.text(&name, &name));
        } else {
            ops.push(crowd.link(&format!("{}", n / 100 * 100), &name));
        }
    }
    ops
}

/// Files that compress or do not, with holes, overwritten, released and reserved again.
pub fn compressed(at: &At) -> Vec<Op> {
    let mut ops = vec![at.mkdir("c"), at.flags("c", flag::COMPRESS, 0)];
    let c = at.below("c");
    ops.extend([
        c.text("empty", ""),
        c.text("tiny", "tiny"),
        c.prose("one-block", at.block()),
        c.prose("cluster", 16 * at.block()),
        c.prose("odd", 41 * at.block() + 123),
        c.noise("noise", 17 * at.block()),
        c.write("zeroes", 0, Content::Fill { byte: 0, length: 64 * at.block() }),
        c.prose("mixed", 32 * at.block()),
        c.write("mixed", 8 * at.block(), Content::Noise { seed: 1, length: 8 * at.block() }),
        c.prose("holes", 16 * at.block()),
        c.write("holes", 64 * at.block() + 5, Content::Prose { seed: 2, length: 20 * at.block() }),
        c.prose("released", 24 * at.block()),
        c.prose("reserved", 24 * at.block()),
        c.prose("overwritten", 24 * at.block()),
        c.prose("truncated", 24 * at.block()),
        // Beyond the addresses of the inode.
        c.write("far", 910 * at.block(), Content::Prose { seed: 3, length: 64 * at.block() }),
        c.mkdir("dir"),
        c.prose("dir/heir", 20 * at.block()),
        Op::Sync,
        c.write("overwritten", 10 * at.block() + 7, Content::Prose { seed: 4, length: 9 * at.block() }),
        c.truncate("truncated", 21 * at.block() + 1),
        Op::Sync,
        Op::Release { path: c.path("released") },
        Op::Release { path: c.path("reserved") },
        Op::Reserve { path: c.path("reserved") },
        Op::Sync,
    ]);
    ops
}
