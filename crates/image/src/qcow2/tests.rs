//! Power cuts and I/O errors at every request, judged by qemu-img.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use block::{MemoryDevice, Recording, Request, Rng, Survivors, power_cut};

use super::*;

const SECTOR: usize = 512;
/// Memory for the file, which grows in it.
const FILE_BYTES: u64 = 8 << 20;
/// A request that never comes.
const NEVER: u64 = u64::MAX;

/// A file in memory that records its requests and fails one of them.
struct Disk {
    bytes: Recording<MemoryDevice>,
    size_bytes: AtomicU64,
    /// Number of requests before the one that fails.
    fails_after: AtomicU64,
    /// Held up by the next flush, if it is there: a message that the flush has begun, and one that ends it.
    holds_up: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
}

impl Disk {
    fn new(content: &[u8], fails_after: u64) -> Disk {
        let bytes = MemoryDevice::new(FILE_BYTES);
        bytes.write(0, content).unwrap();
        let size_bytes = (content.len() as u64).into();
        let (bytes, holds_up) = (Recording::with_data(bytes), Mutex::default());
        Disk { bytes, size_bytes, fails_after: fails_after.into(), holds_up }
    }

    fn request(&self) -> io::Result<()> {
        match self.fails_after.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(io::Error::other("injected")),
            _ => Ok(()),
        }
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = self.bytes.inner().to_vec();
        bytes.truncate(self.size_bytes.load(Ordering::Relaxed) as usize);
        bytes
    }
}

impl Device for Disk {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Relaxed), sector_bytes: 512 }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.request()?;
        self.bytes.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.request()?;
        self.bytes.write(offset_bytes, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.request()?;
        let holds_up = lock(&self.holds_up).take();
        if let Some((begun, end)) = holds_up {
            begun.send(()).unwrap();
            end.recv().unwrap();
        }
        self.bytes.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.request()?;
        self.bytes.discard(offset_bytes, length_bytes)
    }
}

impl ImageFile for Disk {
    fn is_writable(&self) -> bool {
        true
    }

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.request()?;
        assert!(size_bytes <= FILE_BYTES, "the test needs more memory");
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// The bytes that each sector, which is filled with one byte, may have now, and after a crash.
#[derive(Clone)]
struct Model {
    now: Vec<Vec<u8>>,
    after_crash: Vec<Vec<u8>>,
}

impl Model {
    fn change(&mut self, sectors: std::ops::Range<usize>, byte: u8, done: &io::Result<()>) {
        for sector in sectors {
            match done {
                Ok(()) => self.now[sector] = vec![byte],
                Err(_) => self.now[sector].push(byte),
            }
            self.after_crash[sector].push(byte);
        }
    }

    fn sync(&mut self) {
        self.after_crash = self.now.clone();
    }

    /// Compares the disk in a file with the content that may be there after a crash.
    fn check(&self, file: Disk, context: &str) {
        let disk = Qcow2::open(Arc::new(file), |_| panic!("there is no backing file")).unwrap();
        let mut bytes = vec![0; self.now.len() * SECTOR];
        disk.read(0, &mut bytes).unwrap();
        for (n, (sector, allowed)) in bytes.chunks(SECTOR).zip(&self.after_crash).enumerate() {
            let has_one_byte = sector.iter().all(|byte| *byte == sector[0]);
            assert!(
                has_one_byte && allowed.contains(&sector[0]),
                "{context}: sector {n} has {}, not {allowed:?}",
                sector[0]
            );
        }
    }
}

/// Lets qemu-img check a file. Leaked clusters are allowed.
fn judge(dir: &Path, bytes: &[u8], context: &str) {
    fs::write(dir.join("cut"), bytes).unwrap();
    let output = Command::new("qemu-img").args(["check", "-f", "qcow2", "cut"]).current_dir(dir).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{context}: {said}");
}

/// Makes an image whose first sectors are filled. Returns None with a message without qemu-img.
fn image(dir: &Path, options: &str, sectors: usize, filled: usize) -> Option<(Vec<u8>, Model)> {
    let size = (sectors * SECTOR).to_string();
    let create = ["create", "-q", "-f", "qcow2", "-o", options, "q", &size];
    let Ok(status) = Command::new("qemu-img").args(create).current_dir(dir).status() else {
        eprintln!("skipped: qemu-img is missing");
        return None;
    };
    assert!(status.success());
    let file = Arc::new(Disk::new(&fs::read(dir.join("q")).unwrap(), NEVER));
    let disk = Qcow2::open(file.clone(), |_| unreachable!()).unwrap();
    disk.write(0, &vec![1; filled * SECTOR]).unwrap();
    disk.flush().unwrap();
    let mut now = vec![vec![0]; sectors];
    now[..filled].fill(vec![1]);
    Some((file.content(), Model { after_crash: now.clone(), now }))
}

/// Changes a disk at random. Calls `after` with the model after each operation, and true if that was a flush.
fn change(disk: &Qcow2, seed: u64, model: &mut Model, mut after: impl FnMut(&Model, bool)) {
    let mut rng = Rng::new(seed);
    let sectors = model.now.len();
    for _ in 0..16 {
        // Most of a large disk is there only to fill the file.
        let start = sectors - 1 - rng.below(sectors.min(800) as u64) as usize;
        let end = (start + 1 + rng.below(12) as usize).min(sectors);
        let (at, bytes) = ((start * SECTOR) as u64, (end - start) * SECTOR);
        let mut flushed = false;
        match rng.below(6) {
            0 => {
                let cluster = disk.header.cluster_bytes() as usize / SECTOR;
                let whole = start.next_multiple_of(cluster)..end / cluster * cluster;
                let done = disk.discard(at, bytes as u64);
                model.change(whole.start..whole.end.max(whole.start), 0, &done);
            }
            1 | 2 => {
                flushed = disk.flush().is_ok();
                if flushed {
                    model.sync();
                }
            }
            _ => {
                let byte = 2 + rng.below(250) as u8;
                let done = disk.write(at, &vec![byte; bytes]);
                model.change(start..end, byte, &done);
            }
        }
        after(model, flushed);
    }
}

/// Images: one whose refcount table grows during the changes, one with 4 KiB clusters, and one of version 2.
const IMAGES: [(&str, usize, usize); 3] = [
    ("cluster_size=512,refcount_bits=64", 4400, 3945),
    ("cluster_size=4096", 256, 40),
    ("cluster_size=1024,compat=0.10", 256, 40),
];

#[test]
fn a_power_cut_at_any_request_leaks_clusters_at_most_and_loses_no_synced_data() {
    let dir = tempfile::tempdir().unwrap();
    let mut grown = 0;
    for (seed, (options, sectors, filled)) in (1..).zip(IMAGES) {
        let Some((start, mut model)) = image(dir.path(), options, sectors, filled) else { return };
        let file = Arc::new(Disk::new(&start, NEVER));
        let disk = Qcow2::open(file.clone(), |_| unreachable!()).unwrap();
        let table_at = disk.header.refcount_table_at;
        // For each request, the content that a cut behind it may leave.
        let mut models: Vec<Model> = vec![model.clone()];
        change(&disk, seed, &mut model, |now, flushed| {
            let done = file.bytes.trace().len();
            let before = models.last().unwrap().clone();
            // Within a flush, what it makes durable is not yet so.
            let within = if flushed { &before } else { now };
            models.resize(done.max(1), within.clone());
            models.push(now.clone());
        });
        grown += u64::from(Header::read(&*file).unwrap().refcount_table_at != table_at);
        let trace: Vec<Request> = file.bytes.trace();
        let size = file.geometry().size_bytes as usize;
        for at in 0..=trace.len() {
            if at > 0 && trace[at - 1].verb == block::Verb::Read {
                continue;
            }
            for survivors in [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }] {
                let after = MemoryDevice::new(FILE_BYTES);
                after.write(0, &start).unwrap();
                power_cut(&trace, at, &survivors, &after).unwrap();
                let context = format!("{options}, a cut behind {at} requests, {survivors:?}");
                let bytes = &after.to_vec()[..size];
                judge(dir.path(), bytes, &context);
                models[at.min(models.len() - 1)].check(Disk::new(bytes, NEVER), &context);
            }
        }
    }
    assert_eq!(grown, 1, "the refcount table grows in one of the images");
}

#[test]
fn an_error_at_any_request_corrupts_nothing_and_loses_no_synced_data() {
    let dir = tempfile::tempdir().unwrap();
    for (seed, (options, sectors, filled)) in (1..).zip(IMAGES) {
        let Some((start, model)) = image(dir.path(), options, sectors, filled) else { return };
        for failing in 0.. {
            let (file, mut model) = (Arc::new(Disk::new(&start, failing)), model.clone());
            let opened = Qcow2::open(file.clone(), |_| unreachable!());
            if let Ok(disk) = &opened {
                change(disk, seed, &mut model, |_, _| {});
            }
            drop(opened);
            let context = format!("{options}, an error at request {failing}");
            judge(dir.path(), &file.content(), &context);
            model.check(Disk::new(&file.content(), NEVER), &context);
            // The counter wraps at the request that fails.
            if file.fails_after.load(Ordering::Relaxed) < NEVER / 2 {
                break;
            }
        }
    }
}

/// The writer would have the lock of a mounted volume, and its readers would wait for the flush, too.
#[test]
fn others_read_and_write_while_the_file_is_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let Some((bytes, _)) = image(dir.path(), "cluster_size=4k", 1024, 0) else { return };
    let file = Arc::new(Disk::new(&bytes, NEVER));
    let disk = Qcow2::open(file.clone(), |_| panic!("there is no backing file")).unwrap();
    let sectors = |byte: u8| vec![byte; 4096];
    let read = |disk: &Qcow2, at: u64| {
        let mut content = vec![0; 4096];
        disk.read(at, &mut content).unwrap();
        content
    };
    disk.write(0, &sectors(1)).unwrap();
    let ((begun, has_begun), (end, ends)) = (mpsc::channel(), mpsc::channel());
    *lock(&file.holds_up) = Some((begun, ends));
    thread::scope(|scope| {
        let flush = scope.spawn(|| disk.flush());
        has_begun.recv().unwrap();
        // One cluster is given up and another one taken; the L2 table is that of the flush.
        disk.discard(0, 4096).unwrap();
        disk.write(8192, &sectors(2)).unwrap();
        assert!(read(&disk, 0) == sectors(0) && read(&disk, 8192) == sectors(2));
        end.send(()).unwrap();
        flush.join().unwrap().unwrap();
    });
    judge(dir.path(), &file.content(), "after the flush");
    let reopened = |file: &Disk| {
        Qcow2::open(Arc::new(Disk::new(&file.content(), NEVER)), |_| panic!("there is no backing file"))
            .unwrap()
    };
    let cut = reopened(&file);
    assert!(read(&cut, 0) == sectors(1), "what was written before the flush is durable");
    assert!(read(&cut, 8192) == sectors(0), "what was written since is in memory");
    disk.flush().unwrap();
    judge(dir.path(), &file.content(), "after the second flush");
    let cut = reopened(&file);
    assert!(read(&cut, 0) == sectors(0) && read(&cut, 8192) == sectors(2));
}

/// A missing refcount block was made in the header's cluster, again and again.
#[test]
fn an_image_without_refcounts_of_its_metadata_is_refused_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let Some((content, _)) = image(dir.path(), "cluster_size=512", 400, 40) else { return };
    let header = Header::read(&Disk::new(&content, NEVER)).unwrap();
    let table = header.refcount_table_at as usize;
    let without_block = [&content[..table], &[0; 8], &content[table + 8..]].concat();
    // The number of clusters of the table, at byte 56 of the header.
    let without_table = [&content[..56], &[0; 4], &content[60..]].concat();
    for damaged in [without_block, without_table] {
        let file = Arc::new(Disk::new(&damaged, NEVER));
        let write =
            || Qcow2::open(file.clone(), |_| unreachable!())?.write(200 * SECTOR as u64, &[7; SECTOR]);
        let error = write().unwrap_err().to_string();
        assert!(error.contains("qemu-img check -r all"), "{error}");
        assert!(file.content() == damaged);
    }
}
