//! Buffers of requests and answers.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::uring::Region;

/// Parser of a request's arguments, which follow its header. Too short arguments give EINVAL.
pub struct Arguments<'a>(pub &'a [u8]);

impl<'a> Arguments<'a> {
    /// Parses the next structure.
    pub fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = rest;
        Ok(value)
    }

    /// Parses the next zero-terminated name.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    /// Takes the next `count` bytes.
    pub fn bytes(&mut self, count: u32) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(count as usize).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// The payload of an answer; its buffer is reused.
pub struct Output {
    bytes: Vec<u8>,
    used: usize,
    /// The body of an entry of io_uring and the offset of its payload: the answer is built there if it fits.
    body: Option<(Region, usize)>,
    place: Place,
}

/// Place of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A buffer of our own.
    Own,
    /// The body of an entry.
    Body,
}

impl Output {
    /// Creates a buffer for `room` bytes.
    pub fn new(room: usize) -> Output {
        Output { bytes: vec![0; room], used: 0, body: None, place: Place::Own }
    }

    /// Empties the payload.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the payload.
    pub fn bytes(&self) -> &[u8] {
        match (&self.body, self.place) {
            (Some((body, offset)), Place::Body) => &body[*offset..][..self.used],
            _ => &self.bytes[..self.used],
        }
    }

    /// Appends a structure.
    pub fn put(&mut self, value: &(impl IntoBytes + Immutable)) {
        self.extend(value.as_bytes());
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.used += bytes.len();
    }

    /// Lets `fill` write to a buffer of `most` bytes, and appends as many bytes as `fill` returns.
    pub fn fill<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let filled = fill(self.room(most))?;
        self.used += filled;
        Ok(())
    }

    /// Returns the next `count` bytes of the buffer.
    fn room(&mut self, count: usize) -> &mut [u8] {
        let (start, end) = (self.used, self.used + count);
        if let (Some((body, offset)), Place::Body) = (&self.body, self.place) {
            if end > body.len() - offset {
                self.bytes.clear();
                self.bytes.extend_from_slice(&body[*offset..][..start]);
                self.place = Place::Own;
            }
        }
        match (&mut self.body, self.place) {
            (Some((body, offset)), Place::Body) => &mut body[*offset..][start..end],
            _ => {
                if end > self.bytes.len() {
                    self.bytes.resize(end, 0);
                }
                &mut self.bytes[start..end]
            }
        }
    }

    /// Starts a payload in the body of an entry, from `offset` on.
    pub(crate) fn build_in(&mut self, body: Region, offset: usize) {
        (self.body, self.place, self.used) = (Some((body, offset)), Place::Body, 0);
    }

    /// Gives the body back. Returns the length of the payload if it is in the body; otherwise the payload stays here.
    pub(crate) fn take_body(&mut self) -> Option<(Region, Option<usize>)> {
        let (body, _) = self.body.take()?;
        let built = (self.place == Place::Body).then_some(self.used);
        self.place = Place::Own;
        Some((body, built))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{ForgetIn, GetxattrOut, InHeader};

    #[test]
    fn arguments_are_taken_in_order_and_short_ones_refused() {
        let bytes = [&7_u64.to_ne_bytes()[..], b"one\0two\0", b"abc"].concat();
        let mut arguments = Arguments(&bytes);
        assert_eq!(arguments.take::<ForgetIn>().unwrap().lookups, 7);
        assert_eq!((arguments.name(), arguments.name()), (Ok(&b"one"[..]), Ok(&b"two"[..])));
        assert_eq!(arguments.name(), Err(Errno::INVAL), "the zero is missing");
        assert_eq!(arguments.bytes(4), Err(Errno::INVAL));
        assert_eq!(arguments.bytes(3), Ok(&b"abc"[..]));
        assert!(arguments.take::<InHeader>().is_err());
    }

    #[test]
    fn output_grows_and_is_used_again() {
        let mut output = Output::new(4);
        output.put(&GetxattrOut { size: 5, padding: 0 });
        output
            .fill(3, |room| {
                room[0] = 9;
                Ok::<_, ()>(1)
            })
            .unwrap();
        assert_eq!(output.bytes(), [&5_u32.to_ne_bytes()[..], &[0; 4], &[9]].concat());
        output.clear();
        assert_eq!(output.bytes(), [0_u8; 0]);
    }

    #[test]
    fn a_payload_is_built_in_the_body_of_an_entry_and_moves_out_if_it_grows_beyond() {
        let mut output = Output::new(0);
        let mut body = Region::map(1, 16).unwrap().remove(0);
        body.fill(9);
        output.build_in(body, 8);
        output.extend(b"abc");
        assert_eq!(output.bytes(), b"abc");
        let (body, built) = output.take_body().unwrap();
        assert_eq!((&body[..8], &body[8..11], built), (&[9; 8][..], &b"abc"[..], Some(3)));
        output.build_in(body, 8);
        output.extend(b"abcdefgh");
        output.extend(b"i");
        let (_, built) = output.take_body().unwrap();
        assert_eq!((built, output.bytes()), (None, &b"abcdefghi"[..]));
        output.clear();
        assert!(output.take_body().is_none() && output.bytes().is_empty());
    }
}
