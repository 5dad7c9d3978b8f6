//! Buffers of requests and answers.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

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
}

impl Output {
    /// Creates a buffer for `room` bytes.
    pub fn new(room: usize) -> Output {
        Output { bytes: vec![0; room], used: 0 }
    }

    /// Empties the payload.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Appends a structure.
    pub fn put(&mut self, value: &(impl IntoBytes + Immutable)) {
        self.extend(value.as_bytes());
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[self.used..end].copy_from_slice(bytes);
        self.used = end;
    }

    /// Lets `fill` write to a buffer of `most` bytes, and appends as many bytes as `fill` returns.
    pub fn fill<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let end = self.used + most;
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.used += fill(&mut self.bytes[self.used..end])?;
        Ok(())
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
}
