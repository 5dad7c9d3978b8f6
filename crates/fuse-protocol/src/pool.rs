//! The worker threads, and the parked requests, which no thread handles yet.
//!
//! *Invariant*: some threads are left for requests that only read, as long as the parked requests fit. Writers take turns, and a turn can
//! last as long as the device takes to flush. So at most [`CHANGING_MAX`] threads handle requests that may
//! wait for a turn. Further requests of this kind are parked until one of these threads is free.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::fs::OFlags;

use crate::{
    abi::{InHeader, OpenIn, opcode},
    message::Arguments,
    ready_threads::{ReadyThreads, Work, Worker},
};

/// Minimum number of worker threads: one may wait for a write-back that another has to answer.
pub(crate) const THREADS_MIN: usize = 2;
/// Maximum number of worker threads.
const THREADS_MAX: usize = 64;
/// Maximum number of worker threads that handle requests that change something.
pub const CHANGING_MAX: usize = 48;
/// Maximum size of all parked requests, in bytes. Beyond that a thread handles its request even if it has to
/// wait.
const PARKED_BYTES_MAX: usize = 64 << 20;

/// The work of one thread, until the end of the mount.
type Serve = dyn Fn(&Arc<Pool>) -> io::Result<()> + Send + Sync;
/// The start of a thread. The host may refuse one (`RLIMIT_NPROC`, `pids.max` of a container).
type Spawn = dyn Fn(Work) -> io::Result<Worker> + Send + Sync;

/// The pool of worker threads.
pub struct Pool {
    serve: Box<Serve>,
    spawn: Box<Spawn>,
    /// Number of threads that wait for a request.
    idle: AtomicUsize,
    threads: Mutex<Vec<Worker>>,
    /// The threads of io_uring. They do not count as threads that read the device.
    others: Mutex<Vec<Worker>>,
    changing: Mutex<Changing>,
}

/// The requests that may wait for a writer's turn.
#[derive(Default)]
struct Changing {
    /// Number of threads that handle such a request.
    threads: usize,
    parked: VecDeque<Parked>,
    parked_bytes: usize,
}

/// A parked request.
pub struct Parked {
    /// Its header.
    pub header: InHeader,
    /// Its arguments.
    pub arguments: Vec<u8>,
}

/// The decision about a request that a thread has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The thread handles it.
    Handle,
    /// The thread handles it, and then the [parked](Pool::next_parked) ones.
    HandleChange,
    /// It is parked.
    Park,
}

impl Pool {
    /// Starts the threads, `ready` ones first, each of which runs `serve`, and returns when all of them have ended.
    ///
    /// # Errors
    /// The first error of a thread; that of the host if it refuses a thread that is needed: the mount must not wait for
    /// answers that nobody gives.
    pub fn run(
        threads: usize,
        ready: ReadyThreads,
        serve: impl Fn(&Arc<Pool>) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<()> {
        Pool::run_on(move |work| ready.run(work), threads, serve)
    }

    fn run_on(
        spawn: impl Fn(Work) -> io::Result<Worker> + Send + Sync + 'static,
        threads: usize,
        serve: impl Fn(&Arc<Pool>) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let pool = Arc::new(Pool {
            serve: Box::new(serve),
            spawn: Box::new(spawn),
            idle: AtomicUsize::new(0),
            threads: Mutex::default(),
            others: Mutex::default(),
            changing: Mutex::default(),
        });
        for _ in 0..threads.clamp(THREADS_MIN, THREADS_MAX) {
            match pool.clone().start() {
                // Fewer than wanted do as well. A worker may have started another one meanwhile.
                Err(_) if lock(&pool.threads).len() >= THREADS_MIN => break,
                started => started?,
            }
        }
        let broke = || io::Error::other("a thread that answers requests panicked");
        let mut ended = Ok(());
        // Joins all workers. A worker that starts another one adds it to the list before it ends itself.
        loop {
            let next = lock(&pool.threads).pop();
            let Some(thread) = next.or_else(|| lock(&pool.others).pop()) else { return ended };
            ended = ended.and(thread.join().unwrap_or_else(|_| Err(broke())));
        }
    }

    fn start(self: Arc<Self>) -> io::Result<()> {
        // Held until the thread is in the list, so that its length tells how many the host has given.
        let mut threads = lock(&self.threads);
        if threads.len() >= THREADS_MAX {
            return Ok(());
        }
        // Counted first: the thread may be busy before this returns.
        self.idle.fetch_add(1, Ordering::Relaxed);
        let pool = self.clone();
        let started = (self.spawn)(Box::new(move || (pool.serve)(&pool)));
        let thread = started.inspect_err(|_| _ = self.idle.fetch_sub(1, Ordering::Relaxed))?;
        threads.push(thread);
        Ok(())
    }

    /// Starts a thread for other work than that of `serve`, which is joined with the workers. It must be called by one of
    /// these threads.
    ///
    /// # Errors
    /// That of the host if it refuses a thread.
    pub fn start_other(&self, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let started = (self.spawn)(Box::new(work))?;
        lock(&self.others).push(started);
        Ok(())
    }

    /// Called by a worker that has received a request. Starts one more worker if no other is idle, because
    /// all workers may end up waiting for a writer.
    pub fn mark_busy(self: &Arc<Self>) {
        let was_last = self.idle.fetch_sub(1, Ordering::Relaxed) == 1;
        if was_last {
            // If the host has no thread left, the next request waits for one of the others.
            let _ = self.clone().start();
        }
    }

    /// Called by a worker that is about to wait for a request.
    pub fn mark_idle(&self) {
        self.idle.fetch_add(1, Ordering::Relaxed);
    }

    /// Decides whether the thread handles a request, or parks it.
    pub fn admit(&self, header: &InHeader, arguments: &[u8]) -> Admission {
        if !changes(header.opcode, arguments) {
            return Admission::Handle;
        }
        let mut changing = lock(&self.changing);
        let bytes = changing.parked_bytes + arguments.len();
        if changing.threads < CHANGING_MAX || bytes > PARKED_BYTES_MAX {
            changing.threads += 1;
            return Admission::HandleChange;
        }
        changing.parked_bytes = bytes;
        changing.parked.push_back(Parked { header: *header, arguments: arguments.to_vec() });
        Admission::Park
    }

    /// Returns the oldest parked request, for a thread that has handled a change. On `None`, the thread no
    /// longer counts as one that handles changes.
    pub fn next_parked(&self) -> Option<Parked> {
        let mut changing = lock(&self.changing);
        let next = changing.parked.pop_front();
        match &next {
            Some(parked) => changing.parked_bytes -= parked.arguments.len(),
            None => changing.threads -= 1,
        }
        next
    }
}

/// Returns true if a request may wait for the turn of a writer.
fn changes(code: u32, arguments: &[u8]) -> bool {
    match code {
        opcode::FORGET
        | opcode::BATCH_FORGET
        | opcode::SETATTR
        | opcode::SYMLINK
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::RENAME
        | opcode::RENAME2
        | opcode::LINK
        | opcode::WRITE
        | opcode::FSYNC
        | opcode::FSYNCDIR
        | opcode::SYNCFS
        | opcode::SETXATTR
        | opcode::REMOVEXATTR
        | opcode::CREATE
        | opcode::TMPFILE
        | opcode::IOCTL
        | opcode::FALLOCATE
        | opcode::COPY_FILE_RANGE => true,
        opcode::OPEN => Arguments(arguments)
            .take::<OpenIn>()
            .is_ok_and(|open| OFlags::from_bits_retain(open.flags).contains(OFlags::TRUNC)),
        _ => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    /// Starts `most` threads and refuses others.
    fn limited(most: usize) -> impl Fn(Work) -> io::Result<Worker> + Send + Sync {
        let started = AtomicUsize::new(0);
        move |work| match started.fetch_add(1, Ordering::Relaxed) < most {
            true => Ok(thread::spawn(work)),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Runs a pool of 4 threads on a host that gives `most`, and has it serve numbers. Returns the outcome and the sum of
    /// the numbers that were served.
    fn serve_numbers(most: usize) -> (io::Result<()>, usize) {
        let ((numbers, requests), sum) = (mpsc::channel(), Arc::new(AtomicUsize::new(0)));
        (1..=100).for_each(|number| numbers.send(number).unwrap());
        drop(numbers);
        let (requests, served) = (Mutex::new(requests), sum.clone());
        let run = Pool::run_on(limited(most), 4, move |pool| {
            loop {
                let Ok(number) = lock(&requests).recv() else { return Ok(()) };
                pool.mark_busy();
                served.fetch_add(number, Ordering::Relaxed);
                pool.mark_idle();
            }
        });
        (run, sum.load(Ordering::Relaxed))
    }

    /// A panic in its place left the request unanswered.
    #[test]
    fn a_host_without_further_threads_loses_no_request() {
        for most in [2, 3, 4] {
            let (run, sum) = serve_numbers(most);
            assert!(run.is_ok(), "{most} threads: {run:?}");
            assert_eq!(sum, 5050, "{most} threads");
        }
    }

    #[test]
    fn a_mount_ends_if_the_host_refuses_the_threads_that_it_needs() {
        for most in [0, 1] {
            let (run, _) = serve_numbers(most);
            assert_eq!(run.unwrap_err().kind(), io::ErrorKind::WouldBlock, "{most} threads");
        }
    }
}
