//! The threads that answer requests through io_uring.
//!
//! The kernel has a queue of entries for each possible processor. An entry carries one request from its receipt to
//! its answer, and the kernel fills it only while the thread that submitted it waits. So each worker has one entry
//! and a ring of its own: a request never waits behind another one that its worker handles. The entries that no
//! worker has yet are with one more thread, the reserve. It starts a worker for each of them that gets a request;
//! the worker keeps the entry from then on, and as the kernel prefers the entry that was used last, few are in use.
//!
//! All entries are lent before the kernel sends the first request: it does not give requests that wait to entries
//! that are lent later.

use std::{
    io,
    sync::{Arc, PoisonError, mpsc},
};

use rustix::{
    io::Errno,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

use super::{HEAD_BYTES, Handler, Problem, Response, Session, Transport};
use crate::{
    abi::init_flags,
    connection::Reply,
    message::Arguments,
    negotiation::InitRequest,
    pool::Pool,
    uring::{self, Deferrals, Entry, Processor, Refused, Ring, Slot},
};

/// Number of entries of a queue. While writers wait for their turn in more of them, readers wait, too.
const QUEUE_ENTRIES_MAX: usize = 256;
const QUEUE_ENTRIES_MIN: usize = 8;
/// Number of entries for all processors that are online, if each can have its minimum: the ring of each entry in use is an
/// open file, of which many hosts allow 1024. Untouched entries take address space, but no memory.
const ENTRIES_MAX: usize = 512;
/// Number of entries of a queue that are never used for answers that wait for other requests.
const ENTRIES_FREE: usize = 2;
/// Minimum payload of an entry in bytes (`FUSE_MIN_READ_BUFFER`).
const PAYLOAD_BYTES_MIN: usize = 8192;
/// Bytes of a page in the answer to INIT.
const PAGE_BYTES: usize = 4096;
/// Space of a worker for answers to requests that need their payload until the end, in bytes. It grows.
const OWN_ANSWER_BYTES: usize = 256;

const NOT_OFFERED: &str = "the kernel does not offer it, as Linux 6.14 and newer do while \
    /sys/module/fuse/parameters/enable_uring is Y";

/// The prepared reserve, which waits for the answer to INIT. If it is dropped, nothing happens.
pub struct Reserve {
    start: mpsc::Sender<()>,
}

/// The buffers of a worker, and the place of its answers that come later.
struct Worker {
    response: Response,
    arguments: Vec<u8>,
    slot: Arc<Slot>,
}

impl Reserve {
    /// Lends all entries to the kernel, which has accepted io_uring.
    pub fn start(self) {
        let _ = self.start.send(());
    }
}

impl<H: Handler> Session<H> {
    /// Prepares the reserve if the kernel offers io_uring in its init request. Nothing can fail after the answer to
    /// INIT that the kernel does not notice: it sends no request until the entries are there or one is refused.
    pub(super) fn prepare_rings(self: &Arc<Self>, pool: &Arc<Pool>, arguments: &[u8]) {
        if self.transport != Transport::IoUring {
            return;
        }
        let offered = InitRequest::parse(&mut Arguments(arguments)).map_or(0, |request| request.flags);
        let started = match offered & init_flags::OVER_IO_URING {
            0 => Err(io::Error::other(NOT_OFFERED)),
            _ => self.start_reserve(pool),
        };
        match started {
            Ok(prepared) => {
                let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
                *reserve = Some(prepared);
            }
            Err(error) => self.handler.report(Problem::NoIoUring(error.to_string())),
        }
    }

    /// Lends the prepared entries to the kernel, after the answer to its init request.
    pub(super) fn start_rings(&self) {
        let prepared = self.reserve.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reserve) = prepared {
            reserve.start();
        }
    }

    fn start_reserve(self: &Arc<Self>, pool: &Arc<Pool>) -> io::Result<Reserve> {
        let queues = uring::queues()?;
        let ((tell, prepared), (start, started)) = (mpsc::channel(), mpsc::channel());
        let (session, other_pool) = (self.clone(), pool.clone());
        pool.start_other(move || {
            let made = session.make_entries(&queues).and_then(|entries| {
                let ring = Ring::new(entries.iter().map(Vec::len).sum())?;
                Ok((ring, entries))
            });
            let (ring, entries) = match made {
                Ok(made) => made,
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return Ok(());
                }
            };
            let _ = tell.send(Ok(()));
            match started.recv() {
                Ok(()) => session.keep_reserve(&other_pool, ring, entries),
                // The kernel was refused.
                Err(_) => Ok(()),
            }
        })?;
        prepared.recv().unwrap_or_else(|_| Err(io::Error::other("a thread of io_uring panicked")))?;
        Ok(Reserve { start })
    }

    /// Returns the entries of each queue.
    fn make_entries(&self, queues: &[Processor]) -> io::Result<Vec<Vec<Entry>>> {
        let payload = self.limits.payload_bytes as usize;
        // The kernel counts in pages, which are larger than 4 KiB on some machines.
        let in_pages = payload / PAGE_BYTES * rustix::param::page_size();
        let payload = payload.max(in_pages).max(PAYLOAD_BYTES_MIN);
        let online = queues.iter().filter(|processor| **processor == Processor::Online).count();
        let of_queue = |(queue, processor): (usize, &Processor)| {
            let queue = u16::try_from(queue).map_err(|_| io::ErrorKind::Unsupported)?;
            Entry::map(queue, queue_entries(*processor, online), payload)
        };
        queues.iter().enumerate().map(of_queue).collect()
    }

    /// Lends the entries to the kernel, and gives each to a worker when it has its first request.
    fn keep_reserve(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        mut ring: Ring,
        entries: Vec<Vec<Entry>>,
    ) -> io::Result<()> {
        let most = |entries: &Vec<Entry>| Deferrals::new(entries.len() - ENTRIES_FREE);
        let deferrals: Vec<_> = entries.iter().map(most).collect();
        for entry in entries.into_iter().flatten() {
            ring.register(self.connection.device(), entry)?;
        }
        let mut is_reported = false;
        while ring.has_lent() {
            match ring.wait()? {
                Ok(entry) => {
                    let deferrals = deferrals[usize::from(entry.queue())].clone();
                    if let Err(mut entry) = self.start_worker(pool, entry, deferrals) {
                        // Without a thread of its own, its answer must not wait for other requests.
                        self.answer_entry(&mut entry, &mut self.worker(Deferrals::new(0)));
                        ring.commit(self.connection.device(), entry)?;
                    }
                }
                Err(Refused(error)) => {
                    if !has_ended(&error) && !std::mem::replace(&mut is_reported, true) {
                        self.handler.report(Problem::NoIoUring(error.to_string()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts a worker for an entry with a request. Returns the entry if the host refuses a thread or a ring.
    fn start_worker(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        entry: Entry,
        deferrals: Arc<Deferrals>,
    ) -> Result<(), Entry> {
        let ((tell, prepared), (give, given)) = (mpsc::channel(), mpsc::channel());
        let session = self.clone();
        let started = pool.start_other(move || {
            let ring = Ring::new(1);
            let _ = tell.send(ring.is_ok());
            match (ring, given.recv()) {
                (Ok(ring), Ok(entry)) => session.work(ring, entry, deferrals),
                _ => Ok(()),
            }
        });
        match started.is_ok() && prepared.recv().unwrap_or(false) {
            true => give.send(entry).map_err(|mpsc::SendError(entry)| entry),
            false => Err(entry),
        }
    }

    /// Answers the requests that come with one entry.
    fn work(&self, mut ring: Ring, mut entry: Entry, deferrals: Arc<Deferrals>) -> io::Result<()> {
        let mut worker = self.worker(deferrals);
        stay_with_callers(usize::from(entry.queue()));
        loop {
            self.answer_entry(&mut entry, &mut worker);
            ring.commit(self.connection.device(), entry)?;
            entry = match ring.wait()? {
                Ok(entry) => entry,
                Err(Refused(error)) if has_ended(&error) => return Ok(()),
                Err(Refused(error)) => return Err(error),
            };
        }
    }

    fn worker(&self, deferrals: Arc<Deferrals>) -> Worker {
        let response = self.response(OWN_ANSWER_BYTES);
        Worker { response, arguments: Vec::with_capacity(HEAD_BYTES), slot: Slot::new(deferrals) }
    }

    /// Puts the answer to an entry's request into the entry.
    fn answer_entry(&self, entry: &mut Entry, worker: &mut Worker) {
        let Worker { response, arguments, slot } = worker;
        let Ok(received) = entry.receive() else {
            return entry.answer_with(entry.commit_id(), Err(Errno::IO), &mut response.output);
        };
        let unique = received.header.unique;
        response.output.clear();
        let arguments = entry.arguments(&received, arguments, &mut response.output);
        let reply = Reply::by_entry(slot.clone(), unique);
        match self.handle(&received.header, arguments, response, reply) {
            (outcome, Some(reply)) => {
                reply.leave_to_worker();
                entry.answer(unique, outcome, &mut response.output);
            }
            (_, None) => {
                let answer = slot.wait();
                entry.answer_with(unique, answer.as_deref().map_err(|errno| *errno), &mut response.output);
            }
        }
    }
}

/// Binds this thread to the processor of its queue, on which the callers of its requests run. The caller then waits, so
/// this thread runs at once, with the caller's data in the cache; the scheduler would mostly wake another processor.
fn stay_with_callers(processor: usize) {
    // A process that may not use that processor, or may not ask, only answers later.
    let allowed =
        sched_getaffinity(None).is_ok_and(|set| processor < CpuSet::MAX_CPU && set.is_set(processor));
    if allowed {
        let mut own = CpuSet::new();
        own.set(processor);
        let _ = sched_setaffinity(None, &own);
    }
}

/// Returns the number of entries of a queue, while this many processors are online.
fn queue_entries(processor: Processor, online: usize) -> usize {
    match processor {
        Processor::Online => (ENTRIES_MAX / online.max(1)).clamp(QUEUE_ENTRIES_MIN, QUEUE_ENTRIES_MAX),
        Processor::Offline => QUEUE_ENTRIES_MIN,
    }
}

/// Returns true if the kernel returned an entry because the file system was unmounted or its connection aborted.
fn has_ended(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::NOTCONN, Errno::CONNABORTED, Errno::NODEV, Errno::CANCELED].contains(&errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_divided_among_the_processors_that_are_online() {
        let of = |online| queue_entries(Processor::Online, online);
        assert_eq!([of(1), of(2), of(16), of(64), of(1000)], [256, 256, 32, 8, 8]);
        assert_eq!(queue_entries(Processor::Offline, 2), 8);
    }
}
