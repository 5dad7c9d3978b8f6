//! Questions about a file that only count once the kernel has written back what it has of it.
//!
//! The kernel asks where data lies, and before it writes how large a file is, without writing its cache back first.
//! Telling it to drop the cache makes it write, and it waits until these writes are answered: hence the thread of its
//! own.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use crate::{
    connection::{Connection, Reply},
    file_system::Answer,
    protocol::Output,
};

/// The thread, and what waits for it.
pub struct WriteBack {
    queue: Mutex<mpsc::Sender<Job>>,
}

struct Job {
    node: u64,
    reply: Reply,
    answer: Box<AnswerWith>,
}

type AnswerWith = dyn FnOnce(&mut Output) -> Answer<()> + Send;

/// More than the answers to such questions have.
const ANSWER_BYTES: usize = 512;

impl WriteBack {
    /// Begins.
    pub fn start(connection: Arc<Connection>) -> WriteBack {
        let (queue, jobs) = mpsc::channel();
        thread::spawn(move || {
            let mut output = Output::new(ANSWER_BYTES);
            for Job { node, reply, answer } in jobs {
                // Failing, it has nothing in its cache.
                let _ = connection.invalidate(node, 0);
                output.clear();
                let answered = answer(&mut output);
                reply.send(answered.map(|()| output.bytes()));
            }
        });
        WriteBack { queue: Mutex::new(queue) }
    }

    /// Lets the kernel write back what it has of a node, and then answers.
    pub fn then(
        &self,
        node: u64,
        reply: Reply,
        answer: impl FnOnce(&mut Output) -> Answer<()> + Send + 'static,
    ) {
        let queue = self.queue.lock().expect("nothing panics under this lock");
        // Should the thread be gone, the reply says so by being dropped.
        let _ = queue.send(Job { node, reply, answer: Box::new(answer) });
    }
}
