//! The flags of a checkpoint.

/// Flags of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u32);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl Flags {
            $($(#[$doc])* pub const $name: Flags = Flags($bit);)*
            /// Every flag with its name in `fsck.f2fs`'s words.
            pub const NAMED: &'static [(Flags, &'static str)] = &[$((Flags::$name, $text)),*];
        }
    };
}

flags! {
    /// The volume was unmounted after this checkpoint.
    UMOUNT = 0x1, "unmount";
    /// The pack has orphan blocks.
    ORPHAN_PRESENT = 0x2, "orphan_inodes";
    /// The data summaries are in the compact form.
    COMPACT_SUM = 0x4, "compacted_summary";
    /// The file system met an error.
    ERROR = 0x8, "error";
    /// fsck has to run.
    FSCK = 0x10, "fsck";
    /// Node summaries are in the pack although the volume stayed mounted.
    FASTBOOT = 0x20, "fastboot";
    /// The versions in node footers carry the checkpoint's checksum in their upper half.
    CRC_RECOVERY = 0x40, "crc";
    /// The NAT's full and empty maps are at the end of the segment.
    NAT_BITS = 0x80, "nat_bits";
    /// Everything free was discarded.
    TRIMMED = 0x100, "trimmed";
    /// Only the lower half of the versions in node footers counts.
    NOCRC_RECOVERY = 0x200, "nocrc";
    /// The bitmaps begin after the checksum, the NAT's first.
    LARGE_NAT_BITMAP = 0x400, "large_nat_bitmap";
    /// Quota files have to be recomputed.
    QUOTA_NEED_FSCK = 0x800, "quota_need_fsck";
    /// Checkpoints are disabled.
    DISABLED = 0x1000, "disabled";
    /// Checkpoints are disabled, with holes left unaccounted.
    DISABLED_QUICK = 0x2000, "disabled_quick";
    /// A resize was under way.
    RESIZEFS = 0x4000, "resizefs";
}

impl Flags {
    /// Returns true if every bit of `other` is set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set with the bits of `other`.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// The set without the bits of `other`.
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Names of the flags that are set and have one.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Flags::NAMED.iter().filter(move |(flag, _)| self.has(*flag)).map(|(_, name)| *name)
    }
}
