//! States that a power cut leaves on bare flash.
//!
//! A chip has no cache and does one thing at a time: what was done before the cut is there. The request that the cut
//! interrupts leaves a part of its effect, or bits that change later.

use std::{io, ops::Range};

use block::{Device, MemoryDevice, Rng, Verb};
use flash::{Profile, profile::Layer};

use super::log::{After, CardFailure, Cut, Entry, Fate, Log};

/// One in this many cuts is between two requests, so that none is interrupted.
const BETWEEN: u64 = 8;
/// Distance of the unstable bits that have changed, on average, in bytes.
const UNSTABLE_BYTES: u64 = 64;

/// Applies the log to `device` as a cut leaves it; see [`Log::apply`].
pub(super) fn apply(log: &Log, cut: &Cut, chip: &Profile, device: &MemoryDevice) -> io::Result<After> {
    let mut rng = Rng::new(cut.seed);
    for entry in &log.entries[..cut.at] {
        whole(entry, device)?;
    }
    let mut after = After { fates: vec![Fate::Certain; cut.at], unstable: Vec::new() };
    let Some(entry) = log.entries.get(cut.at).filter(|_| rng.below(BETWEEN) > 0) else { return Ok(after) };
    after.fates.push(Fate::Torn);
    if cut.failure == CardFailure::UnstableBits {
        after.unstable.push(unstable(entry, chip, &mut rng, device)?);
        return Ok(after);
    }
    match entry.verb {
        Verb::Discard => tear_erase(entry, chip, &mut rng, device)?,
        _ => {
            let page = tear_program(entry, chip, &mut rng, device)?;
            if cut.failure == CardFailure::PairedPages {
                let lost = lower_page(page, chip).map(|lower| spoil(lower, chip, &mut rng, device));
                if let Some(lost) = lost.transpose()? {
                    mark_lost(log, &lost, &mut after.fates[..cut.at]);
                }
            }
        }
    }
    Ok(after)
}

/// Executes a request.
fn whole(entry: &Entry, device: &MemoryDevice) -> io::Result<()> {
    match entry.verb {
        Verb::Discard => fill(device, entry.offset_bytes..entry.offset_bytes + entry.length_bytes, 0xff),
        _ => program(device, entry.offset_bytes, &entry.data),
    }
}

/// Clears bits; programming sets none.
fn program(device: &MemoryDevice, offset: u64, data: &[u8]) -> io::Result<()> {
    change(device, offset..offset + data.len() as u64, |n, old| old & data[n])
}

/// Changes the bytes of a range by their numbers in it.
fn change(device: &MemoryDevice, range: Range<u64>, mut to: impl FnMut(usize, u8) -> u8) -> io::Result<()> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    device.read(range.start, &mut bytes)?;
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = to(n, *byte);
    }
    device.write(range.start, &bytes)
}

fn fill(device: &MemoryDevice, range: Range<u64>, byte: u8) -> io::Result<()> {
    change(device, range, |_, _| byte)
}

/// Returns the unit in which a chip programs: a page of NAND, a byte of NOR.
fn unit(chip: &Profile) -> u64 {
    match chip.layer {
        Layer::Nand => u64::from(chip.flash.page_bytes),
        _ => 1,
    }
}

/// Programs the units before a random one, and some of the bits of that one. Returns its offset.
fn tear_program(entry: &Entry, chip: &Profile, rng: &mut Rng, device: &MemoryDevice) -> io::Result<u64> {
    let unit = unit(chip);
    let units = entry.data.len() as u64 / unit;
    let done = (rng.below(units.max(1)) * unit) as usize;
    program(device, entry.offset_bytes, &entry.data[..done])?;
    let torn: Vec<u8> =
        entry.data[done..].iter().take(unit as usize).map(|byte| byte | rng.next_u64() as u8).collect();
    program(device, entry.offset_bytes + done as u64, &torn)?;
    Ok(entry.offset_bytes + done as u64)
}

/// Erases a part of a sector. NOR is first programmed to zero; in both steps bits change in no particular order
/// (linux-mtd, "UBIFS Corrupt during power failure", July 2009).
fn tear_erase(entry: &Entry, chip: &Profile, rng: &mut Rng, device: &MemoryDevice) -> io::Result<()> {
    let range = entry.offset_bytes..entry.offset_bytes + entry.length_bytes;
    let is_nor = chip.layer == Layer::Nor;
    match rng.below(4) {
        // From one end on.
        0 => {
            let middle = range.start + rng.below(entry.length_bytes + 1);
            let part = if rng.below(2) == 0 { range.start..middle } else { middle..range.end };
            fill(device, part, if is_nor && rng.below(2) == 0 { 0 } else { 0xff })
        }
        // Still on the way to zero.
        1 if is_nor => {
            let share = rng.below(256);
            change(device, range, |_, old| old & bits(rng, share))
        }
        // On the way to ones, on NOR from zeroes.
        _ => {
            let share = rng.below(256);
            change(device, range, |_, old| if is_nor { 0 } else { old } | bits(rng, share))
        }
    }
}

/// Returns a byte in which each bit is one with this chance in 256.
fn bits(rng: &mut Rng, share: u64) -> u8 {
    let eight = rng.next_u64().to_le_bytes();
    eight.iter().fold(0, |byte, one| byte << 1 | u8::from(u64::from(*one) < share))
}

/// Gives the interrupted request all or none of its effect for now. Returns the range with the bits that change
/// later (linux-mtd.infradead.org, "The unstable bits issue": four situations).
fn unstable(entry: &Entry, chip: &Profile, rng: &mut Rng, device: &MemoryDevice) -> io::Result<Range<u64>> {
    let is_done = rng.below(2) == 0;
    if entry.verb == Verb::Discard {
        if is_done {
            whole(entry, device)?;
        }
        return Ok(entry.offset_bytes..entry.offset_bytes + entry.length_bytes);
    }
    let unit = unit(chip);
    let units = entry.data.len() as u64 / unit;
    let before = rng.below(units.max(1)) * unit;
    let end = (before + unit).min(entry.data.len() as u64);
    let done = if is_done { end } else { before };
    program(device, entry.offset_bytes, &entry.data[..done as usize])?;
    Ok(entry.offset_bytes + before..entry.offset_bytes + end)
}

/// Changes the unstable bits of a range: one of every [`UNSTABLE_BYTES`] bytes, but one at least.
pub(super) fn settle(content: &mut [u8], range: &Range<u64>) {
    let mut rng = Rng::new(range.start ^ range.end << 32);
    let length = range.end - range.start;
    for _ in 0..length.div_ceil(UNSTABLE_BYTES) {
        content[(range.start + rng.below(length)) as usize] ^= 1 << rng.below(8);
    }
}

/// Returns the page of the pair that was programmed first, if this is the other. The pages of a pair are three apart,
/// but two at both ends of a sector (Linux, `mtd_pairing_scheme`, distance 3).
fn lower_page(page: u64, chip: &Profile) -> Option<u64> {
    let (page_bytes, sector) = (u64::from(chip.flash.page_bytes), u64::from(chip.flash.block_bytes));
    let (start, number) = (page / sector * sector, page % sector / page_bytes);
    let last = sector / page_bytes - 1;
    let lower = match number {
        0 => return None,
        2 => 0,
        _ if number == last => number - 2,
        _ if number % 2 == 0 => number - 3,
        _ => return None,
    };
    Some(start + lower * page_bytes)
}

/// Destroys a page. Returns its range.
fn spoil(page: u64, chip: &Profile, rng: &mut Rng, device: &MemoryDevice) -> io::Result<Range<u64>> {
    let range = page..page + u64::from(chip.flash.page_bytes);
    change(device, range.clone(), |_, old| old ^ bits(rng, 64))?;
    Ok(range)
}

/// Marks the last program of a range as torn.
fn mark_lost(log: &Log, range: &Range<u64>, fates: &mut [Fate]) {
    let is_there = |entry: &Entry| {
        entry.offset_bytes < range.end && range.start < entry.offset_bytes + entry.length_bytes
    };
    let last = log.entries[..fates.len()].iter().rposition(is_there);
    if let Some(n) = last.filter(|n| log.entries[*n].verb == Verb::Write) {
        fates[n] = Fate::Torn;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECTOR: u64 = 16 << 10;

    fn nand() -> Profile {
        Profile::named("nand-2003").unwrap().with_size(1 << 20).unwrap()
    }

    fn entry(verb: Verb, page: u64, pages: u64, byte: u8) -> Entry {
        let length_bytes = pages * 512;
        let data = if verb == Verb::Write { vec![byte; length_bytes as usize] } else { Vec::new() };
        Entry { verb, offset_bytes: page * 512, length_bytes, data: data.into(), at_ns: 0, done_ns: 1 }
    }

    /// Two pages are programmed, one is erased with its sector, and four are programmed.
    fn log() -> Log {
        let entries = vec![
            entry(Verb::Write, 0, 1, 0x0f),
            entry(Verb::Write, 1, 1, 0x3c),
            entry(Verb::Write, 32, 1, 0),
            entry(Verb::Discard, 32, 32, 0),
            entry(Verb::Write, 2, 4, 0xf0),
        ];
        Log { entries }
    }

    /// Returns the states of the first 33 pages that cuts leave at a request, with their unstable ranges.
    fn cuts(chip: &Profile, failure: CardFailure, at: usize) -> BTreeSet<(Vec<u8>, Option<u64>, usize)> {
        let cut = |seed| {
            let device = MemoryDevice::new(1 << 20);
            fill(&device, 0..1 << 20, 0xff).unwrap();
            let after = log().apply(&Cut { at, failure, seed }, chip, &device).unwrap();
            let mut bytes = vec![0; 33 * 512];
            device.read(0, &mut bytes).unwrap();
            let unstable = after.unstable.first().map(|range| range.start / 512);
            (bytes, unstable, after.fates.len())
        };
        (0..200).map(cut).collect()
    }

    fn page(bytes: &[u8], number: usize) -> &[u8] {
        &bytes[number * 512..][..512]
    }

    #[test]
    fn an_interrupted_program_leaves_a_part_of_it_and_what_was_before_stays() {
        let states = cuts(&nand(), CardFailure::Honest, 4);
        let mut ends = BTreeSet::new();
        for (bytes, unstable, begun) in &states {
            assert!(page(bytes, 0) == [0x0f; 512] && page(bytes, 1) == [0x3c; 512] && unstable.is_none());
            let whole = (2..6).take_while(|n| page(bytes, *n) == [0xf0; 512]).count();
            ends.insert((whole, *begun));
            if *begun == 5 {
                let torn = page(bytes, 2 + whole);
                assert!(
                    torn.iter().all(|byte| byte & 0xf0 == 0xf0) && torn != [0xff; 512],
                    "bits are cleared only"
                );
            }
            assert!((3 + whole..6).all(|n| page(bytes, n) == [0xff; 512]));
        }
        assert_eq!(ends, [(0, 4), (0, 5), (1, 5), (2, 5), (3, 5)].into_iter().collect());
    }

    #[test]
    fn an_interrupted_erase_sets_bits_on_nand_and_clears_them_first_on_nor() {
        let nor = Profile::named("nor-2003").unwrap().with_size(1 << 20).unwrap();
        let states = |chip: &Profile| -> BTreeSet<Vec<u8>> {
            let states = cuts(chip, CardFailure::Honest, 3).into_iter();
            states.map(|(bytes, ..)| page(&bytes, 32).to_vec()).collect()
        };
        let nand = states(&nand());
        assert!(nand.contains(&vec![0; 512]) && nand.contains(&vec![0xff; 512]) && nand.len() > 50);
        assert!(states(&nor).len() > 50);
    }

    #[test]
    fn unstable_bits_change_after_a_request_had_all_or_none_of_its_effect() {
        for (bytes, unstable, begun) in cuts(&nand(), CardFailure::UnstableBits, 4) {
            let Some(weak) = unstable else {
                assert_eq!(begun, 4);
                continue;
            };
            let whole = (2..6).take_while(|n| page(&bytes, *n) == [0xf0; 512]).count() as u64;
            assert!(whole == weak - 2 || whole == weak - 1, "{whole} pages, weak is {weak}");
            assert!((2 + whole as usize..6).all(|n| page(&bytes, n) == [0xff; 512]));
        }
        let mut content = vec![0xff; SECTOR as usize];
        settle(&mut content, &(512..1024));
        let changed = content.iter().enumerate().filter(|(_, byte)| **byte != 0xff).map(|(n, _)| n);
        let changed: Vec<usize> = changed.collect();
        assert!((1..=8).contains(&changed.len()) && changed.iter().all(|n| (512..1024).contains(n)));
    }

    #[test]
    fn an_interrupted_page_destroys_the_other_of_its_pair() {
        let chip = nand();
        let pairs =
            [(0, None), (1, None), (2, Some(0)), (3, None), (4, Some(1)), (6, Some(3)), (31, Some(29))];
        for (number, lower) in pairs {
            for start in [0, SECTOR] {
                let lower = lower.map(|lower| start + lower * 512);
                assert_eq!(lower_page(start + number * 512, &chip), lower, "{number}");
            }
        }
        let states = cuts(&chip, CardFailure::PairedPages, 4);
        let is_spoilt =
            |number: usize, byte: u8| states.iter().any(|(bytes, ..)| page(bytes, number) != [byte; 512]);
        assert!(is_spoilt(0, 0x0f) && is_spoilt(1, 0x3c));
    }
}
