//! The time-travel server: decides when the guest runs (Linux, `include/uapi/linux/um_timetravel.h`).
//!
//! The guest requests the time of its next timer, reports that it waits, and is told when to run again. All
//! messages are 16 bytes, and each is acknowledged.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

/// Message codes.
mod op {
    pub const ACK: u32 = 0;
    pub const START: u32 = 1;
    pub const REQUEST: u32 = 2;
    pub const WAIT: u32 = 3;
    pub const GET: u32 = 4;
    pub const UPDATE: u32 = 5;
    pub const RUN: u32 = 6;
    pub const GET_TOD: u32 = 8;
}

/// Kind of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A request about time, which has been answered.
    Request,
    /// The acknowledgement of our RUN message.
    Acknowledgement,
    /// End of file: the guest has ended.
    EndOfFile,
}

/// The time-travel server of one guest.
#[derive(Debug)]
pub struct TimeTravelServer {
    stream: UnixStream,
    now_ns: u64,
    /// Wall-clock time at the server's time 0, in nanoseconds since 1970.
    epoch_ns: u64,
    /// Time at which the guest wants to run next.
    wanted_ns: Option<u64>,
    waiting: bool,
    told: u32,
}

impl TimeTravelServer {
    /// Creates a server at time 0, which the guest sees as `epoch_ns` since 1970.
    pub fn new(stream: UnixStream, epoch_ns: u64) -> TimeTravelServer {
        TimeTravelServer { stream, now_ns: 0, epoch_ns, wanted_ns: None, waiting: false, told: 0 }
    }

    /// Returns the socket. When it is readable, call [`listen`](TimeTravelServer::listen).
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the current virtual time.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns true if the guest waits to be run.
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Returns the time at which the guest wants to run next, if it has requested one.
    pub fn wanted_ns(&self) -> Option<u64> {
        self.wanted_ns
    }

    /// Receives one message and acknowledges it.
    ///
    /// # Errors
    /// The socket fails, or the message has an unknown code.
    pub fn listen(&mut self) -> io::Result<Received> {
        let mut message = [0; 16];
        match self.stream.read(&mut message) {
            Ok(0) => return Ok(Received::EndOfFile),
            Ok(n) => self.stream.read_exact(&mut message[n..])?,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Received::EndOfFile),
            Err(error) => return Err(error),
        }
        let kind = u32::from_le_bytes(message[..4].try_into().expect("four bytes"));
        let number = u32::from_le_bytes(message[4..8].try_into().expect("four bytes"));
        let time_ns = u64::from_le_bytes(message[8..].try_into().expect("eight bytes"));
        let mut answer_ns = 0;
        match kind {
            op::ACK => return Ok(Received::Acknowledgement),
            op::START => {}
            op::REQUEST => self.wanted_ns = Some(time_ns),
            op::WAIT => self.waiting = true,
            op::GET => answer_ns = self.now_ns,
            // The guest advances its time itself, up to the limit that it was given.
            op::UPDATE => self.now_ns = self.now_ns.max(time_ns),
            op::GET_TOD => answer_ns = self.epoch_ns,
            other => {
                let what = format!("unknown message code on the time-travel socket: {other}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        self.send(op::ACK, number, answer_ns)?;
        Ok(Received::Request)
    }

    /// Advances the time.
    pub fn advance(&mut self, to_ns: u64) {
        self.now_ns = self.now_ns.max(to_ns);
    }

    /// Lets the guest run at the time that it requested. It acknowledges that.
    pub fn run(&mut self) -> io::Result<()> {
        if let Some(wanted_ns) = self.wanted_ns.take() {
            self.advance(wanted_ns);
        }
        self.waiting = false;
        self.told = self.told.wrapping_add(1);
        self.send(op::RUN, self.told, self.now_ns)
    }

    fn send(&mut self, kind: u32, number: u32, time_ns: u64) -> io::Result<()> {
        let mut message = [0; 16];
        message[..4].copy_from_slice(&kind.to_le_bytes());
        message[4..8].copy_from_slice(&number.to_le_bytes());
        message[8..].copy_from_slice(&time_ns.to_le_bytes());
        self.stream.write_all(&message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(guest: &mut UnixStream, kind: u32, number: u32, time_ns: u64) {
        let mut message = kind.to_le_bytes().to_vec();
        message.extend_from_slice(&number.to_le_bytes());
        message.extend_from_slice(&time_ns.to_le_bytes());
        guest.write_all(&message).unwrap();
    }

    fn receive(guest: &mut UnixStream) -> (u32, u32, u64) {
        let mut message = [0; 16];
        guest.read_exact(&mut message).unwrap();
        let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().unwrap());
        (word(0), word(4), u64::from_le_bytes(message[8..].try_into().unwrap()))
    }

    #[test]
    fn a_waiting_guest_runs_at_its_requested_time() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let mut server = TimeTravelServer::new(ours, 1_700_000_000_000_000_000);
        for (kind, time_ns, answer_ns) in
            [(1, 7, 0), (8, 0, 1_700_000_000_000_000_000), (5, 300, 0), (4, 0, 300), (2, 5000, 0), (3, 0, 0)]
        {
            send(&mut guest, kind, kind + 10, time_ns);
            assert_eq!(server.listen().unwrap(), Received::Request);
            assert_eq!(receive(&mut guest), (0, kind + 10, answer_ns), "{kind}");
        }
        assert!(server.is_waiting());
        assert_eq!((server.now_ns(), server.wanted_ns()), (300, Some(5000)));
        server.run().unwrap();
        assert_eq!(receive(&mut guest), (6, 1, 5000));
        assert!(!server.is_waiting());
        send(&mut guest, 0, 1, 0);
        assert_eq!(server.listen().unwrap(), Received::Acknowledgement);
    }

    #[test]
    fn time_never_goes_back() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let mut server = TimeTravelServer::new(ours, 0);
        server.advance(900);
        server.advance(100);
        send(&mut guest, 2, 1, 500);
        server.listen().unwrap();
        server.run().unwrap();
        assert_eq!(server.now_ns(), 900);
    }

    #[test]
    fn malformed_messages_are_errors_and_a_closed_socket_is_the_end() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let mut server = TimeTravelServer::new(ours, 0);
        send(&mut guest, 77, 1, 0);
        assert_eq!(server.listen().unwrap_err().kind(), io::ErrorKind::InvalidData);
        guest.write_all(&[0; 5]).unwrap();
        drop(guest);
        assert!(server.listen().is_err(), "half a message");
        let (ours, guest) = UnixStream::pair().unwrap();
        drop(guest);
        assert_eq!(TimeTravelServer::new(ours, 0).listen().unwrap(), Received::EndOfFile);
    }
}
