//! The disk under test: data, and a model that says how long each request takes.

use std::io;

use block::{Device, Verb, vhost_user::Ask};
use flash::{Command, Completion, Entry, Model, Op, Refusal, Trace};
use serde::{Deserialize, Serialize};

/// Says when requests are done, from their times alone: an event model.
pub trait EventModel {
    /// Serves a request that the host makes at `now_ns`. Requests come in the order of their times.
    fn submit(&mut self, now_ns: u64, op: Op) -> Result<Completion, Refusal>;
}

impl EventModel for Model {
    fn submit(&mut self, now_ns: u64, op: Op) -> Result<Completion, Refusal> {
        Model::submit(self, now_ns, op)
    }
}

/// What the guest has asked of the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it, units included")]
pub struct Totals {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub discarded_bytes: u64,
    /// From the start of each request on the card to its end, added up.
    pub busy_ns: u64,
}

impl Totals {
    /// Adds what came in another time.
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

    /// What came since `earlier`.
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

/// A disk: where the data lies, and the model that gives it time.
pub struct Card<M> {
    model: M,
    data: Box<dyn Device>,
    totals: Totals,
    trace: Option<Trace>,
}

impl<M: EventModel> Card<M> {
    /// A card whose data lies on `data`.
    pub fn new(model: M, data: Box<dyn Device>) -> Card<M> {
        Card { model, data, totals: Totals::default(), trace: None }
    }

    /// The same card, with every request remembered.
    pub fn traced(mut self) -> Card<M> {
        self.trace = Some(Trace::default());
        self
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// What was asked of it so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The requests so far, if they are remembered.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Does one request: the data moves at once, since nobody looks at it before the answer. Returns when the
    /// guest has the answer, and the answer: what was read, nothing for the other verbs.
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
            // The data of a guest that is gone is not kept: the disk it lies on need not be synced.
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

/// A request as the model knows it. The guest's disks have no forced unit access: it flushes instead.
fn op(ask: Ask) -> Op {
    match ask.verb {
        Verb::Read => Op::read(ask.offset_bytes, ask.length_bytes),
        Verb::Write => Op::write(ask.offset_bytes, ask.length_bytes),
        Verb::Flush => Op::flush(),
        Verb::Discard => Op::discard(ask.offset_bytes, ask.length_bytes),
    }
}
