//! The rules of the format: one kind of finding for each.

use crate::{Certainty, Severity};

macro_rules! kinds {
    ($($name:ident, $text:literal, $severity:ident, $certainty:ident, $rule:literal, $repair:literal;)*) => {
        /// A rule of the format that a volume can break.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $(#[doc = $rule] $name,)*
        }

        impl Kind {
            /// All kinds, in the order of the checks.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),*];

            /// Returns the name for programs; it does not change.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => $text,)* }
            }

            /// Returns the rule as a sentence.
            pub const fn rule(self) -> &'static str {
                match self { $(Kind::$name => $rule,)* }
            }

            /// Returns the weight of a finding of this kind.
            pub const fn severity(self) -> Severity {
                match self { $(Kind::$name => Severity::$severity,)* }
            }

            /// Returns the usual repair.
            pub const fn repair(self) -> &'static str {
                match self { $(Kind::$name => $repair,)* }
            }

            /// Returns the usual certainty.
            pub const fn certainty(self) -> Certainty {
                match self { $(Kind::$name => Certainty::$certainty,)* }
            }
        }
    };
}

kinds! {
    SuperblockMagic, "superblock-magic", Error, Certain,
        "Both superblock copies begin with the magic number.", "copy the other superblock over it";
    SuperblockChecksum, "superblock-checksum", Error, Certain,
        "With sb_checksum, each superblock copy carries its checksum.", "copy the other superblock over it";
    SuperblockInvalid, "superblock-invalid", Error, Certain,
        "The numbers of a superblock agree with each other and with the device.", "copy the other superblock over it";
    SuperblocksDiffer, "superblocks-differ", Error, Likely,
        "Both superblock copies are equal.", "copy the first superblock over the second";
    FeatureUnknown, "feature-unknown", Error, Unclear,
        "Every feature bit is known.", "none: a newer tool has to look at the volume";
    FeatureNeeds, "feature-needs", Error, Unclear,
        "Features that live in extra attributes come with extra_attr.", "none: a person has to decide";
    ErrorsRecorded, "errors-recorded", Error, Certain,
        "The superblock records no errors.", "clear the record after all other repairs";
    QuotaFeature, "quota-feature", Error, Certain,
        "Only with the feature quota, the superblock names quota inodes.", "clear the numbers";
    PackUnreadable, "pack-invalid", Error, Likely,
        "Head and copy of a checkpoint pack carry checksums and one version.", "copy the other pack over it";
    PackUnfinished, "pack-unfinished", Notice, Likely,
        "A checkpoint pack is complete.", "none: the next checkpoint overwrites it";
    CheckpointInvalid, "checkpoint-invalid", Error, Likely,
        "The numbers of a checkpoint agree with each other and with the superblock.", "use the other pack";
    CheckpointError, "checkpoint-error", Error, Certain,
        "The checkpoint carries no error or fsck flag.", "clear the flag after all other repairs";
    NotUnmounted, "not-unmounted", Notice, Certain,
        "The volume was unmounted.", "none: the next mount goes on from the newest checkpoint";
    ResizeUnfinished, "resize-unfinished", Error, Unclear,
        "No resize is under way.", "none: finish the resize with `fsck.f2fs -f`";
    CheckpointDisabled, "checkpoint-disabled", Notice, Certain,
        "Checkpoints are enabled.", "none: mount with checkpoint=enable";
    NatJournal, "nat-journal", Error, Likely,
        "The NAT journal has entries of the table, and no more than fit.", "drop the entries";
    SitJournal, "sit-journal", Error, Likely,
        "The SIT journal has entries of the table, and no more than fit.", "drop the entries";
    NatBits, "nat-bits", Error, Certain,
        "The full and empty maps of the NAT agree with its blocks.", "drop the flag nat_bits";
    OrphanBlock, "orphan-block", Error, Likely,
        "An orphan block has no more entries than fit.", "rebuild the list from inodes without a name";
    OrphanInode, "orphan-inode", Error, Certain,
        "Every orphan is an inode in use.", "drop the entry";
    OrphanNamed, "orphan-named", Error, Likely,
        "No directory entry names an orphan.", "take the inode out of the list";
    OrphanLinks, "orphan-links", Error, Likely,
        "An orphan has no links.", "take the inode out of the list, and attach it in lost+found";
    LogPosition, "log-position", Error, Certain,
        "A log goes on at a free block.", "open another segment for the log";
    TableUnreadable, "table-unreadable", Error, Certain,
        "The blocks of NAT, SIT and SSA can be read.", "rebuild the block from the nodes";
    NatReserved, "nat-reserved", Error, Certain,
        "The NAT has no address for nid 0, and reserved entries for the nids 1 and 2.", "restore the reserved entry";
    NatAddress, "nat-address", Error, Likely,
        "The NAT names the block of each node.", "take the block that carries the node's footer, else free the nid";
    NatInode, "nat-inode", Error, Certain,
        "The NAT names the inode of each node.", "take the inode from the node's footer";
    SitType, "sit-type", Error, Certain,
        "A segment's type fits its blocks, nodes or data, and is that of the log in it.", "set the type by the log, else by the blocks";
    SegmentMixed, "segment-mixed", Error, Likely,
        "A segment has nodes or data, not both.", "move the fewer ones to other segments";
    SectionMixed, "section-mixed", Error, Certain,
        "The segments of a section have nodes or data, not both; so have the logs in it and the type of the first.", "move the fewer ones to other sections";
    SitCount, "sit-count", Error, Certain,
        "A segment's count is the number of bits in its map.", "count the bits";
    SitUnmarked, "sit-unmarked", Error, Certain,
        "Every block that a node or the NAT names is marked valid.", "mark the blocks";
    SitUnused, "sit-unused", Error, Likely,
        "Every block that is marked valid belongs to a node or file.", "free the blocks";
    SummaryUnreadable, "summary-unreadable", Error, Certain,
        "Every summary can be read.", "rebuild the summary";
    SummaryFooter, "summary-footer", Error, Certain,
        "A summary's footer says nodes or data, like its blocks.", "set the type by the blocks";
    SummaryNid, "summary-nid", Error, Certain,
        "A summary names the node that owns each block.", "take the owner from the node";
    SummaryVersion, "summary-version", Error, Certain,
        "A summary's version is that of the NAT entry.", "take the version from the NAT";
    SummaryOffset, "summary-offset", Error, Certain,
        "A summary names the index of each data block in its node.", "take the index from the node";
    NodeUnreadable, "node-unreadable", Error, Certain,
        "Every node block can be read.", "free the nid";
    FooterNid, "footer-nid", Error, Certain,
        "A node's footer has the node's number.", "take the number from the NAT";
    FooterInode, "footer-inode", Error, Likely,
        "A node's footer has the number of its inode.", "take the number from the NAT";
    FooterOffset, "footer-offset", Error, Likely,
        "A node's footer has the node's position in its file.", "take the position from the parent";
    InodeChecksum, "inode-checksum", Error, Likely,
        "With inode_checksum, an inode carries its checksum.", "check the inode and compute its checksum anew";
    InodeInvalid, "inode-invalid", Error, Likely,
        "The fields of an inode agree with each other and with the features.", "restore what can be, else remove the inode";
    Encryption, "encryption", Error, Likely,
        "An inode has the mark of encryption if it has an encryption context, on a volume with the feature encrypt.", "clear the mark, or set it by the context";
    EncryptionContext, "encryption-context", Notice, Unclear,
        "An encrypted inode has its encryption context.", "none: no key opens it without; restore it from a backup";
    Verity, "verity", Error, Likely,
        "A file that is marked as sealed (fs-verity) has the attribute with the place of its descriptor.", "clear the mark";
    PastSize, "past-size", Notice, Unclear,
        "i_size covers the data of a file.", "none: if the file is too short, a person has to set its size";
    NodeChild, "node-child", Error, Likely,
        "An inode or indirect node names nodes in use that belong to the inode.", "clear the number, or put the right one there";
    NodeTwice, "node-twice", Error, Likely,
        "Every node has one parent.", "keep the parent that the footer confirms";
    NodeUnreached, "node-unreached", Error, Likely,
        "Every node is reached from its inode.", "attach the node to its inode, else free it";
    BlockAddress, "block-address", Error, Likely,
        "An address is 0, a reserved value, or a block of the main area that belongs to the file.", "put the right address there, else clear it";
    BlockTwice, "block-twice", Error, Unclear,
        "Every block has one owner.", "keep the owner that the summary confirms, and copy the block for the other";
    Extent, "extent", Error, Certain,
        "The extent in an inode agrees with its addresses.", "clear the extent";
    InlineReserved, "inline-reserved", Error, Certain,
        "The address before inline content is 0.", "clear the address";
    InlineUnmarked, "inline-unmarked", Error, Likely,
        "Inline data without the mark that it exists is zero.", "set the mark";
    BlockCount, "block-count", Error, Certain,
        "i_blocks counts the blocks of the file.", "set the number";
    SavedBlocks, "saved-blocks", Error, Certain,
        "i_compr_blocks counts the blocks that compression saves.", "set the number";
    Cluster, "cluster", Error, Likely,
        "A compressed cluster is a mark, at least one block and reserved addresses.", "restore the cluster, else clear it";
    XattrNode, "xattr-node", Error, Likely,
        "i_xattr_nid names an xattr node of the inode.", "clear the number, or put the right one there";
    XattrInvalid, "xattr-invalid", Error, Likely,
        "Extended attributes are a header and entries that fit.", "keep the entries before the damage";
    XattrTail, "xattr-tail", Error, Unclear,
        "Zeroes follow the last extended attribute.", "clear the rest";
    DirUnreadable, "dir-unreadable", Error, Certain,
        "Every block of a directory can be read.", "free the block, and attach its files in lost+found";
    DirDepth, "dir-depth", Error, Certain,
        "i_current_depth covers all levels with entries, and is at most 63.", "set the depth";
    DirSize, "dir-size", Error, Certain,
        "i_size covers all blocks of a directory.", "set the size";
    DotsMissing, "dots-missing", Error, Certain,
        "A directory has the entries \".\" and \"..\".", "add the entry";
    DotsTwice, "dots-twice", Error, Certain,
        "A directory has the entries \".\" and \"..\" once.", "remove the second entry";
    DotsWrong, "dots-wrong", Error, Certain,
        "\".\" names the directory, \"..\" its parent.", "set the entry's inode";
    DirParent, "dir-parent", Error, Certain,
        "The inode of a directory names its parent.", "set the parent";
    DentryName, "dentry-name", Error, Likely,
        "A directory entry has a name of 1 to 255 bytes without slash and zero.", "rename the entry";
    DentryHash, "dentry-hash", Error, Certain,
        "A directory entry has the hash of its name.", "compute the hash anew";
    DentryPlace, "dentry-place", Error, Certain,
        "A directory entry lies in the bucket of its hash.", "move the entry";
    DentryInode, "dentry-inode", Error, Likely,
        "A directory entry names an inode in use.", "remove the entry";
    DentryType, "dentry-type", Error, Certain,
        "A directory entry has the kind of its inode.", "take the kind from the inode";
    DentryTwice, "dentry-twice", Error, Unclear,
        "Names in a directory differ.", "rename the second entry";
    DirSecondName, "dir-second-name", Error, Unclear,
        "A directory has one name.", "keep the name in the parent that \"..\" names";
    DirCycle, "dir-cycle", Error, Unclear,
        "Every directory lies below the root.", "attach the directory in lost+found";
    InodeUnreached, "inode-unreached", Error, Likely,
        "Every inode has a name, or is an orphan.", "attach the inode in lost+found, under its own name";
    LinkCount, "link-count", Error, Certain,
        "i_links counts the names of the inode.", "set the number";
    QuotaInode, "quota-inode", Error, Likely,
        "The superblock names quota inodes in use.", "make a new quota file";
    QuotaFile, "quota-file", Error, Certain,
        "A quota file is a header and a tree of records.", "compute the file anew, with the limits that its records have";
    QuotaUsage, "quota-usage", Error, Certain,
        "A quota record has the usage of its user, group or project.", "set the usage";
    QuotaAsks, "quota-asks", Error, Certain,
        "The checkpoint does not ask for new quota files.", "compute the usage anew, and clear the flag";
    CountBlocks, "count-blocks", Error, Certain,
        "valid_block_count counts the blocks in use.", "set the number";
    CountNodes, "count-nodes", Error, Certain,
        "valid_node_count counts the nodes in use.", "set the number";
    CountInodes, "count-inodes", Error, Certain,
        "valid_inode_count counts the inodes in use.", "set the number";
    CountFree, "count-free", Error, Certain,
        "free_segment_count counts the free segments.", "set the number";
    ChainPending, "chain-pending", Notice, Certain,
        "No fsync was written after the checkpoint.", "none: the next mount rolls it forward";
    ChainLoop, "chain-loop", Error, Certain,
        "The chain of fsynced nodes ends.", "cut the chain at its first node that was visited before";
    ChainGap, "chain-gap", Notice, Unclear,
        "The chain of fsynced nodes leads to all of them.", "none: the next mount rolls the nodes before it forward";
    ChainAddress, "chain-address", Error, Likely,
        "Fsynced nodes name blocks of the main area.", "clear the address";
}
