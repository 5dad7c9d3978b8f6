//! The same power cuts for `flashkit resize` and resize.f2fs.
//!
//! strace(1) records the writes and flushes of a program with their data. Each prefix of the recording, with the unflushed
//! writes lost, kept in order, or reordered and torn at 512 bytes, is the state of a device after a power cut.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use block::{Device, FileDevice, OpenOptions, Overlay, Request, Survivors, Verb, power_cut, replay};
use f2fs::engine::{Engine, Options};
use model::setup::system;

use super::{CASES, Case, FSCK_SECONDS, MIB, Program, Trial, WantedFile};
use crate::interrupt;

/// The fifth volume, which has more files.
const FULLER: Case = Case {
    name: "shrunk by an eighth, with more files",
    mkfs: &[],
    bytes: 128 * MIB,
    percent: 62,
    new_bytes: 112 * MIB,
};
/// Longest data of one write that a recording has, in bytes.
const STRACE_STRING_BYTES: &str = "16777216";

/// Counts of the volumes after cuts.
#[derive(Debug, Default)]
struct Counts {
    writes: u64,
    cuts: u64,
    /// Volumes in which a file is missing or differs.
    not_whole: u64,
    /// The same after `fsck.f2fs -f -y`.
    not_repaired: u64,
}

/// Cuts the power of both programs after their writes, and prints the number of volumes that are not whole then, and not after
/// a repair by fsck.f2fs either. At most `most` writes of each resize are tried, evenly spread.
///
/// # Errors
/// A program is missing, or `flashkit resize` leaves a volume that is not whole.
pub fn cuts(most: u64, flashkit: Option<PathBuf>, out: &mut impl Write) -> Result<()> {
    let work = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let flashkit = flashkit.map_or_else(crate::trial::rescue::built, Ok)?;
    writeln!(
        out,
        "| resize | program | result without a cut | writes | cuts | not whole | not whole after fsck.f2fs -f -y |"
    )?;
    writeln!(out, "|---|---|---|---:|---:|---:|---:|")?;
    let mut lost = 0;
    for case in CASES.iter().chain([&FULLER]) {
        let start = work.path().join("start.img");
        let files = case.make(&start)?;
        for program in [Program::Flashkit, Program::ResizeF2fs] {
            let trial =
                Trial { case, program, flashkit: &flashkit, start: &start, files: &files, work: work.path() };
            let (result, counts) = run(&trial, most)?;
            if program == Program::Flashkit {
                lost += counts.not_whole;
            }
            let Counts { writes, cuts, not_whole, not_repaired } = counts;
            let (name, program) = (case.name, program.name());
            writeln!(
                out,
                "| {name} | {program} | {result} | {writes} | {cuts} | {not_whole} | {not_repaired} |"
            )?;
            out.flush()?;
        }
    }
    ensure!(lost == 0, "flashkit resize left {lost} volumes that are not whole");
    Ok(())
}

/// Records a resize, and examines the volume after cuts.
fn run(trial: &Trial<'_>, most: u64) -> Result<(&'static str, Counts)> {
    let trace = record(trial)?;
    let result = trial.result()?;
    let writes: Vec<usize> = trace
        .iter()
        .enumerate()
        .filter(|(_, request)| request.verb == Verb::Write)
        .map(|(at, _)| at)
        .collect();
    let mut counts = Counts { writes: writes.len() as u64, ..Counts::default() };
    let tried = most.min(counts.writes);
    // The image as it is when the program starts.
    trial.prepare()?;
    let start = Arc::new(FileDevice::open(trial.image(), OpenOptions::default())?);
    let mut flushed = Base { device: Arc::new(Overlay::new(start.clone())), requests: 0 };
    for n in 0..tried {
        interrupt::check()?;
        let at = writes[(n * counts.writes / tried) as usize];
        flushed.advance(&trace, at)?;
        for survivors in [Survivors::None, Survivors::All, Survivors::Torn { seed: at as u64 }] {
            let device = Arc::new(Overlay::new(flushed.device.clone()));
            let pending = &trace[flushed.requests..=at];
            power_cut(pending, pending.len(), &survivors, &*device)?;
            counts.cuts += 1;
            if !is_whole(device.clone(), trial.files) {
                counts.not_whole += 1;
                counts.not_repaired += u64::from(!is_whole_after_repair(&*device, trial)?);
            }
        }
    }
    Ok((result, counts))
}

/// The image with all requests up to a flush.
struct Base {
    device: Arc<Overlay<Arc<FileDevice>>>,
    requests: usize,
}

impl Base {
    /// Applies the requests up to the last flush before `at`.
    fn advance(&mut self, trace: &[Request], at: usize) -> Result<()> {
        let last = trace[..at].iter().rposition(|request| request.verb == Verb::Flush);
        if let Some(end) = last.map(|last| last + 1).filter(|end| *end > self.requests) {
            replay(&trace[self.requests..end], &*self.device)?;
            self.requests = end;
        }
        Ok(())
    }
}

/// Returns true if a volume opens and has all files.
fn is_whole(device: Arc<dyn Device>, files: &[WantedFile]) -> bool {
    let Ok(volume) = Engine::open(device, Options::read_only()) else { return false };
    files.iter().all(|file| file.is_in(&volume).unwrap_or(false))
}

/// Returns true if a volume has all files after `fsck.f2fs -f -y`.
fn is_whole_after_repair(device: &dyn Device, trial: &Trial<'_>) -> Result<bool> {
    let image = trial.work.join("repaired.img");
    let _ = fs::remove_file(&image);
    let file = File::create(&image)?;
    let size = device.geometry().size_bytes;
    file.set_len(size)?;
    let mut chunk = vec![0; MIB as usize];
    for offset in (0..size).step_by(chunk.len()) {
        let length = (size - offset).min(chunk.len() as u64) as usize;
        device.read(offset, &mut chunk[..length])?;
        if chunk[..length].iter().any(|byte| *byte != 0) {
            file.write_all_at(&chunk[..length], offset)?;
        }
    }
    // Exit codes of fsck.f2fs say little; the files decide.
    system("timeout").args([FSCK_SECONDS, "fsck.f2fs", "-f", "-y"]).arg(&image).output()?;
    Ok(is_whole(Arc::new(FileDevice::open(&image, OpenOptions::default())?), trial.files))
}

/// Records the writes and flushes of a resize.
fn record(trial: &Trial<'_>) -> Result<Vec<Request>> {
    let log = trial.work.join("strace");
    // One log for each thread: only one of them writes to the image.
    for old in logs(trial.work)? {
        fs::remove_file(old)?;
    }
    let calls = "trace=write,pwrite64,pwritev,pwritev2,writev,lseek,_llseek,fsync,fdatasync,sync_file_range,io_uring_enter";
    trial.prepare()?;
    let log = log.to_str().context("a path of text")?;
    trial.resize_with(&["-ff", "-y", "-xx", "-s", STRACE_STRING_BYTES, "-o", log, "-e", calls])?;
    let image = trial.image().canonicalize()?;
    let mut traces = Vec::new();
    for path in logs(trial.work)? {
        let trace = parse(BufReader::new(File::open(&path)?), &image)?;
        fs::remove_file(&path)?;
        traces.extend((!trace.is_empty()).then_some(trace));
    }
    match traces.len() {
        1 => Ok(traces.remove(0)),
        other => bail!("{other} threads write to the image, and their order is not known"),
    }
}

fn logs(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_log = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"strace."));
        logs.extend(is_log.then_some(path));
    }
    Ok(logs)
}

/// Reads the requests for a file from a log of one thread.
fn parse(log: impl BufRead, image: &Path) -> Result<Vec<Request>> {
    // With -xx, strace prints paths behind descriptors as they are and strings in hexadecimal.
    let name = format!("<{}>", image.display());
    let escaped: String =
        image.as_os_str().as_encoded_bytes().iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let escaped = format!("<{escaped}>");
    let (mut requests, mut position) = (Vec::new(), 0);
    for line in log.lines() {
        let line = line?;
        if !line.contains(&name) && !line.contains(&escaped) {
            continue;
        }
        let (call, rest) = line.split_once('(').context("a call has arguments")?;
        let (arguments, result) = rest.rsplit_once(" = ").with_context(|| format!("{call}: no result"))?;
        let result = result.split_whitespace().next().unwrap_or_default();
        let Ok(result) = result.parse::<u64>() else { bail!("{call} failed: {result}") };
        let arguments = arguments.trim_end().trim_end_matches(')');
        match call {
            "lseek" | "_llseek" => position = result,
            "write" | "pwrite64" => {
                let data = bytes(arguments, result)?;
                let offset_bytes = match call {
                    "write" => position,
                    _ => arguments.rsplit(", ").next().unwrap_or_default().parse()?,
                };
                if call == "write" {
                    position += result;
                }
                requests.push(Request {
                    verb: Verb::Write,
                    offset_bytes,
                    length_bytes: result,
                    data: Some(data.into()),
                });
            }
            "fsync" | "fdatasync" => {
                requests.push(Request { verb: Verb::Flush, offset_bytes: 0, length_bytes: 0, data: None });
            }
            other => bail!("{other} is not understood"),
        }
    }
    Ok(requests)
}

/// Returns the written data of a call: `length` bytes.
fn bytes(arguments: &str, length: u64) -> Result<Vec<u8>> {
    let text = arguments.split('"').nth(1).context("a write has data")?.as_bytes();
    let digit = |at: usize| text.get(at).and_then(|digit| (*digit as char).to_digit(16)).context("\\xNN");
    let data = (0..text.len() / 4).map(|n| Ok((digit(4 * n + 2)? * 16 + digit(4 * n + 3)?) as u8));
    let data = data.collect::<Result<Vec<u8>>>()?;
    ensure!(data.len() as u64 == length, "strace has {} of {length} bytes", data.len());
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_strace_becomes_requests() {
        let log = "lseek(3</tmp/v.img>, 4096, SEEK_SET) = 4096\n\
            write(3</tmp/v.img>, \"\\x01\\xff\", 2) = 2\n\
            write(3</tmp/v.img>, \"\\x02\", 1) = 1\n\
            write(1<pipe:[7]>, \"\\x41\", 1) = 1\n\
            fsync(3</tmp/v.img>)     = 0\n\
            pwrite64(4</tmp/v.img>, \"\\x03\", 1, 512) = 1\n\
            +++ exited with 0 +++\n";
        let found = parse(log.as_bytes(), Path::new("/tmp/v.img")).unwrap();
        let short: Vec<_> = found
            .iter()
            .map(|one| (one.verb, one.offset_bytes, one.data.as_deref().unwrap_or_default()))
            .collect();
        let write = Verb::Write;
        let wanted: [(Verb, u64, &[u8]); 4] =
            [(write, 4096, &[1, 255]), (write, 4098, &[2]), (Verb::Flush, 0, &[]), (write, 512, &[3])];
        assert_eq!(short, wanted);
        assert!(
            parse("pwrite64(4</tmp/v.img>, \"\\x03\"..., 9, 512) = 9\n".as_bytes(), Path::new("/tmp/v.img"))
                .is_err()
        );
    }
}
