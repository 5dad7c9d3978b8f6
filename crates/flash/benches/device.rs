//! Cost of the model on one core, in requests per second of that core's time. Each result is a line of JSON:
//! `{"what", "figure", "unit"}`. `make bench` runs it.

use std::{
    error::Error,
    fs,
    io::{Write as _, stdout},
};

use block::{Device, Rng};
use flashkit_flash::{Card, Condition, Model, Op, Profile};
use serde_json::json;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const REQUESTS: u64 = 3_000_000;
const BLOCK: u64 = 4096;
const TIB: u64 = 1 << 40;
/// Number of blocks that random requests cover: 256 MiB.
const PLACES: u64 = (256 << 20) / BLOCK;

fn main() -> Result<()> {
    for name in ["survey-class10", "survey-ssd", "bergmann-stick", "survey-class4", "survey-usb-stick"] {
        let profile = Profile::named(name)?.with_size(TIB)?;
        let mut model = Model::new(profile.clone(), Condition::Fresh);
        let mut rng = Rng::new(1);
        let rate = rate(|n| Ok(model.submit(0, Op::write(n * BLOCK, BLOCK)).map(drop)?))?;
        tell(&format!("{name}: 4 KiB writes in sequence"), rate, "1/s")?;
        let rate =
            self::rate(|_| Ok(model.submit(0, Op::write(rng.below(PLACES) * BLOCK, BLOCK)).map(drop)?))?;
        tell(&format!("{name}: 4 KiB writes at random"), rate, "1/s")?;
        let rate =
            self::rate(|_| Ok(model.submit(0, Op::read(rng.below(PLACES) * BLOCK, BLOCK)).map(drop)?))?;
        tell(&format!("{name}: 4 KiB reads at random"), rate, "1/s")?;
    }
    // A full card of the profile's own size, on which every write waits for garbage collection.
    let mut model = Model::new(Profile::named("survey-class10")?, Condition::Preconditioned);
    let (mut rng, places) = (Rng::new(1), model.profile().size_bytes / BLOCK);
    let rate = self::rate(|_| Ok(model.submit(0, Op::write(rng.below(places) * BLOCK, BLOCK)).map(drop)?))?;
    tell("survey-class10, full: 4 KiB writes at random", rate, "1/s")?;
    let card = Card::new(Profile::named("survey-class10")?.with_size(TIB)?, Condition::Fresh);
    let rate = self::rate(|n| Ok(card.write(n % PLACES * BLOCK, &[7; BLOCK as usize])?))?;
    tell("survey-class10: 4 KiB writes with data in memory", rate, "1/s")?;
    memory()
}

fn tell(what: &str, figure: f64, unit: &str) -> Result<()> {
    Ok(writeln!(stdout(), "{}", json!({ "what": what, "figure": figure, "unit": unit }))?)
}

/// Measures requests per second of the core's time, which excludes other work of the machine.
fn rate(mut request: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let start_ns = core_ns()?;
    for n in 0..REQUESTS {
        request(n)?;
    }
    Ok(REQUESTS as f64 * 1e9 / (core_ns()? - start_ns) as f64)
}

/// First figure of schedstat: time on a core (Linux, Documentation/scheduler/sched-stats.rst).
fn core_ns() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("schedstat is empty")?.parse()?)
}

/// Measures the memory of a full card of 1 TiB, when new and after random writes of 1 GiB.
fn memory() -> Result<()> {
    let before = resident_bytes()?;
    let mut model = Model::new(Profile::named("survey-ssd")?.with_size(TIB)?, Condition::Preconditioned);
    let mib = |now: u64| now.saturating_sub(before) as f64 / f64::from(1 << 20);
    tell("a preconditioned card of 1 TiB, memory", mib(resident_bytes()?), "MiB")?;
    let mut rng = Rng::new(1);
    for _ in 0..(1 << 30) / BLOCK {
        model.submit(0, Op::write(rng.below(TIB / BLOCK) * BLOCK, BLOCK))?;
    }
    tell("the same with 1 GiB written at random, memory", mib(resident_bytes()?), "MiB")?;
    drop(model);
    Ok(())
}

/// Second figure of statm: resident pages (proc(5)).
fn resident_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).ok_or("statm has no second figure")?;
    Ok(pages.parse::<u64>()? * 4096)
}
