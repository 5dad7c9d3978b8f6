//! Volumes with blocks of 16K. No tool of Debian's makes them, so flashkit does, and Linux fills them.

use super::{Fill, Recipe, recipes, unclean};

const PLAIN: Recipe = Recipe {
    name: "",
    about: "",
    mkfs: &[],
    mib: 512,
    more_mib: &[],
    sector_bytes: 512,
    blocks_16k: true,
    fill: Fill::Kernel(recipes::little),
};
const FEATURES: &[&str] =
    &["-O", "extra_attr,inode_checksum,flexible_inline_xattr,inode_crtime,project_quota,quota,sb_checksum"];

/// All of them.
pub const RECIPES: &[Recipe] = &[
    Recipe {
        name: "16k-base",
        about: "every kind of entry, content, attribute and name",
        fill: Fill::Kernel(recipes::base),
        ..PLAIN
    },
    Recipe {
        name: "16k-crowd",
        about: "a directory of three thousand names",
        fill: Fill::Kernel(recipes::crowd),
        ..PLAIN
    },
    Recipe {
        name: "16k-fragmented",
        about: "written in fragments, half removed, cleaned",
        fill: Fill::Kernel(recipes::fragmented),
        ..PLAIN
    },
    Recipe {
        name: "16k-features",
        about: "inodes with all extra attributes, projects, quota",
        mkfs: FEATURES,
        fill: Fill::Kernel(recipes::projects),
        ..PLAIN
    },
    Recipe {
        name: "16k-casefold",
        about: "directories whose names fold case",
        mkfs: &["-O", "casefold"],
        fill: Fill::Kernel(recipes::casefold),
        ..PLAIN
    },
    Recipe {
        name: "16k-compress",
        about: "compressed by LZ4, with checksums",
        mkfs: &["-O", "extra_attr,compression"],
        fill: Fill::Kernel(recipes::lz4),
        ..PLAIN
    },
    Recipe {
        name: "16k-encrypted",
        about: "files and names encrypted by fscrypt, to be read without the key",
        mkfs: &["-O", "encrypt"],
        fill: Fill::Kernel(recipes::encrypted),
        ..PLAIN
    },
    Recipe {
        name: "16k-verity",
        about: "files under fs-verity",
        mkfs: &["-O", "verity"],
        fill: Fill::Kernel(recipes::verity),
        ..PLAIN
    },
    Recipe {
        name: "16k-unclean-checkpoint",
        about: "cut after a checkpoint, nothing to recover",
        fill: Fill::Kernel(unclean::checkpoint),
        ..PLAIN
    },
    Recipe {
        name: "16k-unclean-create",
        about: "new files, synced",
        fill: Fill::Kernel(unclean::create),
        ..PLAIN
    },
    Recipe {
        name: "16k-unclean-orphan",
        about: "files removed while open, in the checkpoint",
        fill: Fill::Kernel(unclean::orphan),
        ..PLAIN
    },
    Recipe {
        name: "16k-unclean-large",
        about: "through direct and indirect nodes",
        fill: Fill::Kernel(unclean::large),
        ..PLAIN
    },
    Recipe {
        name: "16k-unclean-features",
        about: "inodes with all extra attributes, quota",
        mkfs: FEATURES,
        fill: Fill::Kernel(unclean::features),
        ..PLAIN
    },
];
