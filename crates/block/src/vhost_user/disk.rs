//! State of the protocol: the guest's memory, files and queue.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use rustix::fs::SealFlags;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use super::{
    config::{Traits, feature},
    message::{FILES_MAX, Message, broken, protocol, request},
    request::Request,
};

/// Maximum number of entries in a queue.
const QUEUE_ENTRIES_MAX: u16 = 1024;
/// Bit in a message that may carry a descriptor: the descriptor is absent.
const NO_FILE: u64 = 1 << 8;
/// Size in bytes of a region's entry in a memory table.
const REGION_BYTES: usize = 32;

/// Effect of a guest's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The message is fully handled.
    Served,
    /// The queue may hold requests.
    Kick,
    /// The guest has closed the connection.
    HungUp,
}

/// One guest's disk, at one end of a vhost-user socket.
#[derive(Debug)]
pub struct Disk {
    stream: UnixStream,
    traits: Traits,
    protocol: u64,
    back_channel: Option<UnixStream>,
    memory: Option<Memory>,
    queue: Queue,
    kick: Option<File>,
    call: Option<File>,
}

#[derive(Debug)]
struct Memory {
    guest: Arc<GuestMemoryMmap>,
    /// Regions: address in the guest's program, length, and address in the guest.
    user: Vec<(u64, u64, u64)>,
}

impl Disk {
    /// Makes a disk for the guest at the other end of `stream`.
    pub fn new(stream: UnixStream, traits: Traits) -> Disk {
        let queue = Queue::new(QUEUE_ENTRIES_MAX).expect("the longest queue is a power of two");
        Disk { stream, traits, protocol: 0, back_channel: None, memory: None, queue, kick: None, call: None }
    }

    /// Returns the socket. When it is readable, the caller must call [`serve`](Disk::serve).
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the file that signals requests if the guest does not send them in band. When it is readable,
    /// the caller must call [`kicked`](Disk::kicked).
    pub fn kick_file(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(AsFd::as_fd)
    }

    /// Receives one message and answers it. Waits if there is none.
    ///
    /// # Errors
    /// The guest breaks the protocol, or the socket fails.
    pub fn serve(&mut self) -> io::Result<Event> {
        let Some(mut message) = Message::receive(&mut self.stream)? else {
            return Ok(Event::HungUp);
        };
        let answer = self.obey(&mut message)?;
        let kicked = message.request == request::VRING_KICK;
        match answer {
            Some(payload) => Message::reply(message.request, payload).send(&mut self.stream)?,
            None if message.needs_reply() && self.protocol & protocol::REPLY_ACK != 0 => {
                Message::reply(message.request, 0u64.to_le_bytes().to_vec()).send(&mut self.stream)?;
            }
            None => {}
        }
        Ok(if kicked { Event::Kick } else { Event::Served })
    }

    /// Empties the kick file.
    pub fn kicked(&mut self) -> io::Result<()> {
        match &mut self.kick {
            Some(file) => file.read_exact(&mut [0; 8]),
            None => Ok(()),
        }
    }

    /// Returns the next request in the queue.
    ///
    /// # Errors
    /// The guest's queue is malformed.
    pub fn next_request(&mut self) -> io::Result<Option<Request>> {
        let Some(memory) = &self.memory else { return Ok(None) };
        if !self.queue.ready() {
            return Ok(None);
        }
        let mut chains = self.queue.iter(memory.guest.clone()).map_err(|error| broken(error.to_string()))?;
        chains.next().map(|chain| Request::parse(chain, &self.traits)).transpose()
    }

    /// Answers a request with the data read, with nothing for other verbs, or with an error. The guest sees
    /// the answer when it looks at its queue, at the latest after [`notify`](Disk::notify).
    pub fn answer(&mut self, request: &Request, result: io::Result<&[u8]>) -> io::Result<()> {
        let written = request.put(result)?;
        let memory = self.memory.as_ref().ok_or_else(|| broken("the guest's memory is not mapped"))?;
        let used = self.queue.add_used(&*memory.guest, request.head(), written);
        used.map_err(|error| broken(error.to_string()))
    }

    /// Notifies the guest of answers. If this returns true, the guest acknowledges on the
    /// [`back_channel`](Disk::back_channel). The caller must then wait for
    /// [`acknowledged`](Disk::acknowledged) before it sends anything else.
    pub fn notify(&mut self) -> io::Result<bool> {
        if let Some(call) = &mut self.call {
            call.write_all(&1u64.to_ne_bytes())?;
            return Ok(false);
        }
        let Some(channel) = &mut self.back_channel else { return Ok(false) };
        let mut queue = [0; 8]; // index of the queue, size of the queue
        queue[..4].copy_from_slice(&0u32.to_le_bytes());
        Message::new(request::VRING_CALL, queue.to_vec()).send(channel)?;
        Ok(self.protocol & protocol::REPLY_ACK != 0)
    }

    /// Returns the channel on which acknowledgements arrive.
    pub fn back_channel(&self) -> Option<BorrowedFd<'_>> {
        self.back_channel.as_ref().map(AsFd::as_fd)
    }

    /// Receives an acknowledgement. Returns false if the guest has hung up.
    ///
    /// # Errors
    /// The guest did not understand the notification.
    pub fn acknowledged(&mut self) -> io::Result<bool> {
        let Some(channel) = &mut self.back_channel else { return Ok(false) };
        let Some(message) = Message::receive(channel)? else { return Ok(false) };
        if message.request != request::VRING_CALL || message.u64(0)? != 0 {
            return Err(broken("the guest refuses a notification"));
        }
        Ok(true)
    }

    /// Executes a message. Returns the payload of its answer, if it has one.
    fn obey(&mut self, message: &mut Message) -> io::Result<Option<Vec<u8>>> {
        let number = |n: u64| Ok(Some(n.to_le_bytes().to_vec()));
        match message.request {
            request::GET_FEATURES => return number(self.traits.features()),
            request::SET_FEATURES => {
                let refused = message.u64(0)? & !self.traits.features();
                if refused != 0 {
                    return Err(broken(format!("the guest wants features {refused:#x}")));
                }
                // Without protocol features a queue starts without a message.
                if message.u64(0)? & feature::PROTOCOL_FEATURES == 0 {
                    self.queue.set_ready(true);
                }
            }
            request::GET_PROTOCOL_FEATURES => {
                return number(
                    protocol::REPLY_ACK
                        | protocol::BACK_CHANNEL
                        | protocol::CONFIG
                        | protocol::INBAND_NOTIFICATIONS,
                );
            }
            request::SET_PROTOCOL_FEATURES => self.protocol = message.u64(0)?,
            request::GET_QUEUE_NUM => return number(1),
            request::SET_OWNER | request::SET_VRING_ERR | request::SET_CONFIG | request::VRING_KICK => {}
            request::RESET_OWNER => self.queue.reset(),
            request::SET_MEM_TABLE => self.memory = Some(Memory::map(message)?),
            request::SET_VRING_NUM => {
                let entries = u16::try_from(self.ring(message)?).ok();
                let set = entries.map(|entries| self.queue.try_set_size(entries));
                if !matches!(set, Some(Ok(()))) {
                    return Err(broken("a queue of invalid length"));
                }
            }
            request::SET_VRING_ADDR => self.set_ring(message)?,
            request::SET_VRING_BASE => {
                let base = self.ring(message)? as u16;
                self.queue.set_next_avail(base);
                self.queue.set_next_used(base);
            }
            request::GET_VRING_BASE => {
                self.queue.set_ready(false);
                let base = u64::from(self.queue.next_avail()) << 32;
                return number(base);
            }
            request::SET_VRING_KICK => self.kick = file(message)?,
            request::SET_VRING_CALL => self.call = file(message)?,
            request::SET_VRING_ENABLE => {
                let enable = self.ring(message)? != 0;
                self.queue.set_ready(enable);
                if let (true, Some(memory)) = (enable, &self.memory) {
                    if !self.queue.is_valid(&*memory.guest) {
                        return Err(broken("a queue outside the memory"));
                    }
                }
            }
            request::SET_BACK_CHANNEL => {
                let file = message.files.pop().ok_or_else(|| broken("a back channel without a socket"))?;
                self.back_channel = Some(file.into());
            }
            request::GET_CONFIG => return self.config(message).map(Some),
            other => return Err(broken(format!("unknown message {other}"))),
        }
        Ok(None)
    }

    /// Fills the requested part of the configuration space into the payload of its message.
    fn config(&self, message: &mut Message) -> io::Result<Vec<u8>> {
        let (offset, length, _flags) = (message.u32(0)?, message.u32(4)?, message.u32(8)?);
        let (offset, length) = (offset as usize, length as usize);
        let room = message.payload.len() - 12;
        let config = self.traits.config(offset, length.min(room));
        let mut payload = std::mem::take(&mut message.payload);
        payload[12..12 + config.len()].copy_from_slice(&config);
        Ok(payload)
    }

    /// Reads the number in a message about the only queue.
    fn ring(&self, message: &Message) -> io::Result<u32> {
        match message.u32(0)? {
            0 => message.u32(4),
            other => Err(broken(format!("queue {other} does not exist"))),
        }
    }

    fn set_ring(&mut self, message: &Message) -> io::Result<()> {
        let memory = self.memory.as_ref().ok_or_else(|| broken("a queue before the memory"))?;
        let guest = |at| memory.guest_address(message.u64(at)?);
        let (descriptors, used, available) = (guest(8)?, guest(16)?, guest(24)?);
        let queue = &mut self.queue;
        queue
            .try_set_desc_table_address(descriptors)
            .and_then(|()| queue.try_set_used_ring_address(used))
            .and_then(|()| queue.try_set_avail_ring_address(available))
            .map_err(|error| broken(error.to_string()))
    }
}

impl Memory {
    /// Maps the memory in a message: number of regions, padding, then for each region its address in the
    /// guest, length, address in the guest's program, and offset in the file.
    fn map(message: &mut Message) -> io::Result<Memory> {
        let count = message.u32(0)? as usize;
        let files = std::mem::take(&mut message.files);
        if count == 0 || count > FILES_MAX || files.len() != count {
            return Err(broken(format!("{count} regions of memory with {} files", files.len())));
        }
        let (mut ranges, mut user) = (Vec::new(), Vec::new());
        for (n, file) in files.into_iter().enumerate() {
            let word = |i: usize| message.u64(8 + n * REGION_BYTES + i * 8);
            let (start, length, program, offset) = (word(0)?, word(1)?, word(2)?, word(3)?);
            let file = File::from(file);
            // Access to a page beyond the end of the file would raise a signal instead of an error, so the
            // file must not shrink. Only a memfd can be sealed.
            let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK);
            let end = offset.checked_add(length);
            if end.is_none_or(|end| file.metadata().is_ok_and(|file| file.len() < end)) {
                return Err(broken("a region beyond its file"));
            }
            let bytes = usize::try_from(length).map_err(|_| broken("a region beyond the address space"))?;
            ranges.push((GuestAddress(start), bytes, Some(FileOffset::new(file, offset))));
            user.push((program, length, start));
        }
        ranges.sort_by_key(|range| range.0);
        let guest = GuestMemoryMmap::from_ranges_with_files(&ranges);
        let guest = guest.map_err(|error| broken(format!("cannot map the memory: {error}")))?;
        Ok(Memory { guest: Arc::new(guest), user })
    }

    /// Translates an address in the guest's program to one in the guest.
    fn guest_address(&self, user: u64) -> io::Result<GuestAddress> {
        for (program, length, start) in &self.user {
            if user.checked_sub(*program).is_some_and(|within| within < *length) {
                return Ok(GuestAddress(start + (user - program)));
            }
        }
        Err(broken(format!("address {user:#x} is in no region")))
    }
}

/// Returns the descriptor that came with a message, if the message announces one.
fn file(message: &mut Message) -> io::Result<Option<File>> {
    if message.u64(0)? & NO_FILE != 0 {
        return Ok(None);
    }
    Ok(message.files.pop().map(File::from))
}
