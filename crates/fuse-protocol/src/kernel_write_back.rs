//! Requests that are answered only after the kernel has written back and invalidated its cache of a file.
//!
//! The kernel asks for data and holes (LSEEK), and for the size before a write, without writing its dirty
//! pages back first. After asynchronous direct writes it keeps pages that were read meanwhile. An inode
//! invalidation makes it write back, and blocks until these writes and pending reads are answered. So it
//! needs a thread of its own.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use rustix::io::Errno;

use crate::{
    connection::{Connection, Reply},
    contain,
    message::Output,
};

/// The queue of requests that wait for the write-back of the kernel, and the thread that answers them.
pub struct KernelWriteBack {
    queue: Mutex<mpsc::Sender<Job>>,
}

struct Job {
    nodes: Vec<u64>,
    /// Offset and length in bytes within each node; the length 0 means all.
    part: (i64, i64),
    reply: Reply,
    answer: Box<AnswerWith>,
}

type AnswerWith = dyn FnOnce(&mut Output) -> Result<(), Errno> + Send;

/// Upper bound for the length of these answers.
const ANSWER_BYTES: usize = 512;

impl KernelWriteBack {
    /// Starts the thread. It calls `panicked` with the message of a panic in an answer.
    pub fn start(connection: Arc<Connection>, panicked: impl Fn(String) + Send + 'static) -> KernelWriteBack {
        let (queue, jobs) = mpsc::channel();
        thread::spawn(move || {
            let mut output = Output::new(ANSWER_BYTES);
            for Job { nodes, part: (offset, length), reply, answer } in jobs {
                for node in nodes {
                    // An error means that the kernel has nothing cached.
                    let _ = connection.invalidate_content(node, offset, length);
                }
                output.clear();
                let answered = contain(|| answer(&mut output)).unwrap_or_else(|message| {
                    panicked(message);
                    Err(Errno::IO)
                });
                reply.send(answered.map(|()| output.bytes()));
            }
        });
        KernelWriteBack { queue: Mutex::new(queue) }
    }

    /// Makes the kernel write back all data of the nodes, one after the other, and then sends the answer.
    pub fn then(
        &self,
        nodes: Vec<u64>,
        reply: Reply,
        answer: impl FnOnce(&mut Output) -> Result<(), Errno> + Send + 'static,
    ) {
        self.parts_then(nodes, (0, 0), reply, answer);
    }

    /// Like [`then`](Self::then), for a range of one node, given by its offset and length in bytes.
    pub fn part_then(
        &self,
        node: u64,
        part: (i64, i64),
        reply: Reply,
        answer: impl FnOnce(&mut Output) -> Result<(), Errno> + Send + 'static,
    ) {
        self.parts_then(vec![node], part, reply, answer);
    }

    fn parts_then(
        &self,
        nodes: Vec<u64>,
        part: (i64, i64),
        reply: Reply,
        answer: impl FnOnce(&mut Output) -> Result<(), Errno> + Send + 'static,
    ) {
        let queue = self.queue.lock().expect("no code panics while it holds this lock");
        // If the thread has ended, dropping the reply answers with EIO.
        let _ = queue.send(Job { nodes, part, reply, answer: Box::new(answer) });
    }
}
