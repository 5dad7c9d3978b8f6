//! Content that a repair cannot keep.

/// The sentence about a checkpoint.
const CHECKPOINT: &str =
    "the changes of the newest checkpoint, and of fsyncs after it, are lost: its pack is damaged";

/// The sentence about fsyncs after the checkpoint.
const FSYNCS: &str =
    "the changes of fsyncs after the last checkpoint are lost: nothing tells where they begin";

/// Content that a change of a repair gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    /// A node, with the blocks and nodes that it names.
    Node,
    /// A name of an inode that is not in use.
    Name,
    /// A name that is damaged or at a wrong place, and cannot be entered again.
    Entry,
    /// The place of a file or directory that comes to lost+found.
    Place,
    /// A block of a directory that cannot be read.
    DirBlock,
    /// An address outside the main area, whose block is not known.
    Address,
    /// A block that i_blocks and a summary assign to a file, whose place there has another owner or is not certain.
    Block,
    /// A block of a file that becomes a copy of another file's block.
    Copy,
    /// A compressed cluster that is cleared or cut.
    Cluster,
    /// The limits in a quota file.
    Limits,
    /// Extended attributes.
    Xattrs,
    /// Owner, times, permissions, attributes and exact size of a file.
    Attributes,
    /// The encryption context of a file.
    Context,
    /// An encrypted directory, whose encryption context is lost.
    EncryptedDirectory,
    /// A symbolic link or device node, whose target or number lay in its inode.
    Special,
    /// The certainty that the content in an inode is right: its checksum is not.
    Inline,
    /// The certainty that the fields of an inode which nothing else tells are right: its checksum is not.
    Unconfirmed,
    /// The size of a file.
    Size,
    /// The newest version of an inode, of which an older one is left.
    Older,
    /// The certainty that a file still had a block which it names.
    Freed,
    /// Fsyncs after the checkpoint, of which nothing tells the place.
    Fsyncs,
    /// A checkpoint that was newer than the one that counts.
    Checkpoint,
}

impl Loss {
    /// Returns a sentence about a number of losses.
    pub fn sentence(self, count: u64) -> String {
        match self {
            Loss::Node => format!("up to {count} nodes are lost, with the blocks of files that they name"),
            Loss::Name => format!("up to {count} names are removed, because their inodes are lost"),
            Loss::Entry => format!(
                "up to {count} names are lost, because their entries are damaged or cannot be entered again"
            ),
            Loss::Place => {
                format!(
                    "up to {count} files and directories move to lost+found, or to the root if the volume is full, because \
                     nothing tells their place"
                )
            }
            Loss::DirBlock => {
                format!("up to {count} blocks of directories are freed, because they cannot be read")
            }
            Loss::Address => {
                format!("up to {count} blocks of files are lost, because nothing tells their addresses")
            }
            Loss::Block => {
                format!(
                    "up to {count} blocks are freed that summaries assign to files, in which nothing confirms them"
                )
            }
            Loss::Copy => format!("up to {count} blocks of files become copies of other files' blocks"),
            Loss::Cluster => format!("up to {count} compressed clusters are cleared or cut"),
            Loss::Limits => format!("limits in up to {count} quota files are lost"),
            Loss::Size => {
                format!("the sizes of up to {count} files are lost: zeroes follow their content")
            }
            Loss::Freed => {
                format!(
                    "up to {count} blocks of files may be older content that the files had given up: the checkpoint does not \
                     count them"
                )
            }
            Loss::Fsyncs => FSYNCS.into(),
            Loss::Checkpoint => CHECKPOINT.into(),
            Loss::Attributes
            | Loss::Context
            | Loss::EncryptedDirectory
            | Loss::Special
            | Loss::Inline
            | Loss::Unconfirmed
            | Loss::Xattrs
            | Loss::Older => self.sentence_of_inodes(count),
        }
    }

    /// Returns a sentence about the loss of fields of inodes.
    fn sentence_of_inodes(self, count: u64) -> String {
        match self {
            Loss::Attributes => {
                format!(
                    "the owners, times, permissions, attributes and exact sizes of up to {count} files are lost"
                )
            }
            Loss::Context => {
                format!(
                    "the encryption contexts of up to {count} files are lost: without them no key opens their content, \
                     which lost+found keeps as it is stored"
                )
            }
            Loss::EncryptedDirectory => {
                format!(
                    "up to {count} encrypted directories are lost with their encryption contexts, without which no key opens \
                     the names in them: what they hold comes to lost+found under numbers"
                )
            }
            Loss::Special => {
                format!(
                    "up to {count} symbolic links and device nodes are lost: their targets and device numbers lay in their \
                     inodes"
                )
            }
            Loss::Inline => {
                format!(
                    "the content of up to {count} small files and links may be wrong: it lies in inodes whose checksum does \
                     not confirm it"
                )
            }
            Loss::Unconfirmed => {
                format!(
                    "the owners, permissions, times and attributes of up to {count} files may be wrong: the checksums of their \
                     inodes do not confirm them"
                )
            }
            Loss::Xattrs => {
                format!("the extended attributes of up to {count} inodes are cleared from the damage on")
            }
            Loss::Older => {
                format!(
                    "the newest inodes of up to {count} files are lost: sizes, times, permissions and attributes are those of \
                     older ones"
                )
            }
            _ => unreachable!("{self:?} is no loss of fields"),
        }
    }
}
