//! LZO1X streams as the Linux kernel reads and writes them.
//!
//! A stream is a sequence of instructions. Each one copies earlier bytes or, in version 1 of the format
//! ("LZO-RLE"), writes zeroes. Then up to three literal bytes follow, or a separate instruction copies more
//! of them. The meaning of an instruction below 16 depends on the number of literals before it. (Linux,
//! `Documentation/staging/lzo.rst`.) No library in safe Rust under a free licence supports version 1. This
//! module compresses in version 0, which readers of version 1 accept as well.

/// Error in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LzoError {
    /// The input ends within the stream.
    #[error("the stream is truncated")]
    CutOff,
    /// The decompressed data is longer than the output.
    #[error("the stream expands to more than {0} bytes")]
    TooLong(usize),
    /// A copy from before the start of the output.
    #[error("a copy from {0} bytes before position {1}")]
    Distance(usize, usize),
    /// The end of the stream has the wrong form.
    #[error("the end marker of the stream is invalid")]
    BadEnd,
    /// Bytes follow the end of the stream.
    #[error("{0} bytes follow the stream")]
    Rest(usize),
}

/// Minimum length in bytes of a stream that states its version.
const VERSIONED_MIN: usize = 5;
/// First byte of a stream that states its version.
const VERSION_MARK: u8 = 17;
/// Shortest run of zeroes.
const ZERO_RUN_MIN: usize = 4;
/// Number of preceding literals, as far as it matters: none, one to three, or this value for more.
const MANY: usize = 4;

/// Decompresses a whole stream. Returns the number of bytes written.
pub(super) fn decompress(input: &[u8], output: &mut [u8]) -> Result<usize, LzoError> {
    let mut input = Input { rest: input };
    let mut output = Output { bytes: output, length: 0 };
    let mut with_runs = false;
    if let [VERSION_MARK, version, _, _, _, ..] = *input.rest {
        debug_assert!(input.rest.len() >= VERSIONED_MIN);
        with_runs = version != 0;
        input.rest = &input.rest[2..];
    }
    let mut before = 0;
    if let Some(first @ 18..) = input.rest.first().copied() {
        input.byte()?;
        let literals = usize::from(first - 17);
        output.literals(&mut input, literals)?;
        before = literals.min(MANY);
    }
    loop {
        let instruction = usize::from(input.byte()?);
        let (distance, length, literals) = match instruction {
            0..16 if before == 0 => {
                let length = 3 + input.length(instruction, 15)?;
                output.literals(&mut input, length)?;
                before = MANY;
                continue;
            }
            0..16 => {
                let near = (usize::from(input.byte()?) << 2) + (instruction >> 2);
                let (distance, length) = if before == MANY { (near + 2049, 3) } else { (near + 1, 2) };
                (distance, length, instruction & 3)
            }
            16..32 => {
                let far = (instruction & 8) << 11;
                if with_runs && far != 0 && input.peek()? & 0xFFFC == 0xFFFC {
                    let literals = usize::from(input.word()?) & 3;
                    let length = (usize::from(input.byte()?) << 3 | instruction & 7) + ZERO_RUN_MIN;
                    output.zeroes(length)?;
                    output.literals(&mut input, literals)?;
                    before = literals;
                    continue;
                }
                let length = 2 + input.length(instruction & 7, 7)?;
                let word = usize::from(input.word()?);
                let distance = far + (word >> 2);
                if distance == 0 {
                    return match (length, input.rest.len()) {
                        (3, 0) => Ok(output.length),
                        (3, rest) => Err(LzoError::Rest(rest)),
                        _ => Err(LzoError::BadEnd),
                    };
                }
                (distance + 0x4000, length, word & 3)
            }
            32..64 => {
                let length = 2 + input.length(instruction & 31, 31)?;
                let word = usize::from(input.word()?);
                ((word >> 2) + 1, length, word & 3)
            }
            _ => {
                let distance = (usize::from(input.byte()?) << 3) + (instruction >> 2 & 7) + 1;
                (distance, (instruction >> 5) + 1, instruction & 3)
            }
        };
        output.copy(distance, length)?;
        output.literals(&mut input, literals)?;
        before = literals;
    }
}

/// Maximum distance of a copy.
const DISTANCE_MAX: usize = 0xBFFF;
/// Minimum length of a copy.
const COPY_MIN: usize = 4;
/// log2 of the number of positions that the compressor remembers.
const LOG_PLACES: u32 = 14;

/// Compresses greedily: each copy comes from the last position that starts with the same four bytes.
#[must_use]
pub(super) fn compress(content: &[u8]) -> Vec<u8> {
    let mut stream = Vec::with_capacity(content.len() / 2);
    let mut places = vec![0u32; 1 << LOG_PLACES];
    let (mut at, mut literals_from) = (0, 0);
    while let Some(four) = content.get(at..).and_then(|rest| rest.first_chunk::<COPY_MIN>()) {
        let hash = u32::from_le_bytes(*four).wrapping_mul(0x9E37_79B1) >> (32 - LOG_PLACES);
        let place = std::mem::replace(&mut places[hash as usize], place_of(at)) as usize;
        let from = place.wrapping_sub(1);
        if place == 0 || at - from > DISTANCE_MAX || content[from..from + COPY_MIN] != *four {
            // Incompressible data is skipped in growing steps.
            at += 1 + (at - literals_from) / 64;
            continue;
        }
        let same = content[at..].iter().zip(&content[from..]).take_while(|(a, b)| a == b).count();
        put_literals(&mut stream, &content[literals_from..at]);
        put_copy(&mut stream, at - from, same);
        at += same;
        literals_from = at;
    }
    put_literals(&mut stream, &content[literals_from..]);
    stream.extend_from_slice(&[0x11, 0, 0]);
    stream
}

/// Encodes a remembered position plus one, so that 0 means none.
fn place_of(at: usize) -> u32 {
    u32::try_from(at + 1).expect("a cluster is a megabyte at most")
}

/// Part of an instruction.
fn byte(value: usize) -> u8 {
    u8::try_from(value).expect("it fits into an instruction")
}

fn put_literals(stream: &mut Vec<u8>, literals: &[u8]) {
    match literals.len() {
        0 => return,
        count @ 1..=238 if stream.is_empty() => stream.push(byte(17 + count)),
        count @ 1..=3 => {
            // The last byte but one of the preceding copy has space for the count.
            let at = stream.len() - 2;
            stream[at] |= byte(count);
        }
        count @ 4..=18 => stream.push(byte(count - 3)),
        count => {
            stream.push(0);
            put_length(stream, count - 18);
        }
    }
    stream.extend_from_slice(literals);
}

fn put_copy(stream: &mut Vec<u8>, distance: usize, length: usize) {
    if length <= 8 && distance <= 0x800 {
        let distance = distance - 1;
        stream.extend_from_slice(&[byte((length - 1) << 5 | (distance & 7) << 2), byte(distance >> 3)]);
        return;
    }
    let (instruction, limit, distance) = match distance {
        ..=0x4000 => (32, 33, distance - 1),
        _ => (16 | (distance - 0x4000) >> 11 & 8, 9, (distance - 0x4000) & 0x3FFF),
    };
    if length <= limit {
        stream.push(byte(instruction | (length - 2)));
    } else {
        stream.push(byte(instruction));
        put_length(stream, length - limit);
    }
    let distance = u16::try_from(distance << 2).expect("a distance has 14 bits");
    stream.extend_from_slice(&distance.to_le_bytes());
}

/// Writes the rest of a length that does not fit its instruction, at least 1.
fn put_length(stream: &mut Vec<u8>, length: usize) {
    let zeroes = (length - 1) / 255;
    stream.resize(stream.len() + zeroes, 0);
    stream.push(byte(length - 255 * zeroes));
}

struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn byte(&mut self) -> Result<u8, LzoError> {
        let (first, rest) = self.rest.split_first().ok_or(LzoError::CutOff)?;
        self.rest = rest;
        Ok(*first)
    }

    fn peek(&self) -> Result<u16, LzoError> {
        self.rest.first_chunk().map(|word| u16::from_le_bytes(*word)).ok_or(LzoError::CutOff)
    }

    fn word(&mut self) -> Result<u16, LzoError> {
        let word = self.peek()?;
        self.rest = &self.rest[2..];
        Ok(word)
    }

    /// Reads a length that starts in an instruction. 0 there means that it continues: 255 for each zero byte,
    /// and then one more byte.
    fn length(&mut self, start: usize, limit: usize) -> Result<usize, LzoError> {
        if start != 0 {
            return Ok(start);
        }
        let mut length = limit;
        loop {
            match self.byte()? {
                0 => length += 255,
                last => return Ok(length + usize::from(last)),
            }
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], LzoError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(LzoError::CutOff)?;
        self.rest = rest;
        Ok(taken)
    }
}

struct Output<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl Output<'_> {
    fn literals(&mut self, input: &mut Input<'_>, count: usize) -> Result<(), LzoError> {
        let literals = input.take(count)?;
        self.room(count)?.copy_from_slice(literals);
        Ok(())
    }

    fn zeroes(&mut self, count: usize) -> Result<(), LzoError> {
        self.room(count)?.fill(0);
        Ok(())
    }

    fn copy(&mut self, distance: usize, count: usize) -> Result<(), LzoError> {
        let start = self.length;
        let from = start.checked_sub(distance).ok_or(LzoError::Distance(distance, start))?;
        self.room(count)?;
        if distance >= count {
            self.bytes.copy_within(from..from + count, start);
        } else {
            // The copy may read bytes that it has just written, so that the last bytes repeat.
            for at in 0..count {
                self.bytes[start + at] = self.bytes[from + at];
            }
        }
        Ok(())
    }

    /// Returns the next `count` bytes of the output.
    fn room(&mut self, count: usize) -> Result<&mut [u8], LzoError> {
        let (start, limit) = (self.length, self.bytes.len());
        let end = start.checked_add(count).filter(|end| *end <= limit).ok_or(LzoError::TooLong(limit))?;
        self.length = end;
        Ok(&mut self.bytes[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: [u8; 3] = [0x11, 0, 0];

    fn plain(stream: &[u8]) -> Result<Vec<u8>, LzoError> {
        let mut output = vec![0xEE; 4096];
        let length = decompress(stream, &mut output)?;
        output.truncate(length);
        Ok(output)
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    fn stream(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn each_instruction_follows_the_description() {
        let ten = b"0123456789";
        let start: &[u8] = &[17 + 10];
        assert_eq!(plain(&stream(&[start, ten, &END])).unwrap(), ten);
        // 1LLDDDSS: 5 bytes from 3 back, then one literal.
        let near = stream(&[start, ten, &[0b1000_1001, 0, b'x'], &END]);
        assert_eq!(plain(&near).unwrap(), b"012345678978978x");
        // 0000DDSS after one literal: 2 bytes from 1 back.
        let two = stream(&[start, ten, &[0b1000_1001, 0, b'x', 0, 0], &END]);
        assert_eq!(plain(&two).unwrap(), b"012345678978978xxx");
        // 001LLLLL: 2 + 31 + 255 + 1 bytes from 1 back.
        let long = stream(&[start, ten, &[0b0010_0000, 0, 1, 0, 0], &END]);
        assert_eq!(plain(&long).unwrap().len(), 10 + 289);
        // 0000LLLL without literals before: 3 + 15 + 2 literals.
        let literals = stream(&[start, ten, &[0b0100_0000, 0, 0, 2], &[b'y'; 20], &END]);
        assert_eq!(plain(&literals).unwrap(), stream(&[ten, b"999", &[b'y'; 20]]));
    }

    #[test]
    fn copies_of_three_come_from_beyond_2048() {
        let many: Vec<u8> = (0..2100u32).map(|n| ((n * n) >> 3) as u8).collect();
        // 2100 literals: 3 + 15 + 8 * 255 + 42.
        let start = stream(&[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 42], &many]);
        let got = plain(&stream(&[&start, &[0b0000_0100, 5], &END])).unwrap();
        assert_eq!(got[2100..], many[2100 - 2070..2100 - 2067]);
    }

    #[test]
    fn zero_runs_need_version_1() {
        // 00011LLL, all bits of the distance set, one literal, X = 2: 2 << 3 | 5 and 4 more zeroes.
        let run = [0b0001_1101, 0xFD, 0xFF, 2, b'z'];
        let stream1 = stream(&[&[17, 1, 17 + 4], b"abcd", &run, &END]);
        assert_eq!(plain(&stream1).unwrap(), stream(&[b"abcd", &[0; 25], b"z"]));
        let stream0 = stream(&[&[17 + 4], b"abcd", &run, &END]);
        assert!(plain(&stream0).is_err(), "a copy from 48 KiB back");
    }

    #[test]
    fn hostile_streams_are_errors() {
        assert_eq!(plain(&[]), Err(LzoError::CutOff));
        assert_eq!(plain(&[17 + 4, b'a']), Err(LzoError::CutOff));
        assert_eq!(
            plain(&stream(&[&[17 + 4], b"abcd", &[0b0100_0000, 1], &END])),
            Err(LzoError::Distance(9, 4))
        );
        assert_eq!(plain(&stream(&[&[17 + 4], b"abcd", &END, b"rest"])), Err(LzoError::Rest(4)));
        assert_eq!(plain(&stream(&[&[17 + 4], b"abcd", &[0x12, 0, 0]])), Err(LzoError::BadEnd));
        let huge = stream(&[&[17 + 4], b"abcd", &[0x20], &[0; 100], &[1, 0, 0], &END]);
        assert_eq!(plain(&huge), Err(LzoError::TooLong(4096)));
        assert_eq!(plain(&[0; 5000]), Err(LzoError::CutOff));
    }

    #[test]
    fn others_read_our_streams_and_we_read_theirs() {
        let text: Vec<u8> = (0..40_000u64).flat_map(|n| format!("{} ", n * n % 977).into_bytes()).collect();
        let noise = noise(70_000);
        let mixed: Vec<u8> =
            text.chunks(700).zip(noise.chunks(300)).flat_map(|(a, b)| [a, b].concat()).collect();
        for content in [&b"a"[..], b"abc", &[0; 65536], &text, &noise, &noise[..237], &noise[..300], &mixed] {
            let ours = compress(content);
            let theirs = lzokay_native::compress(content).expect("compresses anything");
            assert_eq!(lzokay_native::decompress_all(&ours, None).expect("a good stream"), content);
            for stream in [&ours, &theirs] {
                let mut output = vec![0xEE; content.len()];
                assert_eq!(decompress(stream, &mut output), Ok(content.len()));
                assert_eq!(output, content);
                assert!(decompress(stream, &mut output[1..]).is_err());
                assert!(decompress(&stream[..stream.len() - 1], &mut output).is_err());
            }
        }
        assert!(compress(&text).len() < text.len() / 2);
        assert!(compress(&noise).len() < noise.len() + noise.len() / 100);
    }
}
