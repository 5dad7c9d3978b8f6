//! Runs hostile cases for a time, from a seed, with the stable compiler. `cargo fuzz` does the same from
//! libFuzzer's inputs.

use std::{
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use block::Rng;
use clap::Parser;
use fuzz::{Images, Outcome};

/// Maximum address space of cases, so that an unbounded allocation is a finding and does not cause swapping.
const MEMORY_BYTES: u64 = 6 << 30;

#[derive(Parser)]
#[command(about = "Reads golden images with random bytes overlaid, and fails on a panic or a hang")]
struct Arguments {
    /// Seconds to run
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the run; by default derived from the time and printed
    #[arg(long)]
    seed: Option<u64>,
    /// Run only the case with this seed, and show its panic
    #[arg(long)]
    case: Option<u64>,
    /// Use only images whose name has this prefix
    #[arg(long, default_value = "")]
    image: String,
    /// Limit of processor time per case in milliseconds; generous, because machines are busy
    #[arg(long, default_value_t = 20_000)]
    limit_ms: u64,
    /// Folder of the images
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/golden"))]
    folder: PathBuf,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let limit = rustix::process::Rlimit { current: Some(MEMORY_BYTES), maximum: Some(MEMORY_BYTES) };
    rustix::process::setrlimit(rustix::process::Resource::As, limit)?;
    let images = Images::load(&arguments.folder, &arguments.image)?;
    if let Some(seed) = arguments.case {
        let bytes = case_bytes(seed);
        let started = Instant::now();
        writeln!(std::io::stdout(), "image {}", images.get(usize::from(bytes[0])).name)?;
        let outcome = fuzz::run(&images, &bytes);
        writeln!(std::io::stdout(), "{outcome:?} in {:?}", started.elapsed())?;
        return Ok(ExitCode::SUCCESS);
    }
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs(),
    };
    let mut out = std::io::stdout();
    writeln!(out, "seed {seed}, {} images", images.len())?;
    let mut seeds = Rng::new(seed);
    let (mut cases, mut read, mut changed, mut errors, mut found) = (0u64, 0u64, 0u64, 0u64, 0u32);
    let mut slowest = Duration::ZERO;
    let started = Instant::now();
    while started.elapsed().as_secs() < arguments.seconds {
        let case = seeds.next_u64();
        let bytes = case_bytes(case);
        let begun = cpu_time();
        match catch_unwind(AssertUnwindSafe(|| fuzz::run(&images, &bytes))) {
            Ok(Outcome::Refused) => {}
            Ok(Outcome::Read(survey)) => {
                read += 1;
                errors += survey.errors as u64;
            }
            Ok(Outcome::Changed(disturbed)) => {
                changed += 1;
                errors += disturbed.refused as u64;
            }
            Err(_) => {
                found += 1;
                let image = &images.get(usize::from(bytes[0])).name;
                writeln!(out, "FOUND a panic: --image '{}' --case {case} (image {image})", arguments.image)?;
            }
        }
        cases += 1;
        let took = cpu_time().saturating_sub(begun);
        slowest = slowest.max(took);
        if took > Duration::from_millis(arguments.limit_ms) {
            found += 1;
            writeln!(out, "FOUND a hang: --image '{}' --case {case} took {took:?}", arguments.image)?;
        }
        if found >= 10 {
            break;
        }
    }
    writeln!(
        out,
        "{cases} cases, {read} volumes read, {changed} changed, {errors} errors met, slowest case {slowest:?}, \
         {found} findings"
    )?;
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the processor time used by this program.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the bytes of the case with this seed.
fn case_bytes(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let length = 10 + rng.below(120) as usize;
    (0..length).map(|_| rng.next_u64() as u8).collect()
}
