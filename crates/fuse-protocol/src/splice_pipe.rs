//! Splicing from the image to the kernel: a pipe holds references to pages of the image's page cache until
//! the kernel copies them. It saves one of two copies.
//!
//! *Why not zero copies*: `FUSE_PASSTHROUGH` forwards reads to an open file, but only at the same offsets,
//! and the blocks of a file lie elsewhere in the image. The kernel can also move a page out of the pipe
//! instead of copying it, but only if it can remove the page from the page cache of its file. It cannot if
//! that file is on tmpfs or the page is part of a large folio.

use std::{
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::pipe::{PipeFlags, SpliceFlags};

/// Number of attempts that are skipped after a failure to create the pipe or to splice into it. Each failing
/// attempt costs more than a successful one saves.
const SKIPPED_ATTEMPTS: u32 = 1000;

/// The splice pipe of one worker thread. The pipe is created at the first use, and replaced after a failure.
pub struct SplicePipe {
    room_bytes: usize,
    /// Empty between uses.
    pipe: Option<Pipe>,
    /// Number of attempts still to skip.
    skips: u32,
}

struct Pipe {
    input: OwnedFd,
    output: OwnedFd,
}

impl SplicePipe {
    /// Creates a splice pipe for messages of a header and at most `most_bytes` bytes at any offset.
    pub fn new(most_bytes: usize) -> SplicePipe {
        // One slot for each page and one for the header; the first and the last page may be partial.
        SplicePipe {
            room_bytes: (most_bytes.div_ceil(page_bytes()) + 2) * page_bytes(),
            pipe: None,
            skips: 0,
        }
    }

    /// Sends a header and ranges of a file as one message. After an error the message may have been sent or
    /// not.
    pub fn send(
        &mut self,
        to: BorrowedFd<'_>,
        head: &[u8],
        file: BorrowedFd<'_>,
        ranges: &[Range<u64>],
    ) -> io::Result<()> {
        let page = page_bytes() as u64;
        let pages = |range: &Range<u64>| range.end.div_ceil(page) - range.start / page;
        if (1 + ranges.iter().map(pages).sum::<u64>()) * page > self.room_bytes as u64 {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.skips > 0 {
            self.skips -= 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.skips = SKIPPED_ATTEMPTS;
        let pipe = match self.pipe.take() {
            Some(pipe) => pipe,
            None => Pipe::new(self.room_bytes)?,
        };
        pipe.fill(head, file, ranges)?;
        self.skips = 0;
        let total = head.len() + bytes(ranges) as usize;
        let sent = rustix::pipe::splice(&pipe.output, None, to, None, total, SpliceFlags::empty())?;
        if sent != total {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.pipe = Some(pipe);
        Ok(())
    }
}

impl Pipe {
    fn new(room_bytes: usize) -> io::Result<Pipe> {
        let (output, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::pipe::fcntl_setpipe_size(&input, room_bytes)?;
        Ok(Pipe { input, output })
    }

    fn fill(&self, head: &[u8], file: BorrowedFd<'_>, ranges: &[Range<u64>]) -> io::Result<()> {
        // The pipe is empty, so it takes the whole header at once.
        rustix::io::write(&self.input, head)?;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let length = (range.end - at) as usize;
                match rustix::pipe::splice(
                    file,
                    Some(&mut at),
                    &self.input,
                    None,
                    length,
                    SpliceFlags::NONBLOCK,
                ) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }
}

/// Returns the total length of the ranges in bytes.
pub fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

fn page_bytes() -> usize {
    rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read, os::fd::AsFd};

    use super::*;

    #[test]
    fn ranges_arrive_in_order_behind_their_head() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let content: Vec<u8> = (0..40_000_u32).map(|n| (n / 7) as u8).collect();
        let path = dir.path().join("file");
        std::fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        let mut splice_pipe = SplicePipe::new(64 << 10);
        let (out, into) = rustix::pipe::pipe().unwrap();
        let ranges = [8192..20_480, 0..4096, 36_864..40_000];
        splice_pipe.send(into.as_fd(), b"head", file.as_fd(), &ranges).unwrap();
        drop(into);
        let mut arrived = Vec::new();
        File::from(out).read_to_end(&mut arrived).unwrap();
        let wanted = [b"head", &content[8192..20_480], &content[..4096], &content[36_864..]].concat();
        assert!(arrived == wanted);
    }

    #[test]
    fn missing_and_oversized_ranges_are_refused() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(1 << 20).unwrap();
        let (_out, into) = rustix::pipe::pipe().unwrap();
        let refused = |range: Range<u64>| {
            let mut splice_pipe = SplicePipe::new(64 << 10);
            splice_pipe.send(into.as_fd(), b"head", file.as_fd(), &[range]).unwrap_err().kind()
        };
        let mut splice_pipe = SplicePipe::new(64 << 10);
        let mut send = |range: Range<u64>| splice_pipe.send(into.as_fd(), b"head", file.as_fd(), &[range]);
        assert!(send((1 << 20)..(1 << 20) + 4096).is_err());
        assert_eq!(send(0..4096).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!((1..SKIPPED_ATTEMPTS).all(|_| send(0..4096).is_err()) && send(0..4096).is_ok());
        assert_eq!(refused((1 << 20) - 4096..(1 << 20) + 4096), io::ErrorKind::UnexpectedEof);
        assert_eq!(refused(0..1 << 20), io::ErrorKind::OutOfMemory);
    }
}
