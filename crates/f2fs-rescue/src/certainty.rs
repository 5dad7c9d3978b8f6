//! The certainty of a rescued file, and the facts behind it.

use std::fmt;

use f2fs::format::inode::inline;

use crate::{
    judge::{Judge, Verdict},
    nodes::Inode,
    pieces::Pieces,
    size,
    versions::fact,
    volumes::Earlier,
};

/// Grade of a rescued file, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    /// Everything is there, and independent evidence confirms all of it.
    Whole,
    /// Everything is there, and nothing speaks against it.
    Likely,
    /// Everything is there, but evidence speaks against a part.
    Doubtful,
    /// A part of the content is lost.
    Partial,
    /// All content is lost.
    Empty,
}

impl Grade {
    /// All grades, from the best to the worst.
    pub const ALL: [Grade; 5] = [Grade::Whole, Grade::Likely, Grade::Doubtful, Grade::Partial, Grade::Empty];

    /// Returns the grade's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Grade::Whole => "whole",
            Grade::Likely => "likely",
            Grade::Doubtful => "doubtful",
            Grade::Partial => "partial",
            Grade::Empty => "empty",
        }
    }
}

/// Reason for the choice of an inode's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The NAT has its address, or it was fsynced after the checkpoint.
    Confirmed,
    /// It is the newest on the device; neither the NAT nor a chain of fsyncs names a version.
    Newest,
    /// It is an older one: the address in the NAT holds something else.
    Older,
    /// The NAT names none, and the SIT does not mark its block, or its checkpoint is of an earlier volume: it may belong to an
    /// earlier time.
    Unmarked,
    /// It is the newest on the device, where nothing tells which nodes belong to an earlier volume.
    Untold,
    /// The file was removed.
    Removed,
}

/// Facts about a rescued file. Counts are in blocks of the file's content, if they do not say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certainty {
    /// Reason for the choice of the inode's version.
    pub choice: Choice,
    /// True if the checksum of the inode is wrong.
    pub has_bad_checksum: bool,
    /// True if the content lies in the inode.
    pub is_inline: bool,
    /// Further nodes of the file of which neither the NAT nor a chain of fsyncs tells whether they are the newest.
    pub unproven_nodes: u64,
    /// Further nodes of the file that are older ones, because the address in the NAT holds something else: the content that
    /// they map may be an earlier one.
    pub outdated_nodes: u64,
    /// Blocks whose summary names the file.
    pub agreeing: u64,
    /// Blocks without a readable summary.
    pub unproven: u64,
    /// Blocks whose summary names another owner, which does not have them, or without a summary those that hold a node or are
    /// free by the SIT.
    pub contradicted: u64,
    /// Blocks that another file has reused.
    pub reused: u64,
    /// Blocks whose addresses are lost with a node.
    pub unmapped: u64,
    /// Blocks that the inode counts and that no node maps: they are missing from the content, and nothing tells where.
    pub uncharted: u64,
    /// True if the nodes map blocks past the size in the inode, and nothing explains them: the content is given up to the end
    /// of the last one.
    pub has_bad_size: bool,
    /// True if the content speaks against the size in the inode, which no checksum confirms.
    pub has_doubtful_size: bool,
    /// Blocks past the end of the image.
    pub missing: u64,
    /// Blocks that cannot be read.
    pub unreadable: u64,
}

impl Certainty {
    /// Number of blocks that were judged.
    pub(crate) fn blocks(&self) -> u64 {
        let proven = self.agreeing + self.unproven + self.contradicted + self.reused;
        proven + self.unmapped + self.missing + self.unreadable
    }

    /// Judges a file.
    pub(crate) fn of(judge: Judge<'_>, inode: &Inode, pieces: &Pieces) -> Certainty {
        let version = inode.version;
        let choice = match version {
            version if version.has(fact::REMOVED | fact::FREED) => Choice::Removed,
            version if version.is_confirmed() => Choice::Confirmed,
            version if version.has(fact::STALE) => Choice::Older,
            version if version.is_of_another_time() => Choice::Unmarked,
            _ if judge.nodes.versions.earlier == Earlier::Untold => Choice::Untold,
            _ => Choice::Newest,
        };
        let mut certainty = Certainty {
            choice,
            has_bad_checksum: version.has(fact::BAD_SUM),
            is_inline: inode.node.has_inline(inline::DATA | inline::DENTRY),
            unproven_nodes: pieces.unproven_nodes,
            outdated_nodes: pieces.outdated_nodes,
            agreeing: 0,
            unproven: 0,
            contradicted: 0,
            reused: 0,
            unmapped: 0,
            uncharted: pieces.uncharted,
            has_bad_size: pieces.size != inode.node.head().size.get(),
            has_doubtful_size: size::is_doubtful(judge.nodes, inode, pieces),
            missing: 0,
            unreadable: 0,
        };
        for piece in &pieces.all {
            certainty.unmapped += piece.lost_blocks();
            piece.for_each_addr(|addr, nid, index| {
                let count = match judge.verdict(inode, addr, nid, index) {
                    Verdict::Agreeing => &mut certainty.agreeing,
                    Verdict::Unproven => &mut certainty.unproven,
                    Verdict::Contradicted => &mut certainty.contradicted,
                    Verdict::Reused => &mut certainty.reused,
                    Verdict::Missing => &mut certainty.missing,
                    Verdict::Unreadable => &mut certainty.unreadable,
                };
                *count += 1;
            });
        }
        certainty
    }

    /// Blocks that are lost.
    #[must_use]
    pub fn lost_blocks(&self) -> u64 {
        self.reused + self.unmapped + self.uncharted + self.missing + self.unreadable
    }

    /// Returns the grade.
    #[must_use]
    pub fn grade(&self) -> Grade {
        let there = self.agreeing + self.unproven + self.contradicted;
        match self {
            _ if self.lost_blocks() > 0 && there == 0 => Grade::Empty,
            _ if self.lost_blocks() > 0 => Grade::Partial,
            _ if self.has_bad_checksum || self.contradicted > 0 => Grade::Doubtful,
            _ if matches!(self.choice, Choice::Older | Choice::Unmarked | Choice::Untold) => Grade::Doubtful,
            _ if self.outdated_nodes > 0 || self.has_bad_size || self.has_doubtful_size => Grade::Doubtful,
            _ if self.unproven + self.unproven_nodes > 0 || self.choice != Choice::Confirmed => Grade::Likely,
            _ => Grade::Whole,
        }
    }
}

impl fmt::Display for Certainty {
    /// Writes the reasons, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.choice {
            Choice::Confirmed => "the NAT has the inode",
            Choice::Newest => "the newest inode",
            Choice::Older => "an older inode, the newest is lost",
            Choice::Unmarked => "an inode of an earlier time by the SIT or by its checkpoint",
            Choice::Untold => "the newest inode, perhaps of an earlier volume",
            Choice::Removed => "removed",
        })?;
        if self.has_bad_checksum {
            f.write_str(", checksum wrong")?;
        }
        if self.has_bad_size {
            f.write_str(", size too small for the blocks")?;
        }
        if self.has_doubtful_size {
            f.write_str(", size unlike the end of the content")?;
        }
        if self.is_inline {
            f.write_str(", content in the inode")?;
        }
        let nodes = [
            (self.unproven_nodes, "without evidence"),
            (self.outdated_nodes, "of an earlier time, the newest is lost"),
        ];
        for (count, what) in nodes.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {} {what}", if count == 1 { "node" } else { "nodes" })?;
        }
        let counts = [
            (self.agreeing, "confirmed by the summary"),
            (self.unproven, "without evidence"),
            (self.contradicted, "of which summary, SIT or content say otherwise"),
            (self.reused, "reused"),
            (self.unmapped, "lost with a node"),
            (self.uncharted, "counted that no node maps"),
            (self.missing, "past the end of the image"),
            (self.unreadable, "unreadable"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {} {what}", if count == 1 { "block" } else { "blocks" })?;
        }
        Ok(())
    }
}
