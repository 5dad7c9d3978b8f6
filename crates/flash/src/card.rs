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

use block::{ATOMIC_BYTES, Device, Export, Geometry, MemoryDevice, Rng, Space};

use crate::{
    clock::Clock,
    condition::Condition,
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

/// End of the description of a card over NBD whose requests take no real time.
pub const VIRTUAL_CLOCK: &str = "virtual clock";

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
    /// End of the requests so far that nobody waits for; `None` if each request is waited for.
    unawaited_ns: Option<u64>,
    /// The previous data under each write that the cache may still hold, oldest first.
    undo: VecDeque<(u64, Vec<u8>)>,
    undo_bytes: u64,
    trace: Option<Vec<Entry>>,
}

impl Card {
    /// Makes a card of this profile with its data in memory, in virtual time.
    pub fn new(profile: Profile, condition: Condition) -> Card {
        let data = MemoryDevice::new(profile.size_bytes);
        Card::from_parts(Model::new(profile, condition), Box::new(data), Pace::Virtual)
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
            inner: Mutex::new(Inner {
                model,
                now_ns: 0,
                unawaited_ns: None,
                undo: VecDeque::new(),
                undo_bytes: 0,
                trace: None,
            }),
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

    /// Calls `work`, and does not wait for the requests that it makes: they come one after the other as soon as the queue
    /// takes them. Returns the result of `work`, and the time at which the last of these requests is done. Only for one
    /// thread. In real time, requests are waited for.
    pub fn without_waiting<R>(&self, work: impl FnOnce() -> R) -> (R, u64) {
        if self.pace == Pace::Virtual {
            let mut inner = self.lock();
            inner.unawaited_ns = Some(inner.now_ns);
        }
        let result = work();
        let mut inner = self.lock();
        let done_ns = inner.unawaited_ns.take().unwrap_or(inner.now_ns);
        (result, done_ns)
    }

    /// Waits until virtual time is at least `at_ns`.
    pub fn wait_until_ns(&self, at_ns: u64) {
        let mut inner = self.lock();
        inner.now_ns = inner.now_ns.max(at_ns);
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
                self.data.write_zeroes(range.start, range.end - range.start, Space::MayFree)?;
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
                inner.now_ns = match &mut inner.unawaited_ns {
                    None => completion.done_ns,
                    Some(last_ns) => {
                        *last_ns = completion.done_ns.max(*last_ns);
                        completion.start_ns
                    }
                };
            }
            completion
        };
        self.sleep_until(completion);
        Ok(())
    }

    fn sleep_until(&self, completion: Completion) {
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

    /// Serves a write, cached or with force unit access.
    fn serve_write(&self, op: Op, buf: &[u8]) -> io::Result<()> {
        self.geometry().check_write(op.offset_bytes, buf.len())?;
        self.serve(op, buf, |inner| {
            if !op.fua {
                self.remember(inner, op.offset_bytes, buf.len())?;
            }
            self.store(op.offset_bytes, buf)
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
        self.serve_write(Op::write(offset_bytes, buf.len() as u64), buf)
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

    fn allocation(&self, range: Range<u64>) -> Vec<(u64, bool)> {
        match self.inverted {
            // A hole of a bare chip reads as ones.
            true => vec![(range.end - range.start, false)],
            false => self.data.allocation(range),
        }
    }
}

impl Export for Card {
    fn write_through(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.serve_write(Op { fua: true, ..Op::write(offset_bytes, buf.len() as u64) }, buf)
    }

    fn description(&self) -> Option<String> {
        let clock = match self.pace {
            Pace::Virtual => VIRTUAL_CLOCK,
            Pace::RealTime => "real time",
        };
        Some(self.with_model(|model| format!("modelled card {}, {clock}", model.profile().name)))
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

/// The times at which a replay makes the requests of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayTiming {
    /// At their recorded times.
    AsRecorded,
    /// Each as soon as the previous one is done.
    BackToBack,
}

/// Replays the requests of a trace on a model.
///
/// # Errors
/// The first refusal.
pub fn replay(trace: &Trace, model: &mut Model, timing: ReplayTiming) -> Result<Vec<Completion>, Refusal> {
    let mut now_ns = 0;
    let mut completions = Vec::with_capacity(trace.entries.len());
    for entry in &trace.entries {
        if timing == ReplayTiming::AsRecorded {
            now_ns = now_ns.max(entry.at_ns);
        }
        let completion = model.submit(now_ns, entry.op)?;
        if timing == ReplayTiming::BackToBack {
            now_ns = completion.done_ns;
        }
        completions.push(completion);
    }
    Ok(completions)
}

#[cfg(test)]
mod tests;
