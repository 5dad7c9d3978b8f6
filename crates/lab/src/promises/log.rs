//! The log of a card's requests, and the states that a power cut leaves.

use std::{io, ops::Range, sync::Arc};

use block::{Device, MemoryDevice, Rng, Verb};
use flash::{Condition, Model, Op, Profile, profile::Layer};
use serde::{Deserialize, Serialize};

use super::{
    chip,
    record::{LOST_WRITES, LostWrite},
};

/// Way in which a card, or a bare chip, fails when its power is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CardFailure {
    /// Each write that no finished flush covers is there, lost, or torn between flash pages. On a bare chip, the program
    /// or erase that the cut interrupts is torn.
    Honest,
    /// The same, torn between sectors of 512 bytes.
    TornSectors,
    /// In addition, the mapping of the data that was written last is lost, flushed or not: the open log
    /// blocks, or the block in progress. The data reads as zeroes.
    LostMapping,
    /// Flushes are answered and ignored: the last writes, as many as the cache holds, are like unflushed ones.
    IgnoredFlushes,
    /// The interrupted program or erase of a bare chip has all or none of its effect, but bits of it change after the
    /// next mount.
    UnstableBits,
    /// The interrupted program of a bare chip also destroys the page that shares its cells.
    PairedPages,
}

impl CardFailure {
    /// All of them, in the order of tables.
    pub const ALL: [CardFailure; 6] = [
        CardFailure::Honest,
        CardFailure::TornSectors,
        CardFailure::LostMapping,
        CardFailure::IgnoredFlushes,
        CardFailure::UnstableBits,
        CardFailure::PairedPages,
    ];

    /// Returns those that a card or chip can have.
    pub fn of(card: &Profile) -> &'static [CardFailure] {
        match card.layer {
            Layer::Nor => &[CardFailure::Honest, CardFailure::UnstableBits],
            Layer::Nand => &[CardFailure::Honest, CardFailure::UnstableBits, CardFailure::PairedPages],
            _ => CardFailure::ALL.first_chunk::<4>().expect("those of cards come first"),
        }
    }

    /// Name in the IDs of cuts.
    pub fn name(self) -> &'static str {
        match self {
            CardFailure::Honest => "honest",
            CardFailure::TornSectors => "torn",
            CardFailure::LostMapping => "mapping",
            CardFailure::IgnoredFlushes => "flushes",
            CardFailure::UnstableBits => "unstable",
            CardFailure::PairedPages => "paired",
        }
    }

    /// Title in tables.
    pub fn title(self) -> &'static str {
        match self {
            CardFailure::Honest => {
                "honest card: unflushed writes lost, kept, or torn between pages; bare chip: the interrupted program \
                 or erase is torn"
            }
            CardFailure::TornSectors => "torn pages: unflushed writes torn between sectors of 512 bytes",
            CardFailure::LostMapping => "lost mapping: the data written last is lost, flushed or not",
            CardFailure::IgnoredFlushes => "ignored flushes: any of the last writes in the cache is lost",
            CardFailure::UnstableBits => {
                "unstable bits: those of the interrupted program or erase of a bare chip change later"
            }
            CardFailure::PairedPages => {
                "paired pages: the interrupted program of a bare chip destroys an earlier page"
            }
        }
    }
}

/// One request that reached the card.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Kind of request; never a read. On a bare chip, a write is a program, and a discard an erase.
    pub verb: Verb,
    /// Offset in bytes.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// Data of a write; empty for other requests.
    pub data: Arc<[u8]>,
    /// Time of the request.
    pub at_ns: u64,
    /// Time of its answer.
    pub done_ns: u64,
}

/// Size of a card's cache that a profile without one has if it ignores flushes.
const CACHE_BYTES: u64 = 1 << 20;

/// The requests since the volume was made, in the order in which the card got them.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// The requests.
    pub entries: Vec<Entry>,
}

/// State that a cut leaves, besides the content.
#[derive(Debug, Clone, Default)]
pub struct After {
    /// The fate of each request before the cut, and of the one that it interrupts, if there is one.
    pub fates: Vec<Fate>,
    /// Ranges whose bits change after the next mount, unless they are erased before.
    pub unstable: Vec<Range<u64>>,
}

/// A power cut.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// Number of requests before it. Those of a bare chip are done.
    pub at: usize,
    /// Failure of the card.
    pub failure: CardFailure,
    /// Seed of the lost writes.
    pub seed: u64,
}

impl Log {
    /// Applies the log to `device`, which has the content of the start, as a cut leaves it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn apply(&self, cut: &Cut, card: &Profile, device: &MemoryDevice) -> io::Result<After> {
        if card.is_raw() {
            return chip::apply(self, cut, card, device);
        }
        let mut rng = Rng::new(cut.seed);
        let style = Style::random(&mut rng, cut.at);
        let unit = match cut.failure {
            CardFailure::TornSectors => block::ATOMIC_BYTES,
            _ => card.flash.page_bytes as usize,
        };
        let durable = self.durable(cut, card);
        let mut fates = Vec::with_capacity(cut.at);
        for (n, entry) in self.entries[..cut.at].iter().enumerate() {
            let fate = if durable[n] { Fate::Certain } else { style.fate(n, &mut rng) };
            fates.push(fate);
            match (entry.verb, fate) {
                (Verb::Read | Verb::Flush, _) | (_, Fate::Lost) => {}
                (Verb::Write, Fate::Certain | Fate::Whole) => {
                    device.write(entry.offset_bytes, &entry.data)?
                }
                (Verb::Write, Fate::Torn) => tear(entry, unit, &mut rng, device)?,
                (Verb::Discard, _) => device.discard(entry.offset_bytes, entry.length_bytes)?,
            }
        }
        if cut.failure == CardFailure::LostMapping {
            for range in self.lost_ranges(cut.at, card)? {
                device.discard(range.start, range.end - range.start)?;
            }
        }
        Ok(After { fates, unstable: Vec::new() })
    }

    /// Returns the number of the first erase of a bare chip from a request on.
    pub(super) fn next_erase(&self, from: usize) -> Option<usize> {
        (from..self.entries.len()).find(|n| self.entries[*n].verb == Verb::Discard)
    }

    /// Returns the last writes among the first `count` requests that a cut lost or tore.
    pub fn lost_writes(&self, count: usize, fates: &[Fate]) -> Vec<LostWrite> {
        let before = &self.entries[..count.min(fates.len())];
        let flush = before.iter().rposition(|entry| entry.verb == Verb::Flush);
        let is_lost = |(n, entry): &(usize, &Entry)| {
            entry.verb == Verb::Write && matches!(fates[*n], Fate::Lost | Fate::Torn)
        };
        let writes = before.iter().enumerate().filter(is_lost).map(|(request, entry)| LostWrite {
            request,
            offset_bytes: entry.offset_bytes,
            length_bytes: entry.length_bytes,
            early_flush: flush.filter(|flush| request < *flush && self.entries[*flush].at_ns < entry.done_ns),
        });
        let mut writes: Vec<LostWrite> = writes.collect();
        writes.drain(..writes.len().saturating_sub(LOST_WRITES));
        writes
    }

    /// Returns for each request before the cut whether its effect is certain.
    fn durable(&self, cut: &Cut, card: &Profile) -> Vec<bool> {
        let before = &self.entries[..cut.at];
        let now_ns = self.entries.get(cut.at).map_or(u64::MAX, |next| next.at_ns);
        if cut.failure == CardFailure::IgnoredFlushes {
            let mut room = match u64::from(card.host.write_cache_bytes) {
                0 => CACHE_BYTES,
                bytes => bytes,
            };
            let newest_first = before.iter().rev().map(|entry| {
                let is_cached = entry.done_ns > now_ns || room > 0;
                if entry.verb == Verb::Write {
                    room = room.saturating_sub(entry.length_bytes);
                }
                !is_cached
            });
            let mut durable: Vec<bool> = newest_first.collect();
            durable.reverse();
            return durable;
        }
        // Without a flush, the host takes each completed write for durable.
        if !card.host.flush {
            return before.iter().map(|entry| entry.done_ns <= now_ns).collect();
        }
        let finished = before.iter().enumerate().rev();
        let mut flushes = finished.filter(|(_, it)| it.verb == Verb::Flush && it.done_ns <= now_ns);
        let Some((last, flush)) = flushes.next() else { return vec![false; cut.at] };
        before.iter().enumerate().map(|(n, entry)| n < last && entry.done_ns <= flush.at_ns).collect()
    }

    /// Returns the ranges whose mapping a defective card loses.
    fn lost_ranges(&self, at: usize, card: &Profile) -> io::Result<Vec<Range<u64>>> {
        let mut model = Model::new(card.clone(), Condition::Preconditioned);
        for entry in &self.entries[..at] {
            let op = match entry.verb {
                Verb::Read => Op::read(entry.offset_bytes, entry.length_bytes),
                Verb::Write => Op::write(entry.offset_bytes, entry.length_bytes),
                Verb::Flush => Op::flush(),
                Verb::Discard => Op::discard(entry.offset_bytes, entry.length_bytes),
            };
            model.submit(entry.at_ns, op).map_err(io::Error::from)?;
        }
        Ok(model.lose_mapping())
    }
}

/// Fate of a request in a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// A flush covers it.
    Certain,
    /// It survives, although no flush covers it.
    Whole,
    /// It leaves no trace.
    Lost,
    /// A part of its units survives.
    Torn,
}

/// Choice of the unflushed writes that survive.
enum Style {
    None,
    All,
    /// Those before this request.
    Until(usize),
    Any,
}

impl Style {
    fn random(rng: &mut Rng, at: usize) -> Style {
        match rng.below(8) {
            0 => Style::None,
            1 => Style::All,
            2 => Style::Until(at.saturating_sub(rng.below(12) as usize)),
            _ => Style::Any,
        }
    }

    fn fate(&self, n: usize, rng: &mut Rng) -> Fate {
        match self {
            Style::None => Fate::Lost,
            Style::All => Fate::Whole,
            Style::Until(last) if n < *last => Fate::Whole,
            Style::Until(_) => Fate::Lost,
            Style::Any => match rng.below(10) {
                0..4 => Fate::Whole,
                4..7 => Fate::Lost,
                _ => Fate::Torn,
            },
        }
    }
}

/// Writes a random choice of the units of a write.
fn tear(entry: &Entry, unit: usize, rng: &mut Rng, device: &MemoryDevice) -> io::Result<()> {
    let mut at = 0;
    while at < entry.data.len() {
        let offset = entry.offset_bytes + at as u64;
        let length = (unit - (offset % unit as u64) as usize).min(entry.data.len() - at);
        if rng.chance(0.5) {
            device.write(offset, &entry.data[at..at + length])?;
        }
        at += length;
    }
    Ok(())
}

/// Returns a copy of a device.
///
/// # Errors
/// Those of the devices.
pub fn copy(device: &MemoryDevice) -> io::Result<MemoryDevice> {
    let new = MemoryDevice::with_geometry(device.geometry());
    let mut page = [0; 4096];
    for at in device.allocated_pages() {
        let length = (device.geometry().size_bytes - at).min(page.len() as u64) as usize;
        device.read(at, &mut page[..length])?;
        new.write(at, &page[..length])?;
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn entry(verb: Verb, page: u64, byte: u8, times: (u64, u64)) -> Entry {
        let data: Vec<u8> = if verb == Verb::Write { vec![byte; 4096] } else { Vec::new() };
        let (at_ns, done_ns) = times;
        Entry { verb, offset_bytes: page * 4096, length_bytes: 4096, data: data.into(), at_ns, done_ns }
    }

    /// Page 0 is flushed; page 1 was under way when the flush came; page 2 came after it.
    fn log() -> Log {
        let entries = vec![
            entry(Verb::Write, 0, 1, (0, 1)),
            entry(Verb::Write, 1, 2, (1, 4)),
            entry(Verb::Flush, 0, 0, (2, 5)),
            entry(Verb::Write, 2, 3, (6, 7)),
            entry(Verb::Write, 3, 4, (8, 9)),
        ];
        Log { entries }
    }

    fn images(failure: CardFailure, at: usize) -> BTreeSet<[Vec<u8>; 3]> {
        let card = Profile::named("survey-emmc51").unwrap().with_size(64 << 20).unwrap();
        let image = |seed| {
            let device = MemoryDevice::new(1 << 20);
            log().apply(&Cut { at, failure, seed }, &card, &device).unwrap();
            [0, 1, 2].map(|page: u64| {
                let mut bytes = vec![0; 4096];
                device.read(page * 4096, &mut bytes).unwrap();
                let mut sectors: Vec<u8> = bytes.chunks(512).map(|sector| sector[0]).collect();
                sectors.dedup();
                sectors
            })
        };
        (0..400).map(image).collect()
    }

    #[test]
    fn only_unflushed_writes_are_lost_and_only_between_pages() {
        let honest = images(CardFailure::Honest, 4);
        let expected = [[1, 0, 0], [1, 2, 0], [1, 0, 3], [1, 2, 3]].map(|pages| pages.map(|byte| vec![byte]));
        assert_eq!(honest, expected.into_iter().collect());
        let torn = images(CardFailure::TornSectors, 4);
        assert!(torn.len() > honest.len() && torn.iter().all(|pages| pages[0] == [1]));
    }

    #[test]
    fn a_lost_write_names_the_flush_that_was_sent_before_its_answer() {
        let card = Profile::named("survey-emmc51").unwrap().with_size(64 << 20).unwrap();
        let lost_at = |at, count| {
            (0..40).find_map(|seed| {
                let device = MemoryDevice::new(1 << 20);
                let cut = Cut { at, failure: CardFailure::Honest, seed };
                let after = log().apply(&cut, &card, &device).unwrap();
                log().lost_writes(count, &after.fates).pop()
            })
        };
        let write = |request, early_flush| LostWrite {
            request,
            offset_bytes: request as u64 * 4096,
            length_bytes: 4096,
            early_flush,
        };
        assert_eq!(lost_at(4, 3), Some(write(1, Some(2))));
        assert_eq!(lost_at(2, 1), Some(write(0, None)));
        assert_eq!(lost_at(4, 1), None, "the flush covers it");
    }

    #[test]
    fn without_a_flush_nothing_is_certain() {
        let lost = images(CardFailure::Honest, 2).into_iter().filter(|pages| pages[0] == [0]).count();
        assert!(lost > 0);
    }

    #[test]
    fn a_card_that_ignores_flushes_loses_flushed_data() {
        assert!(images(CardFailure::IgnoredFlushes, 4).iter().any(|pages| pages[0] == [0]));
    }

    #[test]
    fn a_lost_mapping_takes_flushed_data_with_it() {
        assert!(images(CardFailure::LostMapping, 4).iter().all(|pages| pages[0] == [0]));
    }
}
