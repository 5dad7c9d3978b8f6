//! Threads that are started before there is work for them.
//!
//! The host may refuse a thread (`RLIMIT_NPROC`, `pids.max` of a container). A mount without the threads that it needs answers
//! nobody, and to unmount may take a further process. So these threads are started before the mount is made.

use std::{
    io,
    sync::{Mutex, PoisonError, mpsc},
    thread::{Builder, JoinHandle},
};

/// Work of one thread.
pub(crate) type Work = Box<dyn FnOnce() -> io::Result<()> + Send>;
/// A thread with work.
pub type Worker = JoinHandle<io::Result<()>>;

/// Threads that wait for work. On drop they end.
#[derive(Default)]
pub struct ReadyThreads(Mutex<Vec<(mpsc::Sender<Work>, Worker)>>);

impl ReadyThreads {
    /// Starts threads.
    ///
    /// # Errors
    /// That of the host if it refuses one of them; then none is left.
    pub fn start(count: usize) -> io::Result<ReadyThreads> {
        let mut waiting = Vec::with_capacity(count);
        for _ in 0..count {
            let (give, given) = mpsc::channel::<Work>();
            match Builder::new().spawn(move || given.recv().map_or(Ok(()), |work| work())) {
                Ok(thread) => waiting.push((give, thread)),
                Err(error) => {
                    for (give, thread) in waiting {
                        drop(give);
                        // A thread without work does not panic.
                        let _ = thread.join();
                    }
                    return Err(error);
                }
            }
        }
        Ok(ReadyThreads(Mutex::new(waiting)))
    }

    /// Gives work to a thread that waits, or else to a new one.
    ///
    /// # Errors
    /// That of the host if none waits and the host refuses a new one.
    pub fn run(&self, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<Worker> {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some((give, thread)) = waiting else { return Builder::new().spawn(work) };
        give.send(Box::new(work)).expect("a thread waits until its sender is dropped");
        Ok(thread)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn work_is_done_by_the_threads_that_wait_and_then_by_new_ones() {
        let ready = ReadyThreads::start(2).unwrap();
        let waiting: Vec<_> =
            ready.0.lock().unwrap().iter().map(|(_, thread)| thread.thread().id()).collect();
        let run = || {
            let (tell, told) = mpsc::channel();
            let work = move || tell.send(thread::current().id()).map_err(io::Error::other);
            ready.run(work).unwrap().join().unwrap().unwrap();
            told.recv().unwrap()
        };
        let ran = [run(), run(), run()];
        assert_eq!(ran.map(|id| waiting.contains(&id)), [true, true, false]);
        assert_ne!(ran[0], ran[1]);
    }
}
