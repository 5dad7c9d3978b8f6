//! A card: the model with data and a clock.
//!
//! *Invariant*: a power cut loses only data that a card of the profile may lose: the data of the write in
//! progress, in whole sectors, and the content of the write cache. All data that was flushed, or written
//! without a cache, survives.

use std::{
    collections::{HashSet, VecDeque},
    io,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use block::{ATOMIC_BYTES, Device, Geometry, MemoryDevice, Rng, nbd::Export};

use crate::{
    clock::Clock,
    fault::FaultPlan,
    model::Model,
    op::{Command, Completion, Op, Refusal},
    profile::Profile,
    trace::{Entry, Trace},
};

/// The pace of the card's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Each request advances the clock by its cost, without a real delay.
    Virtual,
    /// The clock is the host's; requests sleep until they are done.
    RealTime,
}

/// A modelled card as a device.
pub struct Card {
    data: Box<dyn Export>,
    /// True for a bare chip, whose erased state is all ones. Its data is stored inverted, so that erased
    /// ranges are holes.
    inverted: bool,
    pace: Pace,
    plugged_in: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    model: Model,
    now_ns: u64,
    /// The previous data under each write that the cache may still hold, oldest first.
    undo: VecDeque<(u64, Vec<u8>)>,
    undo_bytes: u64,
    trace: Option<Vec<Entry>>,
}

impl Card {
    /// Makes a card of this profile with its data in memory, in virtual time.
    pub fn new(profile: Profile, preconditioned: bool) -> Card {
        let data = MemoryDevice::new(profile.size_bytes);
        Card::from_parts(Model::new(profile, preconditioned), Box::new(data), Pace::Virtual)
    }

    /// Makes a card from a used one: `data` is the content of a card with this model. Its clock starts at 0.
    pub fn from_parts(model: Model, data: Box<dyn Export>, pace: Pace) -> Card {
        assert!(
            data.geometry().size_bytes >= model.profile().size_bytes,
            "the data has the size of the card"
        );
        Card {
            data,
            inverted: model.profile().is_raw(),
            pace,
            plugged_in: Instant::now(),
            inner: Mutex::new(Inner { model, now_ns: 0, undo: VecDeque::new(), undo_bytes: 0, trace: None }),
        }
    }

    /// Calls `look` with the model.
    pub fn with_model<R>(&self, look: impl FnOnce(&Model) -> R) -> R {
        look(&self.lock().model)
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, plan: FaultPlan) {
        let mut inner = self.lock();
        inner.model = inner.model.clone().with_faults(plan);
    }

    /// Advances virtual time without a request.
    pub fn pass_ns(&self, ns: u64) {
        self.lock().now_ns += ns;
    }

    /// Starts to record requests; discards earlier records.
    pub fn start_trace(&self) {
        self.lock().trace = Some(Vec::new());
    }

    /// Returns the requests since [`start_trace`](Card::start_trace), if they are recorded.
    pub fn trace(&self) -> Option<Trace> {
        self.lock().trace.clone().map(|entries| Trace { entries })
    }

    /// Stops recording and returns the requests since [`start_trace`](Card::start_trace).
    pub fn stop_trace(&self) -> Trace {
        Trace { entries: self.lock().trace.take().unwrap_or_default() }
    }

    /// Cuts the power and turns it on again. `seed` chooses the lost data. If the plan includes a lost
    /// mapping, the data written last reads as zeroes.
    ///
    /// # Errors
    /// Those of the device that holds the data, and a worn-out flash.
    pub fn power_cycle(&self, seed: u64) -> io::Result<()> {
        let mut inner = self.lock();
        self.lose_cache(&mut inner, &mut Rng::new(seed))?;
        if inner.model.fault_plan().loses_mapping {
            for range in inner.model.lose_mapping() {
                self.data.write_zeroes(range.start, range.end - range.start, true)?;
            }
        }
        inner.model.power_cycle()?;
        Ok(())
    }

    /// Shuts the card down, as a host does before the card is removed. Restores the power first if it was
    /// cut. All data is then durable, even on a card that has no flush or ignores it.
    ///
    /// # Errors
    /// Those of the device that holds the data, and a worn-out flash.
    pub fn put_away(&self) -> io::Result<()> {
        let (is_powered, seed) = self.with_model(|model| (model.is_powered(), model.fault_plan().seed));
        if is_powered { self.flush() } else { self.power_cycle(seed) }?;
        self.data.flush()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request: computes its time, applies it to the data, and waits if the clock is real. `written`
    /// is the data of a write. If the power fails during the write, part of the data arrives. Later requests
    /// change nothing.
    fn serve(
        &self,
        op: Op,
        written: &[u8],
        act: impl FnOnce(&mut Inner) -> io::Result<()>,
    ) -> io::Result<()> {
        let completion = {
            let mut inner = self.lock();
            if self.pace == Pace::RealTime {
                inner.now_ns = inner.now_ns.max(self.plugged_in.elapsed().as_nanos() as u64);
            }
            let now_ns = inner.now_ns;
            let was_powered = inner.model.is_powered();
            let completion = match inner.model.submit(now_ns, op) {
                Err(refusal) => {
                    if was_powered && !inner.model.is_powered() && op.command == Command::Write {
                        self.tear(&mut inner, op.offset_bytes, written)?;
                    }
                    return Err(refusal.into());
                }
                Ok(completion) => completion,
            };
            if let Some(trace) = &mut inner.trace {
                trace.push(Entry { at_ns: now_ns, done_ns: completion.done_ns, op });
            }
            act(&mut inner)?;
            if self.pace == Pace::Virtual {
                inner.now_ns = completion.done_ns;
            }
            completion
        };
        self.wait_until(completion);
        Ok(())
    }

    fn wait_until(&self, completion: Completion) {
        if self.pace == Pace::Virtual {
            return;
        }
        // Sleeps overshoot, so the last part of the time is spent spinning.
        const SPIN: Duration = Duration::from_micros(120);
        let due = self.plugged_in + Duration::from_nanos(completion.done_ns);
        if let Some(ahead) = due.checked_duration_since(Instant::now()).and_then(|d| d.checked_sub(SPIN)) {
            std::thread::sleep(ahead);
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
    }

    fn store(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        match self.inverted {
            true => self.data.write(offset_bytes, &buf.iter().map(|byte| !byte).collect::<Vec<_>>()),
            false => self.data.write(offset_bytes, buf),
        }
    }

    /// Saves the data that a cached write overwrites.
    fn remember(&self, inner: &mut Inner, offset_bytes: u64, length: usize) -> io::Result<()> {
        let room = u64::from(inner.model.profile().host.write_cache_bytes);
        if room == 0 {
            return Ok(());
        }
        let mut old = vec![0; length];
        self.data.read(offset_bytes, &mut old)?;
        inner.undo_bytes += length as u64;
        inner.undo.push_back((offset_bytes, old));
        while inner.undo_bytes > room {
            let Some((_, old)) = inner.undo.pop_front() else { break };
            inner.undo_bytes -= old.len() as u64;
        }
        Ok(())
    }

    /// Undoes the writes in the cache, a random choice of their sectors. A sector whose newer content
    /// survives keeps it.
    fn lose_cache(&self, inner: &mut Inner, rng: &mut Rng) -> io::Result<()> {
        let mut kept: HashSet<u64> = HashSet::new();
        while let Some((offset, old)) = inner.undo.pop_back() {
            for (n, sector) in old.chunks(ATOMIC_BYTES).enumerate() {
                let at = offset + (n * ATOMIC_BYTES) as u64;
                if !kept.contains(&at) {
                    match rng.chance(0.5) {
                        true => self.data.write(at, sector)?,
                        false => _ = kept.insert(at),
                    }
                }
            }
        }
        inner.undo_bytes = 0;
        Ok(())
    }

    /// Applies random sectors of a write that the power cut has interrupted.
    fn tear(&self, inner: &mut Inner, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let mut rng = Rng::new(inner.model.fault_plan().seed);
        self.lose_cache(inner, &mut rng)?;
        for (n, sector) in buf.chunks(ATOMIC_BYTES).enumerate() {
            if rng.chance(0.5) {
                self.store(offset_bytes + (n * ATOMIC_BYTES) as u64, sector)?;
            }
        }
        Ok(())
    }

    /// Writes with or without force unit access.
    ///
    /// # Errors
    /// [`Refusal`] as an I/O error, and those of the device that holds the data.
    pub fn write_fua(&self, offset_bytes: u64, buf: &[u8], fua: bool) -> io::Result<()> {
        let op = Op { fua, ..Op::write(offset_bytes, buf.len() as u64) };
        self.serve(op, buf, |inner| {
            if !fua {
                self.remember(inner, offset_bytes, buf.len())?;
            }
            self.store(offset_bytes, buf)
        })
    }
}

impl Device for Card {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.with_model(|model| model.profile().size_bytes);
        Geometry { size_bytes, sector_bytes: ATOMIC_BYTES as u32 }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        self.serve(Op::read(offset_bytes, buf.len() as u64), &[], |_| self.data.read(offset_bytes, buf))?;
        if self.inverted {
            buf.iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry().check_write(offset_bytes, buf.len())?;
        self.write_fua(offset_bytes, buf, false)
    }

    fn flush(&self) -> io::Result<()> {
        self.serve(Op::flush(), &[], |inner| {
            if inner.model.profile().host.flush && !inner.model.fault_plan().drops_flushes {
                inner.undo.clear();
                inner.undo_bytes = 0;
                self.data.flush()?;
            }
            Ok(())
        })
    }

    /// On a bare chip, erases the blocks within the range, which then read as ones.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.serve(Op::discard(offset_bytes, length_bytes), &[], |inner| {
            let profile = inner.model.profile();
            let (mut start, mut end) = (offset_bytes, offset_bytes + length_bytes);
            if profile.is_raw() {
                let block = u64::from(profile.flash.block_bytes);
                (start, end) = (start.next_multiple_of(block), end / block * block);
            } else if !profile.host.discard {
                return Ok(());
            }
            if start < end { self.data.discard(start, end - start) } else { Ok(()) }
        })
    }
}

impl Export for Card {
    fn write_through(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry().check_write(offset_bytes, buf.len())?;
        self.write_fua(offset_bytes, buf, true)
    }

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        match self.inverted {
            // A hole of a bare chip reads as ones.
            true => vec![(range.end - range.start, false)],
            false => self.data.allocation(range),
        }
    }
}

impl Clock for Card {
    fn now_ns(&self) -> u64 {
        match self.pace {
            Pace::Virtual => self.lock().now_ns,
            Pace::RealTime => self.plugged_in.elapsed().as_nanos() as u64,
        }
    }
}

/// Returns true if an I/O error is this refusal.
pub fn is_refusal(error: &io::Error, refusal: &Refusal) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>()) == Some(refusal)
}

/// Replays the requests of a trace on a model, either at their recorded times or each as soon as the previous
/// one is done.
///
/// # Errors
/// The first refusal.
pub fn replay(trace: &Trace, model: &mut Model, keep_times: bool) -> Result<Vec<Completion>, Refusal> {
    let mut now_ns = 0;
    let mut completions = Vec::with_capacity(trace.entries.len());
    for entry in &trace.entries {
        now_ns = if keep_times { now_ns.max(entry.at_ns) } else { now_ns };
        let completion = model.submit(now_ns, entry.op)?;
        if !keep_times {
            now_ns = completion.done_ns;
        }
        completions.push(completion);
    }
    Ok(completions)
}

#[cfg(test)]
mod tests {
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
            slc_cache: None,
            fat_area: None,
            sources: Default::default(),
        }
    }

    #[test]
    fn requests_move_the_clock_and_the_data() {
        let card = Card::new(profile(0, Layer::Page { reserve_blocks: 2 }), false);
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
        let mut twin = Model::new(profile(0, Layer::Page { reserve_blocks: 2 }), false);
        let again = replay(&trace, &mut twin, true).expect("it went once");
        let dones: Vec<u64> = trace.entries.iter().map(|entry| entry.done_ns).collect();
        assert_eq!(again.iter().map(|completion| completion.done_ns).collect::<Vec<_>>(), dones);
        assert_eq!(twin.counters(), &card.with_model(|model| model.counters().clone()));
    }

    #[test]
    fn a_real_time_card_takes_its_modelled_time() {
        let mut slow = profile(0, Layer::Page { reserve_blocks: 2 });
        slow.time.write_command_ns = 20_000_000;
        let model = Model::new(slow, false);
        let card = Card::from_parts(model, Box::new(MemoryDevice::new(4 << 20)), Pace::RealTime);
        let start = Instant::now();
        card.write(0, &[1; 4096]).expect("within the card");
        assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
    }

    #[test]
    fn an_erased_chip_is_all_ones() {
        let chip = Card::new(profile(0, Layer::Nand), false);
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
                let card = Card::new(profile(cache_bytes, Layer::Page { reserve_blocks: 2 }), false);
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
            let model = Model::new(profile, false).with_faults(plan);
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
            let card = Card::new(profile(64 << 10, Layer::Page { reserve_blocks: 2 }), false);
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
            let card = Card::new(profile(0, Layer::Page { reserve_blocks: 2 }), false);
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
        };
        for layer in [Layer::Page { reserve_blocks: 2 }, log] {
            let card = Card::new(profile(0, layer), true);
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
            let card = Card::new(profile(64 << 10, Layer::Page { reserve_blocks: 2 }), false);
            card.set_faults(FaultPlan { drops_flushes: true, ..FaultPlan::default() });
            let (flushed, bytes) = cut(&card, 31, seed, |n| n % 5 == 0);
            assert_eq!(flushed, 25);
            lost +=
                usize::from(bytes[usize::from(flushed % 8) * 4096..][..4096].iter().any(|b| *b < flushed));
        }
        assert!(lost > 10, "{lost}");
    }
}
