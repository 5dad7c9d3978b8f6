//! The connection of an NBD client, which several threads use at once.
//!
//! *Invariants*: a request is sent as a whole, and its answer is awaited by the thread that sent it. As long as an answer
//! is awaited, one of the threads that wait receives, for itself and for the others, so a request that takes long, such as
//! a flush, delays no other. After a lost or wrong answer the connection is broken for all.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::wire::*;

/// Length of the header of a simple reply, in bytes.
const REPLY_HEADER_BYTES: usize = 16;

/// A request without its data.
pub(super) struct Command {
    pub(super) code: u16,
    pub(super) offset_bytes: u64,
    pub(super) length: u32,
}

/// A connection in the transmission phase.
pub(super) struct Link {
    /// Maximum time of sending a request, and of its answer.
    patience: Duration,
    /// Ends the connection while others use it.
    socket: Socket,
    sender: Mutex<Hurried>,
    /// Locked by the thread that receives.
    receiver: Mutex<Hurried>,
    state: Mutex<State>,
    /// Notified when an answer has arrived, when no thread receives any more, and when the connection has broken.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    last_cookie: u64,
    awaited: HashMap<u64, Awaited>,
    has_receiver: bool,
    is_broken: bool,
}

/// A request that was sent, until its sender takes the answer.
struct Awaited {
    /// Length of the data that follows a successful answer, in bytes.
    data_bytes: usize,
    answer: Option<Answer>,
}

/// The error number of an answer, 0 for success, and the data that followed it.
struct Answer {
    errno: u32,
    data: Vec<u8>,
}

impl Link {
    /// Makes a link of a connection after its handshake.
    pub(super) fn new(socket: Socket, patience: Duration) -> io::Result<Link> {
        let hurried = |socket| Mutex::new(Hurried { socket, deadline: Instant::now() });
        Ok(Link {
            patience,
            sender: hurried(socket.try_clone()?),
            receiver: hurried(socket.try_clone()?),
            socket,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Sends a request with its data and waits for its answer, whose data fills `read`. Returns the error number of the
    /// answer, 0 for success.
    pub(super) fn ask(&self, command: &Command, data: &[u8], read: &mut [u8]) -> io::Result<u32> {
        let asked = self.send(command, data, read.len()).and_then(|cookie| self.answer_to(cookie, read));
        if asked.is_err() {
            self.lock().is_broken = true;
            // Threads that send or receive meet the end.
            self.socket.close();
            self.changed.notify_all();
        }
        asked
    }

    fn send(&self, command: &Command, data: &[u8], data_bytes: usize) -> io::Result<u64> {
        let mut sender = lock(&self.sender);
        let mut state = self.lock();
        if state.is_broken {
            return Err(broken());
        }
        state.last_cookie += 1;
        let cookie = state.last_cookie;
        // Before it is sent, because another thread may receive the answer at once.
        state.awaited.insert(cookie, Awaited { data_bytes, answer: None });
        drop(state);
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(0u16.to_be_bytes());
        request.extend(command.code.to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(command.offset_bytes.to_be_bytes());
        request.extend(command.length.to_be_bytes());
        request.extend(data);
        sender.deadline = Instant::now() + self.patience;
        sender.write_all(&request)?;
        Ok(cookie)
    }

    /// Waits for the answer to a request.
    fn answer_to(&self, cookie: u64, read: &mut [u8]) -> io::Result<u32> {
        let deadline = Instant::now() + self.patience;
        let mut state = self.lock();
        loop {
            let answered = state.awaited.get_mut(&cookie).and_then(|awaited| awaited.answer.take());
            if let Some(Answer { errno, data }) = answered {
                state.awaited.remove(&cookie);
                if errno == 0 {
                    read.copy_from_slice(&data);
                }
                return Ok(errno);
            }
            if state.is_broken {
                return Err(broken());
            }
            if state.has_receiver {
                let left = deadline.checked_duration_since(Instant::now()).ok_or(io::ErrorKind::TimedOut)?;
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.has_receiver = true;
            drop(state);
            let received = self.receive(cookie, deadline, read);
            state = self.lock();
            state.has_receiver = false;
            // Before another thread can receive: it would take the rest of this answer for the next one.
            state.is_broken |= received.is_err();
            self.changed.notify_all();
            if let Some(errno) = received? {
                state.awaited.remove(&cookie);
                return Ok(errno);
            }
        }
    }

    /// Receives one answer. Returns its error number if it is the answer to `own`; its data is then in `read`.
    fn receive(&self, own: u64, deadline: Instant, read: &mut [u8]) -> io::Result<Option<u32>> {
        let mut receiver = lock(&self.receiver);
        receiver.deadline = deadline;
        // In one piece: each read sets the time that is left.
        let mut header = [0; REPLY_HEADER_BYTES];
        receiver.read_exact(&mut header)?;
        let mut header = &header[..];
        let (magic, errno, cookie) = (read_u32(&mut header)?, read_u32(&mut header)?, read_u64(&mut header)?);
        let awaited = |state: &State| {
            let awaited = state.awaited.get(&cookie).filter(|awaited| awaited.answer.is_none());
            Some(awaited?.data_bytes)
        };
        let Some(data_bytes) = awaited(&self.lock()).filter(|_| magic == SIMPLE_REPLY_MAGIC) else {
            let what = "the answer of the server belongs to no request";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        };
        if cookie == own {
            if errno == 0 {
                receiver.read_exact(read)?;
            }
            return Ok(Some(errno));
        }
        let mut data = vec![0; if errno == 0 { data_bytes } else { 0 }];
        receiver.read_exact(&mut data)?;
        if let Some(awaited) = self.lock().awaited.get_mut(&cookie) {
            awaited.answer = Some(Answer { errno, data });
        }
        Ok(None)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection to the server broke")
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixStream, thread};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn pair() -> (Link, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Link::new(Socket::Unix(ours), PATIENCE).unwrap(), theirs)
    }

    fn read_at(offset_bytes: u64) -> Command {
        Command { code: CMD_READ, offset_bytes, length: 8 }
    }

    /// Receives a request without data. Returns its command, cookie and offset.
    fn request(server: &mut UnixStream) -> (u16, u64, u64) {
        assert_eq!(read_u32(server).unwrap(), REQUEST_MAGIC);
        let (_flags, command) = (read_u16(server).unwrap(), read_u16(server).unwrap());
        let (cookie, offset, _length) =
            (read_u64(server).unwrap(), read_u64(server).unwrap(), read_u32(server).unwrap());
        (command, cookie, offset)
    }

    fn reply(server: &mut UnixStream, errno: u32, cookie: u64, data: &[u8]) {
        let head = [SIMPLE_REPLY_MAGIC.to_be_bytes(), errno.to_be_bytes()].concat();
        server.write_all(&[&head, &cookie.to_be_bytes()[..], data].concat()).unwrap();
    }

    #[test]
    fn a_read_is_answered_while_a_flush_is_under_way() {
        let (link, mut server) = pair();
        let flush = Command { code: CMD_FLUSH, offset_bytes: 0, length: 0 };
        let mut content = [0; 8];
        thread::scope(|scope| {
            let flushed = scope.spawn(|| link.ask(&flush, &[], &mut []));
            let (command, flush_cookie, _) = request(&mut server);
            assert_eq!(command, CMD_FLUSH);
            let reader = scope.spawn(|| link.ask(&read_at(7), &[], &mut content));
            let (command, cookie, offset) = request(&mut server);
            assert_eq!((command, offset), (CMD_READ, 7));
            reply(&mut server, 0, cookie, b"the data");
            assert_eq!(reader.join().unwrap().unwrap(), 0);
            reply(&mut server, EIO, flush_cookie, &[]);
            assert_eq!(flushed.join().unwrap().unwrap(), EIO);
        });
        assert_eq!(&content, b"the data");
    }

    #[test]
    fn answers_in_any_order_reach_their_requests() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 200;
        let (link, mut server) = pair();
        thread::scope(|scope| {
            let ask = |thread: u64| {
                for round in 0..ROUNDS {
                    let offset = thread * ROUNDS + round;
                    let mut content = [0; 8];
                    let errno = link.ask(&read_at(offset), &[], &mut content).unwrap();
                    let expected = if offset % 7 == 0 { (EIO, 0) } else { (0, offset) };
                    assert_eq!((errno, u64::from_be_bytes(content)), expected);
                }
            };
            (0..THREADS).for_each(|thread| _ = scope.spawn(move || ask(thread)));
            for _ in 0..ROUNDS {
                // One of each thread.
                let mut requests: Vec<_> = (0..THREADS).map(|_| request(&mut server)).collect();
                requests.sort_by_key(|(_, _, offset)| offset.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                for (_, cookie, offset) in requests {
                    match offset % 7 {
                        0 => reply(&mut server, EIO, cookie, &[]),
                        _ => reply(&mut server, 0, cookie, &offset.to_be_bytes()),
                    }
                }
            }
        });
    }

    #[test]
    fn nobody_receives_after_an_answer_that_was_received_in_part() {
        let (link, mut server) = pair();
        let cookies = [0, 8].map(|at| link.send(&read_at(at), &[], 8).unwrap());
        // An answer to no request, whose data looks like an answer to the second one.
        reply(&mut server, 0, 77, &[]);
        reply(&mut server, 0, cookies[1], b"not data");
        let first = link.answer_to(cookies[0], &mut [0; 8]).unwrap_err();
        assert_eq!(first.kind(), io::ErrorKind::InvalidData);
        let second = link.answer_to(cookies[1], &mut [0; 8]).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::NotConnected);
    }

    #[test]
    fn a_connection_that_breaks_fails_every_request() {
        let (link, mut server) = pair();
        thread::scope(|scope| {
            let ask = || link.ask(&read_at(0), &[], &mut [0; 8]).map_err(|error| error.kind());
            let waiting = [scope.spawn(ask), scope.spawn(ask)];
            let _requests = [request(&mut server), request(&mut server)];
            // An answer to no request.
            reply(&mut server, 0, 77, &[]);
            for one in waiting {
                let kind = one.join().unwrap().unwrap_err();
                assert!(matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::NotConnected), "{kind}");
            }
            assert_eq!(ask(), Err(io::ErrorKind::NotConnected));
        });
    }
}
