//! The transmission phase: requests in, replies out, several under way.
//!
//! *Invariant*: a connection holds at most [`MAX_REQUEST_BYTES`] of data, from before a request's data is
//! read until its reply is sent: one longest request or many short ones. A client that leaves replies unread
//! delays only its own requests.

use std::{
    io::{self, Read, Write},
    sync::{Condvar, Mutex, PoisonError, mpsc},
};

use super::{
    MAX_REQUEST_BYTES,
    handshake::{ALLOCATION_ID, Session},
    wire::*,
};
use crate::{Export, Space};

/// Requests of one connection that are served concurrently.
const WORKERS: usize = 8;

/// Memory budget for the data of one connection.
#[derive(Default)]
struct Room {
    taken_bytes: Mutex<u32>,
    given_back: Condvar,
}

impl Room {
    /// Waits until `bytes` are free. `bytes` must not exceed the budget.
    fn take(&self, bytes: u32) -> Taken<'_> {
        let taken = self.taken_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut u32| *taken + bytes > MAX_REQUEST_BYTES;
        let mut taken = self.given_back.wait_while(taken, is_full).unwrap_or_else(PoisonError::into_inner);
        *taken += bytes;
        Taken { room: self, bytes }
    }
}

/// A part of the budget, released on drop.
struct Taken<'a> {
    room: &'a Room,
    bytes: u32,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.room.taken_bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.room.given_back.notify_one();
    }
}

/// One request, with the data of a write and memory for its reply's data.
struct Request<'a> {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u32,
    data: Vec<u8>,
    _room: Taken<'a>,
}

/// Answer to a request.
enum Answer {
    Done,
    Data(Vec<u8>),
    Status(Vec<(u64, bool)>),
    Failed(u32, String),
}

/// Serves requests until the client disconnects or breaks the protocol. `close` ends the connection in both
/// directions if a reply cannot be sent.
pub fn transmit<R: Read, W: Write + Send>(
    input: &mut R,
    output: W,
    close: impl Fn() + Sync,
    export: &(impl Export + ?Sized),
    session: Session,
) -> io::Result<()> {
    let output = Mutex::new(Some(output));
    // The queue is short: a client that sends without reading fills it and then waits.
    let room = Room::default();
    let (sender, receiver) = mpsc::sync_channel::<Request>(1);
    let receiver = Mutex::new(receiver);
    let work = || {
        loop {
            let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(request) = next else { return };
            let answer = serve(export, session, &request);
            let (head, data) = encode(&request, answer, session);
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            // After a partial reply no further reply would be valid. The connection must end, so that
            // neither the client nor the reader of its requests waits for more.
            let sent = output.as_mut().map(|out| out.write_all(&head).and_then(|()| out.write_all(&data)));
            if sent.is_some_and(|sent| sent.is_err()) {
                *output = None;
                close();
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 0..WORKERS {
            match std::thread::Builder::new().spawn_scoped(scope, work) {
                // Fewer workers than wanted answer more slowly.
                Err(_) if number > 0 => break,
                started => drop(started?),
            }
        }
        let result = receive(input, &sender, &room);
        // The workers finish the requests under way and end with the channel.
        drop(sender);
        result
    })
}

fn receive<'a>(
    input: &mut impl Read,
    sender: &mpsc::SyncSender<Request<'a>>,
    room: &'a Room,
) -> io::Result<()> {
    loop {
        let magic = match read_u32(input) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        };
        if magic != REQUEST_MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "expected a request"));
        }
        let flags = read_u16(input)?;
        let command = read_u16(input)?;
        let cookie = read_u64(input)?;
        let offset = read_u64(input)?;
        let length = read_u32(input)?;
        let mut data = Vec::new();
        if command == CMD_DISCONNECT {
            return Ok(());
        }
        let has_data = matches!(command, CMD_READ | CMD_WRITE) && length <= MAX_REQUEST_BYTES;
        let taken = room.take(if has_data { length } else { 0 });
        if command == CMD_WRITE {
            if length <= MAX_REQUEST_BYTES {
                // The buffer grows as data arrives: a length alone takes no memory.
                let read = input.take(u64::from(length)).read_to_end(&mut data)?;
                if read as u64 != u64::from(length) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            } else {
                skip(input, u64::from(length))?;
            }
        }
        let request = Request { flags, command, cookie, offset, length, data, _room: taken };
        if sender.send(request).is_err() {
            return Ok(());
        }
    }
}

fn serve(export: &(impl Export + ?Sized), session: Session, request: &Request) -> Answer {
    let Request { flags, command, offset, length, .. } = *request;
    let failed = |errno: u32, what: &str| Answer::Failed(errno, what.to_string());
    let known = match command {
        CMD_READ => CMD_FLAG_DF | CMD_FLAG_FUA,
        CMD_WRITE | CMD_TRIM | CMD_FLUSH => CMD_FLAG_FUA,
        CMD_WRITE_ZEROES => CMD_FLAG_FUA | CMD_FLAG_NO_HOLE,
        CMD_BLOCK_STATUS => CMD_FLAG_REQ_ONE | CMD_FLAG_FUA,
        _ => return failed(EINVAL, "no such command"),
    };
    if flags & !known != 0 {
        return failed(EINVAL, "a flag that the command does not have");
    }
    let writes = matches!(command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
    if writes && export.is_read_only() {
        return failed(EPERM, "the export is read-only");
    }
    if matches!(command, CMD_READ | CMD_WRITE) && length > MAX_REQUEST_BYTES {
        return failed(EOVERFLOW, "the request is longer than the server takes");
    }
    let length = u64::from(length);
    if command != CMD_FLUSH && !export.geometry().contains(offset, length) {
        return failed(if writes { ENOSPC } else { EINVAL }, "the range passes the end of the export");
    }
    let through = flags & CMD_FLAG_FUA != 0;
    let flushed = |done: io::Result<()>| if through { done.and_then(|()| export.flush()) } else { done };
    let done = match command {
        CMD_READ => {
            let mut data = vec![0; length as usize];
            match export.read(offset, &mut data) {
                Ok(()) => return Answer::Data(data),
                Err(error) => Err(error),
            }
        }
        CMD_WRITE if through => export.write_through(offset, &request.data),
        CMD_WRITE => export.write(offset, &request.data),
        CMD_FLUSH => export.flush(),
        CMD_TRIM => flushed(export.discard(offset, length)),
        CMD_WRITE_ZEROES => {
            let space = if flags & CMD_FLAG_NO_HOLE == 0 { Space::MayFree } else { Space::Keep };
            flushed(export.write_zeroes(offset, length, space))
        }
        _ if !session.allocation => return failed(EINVAL, "no metadata context was chosen"),
        _ if length == 0 => return failed(EINVAL, "block status of an empty range"),
        _ => {
            let mut parts = export.allocation(offset..offset + length);
            if flags & CMD_FLAG_REQ_ONE != 0 {
                parts.truncate(1);
            }
            return Answer::Status(parts);
        }
    };
    match done {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Failed(errno(&error), error.to_string()),
    }
}

fn errno(error: &io::Error) -> u32 {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => EPERM,
        io::ErrorKind::InvalidInput => EINVAL,
        io::ErrorKind::StorageFull | io::ErrorKind::WriteZero => ENOSPC,
        _ => EIO,
    }
}

/// Encodes the reply. The data is separate from the head, which saves a copy of it.
fn encode(request: &Request, answer: Answer, session: Session) -> (Vec<u8>, Vec<u8>) {
    let structured = session.structured && matches!(request.command, CMD_READ | CMD_BLOCK_STATUS);
    let cookie = request.cookie;
    match answer {
        Answer::Failed(errno, what) if structured => {
            let mut data = errno.to_be_bytes().to_vec();
            let what = &what.as_bytes()[..what.len().min(1000)];
            data.extend((what.len() as u16).to_be_bytes());
            data.extend(what);
            (chunk(cookie, REPLY_ERROR, data.len()), data)
        }
        Answer::Failed(errno, _) => (simple(cookie, errno), Vec::new()),
        // A data chunk is never empty.
        Answer::Data(data) if structured && data.is_empty() => (chunk(cookie, 0, 0), data),
        Answer::Data(data) if structured => {
            let mut head = chunk(cookie, REPLY_OFFSET_DATA, 8 + data.len());
            head.extend(request.offset.to_be_bytes());
            (head, data)
        }
        Answer::Data(data) => (simple(cookie, 0), data),
        Answer::Status(parts) => {
            let mut data = ALLOCATION_ID.to_be_bytes().to_vec();
            for (length, is_hole) in parts {
                // A request is at most 4 GiB - 1 long, and so is each of its parts.
                data.extend((length as u32).to_be_bytes());
                data.extend(if is_hole { STATE_HOLE_AND_ZERO } else { 0 }.to_be_bytes());
            }
            (chunk(cookie, REPLY_BLOCK_STATUS, data.len()), data)
        }
        Answer::Done => (simple(cookie, 0), Vec::new()),
    }
}

fn simple(cookie: u64, errno: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes.extend(errno.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

fn chunk(cookie: u64, kind: u16, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes.extend(REPLY_FLAG_DONE.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((length as u32).to_be_bytes());
    bytes
}
