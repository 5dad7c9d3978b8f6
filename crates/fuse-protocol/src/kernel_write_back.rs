//! Requests that are answered only after the kernel has written back and invalidated its cache of a file.
//!
//! The kernel asks for data and holes (LSEEK), and for the size before a write, without writing its dirty
//! pages back first. After asynchronous direct writes it keeps pages that were read meanwhile. An inode
//! invalidation makes it write back, and blocks until these writes and pending reads are answered. So it
//! needs a thread of its own.

use std::{
    io,
    sync::{Arc, Mutex, mpsc},
};

use rustix::io::Errno;

use crate::{
    connection::{Connection, Reply},
    contain,
    message::Output,
    ready_threads::ReadyThreads,
};

/// The queue of requests that wait for the write-back of the kernel, and the thread that answers them.
pub struct KernelWriteBack {
    queue: Mutex<mpsc::Sender<Job>>,
}

struct Job {
    nodes: Vec<u64>,
    /// Offset and length in bytes within each node; the length 0 means all.
    part: (i64, i64),
    /// `None` if nobody waits for the end of the write-back.
    answer: Option<(Reply, Box<AnswerWith>)>,
}

/// Treatment of an answer while so many wait that the kernel has no entry of io_uring left for further ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenCrowded {
    /// It is EAGAIN: without the write-back it would be wrong.
    Refuse,
    /// It is sent before the write-back.
    AnswerAtOnce,
}

type AnswerWith = dyn FnOnce(&mut Output) -> Result<(), Errno> + Send;

/// Upper bound for the length of these answers.
const ANSWER_BYTES: usize = 512;

impl KernelWriteBack {
    /// Starts the thread, one of `ready` if there is one. It calls `panicked` with the message of a panic in an answer.
    ///
    /// # Errors
    /// That of the host if it refuses a thread.
    pub fn start(
        connection: Arc<Connection>,
        ready: &ReadyThreads,
        panicked: impl Fn(String) + Send + 'static,
    ) -> io::Result<KernelWriteBack> {
        let (queue, jobs) = mpsc::channel();
        ready.run(move || {
            let mut output = Output::new(ANSWER_BYTES);
            for Job { nodes, part: (offset, length), answer } in jobs {
                for node in nodes {
                    // An error means that the kernel has nothing cached.
                    let _ = connection.invalidate_content(node, offset, length);
                }
                let Some((reply, answer)) = answer else { continue };
                output.clear();
                let answered = contain(|| answer(&mut output)).unwrap_or_else(|message| {
                    panicked(message);
                    Err(Errno::IO)
                });
                reply.send(answered.map(|()| output.bytes()));
            }
            Ok(())
        })?;
        Ok(KernelWriteBack { queue: Mutex::new(queue) })
    }

    /// Makes the kernel write back all data of the nodes, one after the other, and then sends the answer.
    pub fn then(
        &self,
        nodes: Vec<u64>,
        reply: Reply,
        when_crowded: WhenCrowded,
        answer: impl FnOnce(&mut Output) -> Result<(), Errno> + Send + 'static,
    ) {
        self.parts_then(nodes, (0, 0), reply, when_crowded, answer);
    }

    /// Makes the kernel write back and drop a range of one node, given by its offset and length in bytes, and sends
    /// the answer of a request that is done.
    pub fn part_then(
        &self,
        node: u64,
        part: (i64, i64),
        reply: Reply,
        answer: impl FnOnce(&mut Output) -> Result<(), Errno> + Send + 'static,
    ) {
        self.parts_then(vec![node], part, reply, WhenCrowded::AnswerAtOnce, answer);
    }

    fn parts_then(
        &self,
        nodes: Vec<u64>,
        part: (i64, i64),
        reply: Reply,
        when_crowded: WhenCrowded,
        answer: impl FnOnce(&mut Output) -> Result<(), Errno> + Send + 'static,
    ) {
        if reply.may_wait() {
            return self.add(nodes, part, Some((reply, Box::new(answer))));
        }
        match when_crowded {
            WhenCrowded::Refuse => reply.send(Err(Errno::AGAIN)),
            WhenCrowded::AnswerAtOnce => {
                self.add(nodes, part, None);
                let mut output = Output::new(ANSWER_BYTES);
                reply.send(answer(&mut output).map(|()| output.bytes()));
            }
        }
    }

    fn add(&self, nodes: Vec<u64>, part: (i64, i64), answer: Option<(Reply, Box<AnswerWith>)>) {
        let queue = self.queue.lock().expect("no code panics while it holds this lock");
        // If the thread has ended, dropping the reply answers with EIO.
        let _ = queue.send(Job { nodes, part, answer });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::{Deferrals, Slot};

    #[test]
    fn an_answer_that_may_not_wait_is_eagain_or_sent_at_once() {
        let connection = Arc::new(Connection::to_nowhere());
        let write_back =
            KernelWriteBack::start(connection, &ReadyThreads::default(), |message| panic!("{message}"));
        let write_back = write_back.unwrap();
        let answer = |output: &mut Output| {
            output.extend(b"done");
            Ok(())
        };
        let done = Ok(b"done".to_vec());
        for (most, refused) in [(1, done.clone()), (0, Err(Errno::AGAIN))] {
            let slot = Slot::new(Deferrals::new(most));
            let reply = || Reply::by_entry(slot.clone(), 7);
            write_back.then(vec![1, 2], reply(), WhenCrowded::Refuse, answer);
            assert_eq!(slot.wait(), refused);
            write_back.then(vec![1, 2], reply(), WhenCrowded::AnswerAtOnce, answer);
            assert_eq!(slot.wait(), done);
            write_back.part_then(1, (0, 4096), reply(), answer);
            assert_eq!(slot.wait(), done);
        }
    }
}
