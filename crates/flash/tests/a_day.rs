//! Mixed load with power cuts in virtual time, on cards of each kind, without an inconsistency.
//!
//! Slow cards work for an hour of their time, fast ones for some minutes. With `HOURS`, all work for that
//! many hours: `HOURS=24 cargo test --release -p flashkit-flash --test a_day -- --nocapture`.

use std::{collections::BTreeMap, io};

use block::{Device, Rng};
use flashkit_flash::{Card, Clock, Condition, FaultPlan, Profile};

const MINUTE_NS: u64 = 60 * 1_000_000_000;
const BLOCK: u64 = 4096;
/// Maximum length of a request in blocks.
const MOST: u64 = 32;

/// Content of each block at the last flush, and the writes since. A block repeats its stamp; stamp 0 is a
/// block that was never written, or was discarded.
#[derive(Default)]
struct Known {
    flushed: BTreeMap<u64, u64>,
    since: BTreeMap<u64, Vec<u64>>,
}

impl Known {
    fn wrote(&mut self, first: u64, count: u64, stamp: u64) {
        for block in first..first + count {
            self.since.entry(block).or_default().push(stamp);
        }
    }

    /// Records that everything written is on the flash.
    fn settle(&mut self) {
        while let Some((block, writes)) = self.since.pop_first() {
            self.flushed.insert(block, *writes.last().expect("only blocks that were written are listed"));
        }
    }

    fn newest(&self, block: u64) -> u64 {
        let newest = self.since.get(&block).and_then(|writes| writes.last());
        newest.or(self.flushed.get(&block)).copied().unwrap_or(0)
    }

    /// After a power cut, each sector has its flushed content or that of a later write. All of these blocks
    /// are rewritten, so that each has a single stamp again.
    fn recover(&mut self, card: &Card, stamp: u64) -> io::Result<()> {
        for (block, writes) in std::mem::take(&mut self.since) {
            let mut buf = [0; BLOCK as usize];
            card.read(block * BLOCK, &mut buf)?;
            let old = self.flushed.get(&block).copied().unwrap_or(0);
            for sector in buf.chunks(512) {
                let found = stamp_of(sector);
                assert!(all(sector, found), "a sector of block {block} is torn");
                assert!(
                    found == old || writes.contains(&found),
                    "block {block}: {found}, not {old}, {writes:?}"
                );
            }
            write(card, block, 1, stamp)?;
            self.wrote(block, 1, stamp);
        }
        card.flush()?;
        self.settle();
        Ok(())
    }

    fn check(&self, card: &Card, first: u64, count: u64) -> io::Result<()> {
        let mut buf = vec![0; (count * BLOCK) as usize];
        card.read(first * BLOCK, &mut buf)?;
        for (block, bytes) in (first..).zip(buf.chunks(BLOCK as usize)) {
            assert!(
                all(bytes, self.newest(block)),
                "block {block}: {}, not {}",
                stamp_of(bytes),
                self.newest(block)
            );
        }
        Ok(())
    }
}

fn stamp_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

fn all(bytes: &[u8], stamp: u64) -> bool {
    stamp_of(bytes) == stamp && bytes[8..] == bytes[..bytes.len() - 8]
}

fn write(card: &Card, first: u64, count: u64, stamp: u64) -> io::Result<()> {
    card.write(first * BLOCK, &stamp.to_le_bytes().repeat((count * BLOCK / 8) as usize))
}

fn end_ns(minutes: u64) -> u64 {
    let hours = std::env::var("HOURS").map(|text| text.parse::<u64>().expect("HOURS is a number"));
    hours.map_or(minutes, |hours| hours * 60) * MINUTE_NS
}

/// Uses a card until its clock reaches the end.
fn work_on(name: &str, minutes: u64) {
    let end_ns = end_ns(minutes);
    let profile = Profile::named(name).expect("built in").with_size(256 << 20).expect("a smaller card");
    let blocks = profile.size_bytes / BLOCK;
    let (flushes, discards) = (profile.host.write_cache_bytes > 0, profile.host.discard);
    let card = Card::new(profile, Condition::Preconditioned);
    let mut known = Known::default();
    let mut rng = Rng::new(7);
    let (mut next, mut stamp, mut cuts, mut requests) = (0, 0, 0, 0u64);
    let plan = |cuts: u64, rng: &mut Rng| {
        // Adds noise, and stalls now and then.
        let noise = FaultPlan { seed: cuts, jitter: 0.05, stall_chance: 0.001, ..FaultPlan::default() };
        FaultPlan { power_cut_at: Some(500 + rng.below(20_000)), stall_ns: 100_000_000, ..noise }
    };
    card.set_faults(plan(0, &mut rng));
    while card.now_ns() < end_ns {
        requests += 1;
        let count = if rng.chance(0.2) { 1 + rng.below(MOST) } else { 1 };
        let anywhere = rng.below(blocks - MOST);
        let done = match rng.below(20) {
            // In sequence, as a log writes.
            0..=7 => {
                next = if next + count + MOST > blocks { 0 } else { next + count };
                stamp += 1;
                known.wrote(next, count, stamp);
                write(&card, next, count, stamp)
            }
            8..=13 => {
                stamp += 1;
                known.wrote(anywhere, count, stamp);
                write(&card, anywhere, count, stamp)
            }
            14..=17 => known.check(&card, anywhere, count),
            18 if discards => {
                known.wrote(anywhere, count, 0);
                card.discard(anywhere * BLOCK, count * BLOCK)
            }
            _ => card.flush().inspect(|()| known.settle()),
        };
        if done.is_err() {
            assert!(!card.with_model(|model| model.is_powered()), "{name}: {done:?}");
            card.power_cycle(cuts).expect("comes back");
            cuts += 1;
            stamp += 1;
            card.set_faults(FaultPlan::default());
            known.recover(&card, stamp).expect("the power is on");
            card.set_faults(plan(cuts, &mut rng));
        } else if !flushes {
            // Without a cache, written data is on the flash, and only the last write can be torn.
            known.settle();
        }
    }
    assert!(cuts > 3, "{name}: {cuts} power cuts");
    card.set_faults(FaultPlan::default());
    for first in (0..blocks).step_by(MOST as usize) {
        known.check(&card, first, MOST.min(blocks - first)).expect("the power is on");
    }
    let hours = card.now_ns() as f64 / MINUTE_NS as f64 / 60.0;
    println!("{name}: {hours:.1} hours, {requests} requests, {stamp} writes, {cuts} power cuts");
}

#[test]
fn a_stick_with_two_open_units_survives_a_day_of_work() {
    work_on("bergmann-stick", 60);
}

#[test]
fn a_class_4_card_with_a_write_buffer_survives_a_day_of_work() {
    work_on("survey-class4", 60);
}

#[test]
fn a_class_10_card_survives_a_day_of_work() {
    work_on("survey-class10", 60);
}

#[test]
fn an_a2_card_with_a_cache_survives_a_day_of_work() {
    work_on("survey-a2", 5);
}

#[test]
fn an_emmc_with_cache_and_discards_survives_a_day_of_work() {
    work_on("survey-emmc45", 5);
}

#[test]
fn an_emmc_with_a_command_queue_survives_a_day_of_work() {
    work_on("survey-emmc51", 2);
}
