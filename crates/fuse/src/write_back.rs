//! Requests that are answered only once the kernel has dropped what it has of a file.
//!
//! It asks where data lies, and before it writes how large a file is, without writing its cache back first; and when
//! asynchronous writes have gone past its cache, it leaves there what was read meanwhile. Telling it to drop the cache
//! makes it write, and it waits until these writes, and reads that are under way, are answered: hence the thread of
//! its own.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use crate::{
    Errno, FileSystem,
    connection::{Connection, Reply},
    fault,
    file_system::Answer,
    protocol::Output,
};

/// The thread, and what waits for it.
pub struct WriteBack {
    queue: Mutex<mpsc::Sender<Job>>,
}

struct Job {
    nodes: Vec<u64>,
    /// Where to begin in each, and how many bytes; 0 is all.
    part: (i64, i64),
    reply: Reply,
    answer: Box<AnswerWith>,
}

type AnswerWith = dyn FnOnce(&mut Output) -> Answer<()> + Send;

/// More than the answers to such questions have.
const ANSWER_BYTES: usize = 512;

impl WriteBack {
    /// Begins.
    pub fn start(connection: Arc<Connection>, fs: Arc<FileSystem>) -> WriteBack {
        let (queue, jobs) = mpsc::channel();
        thread::spawn(move || {
            let mut output = Output::new(ANSWER_BYTES);
            for Job { nodes, part: (offset, length), reply, answer } in jobs {
                for node in nodes {
                    // Failing, it has nothing in its cache.
                    let _ = connection.invalidate_part(node, offset, length);
                }
                output.clear();
                let answered = fault::contain(|| answer(&mut output)).unwrap_or_else(|fault| {
                    fs.met_fault(fault);
                    Err(Errno::IO)
                });
                reply.send(answered.map(|()| output.bytes()));
            }
        });
        WriteBack { queue: Mutex::new(queue) }
    }

    /// Lets the kernel write back what it has of nodes, one after the other, and then answers.
    pub fn then(
        &self,
        nodes: Vec<u64>,
        reply: Reply,
        answer: impl FnOnce(&mut Output) -> Answer<()> + Send + 'static,
    ) {
        self.parts_then(nodes, (0, 0), reply, answer);
    }

    /// The same of a part of one, given by its offset and its length in bytes.
    pub fn part_then(
        &self,
        node: u64,
        part: (i64, i64),
        reply: Reply,
        answer: impl FnOnce(&mut Output) -> Answer<()> + Send + 'static,
    ) {
        self.parts_then(vec![node], part, reply, answer);
    }

    fn parts_then(
        &self,
        nodes: Vec<u64>,
        part: (i64, i64),
        reply: Reply,
        answer: impl FnOnce(&mut Output) -> Answer<()> + Send + 'static,
    ) {
        let queue = self.queue.lock().expect("nothing panics under this lock");
        // Should the thread be gone, the reply says so by being dropped.
        let _ = queue.send(Job { nodes, part, reply, answer: Box::new(answer) });
    }
}
