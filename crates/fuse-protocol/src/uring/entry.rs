//! The buffers of one request and its answer, in the form of the kernel.

use std::io;

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::memory::Region;
use crate::{
    abi::{InHeader, OutHeader, UringPayload},
    message::Output,
};

/// Places in the header (`struct fuse_uring_req_header`): the header of the request or answer, the first argument
/// of the request, and the description of the payload.
const ARGUMENT_OFFSET: usize = 128;
const ARGUMENT_BYTES: usize = 128;
const PAYLOAD_OFFSET: usize = 256;
/// Length of a header, rounded up.
const HEADER_BYTES: usize = 512;
/// Maximum length of arguments that are copied, so that the answer can be built in the place of the payload.
const COPIED_BYTES: usize = 4096;

/// One entry of a queue: it belongs to the kernel, or to this process from the receipt of a request to its answer.
pub struct Entry {
    header: Region,
    /// A page, whose end is the place of the first argument, and the payload behind it. `None` while the answer
    /// is built in it.
    body: Option<Region>,
    page_bytes: usize,
    queue: u16,
}

/// The arguments of a request: where they are in the body of the entry.
pub struct Received {
    /// The header of the request.
    pub header: InHeader,
    start: usize,
    end: usize,
}

impl Entry {
    /// Maps `count` entries with payloads of `payload_bytes` bytes for a queue.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(queue: u16, count: usize, payload_bytes: usize) -> io::Result<Vec<Entry>> {
        let page_bytes = rustix::param::page_size();
        let headers = Region::map(count, HEADER_BYTES)?;
        let bodies = Region::map(count, page_bytes + payload_bytes.next_multiple_of(page_bytes))?;
        let entries = headers.into_iter().zip(bodies);
        Ok(entries.map(|(header, body)| Entry { header, body: Some(body), page_bytes, queue }).collect())
    }

    /// Returns the number of the queue.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the number that the kernel gave the request.
    pub fn commit_id(&self) -> u64 {
        self.payload_facts().commit_id
    }

    /// Returns the buffers that the kernel uses: the header and the payload.
    pub fn buffers(&mut self) -> [&mut [u8]; 2] {
        let body = self.body.as_deref_mut().expect("an entry is lent only as a whole");
        [&mut self.header, &mut body[self.page_bytes..]]
    }

    /// Puts the arguments of the received request one behind the other.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if their lengths contradict each other.
    pub fn receive(&mut self) -> io::Result<Received> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the kernel sent contradicting lengths");
        let (header, _) = InHeader::read_from_prefix(&self.header).map_err(|_| invalid())?;
        let payload = self.payload_facts().payload_bytes as usize;
        let first = (header.length_bytes as usize).checked_sub(size_of::<InHeader>() + payload);
        let first = first.filter(|first| *first <= ARGUMENT_BYTES).ok_or_else(invalid)?;
        let body = self.body.as_deref_mut().ok_or_else(invalid)?;
        let (start, end) = (self.page_bytes - first, self.page_bytes + payload);
        if end > body.len() {
            return Err(invalid());
        }
        body[start..self.page_bytes].copy_from_slice(&self.header[ARGUMENT_OFFSET..][..first]);
        Ok(Received { header, start, end })
    }

    /// Returns the arguments. If they are short, this copies them to `copy`, and `output` builds the answer in the
    /// place of the payload.
    pub fn arguments<'a>(
        &'a mut self,
        received: &Received,
        copy: &'a mut Vec<u8>,
        output: &mut Output,
    ) -> &'a [u8] {
        let range = received.start..received.end;
        if range.len() <= COPIED_BYTES {
            copy.clear();
            copy.extend_from_slice(&self.body()[range]);
            if let Some(body) = self.body.take() {
                output.build_in(body, self.page_bytes);
            }
            return copy;
        }
        &self.body()[range]
    }

    /// Puts the answer into the entry. The payload of a successful one is that of `output`.
    pub fn answer(&mut self, unique: u64, outcome: Result<(), Errno>, output: &mut Output) {
        let built = self.take_back(output);
        let outcome = outcome.and_then(|()| built.map_or_else(|| self.copy_in(output.bytes()), Ok));
        self.put(unique, outcome);
    }

    /// Puts an answer that was made elsewhere into the entry.
    pub fn answer_with(&mut self, unique: u64, answer: Result<&[u8], Errno>, output: &mut Output) {
        self.take_back(output);
        let outcome = answer.and_then(|payload| self.copy_in(payload));
        self.put(unique, outcome);
    }

    /// Takes the body back. Returns the length of the payload if it was built there.
    fn take_back(&mut self, output: &mut Output) -> Option<usize> {
        let (body, built) = output.take_body()?;
        self.body = Some(body);
        built
    }

    fn body(&self) -> &[u8] {
        self.body.as_deref().expect("it is here between an answer and the next arguments")
    }

    /// Copies a payload into its place and returns its length.
    fn copy_in(&mut self, payload: &[u8]) -> Result<usize, Errno> {
        let place =
            self.body.as_deref_mut().and_then(|body| body.get_mut(self.page_bytes..)).unwrap_or_default();
        place.get_mut(..payload.len()).ok_or(Errno::IO)?.copy_from_slice(payload);
        Ok(payload.len())
    }

    fn put(&mut self, unique: u64, outcome: Result<usize, Errno>) {
        let (error, payload) = match outcome {
            Ok(bytes) => (0, bytes as u32),
            Err(errno) => (-errno.raw_os_error(), 0),
        };
        let head = OutHeader { length_bytes: size_of::<OutHeader>() as u32 + payload, error, unique };
        self.header[..size_of::<OutHeader>()].copy_from_slice(head.as_bytes());
        let facts = UringPayload { payload_bytes: payload, ..self.payload_facts() };
        self.header[PAYLOAD_OFFSET..][..size_of::<UringPayload>()].copy_from_slice(facts.as_bytes());
    }

    fn payload_facts(&self) -> UringPayload {
        UringPayload::read_from_prefix(&self.header[PAYLOAD_OFFSET..]).expect("the header has room for it").0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a request into an entry as the kernel does. The header tells `length` bytes of arguments.
    fn receive(entry: &mut Entry, first: &[u8], payload: &[u8], length: usize) -> io::Result<Received> {
        let [header, body] = entry.buffers();
        let told = (size_of::<InHeader>() + length) as u32;
        header[..4].copy_from_slice(&told.to_ne_bytes());
        header[ARGUMENT_OFFSET..][..first.len()].copy_from_slice(first);
        body[..payload.len()].copy_from_slice(payload);
        let facts = UringPayload {
            flags: 0,
            commit_id: 7,
            payload_bytes: payload.len() as u32,
            padding: 0,
            reserved: 0,
        };
        header[PAYLOAD_OFFSET..][..32].copy_from_slice(facts.as_bytes());
        entry.receive()
    }

    #[test]
    fn arguments_follow_each_other_and_the_answer_takes_the_place_of_the_payload() {
        let mut entry = Entry::map(3, 1, 8192).unwrap().remove(0);
        let (mut copy, mut output) = (Vec::new(), Output::new(0));
        let long = [b'x'; COPIED_BYTES];
        for payload in [&b"name\0"[..], &long, b""] {
            let received = receive(&mut entry, &[1, 2, 3, 4], payload, 4 + payload.len()).unwrap();
            let arguments = entry.arguments(&received, &mut copy, &mut output).to_vec();
            assert_eq!(arguments, [&[1, 2, 3, 4], payload].concat());
            output.extend(b"answer");
            entry.answer(7, Ok(()), &mut output);
            output.clear();
            assert_eq!(&entry.buffers()[1][..6], b"answer");
            assert_eq!((entry.payload_facts().payload_bytes, entry.commit_id()), (6, 7));
            assert_eq!(
                entry.header[..16],
                OutHeader { length_bytes: 22, error: 0, unique: 7 }.as_bytes()[..]
            );
        }
        entry.answer_with(7, Err(Errno::NOENT), &mut output);
        assert_eq!(entry.header[4..8], (-2_i32).to_ne_bytes());
        entry.answer_with(7, Ok(&[0; 8193]), &mut output);
        assert_eq!(entry.header[4..8], (-5_i32).to_ne_bytes(), "an answer that does not fit");
    }

    #[test]
    fn contradicting_lengths_are_refused() {
        let mut entry = Entry::map(0, 1, 4096).unwrap().remove(0);
        assert!(receive(&mut entry, &[], b"name\0", 4).is_err(), "less than the payload");
        assert!(
            receive(&mut entry, &[], b"", ARGUMENT_BYTES + 1).is_err(),
            "more than the first argument can have"
        );
        assert!(receive(&mut entry, &[], b"", ARGUMENT_BYTES).is_ok());
        entry.header[PAYLOAD_OFFSET + 16..][..4].copy_from_slice(&4097_u32.to_ne_bytes());
        entry.header[..4].copy_from_slice(&(40_u32 + 4097).to_ne_bytes());
        assert!(entry.receive().is_err(), "more than the payload can have");
    }
}
