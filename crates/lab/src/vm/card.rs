//! The disk under test: its data, and a model that determines the duration of each request.

use std::io;

use block::{Device, Verb, vhost_user::Ask};
use flash::{Command, Completion, Entry, Model, Op, Refusal, Trace};
use serde::{Deserialize, Serialize};

/// A timing model: computes when a request is done from the times of the requests alone.
pub trait EventModel {
    /// Serves a request that the host makes at `now_ns`. Requests come in the order of their times.
    fn submit(&mut self, now_ns: u64, op: Op) -> Result<Completion, Refusal>;
}

impl EventModel for Model {
    fn submit(&mut self, now_ns: u64, op: Op) -> Result<Completion, Refusal> {
        Model::submit(self, now_ns, op)
    }
}

/// Counters of the guest's requests to the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are clear and include the units")]
pub struct Totals {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub discarded_bytes: u64,
    /// Sum of the time from the start of each request on the card to its end.
    pub busy_ns: u64,
}

impl Totals {
    /// Adds the counters of another period.
    pub fn add(&mut self, other: &Totals) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
        self.flushes += other.flushes;
        self.discards += other.discards;
        self.discarded_bytes += other.discarded_bytes;
        self.busy_ns += other.busy_ns;
    }

    /// Returns the increase since `earlier`.
    pub fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            writes: self.writes - earlier.writes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            flushes: self.flushes - earlier.flushes,
            discards: self.discards - earlier.discards,
            discarded_bytes: self.discarded_bytes - earlier.discarded_bytes,
            busy_ns: self.busy_ns - earlier.busy_ns,
        }
    }
}

/// A disk: the device that holds the data, and the timing model.
pub struct Card<M> {
    model: M,
    data: Box<dyn Device>,
    totals: Totals,
    trace: Option<Trace>,
}

impl<M: EventModel> Card<M> {
    /// Creates a card whose data is on `data`.
    pub fn new(model: M, data: Box<dyn Device>) -> Card<M> {
        Card { model, data, totals: Totals::default(), trace: None }
    }

    /// Enables recording of all requests.
    pub fn traced(mut self) -> Card<M> {
        self.trace = Some(Trace::default());
        self
    }

    /// Returns the model of the card.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Returns the counters of all requests so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the recorded requests, if recording is enabled.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Executes one request. The data moves at once, since it is not visible before the answer. Returns the
    /// time at which the guest gets the answer, and the answer: the data of a read, empty for other requests.
    pub(super) fn submit(&mut self, now_ns: u64, ask: Ask, data: &[u8]) -> (u64, io::Result<Vec<u8>>) {
        let op = op(ask);
        let completion = match self.model.submit(now_ns, op) {
            Ok(completion) => completion,
            Err(refusal) => return (now_ns, Err(refusal.into())),
        };
        self.count(&op, &completion);
        if let Some(trace) = &mut self.trace {
            trace.entries.push(Entry { at_ns: now_ns, done_ns: completion.done_ns, op });
        }
        (completion.done_ns, self.act(ask, data))
    }

    fn act(&self, ask: Ask, data: &[u8]) -> io::Result<Vec<u8>> {
        match ask.verb {
            Verb::Read => {
                let mut read = vec![0; ask.length_bytes as usize];
                self.data.read(ask.offset_bytes, &mut read)?;
                return Ok(read);
            }
            Verb::Write => self.data.write(ask.offset_bytes, data)?,
            // The data does not outlive the guest, so the file that holds it need not be synced.
            Verb::Flush => {}
            Verb::Discard => self.data.discard(ask.offset_bytes, ask.length_bytes)?,
        }
        Ok(Vec::new())
    }

    fn count(&mut self, op: &Op, completion: &Completion) {
        let totals = &mut self.totals;
        match op.command {
            Command::Read => {
                totals.reads += 1;
                totals.read_bytes += op.length_bytes;
            }
            Command::Write => {
                totals.writes += 1;
                totals.written_bytes += op.length_bytes;
            }
            Command::Flush => totals.flushes += 1,
            Command::Discard => {
                totals.discards += 1;
                totals.discarded_bytes += op.length_bytes;
            }
        }
        totals.busy_ns += completion.done_ns - completion.start_ns;
    }
}

/// Converts a request to one of the model. The guest's disks have no forced unit access; the guest flushes
/// instead.
fn op(ask: Ask) -> Op {
    match ask.verb {
        Verb::Read => Op::read(ask.offset_bytes, ask.length_bytes),
        Verb::Write => Op::write(ask.offset_bytes, ask.length_bytes),
        Verb::Flush => Op::flush(),
        Verb::Discard => Op::discard(ask.offset_bytes, ask.length_bytes),
    }
}
