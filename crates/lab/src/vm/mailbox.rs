//! The host's end of the channel to the guest's agent: a disk whose requests take no time.

use block::{
    Geometry, Verb,
    vhost_user::{Ask, Request, Traits},
};
use guest::mailbox::{CHANNEL_OFFSET, SERIAL, SIZE_BYTES};

/// The data received from the guest, and the data to send to it.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    received: Vec<u8>,
    to_say: Vec<u8>,
    /// A read of the guest that waits for data.
    listening: Option<(Request, Ask)>,
}

impl Mailbox {
    /// Properties of the disk, as the guest sees it.
    pub fn traits() -> Traits {
        Traits {
            geometry: Geometry { size_bytes: SIZE_BYTES, sector_bytes: 512 },
            serial: SERIAL.into(),
            write_cache: false,
            discard: false,
            read_only: false,
        }
    }

    /// Executes one request. Returns it with its answer, or `None` if it has to wait for data to send.
    pub fn submit(&mut self, request: Request, ask: Ask, data: &[u8]) -> Option<(Request, Vec<u8>)> {
        match ask.verb {
            Verb::Read if ask.offset_bytes >= CHANNEL_OFFSET => {
                self.listening = Some((request, ask));
                self.deliver()
            }
            Verb::Read => Some((request, vec![0; ask.length_bytes as usize])),
            Verb::Write => {
                self.received.extend(data.iter().filter(|byte| **byte != 0));
                Some((request, Vec::new()))
            }
            Verb::Flush | Verb::Discard => Some((request, Vec::new())),
        }
    }

    /// Sends a line to the guest. If the guest waits for one, returns its pending read with the answer.
    pub fn send(&mut self, line: &[u8]) -> Option<(Request, Vec<u8>)> {
        self.to_say.extend_from_slice(line);
        self.to_say.push(b'\n');
        self.deliver()
    }

    /// Receives the next complete line from the guest.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let end = self.received.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.received.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    fn deliver(&mut self) -> Option<(Request, Vec<u8>)> {
        if self.to_say.is_empty() {
            return None;
        }
        let (request, ask) = self.listening.take()?;
        let length = self.to_say.len().min(ask.length_bytes as usize);
        let mut block: Vec<u8> = self.to_say.drain(..length).collect();
        block.resize(ask.length_bytes as usize, 0);
        Some((request, block))
    }
}
