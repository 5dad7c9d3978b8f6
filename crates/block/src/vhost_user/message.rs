//! Messages on the socket: a head of three words, a payload, and accompanying file descriptors (QEMU,
//! `docs/interop/vhost-user.rst`).

use std::{
    io::{self, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Length of the head in bytes: request, flags, length of the payload.
const HEAD_BYTES: usize = 12;
/// Maximum length of a payload in bytes. The longest useful payload is a memory table.
const PAYLOAD_BYTES_MAX: usize = 4096;
/// Maximum number of descriptors in a message: one for each memory region.
pub(super) const FILES_MAX: usize = 8;

/// Time limit for the rest of a message. Guests send messages as a whole.
const REST_TIMEOUT: Duration = Duration::from_secs(3);

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Requests of messages, with the protocol's names and numbers.
pub(super) mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACK_CHANNEL: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const VRING_KICK: u32 = 35;
    /// On the back channel, from the disk to the guest.
    pub const VRING_CALL: u32 = 4;
}

/// Protocol features.
pub(super) mod protocol {
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACK_CHANNEL: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INBAND_NOTIFICATIONS: u64 = 1 << 14;
}

/// One message.
#[derive(Debug)]
pub(super) struct Message {
    pub request: u32,
    flags: u32,
    pub payload: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

impl Message {
    /// Makes a message to send.
    pub fn new(request: u32, payload: Vec<u8>) -> Message {
        Message { request, flags: VERSION | NEED_REPLY, payload, files: Vec::new() }
    }

    /// Makes the answer to `request`.
    pub fn reply(request: u32, payload: Vec<u8>) -> Message {
        Message { request, flags: VERSION | REPLY, payload, files: Vec::new() }
    }

    /// Waits for a message. Returns None if the other side has hung up.
    pub fn receive(stream: &mut UnixStream) -> io::Result<Option<Message>> {
        let mut head = [0; HEAD_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut parts = [IoSliceMut::new(&mut head)];
            match recvmsg(&*stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                // Between messages, a guest may be silent for any time.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                got => break got?.bytes,
            }
        };
        if got == 0 {
            return Ok(None);
        }
        stream.set_read_timeout(Some(REST_TIMEOUT))?;
        rest(stream, &mut head[got..])?;
        let files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let files = files.flatten().collect();
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let (request, flags, length) = (word(0), word(4), word(8) as usize);
        if flags & VERSION_MASK != VERSION {
            return Err(broken(format!("message {request} of version {}", flags & VERSION_MASK)));
        }
        if length > PAYLOAD_BYTES_MAX {
            return Err(broken(format!("message {request} with {length} bytes")));
        }
        let mut payload = vec![0; length];
        rest(stream, &mut payload)?;
        Ok(Some(Message { request, flags, payload, files }))
    }

    /// Sends the message.
    pub fn send(&self, stream: &mut UnixStream) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.payload.len());
        for word in [self.request, self.flags, self.payload.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.payload);
        stream.write_all(&bytes)
    }

    /// Returns true if the sender waits for an acknowledgement.
    pub fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// Reads the 32-bit number at `at` in the payload.
    pub fn u32(&self, at: usize) -> io::Result<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// Reads the 64-bit number at `at` in the payload.
    pub fn u64(&self, at: usize) -> io::Result<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    fn bytes<const N: usize>(&self, at: usize) -> io::Result<[u8; N]> {
        let part = at.checked_add(N).and_then(|end| self.payload.get(at..end));
        part.and_then(|part| part.try_into().ok())
            .ok_or_else(|| broken(format!("message {} is truncated", self.request)))
    }
}

/// Reads the rest of a message.
fn rest(stream: &mut UnixStream, bytes: &mut [u8]) -> io::Result<()> {
    stream.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => broken("a message that is not completed in time"),
        _ => error,
    })
}

/// Makes the error for a guest that breaks the protocol.
pub(super) fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("vhost-user: {}", what.into()))
}
