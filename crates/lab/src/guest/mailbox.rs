//! The host's end of the way to the guest's agent: a disk that takes no time.

use block::{
    Geometry, Verb,
    vhost_user::{Ask, Request, Traits},
};
use guest::mailbox::{CHANNEL_OFFSET, SERIAL, SIZE_BYTES};

/// What the guest has said, and what it is to be told.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    said: Vec<u8>,
    to_say: Vec<u8>,
    /// A read of the guest's that waits for something to be said.
    listening: Option<(Request, Ask)>,
}

impl Mailbox {
    /// What the guest sees of it.
    pub fn traits() -> Traits {
        Traits {
            geometry: Geometry { size_bytes: SIZE_BYTES, sector_bytes: 512 },
            serial: SERIAL.into(),
            write_cache: false,
            discard: false,
            read_only: false,
        }
    }

    /// Does one request. Returns it with its answer, unless it has to wait for the host.
    pub fn submit(&mut self, request: Request, ask: Ask, data: &[u8]) -> Option<(Request, Vec<u8>)> {
        match ask.verb {
            Verb::Read if ask.offset_bytes >= CHANNEL_OFFSET => {
                self.listening = Some((request, ask));
                self.deliver()
            }
            Verb::Read => Some((request, vec![0; ask.length_bytes as usize])),
            Verb::Write => {
                self.said.extend(data.iter().filter(|byte| **byte != 0));
                Some((request, Vec::new()))
            }
            Verb::Flush | Verb::Discard => Some((request, Vec::new())),
        }
    }

    /// Says a line to the guest. If that is what it waits for, the request that it waits with is returned.
    pub fn say(&mut self, line: &[u8]) -> Option<(Request, Vec<u8>)> {
        self.to_say.extend_from_slice(line);
        self.to_say.push(b'\n');
        self.deliver()
    }

    /// The next line that the guest has said in full.
    pub fn hear(&mut self) -> Option<Vec<u8>> {
        let end = self.said.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.said.drain(..=end).collect();
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
