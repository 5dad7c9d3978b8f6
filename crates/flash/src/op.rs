//! Requests of a host to a card, and their completions.

use serde::{Deserialize, Serialize};

/// A kind of command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Reads the range.
    Read,
    /// Writes the range.
    Write,
    /// Empties the write cache.
    Flush,
    /// Marks the range as unused. On a raw chip, erases the blocks within it.
    Discard,
}

/// One request of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// The command.
    pub command: Command,
    /// Offset in bytes; 0 for a flush.
    pub offset_bytes: u64,
    /// Length in bytes; 0 for a flush.
    pub length_bytes: u64,
    /// True if a write must be on the flash before it completes (force unit access).
    pub fua: bool,
}

impl Op {
    /// A read.
    pub fn read(offset_bytes: u64, length_bytes: u64) -> Op {
        Op { command: Command::Read, offset_bytes, length_bytes, fua: false }
    }

    /// A write that may stay in the cache.
    pub fn write(offset_bytes: u64, length_bytes: u64) -> Op {
        Op { command: Command::Write, offset_bytes, length_bytes, fua: false }
    }

    /// A flush.
    pub fn flush() -> Op {
        Op { command: Command::Flush, offset_bytes: 0, length_bytes: 0, fua: false }
    }

    /// A discard, or an erase of a raw chip.
    pub fn discard(offset_bytes: u64, length_bytes: u64) -> Op {
        Op { command: Command::Discard, offset_bytes, length_bytes, fua: false }
    }

    /// Returns the offset of the byte after the last.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.length_bytes
    }
}

/// Start and end of a request, in nanoseconds of the virtual clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// Time when the card started the request.
    pub start_ns: u64,
    /// Time when the host received the answer.
    pub done_ns: u64,
}

/// Latest start of a request, about 73 years. The end of the request still fits the clock.
pub const CLOCK_END_NS: u64 = 1 << 61;

/// Reason for the refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The range passes the end of the card.
    #[error("{length_bytes} bytes at {offset_bytes} pass the end of the card")]
    PastEnd {
        /// Offset of the request.
        offset_bytes: u64,
        /// Its length.
        length_bytes: u64,
    },
    /// A write to a raw chip touches pages that are not erased, or a page of NAND out of order.
    #[error("page at {offset_bytes} is not erased, or a later page of its block is programmed")]
    NotErased {
        /// The page, in bytes.
        offset_bytes: u64,
    },
    /// A write to a raw chip is not a whole number of pages.
    #[error("the chip programs whole pages of {page_bytes} bytes")]
    Unaligned {
        /// Unit of programming.
        page_bytes: u32,
    },
    /// Too many blocks are worn out, and the card is read-only.
    #[error("the flash is worn out")]
    WornOut,
    /// A planned fault.
    #[error("medium error at {offset_bytes}")]
    Medium {
        /// Offset of the request.
        offset_bytes: u64,
    },
    /// The power is off.
    #[error("the power is off")]
    PowerOff,
    /// The card was busy for [`CLOCK_END_NS`].
    #[error("the card's clock is at its end")]
    ClockEnd,
}

impl From<Refusal> for std::io::Error {
    fn from(refusal: Refusal) -> std::io::Error {
        use std::io::ErrorKind;
        let kind = match refusal {
            Refusal::PastEnd { .. } => ErrorKind::InvalidInput,
            Refusal::NotErased { .. } | Refusal::Unaligned { .. } => ErrorKind::InvalidInput,
            Refusal::WornOut => ErrorKind::ReadOnlyFilesystem,
            Refusal::Medium { .. } | Refusal::ClockEnd => ErrorKind::Other,
            Refusal::PowerOff => ErrorKind::NotConnected,
        };
        std::io::Error::new(kind, refusal)
    }
}
