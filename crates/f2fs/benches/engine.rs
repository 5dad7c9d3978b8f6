//! Measures the cost of the engine on a device in memory: no kernel, no file, one thread. Each result is a line of JSON:
//! `{"what", "figure", "unit"}`. `make bench` runs it.

use std::{
    error::Error,
    io::{Write, stdout},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use block::{Counted, Device, MemoryDevice, Rng};
use f2fs::{
    engine::{Caller, Engine, NewNode, Options, SetAttr, SyncScope},
    mkfs::{self, DeviceContent, DeviceSize, Plan},
    units::{Ino, Time},
};
use serde_json::json;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Size of the file that is written.
const FILE_BYTES: u64 = 512 << 20;
/// Size of its volume: in a few passes every block of the device has been touched, so that what is measured is
/// the engine and not the first touch of memory.
const VOLUME_BYTES: u64 = 1280 << 20;
const PASSES: usize = 7;

fn main() -> Result<()> {
    tell("sequential write of 1 MiB pieces", sequential_write()? / 1e9, "GB/s")?;
    tell("random 4 KiB overwrites, all checkpoints counted", random_overwrite()?, "1/s")?;
    let (creates, stats, unlinks) = small_files()?;
    tell("creating files of 100 bytes", creates, "1/s")?;
    tell("lookup and stat", stats, "1/s")?;
    tell("unlinking", unlinks, "1/s")?;
    let all = 1.0 / (1.0 / creates + 1.0 / stats + 1.0 / unlinks);
    tell("small files created, examined and removed", all, "1/s")?;
    let (writes, flushes) = overwrite_and_fsync()?;
    tell("fsync of a 4 KiB overwrite: blocks written", writes, "blocks")?;
    tell("fsync of a 4 KiB overwrite: flushes", flushes, "flushes")?;
    let (longest, all) = checkpoint()?;
    tell("checkpoint of 20,000 inodes: longest wait of a reader", longest, "ms")?;
    tell("checkpoint of 20,000 inodes: without the flushes", all, "ms")?;
    tell("opening a clean 1 TiB volume", open_large()?, "blocks read")
}

fn tell(what: &str, figure: f64, unit: &str) -> Result<()> {
    Ok(writeln!(stdout(), "{}", json!({ "what": what, "figure": figure, "unit": unit }))?)
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

fn volume(device: Arc<dyn Device>) -> Result<Engine> {
    let options = mkfs::Options::new([7; 16]);
    let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
    let plan = Plan::new(&options, &[size])?;
    mkfs::NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, Options::new(now))?.finish()?;
    Ok(Engine::open(device, Options::new(now))?)
}

fn file(volume: &mut Engine, name: &[u8]) -> Result<Ino> {
    let root = volume.superblock().root_ino;
    Ok(volume.begin(Caller::ADMIN).create(root, name, &NewNode::new(0o100_644))?)
}

/// The longest time in ms for which a checkpoint of many changed inodes excludes readers, and the sum of these
/// times; the medians of the passes.
fn checkpoint() -> Result<(f64, f64)> {
    const FILES: u32 = 20_000;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    drop(volume(device.clone())?);
    let mut volume = Engine::open(device, Options { cache_bytes: 1 << 30, ..Options::new(now) })?;
    let files: Vec<Ino> =
        (0..FILES).map(|n| file(&mut volume, format!("{n}").as_bytes())).collect::<Result<_>>()?;
    volume.checkpoint()?;
    let (mut longest, mut sums) = (Vec::new(), Vec::new());
    for pass in 0..PASSES {
        for ino in &files {
            let set = SetAttr { permissions: Some(0o600 + pass as u16), ..SetAttr::default() };
            volume.begin(Caller::ADMIN).set_attr(*ino, &set)?;
        }
        let (mut begun, mut times) = (Instant::now(), Vec::new());
        let mut next = volume.begin_checkpoint()?;
        while let Some(pending) = next {
            times.push(begun.elapsed());
            let outcome = pending.run();
            begun = Instant::now();
            next = volume.finish(outcome)?;
        }
        times.push(begun.elapsed());
        sums.push(times.iter().sum());
        longest.extend(times.into_iter().max());
    }
    Ok((median(longest) * 1000.0, median(sums) * 1000.0))
}

/// Bytes a second, the median of the passes.
fn sequential_write() -> Result<f64> {
    let mut volume = volume(Arc::new(MemoryDevice::new(VOLUME_BYTES)))?;
    let data = vec![0x5A; 1 << 20];
    let mut times = Vec::new();
    for pass in 0..PASSES {
        let ino = file(&mut volume, format!("{pass}").as_bytes())?;
        let begun = Instant::now();
        for offset in (0..FILE_BYTES).step_by(data.len()) {
            volume.begin(Caller::ADMIN).write(ino, offset, &data)?;
        }
        volume.fsync(ino, SyncScope::Everything)?;
        times.push(begun.elapsed());
        let root = volume.superblock().root_ino;
        volume.begin(Caller::ADMIN).unlink(root, format!("{pass}").as_bytes())?;
        volume.checkpoint()?;
    }
    Ok(FILE_BYTES as f64 / median(times))
}

/// Overwrites a second, the median of the passes.
fn random_overwrite() -> Result<f64> {
    const WRITES: u32 = 200_000;
    let mut volume = volume(Arc::new(MemoryDevice::new(VOLUME_BYTES)))?;
    let ino = file(&mut volume, b"file")?;
    for offset in (0..FILE_BYTES).step_by(1 << 20) {
        volume.begin(Caller::ADMIN).write(ino, offset, &[1; 1 << 20])?;
    }
    volume.checkpoint()?;
    let mut rng = Rng::new(1);
    let mut times = Vec::new();
    let block = [2; 4096];
    for _ in 0..PASSES {
        let begun = Instant::now();
        for _ in 0..WRITES {
            volume.begin(Caller::ADMIN).write(ino, rng.below(FILE_BYTES / 4096) * 4096, &block)?;
        }
        volume.checkpoint()?;
        times.push(begun.elapsed());
    }
    Ok(f64::from(WRITES) / median(times))
}

/// Files created, looked up and unlinked a second.
fn small_files() -> Result<(f64, f64, f64)> {
    const FILES: u32 = 100_000;
    let mut volume = volume(Arc::new(MemoryDevice::new(VOLUME_BYTES)))?;
    let root = volume.superblock().root_ino;
    let names: Vec<String> = (0..FILES).map(|n| format!("a file of a usual name {n}.txt")).collect();
    let rate = |begun: Instant| f64::from(FILES) / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    for name in &names {
        let ino = file(&mut volume, name.as_bytes())?;
        volume.begin(Caller::ADMIN).write(ino, 0, &[3; 100])?;
    }
    volume.checkpoint()?;
    let creates = rate(begun);
    let begun = Instant::now();
    for name in &names {
        volume.stat(volume.lookup(root, name.as_bytes())?)?;
    }
    let stats = rate(begun);
    let begun = Instant::now();
    for name in &names {
        volume.begin(Caller::ADMIN).unlink(root, name.as_bytes())?;
    }
    volume.checkpoint()?;
    Ok((creates, stats, rate(begun)))
}

/// Blocks written and flushes for one fsync of one overwritten block, the worst of many. The file was fsynced
/// before, as a database's is.
fn overwrite_and_fsync() -> Result<(f64, f64)> {
    let device = Arc::new(Counted::new(MemoryDevice::new(VOLUME_BYTES)));
    let mut volume = volume(device.clone())?;
    let ino = file(&mut volume, b"file")?;
    volume.begin(Caller::ADMIN).write(ino, 0, &vec![1; 16 << 20])?;
    volume.checkpoint()?;
    volume.fsync(ino, SyncScope::Everything)?;
    let (mut blocks, mut flushes) = (0, 0);
    for n in 0..1000 {
        let before = device.counts();
        volume.begin(Caller::ADMIN).write(ino, n % 4096 * 4096, &[2; 4096])?;
        volume.fsync(ino, SyncScope::Everything)?;
        let after = device.counts();
        blocks = blocks.max((after.written_bytes - before.written_bytes) / 4096);
        flushes = flushes.max(after.flushes - before.flushes);
    }
    Ok((blocks as f64, flushes as f64))
}

/// Blocks read by opening a clean volume of 1 TiB that has some files, and finding one of them.
fn open_large() -> Result<f64> {
    let device = Arc::new(Counted::new(MemoryDevice::new(1 << 40)));
    let mut made = volume(device.clone())?;
    for n in 0..1000 {
        let ino = file(&mut made, format!("{n}").as_bytes())?;
        made.begin(Caller::ADMIN).write(ino, 0, &[4; 5000])?;
    }
    made.unmount()?;
    drop(made);
    let before = device.counts().read_bytes;
    let opened = Engine::open(device.clone(), Options::new(now))?;
    opened.lookup(opened.superblock().root_ino, b"7")?;
    Ok((device.counts().read_bytes - before) as f64 / 4096.0)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}
