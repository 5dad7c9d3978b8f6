//! Random calls on one file, in the manner of fsx, compared with a model in memory. All kinds of reads must
//! return the model's content, immediately and after a remount. `FSX_SECONDS=60` runs for a minute,
//! `FSX_SEED=` selects other calls.

#![allow(unsafe_code)] // mapping memory is unsafe

mod support;

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    time::{Duration, Instant},
};

use block::Rng;
use rustix::{
    fs::{Advice, FallocateFlags, OFlags, SeekFrom},
    io::Errno,
    mm::{MapFlags, MsyncFlags, ProtFlags},
};
use support::{Bench, with_aligned};

/// Maximum size of the file in bytes.
const MOST: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Calls per round, that is between two mounts, and rounds without `FSX_SECONDS`.
const CALLS: u64 = 1000;
const ROUNDS: u64 = 2;

#[test]
fn random_calls_have_the_results_of_the_model() {
    needs_fuse!();
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("FSX_SEED").unwrap_or(1);
    let time = number("FSX_SECONDS").map(Duration::from_secs);
    let started = Instant::now();
    // A small volume is short of space from the start, so the kernel writes back at each call; a large one is
    // not.
    let kinds = [
        (256, "extra_attr,inode_checksum,sb_checksum,inode_crtime", ""),
        (64, "extra_attr", ""),
        (256, "extra_attr,compression", ""),
        (256, "extra_attr", support::direct_write()),
    ];
    for (kind, (mebibytes, features, options)) in (1..).zip(kinds) {
        let mut bench = Bench::new(mebibytes, &["-O", features]);
        bench.mount(options);
        if features.contains("compression") {
            let dir = File::open(bench.path("")).unwrap();
            // FS_COMPR_FL, which new files inherit.
            let flags = rustix::fs::ioctl_getflags(&dir).unwrap() | rustix::fs::IFlags::COMPRESSED;
            rustix::fs::ioctl_setflags(&dir, flags).unwrap();
        }
        let mut model = Vec::new();
        let mut round = 0;
        while time.map_or(round < ROUNDS, |time| started.elapsed() < time) || round == 0 {
            let mut case = Case::new(&bench, seed.wrapping_mul(1000).wrapping_add(round), model);
            (0..CALLS).for_each(|_| case.call());
            model = case.end();
            bench.unmount_clean();
            bench.mount(options);
            round += 1;
            // Each kind of volume gets an equal share of the time.
            if time.is_some_and(|time| started.elapsed() > time / kinds.len() as u32 * kind && round > 3) {
                break;
            }
        }
        bench.unmount();
        eprintln!("{features} {options}: {} calls", round * CALLS);
    }
}

/// A file and its expected content.
struct Case<'a> {
    bench: &'a Bench,
    file: File,
    direct: File,
    /// Opened for reading only.
    reader: File,
    model: Vec<u8>,
    rng: Rng,
    seed: u64,
    done: Vec<String>,
}

impl Case<'_> {
    fn new(bench: &Bench, seed: u64, model: Vec<u8>) -> Case<'_> {
        let [file, direct, reader] = open_all(bench);
        let case = Case { bench, file, direct, reader, model, rng: Rng::new(seed), seed, done: Vec::new() };
        case.compare("the file as it was found");
        case
    }

    fn end(self) -> Vec<u8> {
        self.compare("the file at the end");
        self.model
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound.max(1))
    }

    /// Returns a range that begins in the file or a little past its end; its bounds are often block
    /// boundaries.
    fn range(&mut self) -> (u64, u64) {
        let size = self.model.len() as u64;
        let mut at = self.below((size + 20_000).min(MOST));
        let mut length = 1 + match self.below(4) {
            0 => self.below(100),
            1 | 2 => self.below(20_000),
            _ => self.below(200_000),
        };
        if self.below(3) == 0 {
            at &= !(BLOCK - 1);
        }
        if self.below(3) == 0 {
            length = length.next_multiple_of(BLOCK);
        }
        (at, length.min(MOST - at).max(1))
    }

    fn call(&mut self) {
        let (at, length) = self.range();
        let (start, end) = (at as usize, (at + length) as usize);
        let kind = self.below(20);
        self.done.push(format!("{kind}: {at}+{length}, size {}", self.model.len()));
        match kind {
            0..=3 => self.write(at, length),
            4..=6 => self.read(at, length),
            7 => self.write_direct(at, length),
            8 => self.read_direct(at, length),
            9 => {
                self.file.set_len(at).unwrap();
                self.model.resize(start, 0);
            }
            10 | 11 => self.store(at, length),
            12 => self.load(at, length),
            13 => {
                self.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, length);
                self.zero(start, end);
            }
            14 => {
                let keeps = self.below(2) == 0;
                let flags = if keeps { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                self.allocate(FallocateFlags::ZERO_RANGE | flags, at, length);
                self.zero(start, end);
                self.grow(if keeps { 0 } else { end });
            }
            15 => {
                let keeps = self.below(2) == 0;
                let flags = if keeps { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                self.allocate(flags, at, length);
                self.grow(if keeps { 0 } else { end });
            }
            16 => self.copy(at, length),
            17 => self.seek(at),
            18 => self.move_range(at),
            _ => match self.below(4) {
                0 => self.file.sync_data().unwrap(),
                1 => self.file.sync_all().unwrap(),
                2 => [self.file, self.direct, self.reader] = open_all(self.bench),
                // Drops clean pages from the page cache.
                _ => rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed).unwrap(),
            },
        }
        let size = self.file.metadata().unwrap().len();
        if size != self.model.len() as u64 {
            self.fail(&format!("the file has {size} bytes"));
        }
    }

    fn noise(&mut self, length: u64) -> Vec<u8> {
        // Some of it is compressible.
        let (first, step) = (self.below(256), self.below(8));
        (0..length).map(|at| (first + at * step / 16 + (self.rng.next_u64() & step)) as u8).collect()
    }

    fn put(&mut self, start: usize, data: &[u8]) {
        self.grow(start + data.len());
        self.model[start..start + data.len()].copy_from_slice(data);
    }

    fn grow(&mut self, size: usize) {
        self.model.resize(self.model.len().max(size), 0);
    }

    fn zero(&mut self, start: usize, end: usize) {
        let size = self.model.len();
        self.model[start.min(size)..end.min(size)].fill(0);
    }

    fn allocate(&self, flags: FallocateFlags, at: u64, length: u64) {
        rustix::fs::fallocate(&self.file, flags, at, length)
            .unwrap_or_else(|errno| self.fail(&format!("{errno}")));
    }

    /// Tries to insert or collapse a block, which Linux's FUSE refuses itself.
    fn move_range(&mut self, at: u64) {
        let inserts = self.below(2) == 0;
        let flags = if inserts { FallocateFlags::INSERT_RANGE } else { FallocateFlags::COLLAPSE_RANGE };
        let refused = rustix::fs::fallocate(&self.file, flags, at & !(BLOCK - 1), BLOCK);
        assert_eq!(refused, Err(Errno::OPNOTSUPP));
    }

    fn write(&mut self, at: u64, length: u64) {
        let data = self.noise(length);
        self.file.write_all_at(&data, at).unwrap_or_else(|error| self.fail(&format!("write: {error}")));
        self.put(at as usize, &data);
    }

    /// Writes the whole blocks of a range past the page cache.
    fn write_direct(&mut self, at: u64, length: u64) {
        let (at, end) = (at & !(BLOCK - 1), (at + length).next_multiple_of(BLOCK));
        let data = self.noise(end - at);
        with_aligned(data.len(), |room| {
            room.copy_from_slice(&data);
            self.direct.write_all_at(room, at).unwrap_or_else(|error| self.fail(&format!("direct: {error}")));
        });
        self.put(at as usize, &data);
    }

    /// Reads the whole blocks of a range past the page cache.
    fn read_direct(&mut self, at: u64, length: u64) {
        let (at, end) = (at & !(BLOCK - 1), (at + length).next_multiple_of(BLOCK));
        with_aligned((end - at) as usize, |room| {
            let count =
                self.direct.read_at(room, at).unwrap_or_else(|error| self.fail(&format!("direct: {error}")));
            self.check("direct read", at, &room[..count], end - at);
        });
    }

    fn read(&mut self, at: u64, length: u64) {
        let (who, file) =
            if self.below(2) == 0 { ("read", &self.file) } else { ("read by a reader", &self.reader) };
        let mut data = vec![1; length as usize];
        let count = file.read_at(&mut data, at).unwrap_or_else(|error| self.fail(&format!("{who}: {error}")));
        self.check(who, at, &data[..count], length);
    }

    /// Stores into a mapping, within the file.
    fn store(&mut self, at: u64, length: u64) {
        let Some((at, length)) = self.inside(at, length) else { return };
        let data = self.noise(length);
        let sync = (self.below(2) == 0).then_some(MsyncFlags::SYNC);
        self.mapped(at, length, |bytes| bytes.copy_from_slice(&data), sync);
        self.put(at as usize, &data);
    }

    /// Loads from a mapping, and checks that the rest of the last page is zero.
    fn load(&mut self, at: u64, length: u64) {
        let Some((at, length)) = self.inside(at, length) else { return };
        let mut data = Vec::new();
        self.mapped(at, length, |bytes| data = bytes.to_vec(), None);
        self.check("load", at, &data, length);
        let size = self.model.len() as u64;
        let rest = size.next_multiple_of(BLOCK) - size;
        let mut behind = Vec::new();
        self.mapped(size, rest, |bytes| behind = bytes.to_vec(), None);
        if behind.iter().any(|byte| *byte != 0) {
            self.fail("there is something behind the end");
        }
    }

    fn inside(&self, at: u64, length: u64) -> Option<(u64, u64)> {
        let size = self.model.len() as u64;
        (at < size).then(|| (at, length.min(size - at)))
    }

    /// Maps a range, calls `access` with it, and syncs it with these flags of msync(2), if any.
    fn mapped(&self, at: u64, length: u64, access: impl FnOnce(&mut [u8]), sync: Option<MsyncFlags>) {
        let start = at & !(BLOCK - 1);
        let whole = (at + length - start) as usize;
        if whole == 0 || length == 0 {
            return;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address; the memory is used only here, within the file's pages, and
        // unmapped when no reference to it is left.
        unsafe {
            let memory = rustix::mm::mmap(
                std::ptr::null_mut(),
                whole,
                protection,
                MapFlags::SHARED,
                &self.file,
                start,
            )
            .unwrap();
            let inside = memory.cast::<u8>().add((at - start) as usize);
            access(std::slice::from_raw_parts_mut(inside, length as usize));
            if let Some(flags) = sync {
                rustix::mm::msync(memory, whole, flags).unwrap();
            }
            rustix::mm::munmap(memory, whole).unwrap();
        }
    }

    /// Copies within the file to a range that does not overlap.
    fn copy(&mut self, at: u64, length: u64) {
        let Some((at, length)) = self.inside(at, length) else { return };
        let to = self.below(MOST - length);
        if to < at + length && at < to + length {
            return;
        }
        let (mut from, mut into) = (at, to);
        while from < at + length {
            let left = (at + length - from) as usize;
            let count =
                rustix::fs::copy_file_range(&self.file, Some(&mut from), &self.file, Some(&mut into), left)
                    .unwrap_or_else(|errno| self.fail(&format!("copy to {to}: {errno}")));
            assert!(count > 0, "nothing was copied");
        }
        let data = self.model[at as usize..(at + length) as usize].to_vec();
        self.put(to as usize, &data);
    }

    /// Checks that everything before the next data is zero.
    fn seek(&self, at: u64) {
        let size = self.model.len() as u64;
        let data = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => size.max(at),
            Err(errno) => self.fail(&format!("seek: {errno}")),
        };
        let hole = self.model.get(at as usize..data.min(size) as usize).unwrap_or_default();
        if hole.iter().any(|byte| *byte != 0) {
            self.fail(&format!("the next data is reported at {data}"));
        }
        let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(at));
        match hole {
            Ok(hole) if (at..=size).contains(&hole) => {}
            Err(Errno::NXIO) if at >= size => {}
            other => self.fail(&format!("the next hole is {other:?}")),
        }
    }

    fn compare(&self, what: &str) {
        let path = self.bench.path("file");
        let found = std::fs::read(path).unwrap();
        self.check(what, 0, &found, u64::MAX);
    }

    /// Compares the bytes that a read of `asked` bytes at `at` returned with the model.
    fn check(&self, what: &str, at: u64, found: &[u8], asked: u64) {
        let size = self.model.len();
        let start = size.min(at as usize);
        let wanted =
            &self.model[start..size.min(start.saturating_add(asked.try_into().unwrap_or(usize::MAX)))];
        if found != wanted {
            let first = found.iter().zip(wanted).position(|(one, other)| one != other);
            self.fail(&format!(
                "{what} from {at}: {} bytes for {}, the first difference at {:?}",
                found.len(),
                wanted.len(),
                first.map(|first| at as usize + first)
            ));
        }
    }

    fn fail(&self, what: &str) -> ! {
        let calls = &self.done[self.done.len().saturating_sub(40)..];
        panic!("seed {}, call {}: {what}\n{}", self.seed, self.done.len(), calls.join("\n"))
    }
}

/// Opens the file three times: for buffered access, with O_DIRECT, and for reading only.
fn open_all(bench: &Bench) -> [File; 3] {
    let open = |flags: i32| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
        options.open(bench.path("file")).unwrap()
    };
    [open(0), open(OFlags::DIRECT.bits() as i32), File::open(bench.path("file")).unwrap()]
}
