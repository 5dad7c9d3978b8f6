//! Cards in virtual time: data, power cuts, caches and bare chips.

use super::*;
use crate::profile::{Flash, Host, Layer, Locality, Times};

fn profile(write_cache_bytes: u32, layer: Layer) -> Profile {
    Profile {
        name: "test".into(),
        title: "test".into(),
        size_bytes: 4 << 20,
        host: Host {
            max_request_bytes: 1 << 20,
            queue_depth: 1,
            flush: true,
            discard: true,
            write_cache_bytes,
        },
        time: Times {
            read_command_ns: 1000,
            write_command_ns: 2000,
            program_page_ns: 3000,
            erase_block_ns: 9000,
            ..Times::default()
        },
        flash: Flash {
            page_bytes: 4096,
            block_bytes: 64 << 10,
            channels: 1,
            spare_blocks: 8,
            endurance_erases: 1000,
            bad_blocks: 0,
        },
        layer,
        locality: Locality::default(),
        write_costs: Vec::new(),
        slc_cache: None,
        fat_area: None,
        sources: Default::default(),
    }
}

#[test]
fn requests_move_the_clock_and_the_data() {
    let card = Card::new(profile(0, Layer::Page { reserve_blocks: 2 }), Condition::Fresh);
    card.start_trace();
    card.write(4096, &[7; 8192]).expect("within the card");
    assert_eq!(card.now_ns(), 2000 + 2 * 3000);
    let mut buf = [0; 3];
    card.read(4095, &mut buf).expect("within the card");
    assert_eq!((buf, card.now_ns()), ([0, 7, 7], 9000));
    card.pass_ns(1000);
    card.discard(0, 4 << 20).expect("within the card");
    card.read(4096, &mut buf).expect("within the card");
    assert_eq!(buf, [0; 3]);
    let trace = card.stop_trace();
    assert_eq!(trace.entries.len(), 4);
    assert_eq!(trace.entries[2].at_ns, 10_000);
    let mut twin = Model::new(profile(0, Layer::Page { reserve_blocks: 2 }), Condition::Fresh);
    let again = replay(&trace, &mut twin, ReplayTiming::AsRecorded).expect("it went once");
    let dones: Vec<u64> = trace.entries.iter().map(|entry| entry.done_ns).collect();
    assert_eq!(again.iter().map(|completion| completion.done_ns).collect::<Vec<_>>(), dones);
    assert_eq!(twin.counters(), &card.with_model(|model| model.counters().clone()));
}

#[test]
fn a_real_time_card_takes_its_modelled_time() {
    let mut slow = profile(0, Layer::Page { reserve_blocks: 2 });
    slow.time.write_command_ns = 20_000_000;
    let model = Model::new(slow, Condition::Fresh);
    let card = Card::from_parts(model, Box::new(MemoryDevice::new(4 << 20)), Pace::RealTime);
    let start = Instant::now();
    card.write(0, &[1; 4096]).expect("within the card");
    assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
}

#[test]
fn an_erased_chip_is_all_ones() {
    let chip = Card::new(profile(0, Layer::Nand), Condition::Fresh);
    let mut buf = [0; 4096];
    chip.read(0, &mut buf).expect("within the chip");
    assert!(buf.iter().all(|&byte| byte == 0xff));
    chip.write(0, &[0x5a; 4096]).expect("erased");
    chip.read(0, &mut buf).expect("within the chip");
    assert!(buf.iter().all(|&byte| byte == 0x5a));
    let error = chip.write(0, &[0x5a; 4096]).unwrap_err();
    assert!(is_refusal(&error, &Refusal::NotErased { offset_bytes: 0 }));
    chip.discard(0, 64 << 10).expect("whole blocks");
    chip.read(0, &mut buf).expect("within the chip");
    assert!(buf.iter().all(|&byte| byte == 0xff));
}

/// Writes pages in turn, numbered from 1, until the power fails. Flushes after the writes selected by
/// `flush`.
fn cut(card: &Card, at: u64, seed: u64, flush: impl Fn(u8) -> bool) -> (u8, Vec<u8>) {
    card.set_faults(FaultPlan { seed, power_cut_at: Some(at), ..card_plan(card) });
    let mut flushed = 0;
    for n in 1..=250u8 {
        if card.write(u64::from(n) % 8 * 4096, &[n; 4096]).is_err() {
            break;
        }
        if flush(n) {
            if card.flush().is_err() {
                break;
            }
            flushed = n;
        }
    }
    assert!(card.read(0, &mut [0; 1]).is_err(), "the power is off");
    card.power_cycle(seed).expect("comes back");
    let mut bytes = vec![0; 8 * 4096];
    card.read(0, &mut bytes).expect("the power is on");
    (flushed, bytes)
}

fn card_plan(card: &Card) -> FaultPlan {
    card.with_model(|model| model.fault_plan().clone())
}

/// Writes after a power failure during a read, a flush or a discard change nothing.
#[test]
fn a_write_after_the_cut_changes_nothing() {
    for cache_bytes in [0, 64 << 10] {
        for command in 0..3 {
            let card = Card::new(profile(cache_bytes, Layer::Page { reserve_blocks: 2 }), Condition::Fresh);
            card.write(0, &[1; 4096]).expect("within the card");
            card.flush().expect("the power is on");
            card.set_faults(FaultPlan { seed: 1, power_cut_at: Some(0), ..FaultPlan::default() });
            let cut = match command {
                0 => card.read(0, &mut [0; 512]),
                1 => card.flush(),
                _ => card.discard(8192, 4096),
            };
            assert!(cut.is_err() && card.write(0, &[2; 4096]).is_err());
            card.power_cycle(1).expect("comes back");
            let mut buf = [0; 4096];
            card.read(0, &mut buf).expect("the power is on");
            assert_eq!(buf, [1; 4096], "command {command}, cache of {cache_bytes}");
        }
    }
}

/// Data of a card, with the number of times that it was made durable.
struct CountsFlushes(MemoryDevice, std::sync::Arc<std::sync::atomic::AtomicU32>);

impl Device for CountsFlushes {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write(offset_bytes, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.0.discard(offset_bytes, length_bytes)
    }
}

impl Export for CountsFlushes {}

#[test]
fn a_closed_card_is_durable_even_if_it_ignores_flushes() {
    for (has_flush, drops_flushes) in [(false, false), (true, true), (true, false)] {
        let mut profile = profile(0, Layer::Page { reserve_blocks: 2 });
        profile.host.flush = has_flush;
        let flushes = std::sync::Arc::default();
        let data = CountsFlushes(MemoryDevice::new(4 << 20), std::sync::Arc::clone(&flushes));
        let plan = FaultPlan { drops_flushes, ..FaultPlan::default() };
        let model = Model::new(profile, Condition::Fresh).with_faults(plan);
        let card = Card::from_parts(model, Box::new(data), Pace::Virtual);
        card.write(0, &[1; 4096]).expect("within the card");
        card.put_away().expect("nothing fails");
        assert!(flushes.load(std::sync::atomic::Ordering::SeqCst) > 0);
    }
}

#[test]
fn every_flushed_block_comes_back() {
    let mut lost_something = 0;
    for at in 1..150 {
        let card = Card::new(profile(64 << 10, Layer::Page { reserve_blocks: 2 }), Condition::Fresh);
        let (flushed, bytes) = cut(&card, at, at, |n| n % 5 == 0);
        for n in flushed.saturating_sub(7).max(1)..=flushed {
            let page = &bytes[usize::from(n % 8) * 4096..][..4096];
            for sector in page.chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
                assert!(sector[0] >= n, "write {n} was flushed, and {} is there", sector[0]);
            }
            lost_something += usize::from(page.iter().any(|byte| *byte != page[0]));
        }
    }
    assert!(lost_something > 20, "the cuts tear pages: {lost_something}");
}

#[test]
fn without_a_cache_only_the_write_under_way_is_torn() {
    for at in 0..40 {
        let card = Card::new(profile(0, Layer::Page { reserve_blocks: 2 }), Condition::Fresh);
        let (_, bytes) = cut(&card, at, 7, |_| false);
        let done = at as u8;
        for n in done.saturating_sub(6).max(1)..=done {
            assert!(bytes[usize::from(n % 8) * 4096..][..4096].iter().all(|byte| *byte == n), "{at} {n}");
        }
    }
}

#[test]
fn a_card_that_loses_its_mapping_loses_its_last_writes() {
    let log = Layer::Hybrid {
        au_bytes: 64 << 10,
        open_units: 2,
        open_random: 2,
        small_write_bytes: 0,
        small_write_ns: 0,
        granule_bytes: 0,
        open_by_size: Vec::new(),
    };
    for layer in [Layer::Page { reserve_blocks: 2 }, log] {
        let card = Card::new(profile(0, layer), Condition::Preconditioned);
        // Two units are closed by the third and fourth, and their blocks are full.
        for n in 0..40u64 {
            card.write(n * 4096, &[n as u8 + 1; 4096]).expect("within the card");
        }
        card.flush().expect("flushed");
        card.set_faults(FaultPlan { loses_mapping: true, ..FaultPlan::default() });
        card.power_cycle(1).expect("comes back");
        let mut bytes = vec![0; 40 * 4096];
        card.read(0, &mut bytes).expect("within the card");
        let whole = |n: &usize| bytes[n * 4096..][..4096].iter().all(|byte| *byte == *n as u8 + 1);
        let empty = |n: &usize| bytes[n * 4096..][..4096].iter().all(|byte| *byte == 0);
        assert!((0..32).all(|n| whole(&n)), "complete blocks are kept");
        assert!((32..40).all(|n| empty(&n)), "the block under way is not");
        // It goes on as a card.
        card.write(36 * 4096, &[9; 4096]).expect("within the card");
        card.read(36 * 4096, &mut bytes[..4096]).expect("within the card");
        assert!(bytes[..4096].iter().all(|byte| *byte == 9));
    }
}

#[test]
fn a_card_that_lies_loses_flushed_blocks() {
    let mut lost = 0;
    for seed in 0..20 {
        let card = Card::new(profile(64 << 10, Layer::Page { reserve_blocks: 2 }), Condition::Fresh);
        card.set_faults(FaultPlan { drops_flushes: true, ..FaultPlan::default() });
        let (flushed, bytes) = cut(&card, 31, seed, |n| n % 5 == 0);
        assert_eq!(flushed, 25);
        lost += usize::from(bytes[usize::from(flushed % 8) * 4096..][..4096].iter().any(|b| *b < flushed));
    }
    assert!(lost > 10, "{lost}");
}
