//! A guest without a kernel: the other side of the protocol, for tests.
//!
//! It negotiates like user-mode Linux, in the same order and with the same features. Its queue holds a few
//! requests at a time.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use rustix::{
    fs::MemfdFlags,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use super::message::{Message, protocol, request};

/// Start of the guest's memory. Nonzero, as in a real guest.
pub const MEMORY_START: u64 = 0x10_0000;
/// Length of the guest's memory.
pub const MEMORY_BYTES: u64 = 4 << 20;
const ENTRIES: u64 = 16;
const DESCRIPTORS: u64 = MEMORY_START;
const AVAILABLE: u64 = MEMORY_START + 0x1000;
const USED: u64 = MEMORY_START + 0x2000;
const HEADS: u64 = MEMORY_START + 0x3000;
const DATA: u64 = MEMORY_START + 0x4000;
/// Maximum length of a request's data in bytes.
const DATA_BYTES: u64 = 256 << 10;

const CONTINUES: u16 = 1;
const WRITABLE: u16 = 2;

/// The guest's end of a vhost-user socket.
#[derive(Debug)]
pub struct FakeGuest {
    stream: UnixStream,
    back_channel: UnixStream,
    given_channel: Option<UnixStream>,
    memory: Arc<GuestMemoryMmap>,
    memory_file: std::fs::File,
    submitted: u16,
    seen: u16,
}

impl FakeGuest {
    /// Makes a guest whose disk is at the other end of `stream`.
    pub fn new(stream: UnixStream) -> io::Result<FakeGuest> {
        let memory_file: std::fs::File =
            rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into();
        memory_file.set_len(MEMORY_BYTES)?;
        let file = FileOffset::new(memory_file.try_clone()?, 0);
        let range = (GuestAddress(MEMORY_START), MEMORY_BYTES as usize, Some(file));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).map_err(io::Error::other)?;
        let (back_channel, given) = UnixStream::pair()?;
        Ok(FakeGuest {
            stream,
            back_channel,
            given_channel: Some(given),
            memory: Arc::new(memory),
            memory_file,
            submitted: 0,
            seen: 0,
        })
    }

    /// Tries to shrink the shared memory.
    pub fn shorten_memory(&self) -> io::Result<()> {
        self.memory_file.set_len(0)
    }

    /// Sends all messages that start the disk, in order. Calls `serve` after each message, so that one thread
    /// can act as both sides.
    pub fn connect(&mut self, mut serve: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        let features = {
            self.send(request::GET_FEATURES, &[], &[])?;
            serve()?;
            self.reply_number()?
        };
        self.send(request::GET_PROTOCOL_FEATURES, &[], &[])?;
        serve()?;
        let offered = self.reply_number()?;
        for wanted in [protocol::REPLY_ACK, protocol::BACK_CHANNEL, protocol::INBAND_NOTIFICATIONS] {
            assert_ne!(offered & wanted, 0, "user-mode Linux needs protocol feature {wanted:#x}");
        }
        self.tell(request::SET_PROTOCOL_FEATURES, &[offered], &[], &mut serve)?;
        let given = self.given_channel.take().expect("a guest connects once");
        self.tell(request::SET_BACK_CHANNEL, &[], &[given.as_fd()], &mut serve)?;
        self.tell(request::SET_FEATURES, &[features], &[], &mut serve)?;
        let memory = [1, MEMORY_START, MEMORY_BYTES, MEMORY_START, 0];
        let file = self.memory_file.try_clone()?;
        self.tell(request::SET_MEM_TABLE, &memory, &[file.as_fd()], &mut serve)?;
        self.tell(request::SET_VRING_NUM, &[ENTRIES << 32], &[], &mut serve)?;
        self.tell(request::SET_VRING_BASE, &[0], &[], &mut serve)?;
        let ring = [0, DESCRIPTORS, USED, AVAILABLE, u64::MAX];
        self.tell(request::SET_VRING_ADDR, &ring, &[], &mut serve)?;
        self.tell(request::SET_VRING_ENABLE, &[1 << 32], &[], &mut serve)
    }

    /// Queues a write of `data` or a read of `length` bytes. The queue reuses its slots in turn, so at most
    /// five requests may be pending.
    pub fn submit(&mut self, kind: u32, sector: u64, data: &[u8], length: usize) -> io::Result<u16> {
        let slot = u64::from(self.submitted) % 5;
        let (first, head, at) = (slot * 3, HEADS + slot * 64, DATA + slot * DATA_BYTES);
        assert!(data.len().max(length) as u64 <= DATA_BYTES);
        let mut words = [0; 16];
        words[..4].copy_from_slice(&kind.to_le_bytes());
        words[8..].copy_from_slice(&sector.to_le_bytes());
        self.put(head, &words)?;
        self.put(at, data)?;
        let (bytes, direction) = if data.is_empty() { (length, WRITABLE) } else { (data.len(), 0) };
        if bytes == 0 {
            self.descriptor(first, head, 16, CONTINUES, first + 2)?;
        } else {
            self.descriptor(first, head, 16, CONTINUES, first + 1)?;
            self.descriptor(first + 1, at, bytes as u32, CONTINUES | direction, first + 2)?;
        }
        self.descriptor(first + 2, head + 32, 1, WRITABLE, 0)?;
        let place = AVAILABLE + 4 + 2 * (u64::from(self.submitted) % ENTRIES);
        self.put(place, &(first as u16).to_le_bytes())?;
        self.submitted = self.submitted.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.submitted.to_le_bytes())?;
        Ok(first as u16)
    }

    /// Notifies the disk of requests.
    pub fn kick(&mut self, serve: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        self.tell(request::VRING_KICK, &[0], &[], serve)
    }

    /// Returns the requests answered since the last call: number, status, and the first `length` bytes read.
    pub fn answers(&mut self, length: usize) -> io::Result<Vec<(u16, u8, Vec<u8>)>> {
        let mut index = [0; 2];
        self.get(USED + 2, &mut index)?;
        let mut answers = Vec::new();
        while self.seen != u16::from_le_bytes(index) {
            let mut element = [0; 8];
            self.get(USED + 4 + 8 * (u64::from(self.seen) % ENTRIES), &mut element)?;
            let first = u16::from_le_bytes([element[0], element[1]]);
            let slot = u64::from(first) / 3;
            let (mut status, mut data) = ([0], vec![0; length]);
            self.get(HEADS + slot * 64 + 32, &mut status)?;
            self.get(DATA + slot * DATA_BYTES, &mut data)?;
            answers.push((first, status[0], data));
            self.seen = self.seen.wrapping_add(1);
        }
        Ok(answers)
    }

    /// Waits for a notification and acknowledges it.
    pub fn interrupt(&mut self) -> io::Result<()> {
        let message = Message::receive(&mut self.back_channel)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        assert_eq!(message.request, request::VRING_CALL);
        Message::reply(message.request, vec![0; 8]).send(&mut self.back_channel)
    }

    /// Returns the channel on which notifications arrive.
    pub fn back_channel(&self) -> BorrowedFd<'_> {
        self.back_channel.as_fd()
    }

    /// Sends a message unchecked, so that tests can break the protocol.
    pub fn send(&mut self, request: u32, words: &[u64], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.send_bytes(request, &payload, payload.len() as u32, files)
    }

    /// Sends a message whose head gives the length as `length`, whatever the payload's real length.
    pub fn send_bytes(
        &mut self,
        request: u32,
        payload: &[u8],
        length: u32,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let flags: u32 = 1 | 1 << 3; // version 1, and a flag that requests an answer
        let mut bytes = Vec::new();
        for word in [request, flags, length] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(payload);
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        sendmsg(&self.stream, &[io::IoSlice::new(&bytes)], &mut control, SendFlags::empty())?;
        Ok(())
    }

    /// Sends nothing more, but still receives answers.
    pub fn fall_silent(&self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }

    /// Writes into the guest's memory, so that tests can corrupt the queue.
    pub fn put(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_slice(bytes, GuestAddress(at)).map_err(io::Error::other)
    }

    /// Writes a descriptor of the queue.
    pub fn descriptor(&self, n: u64, at: u64, length: u32, flags: u16, next: u64) -> io::Result<()> {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&(next as u16).to_le_bytes());
        self.put(DESCRIPTORS + n * 16, &bytes)
    }

    fn get(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read_slice(bytes, GuestAddress(at)).map_err(io::Error::other)
    }

    fn tell(
        &mut self,
        request: u32,
        words: &[u64],
        files: &[BorrowedFd<'_>],
        mut serve: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        self.send(request, words, files)?;
        serve()?;
        match self.reply_number()? {
            0 => Ok(()),
            code => Err(io::Error::other(format!("message {request} failed with {code}"))),
        }
    }

    fn reply_number(&mut self) -> io::Result<u64> {
        Message::receive(&mut self.stream)?.ok_or(io::ErrorKind::UnexpectedEof)?.u64(0)
    }
}
