//! The operations of `flashkit card`: a function for each verb, from arguments to a value. The command prints
//! the value.

mod fit;
#[cfg(unix)]
mod serve;

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

pub use fit::{Comparison, RowFiles, Trials, compare_card, fit};
use serde::Serialize;
#[cfg(unix)]
pub use serve::{Serve, Serving, fault_plan, serve};

use crate::{
    card::{self, ReplayTiming},
    card_file::{CardError, CardFile},
    condition::Condition,
    counters::Counters,
    latency::LatenciesByCommand,
    model::Model,
    profile::{Profile, ProfileError},
    trace::Trace,
};

/// Maximum length of a profile's text in bytes. An image given by mistake is not read in whole.
const PROFILE_BYTES_MAX: u64 = 1 << 20;

/// A line of `card list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Name of the profile.
    pub name: String,
    /// Usable size in bytes.
    pub size_bytes: u64,
    /// One-line description.
    pub title: String,
}

impl std::fmt::Display for Listed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = self.size_bytes as f64 / f64::from(1 << 20);
        write!(f, "{:<22} {mib:>9.0} MiB  {}", self.name, self.title)
    }
}

/// `card list`: the built-in profiles.
pub fn list() -> Vec<Listed> {
    let listed = |Profile { name, size_bytes, title, .. }| Listed { name, size_bytes, title };
    Profile::built_in().into_iter().map(listed).collect()
}

/// Returns the profile named on a command line: a built-in one, one in a file, or a card's.
///
/// # Errors
/// [`CardError`].
pub fn profile(name_or_path: &str) -> Result<Profile, CardError> {
    match Profile::named(name_or_path) {
        Err(ProfileError::Unknown(_)) if Path::new(name_or_path).is_file() => {
            profile_in(Path::new(name_or_path))
        }
        other => Ok(other?),
    }
}

/// Returns the profile in a file: a profile's text, or that of the card whose data it is.
///
/// # Errors
/// [`CardError`].
pub fn profile_in(path: &Path) -> Result<Profile, CardError> {
    if CardFile::is_at(path) {
        return Ok(CardFile::peek(path)?.profile().clone());
    }
    Profile::parse(&text_in(path)?)
        .map_err(|error| CardError::State { path: path.to_path_buf(), what: format!("no profile: {error}") })
}

/// Reads a text file, up to the maximum length.
fn text_in(path: &Path) -> Result<String, CardError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(PROFILE_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|source| CardError::Io { path: path.to_path_buf(), source })?;
    Ok(text)
}

/// Options of `card new`.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewCard {
    /// Size in bytes, instead of the profile's.
    pub size_bytes: Option<u64>,
    /// Condition of the new card.
    pub condition: Condition,
}

/// `card new FILE --profile P`.
///
/// # Errors
/// [`CardError`].
pub fn new(path: &Path, profile: Profile, how: NewCard) -> Result<(), CardError> {
    let profile = match how.size_bytes {
        Some(size_bytes) => profile.with_size(size_bytes)?,
        None => profile,
    };
    CardFile::create(path, profile, how.condition)
}

/// `card replay PROFILE TRACE`: replays a trace on a new card.
///
/// # Errors
/// [`CardError`]; the trace is invalid, or the card refuses a request.
pub fn replay(
    profile: Profile,
    trace: &Path,
    condition: Condition,
    timing: ReplayTiming,
) -> Result<Stats, CardError> {
    let broken = |what: String| CardError::State { path: trace.to_path_buf(), what };
    let text = std::fs::read_to_string(trace)
        .map_err(|source| CardError::Io { path: trace.to_path_buf(), source })?;
    let requests = Trace::parse(&text).map_err(|error| broken(error.to_string()))?;
    if requests.entries.is_empty() {
        return Err(broken("the trace has no requests".into()));
    }
    let mut model = Model::new(profile, condition);
    card::replay(&requests, &mut model, timing).map_err(|refusal| broken(refusal.to_string()))?;
    Ok(Stats::of(&model))
}

/// Output of `card stats`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// Name of the profile.
    pub profile: String,
    /// Counters since the card was made.
    pub counters: Counters,
    /// Latencies of commands: times in nanoseconds, to two digits, with the number of commands that took
    /// each.
    pub latencies_ns: LatenciesByCommand,
    /// Bytes programmed per byte written; None before the first write.
    pub write_amplification: Option<f64>,
    /// Histogram: number of erases -> number of blocks.
    pub wear_blocks_by_erases: BTreeMap<u32, u64>,
    /// Worn-out blocks.
    pub retired_blocks: u32,
    /// Erased and free blocks.
    pub free_blocks: u32,
    /// Open allocation units, the last written one at the end.
    pub open_units: Vec<u32>,
    /// Size of a flash page.
    pub page_bytes: u32,
}

impl Stats {
    /// Collects the figures of a model.
    pub fn of(model: &Model) -> Stats {
        let page_bytes = model.profile().flash.page_bytes;
        Stats {
            profile: model.profile().name.clone(),
            counters: model.counters().clone(),
            latencies_ns: model.latencies().clone(),
            write_amplification: model.counters().write_amplification(page_bytes),
            wear_blocks_by_erases: model.array().wear(),
            retired_blocks: model.array().retired_blocks(),
            free_blocks: model.array().free_blocks(),
            open_units: model.layer().open_units(),
            page_bytes,
        }
    }

    /// Formats the figures as lines of text.
    pub fn to_text(&self) -> String {
        let mut text = self.counters.to_text(self.page_bytes) + &self.latencies_ns.to_text();
        for (erases, blocks) in &self.wear_blocks_by_erases {
            text += &format!("{:<22}{blocks}\n", format!("blocks erased {erases}x"));
        }
        text += &format!("{:<22}{}\n", "blocks worn out", self.retired_blocks);
        text += &format!("{:<22}{}\n", "blocks free", self.free_blocks);
        text + &format!("{:<22}{:?}\n", "open units", self.open_units)
    }
}

/// `card stats FILE`. For a card in use, returns the figures of the last time that it was put away.
///
/// # Errors
/// [`CardError`].
pub fn stats(path: &Path) -> Result<Stats, CardError> {
    Ok(Stats::of(&CardFile::peek(path)?))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use block::nbd::Address;

    use super::*;

    #[test]
    fn the_list_has_the_name_first() {
        let lines: Vec<String> = list().iter().map(Listed::to_string).collect();
        assert!(lines[0].starts_with("transcend-16g-desktop "), "{}", lines[0]);
        assert!(lines.iter().all(|line| !line.contains('\n')));
    }

    #[test]
    fn profiles_are_found_by_name_by_file_and_by_card() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let stick = profile("bergmann-stick").expect("built in");
        let text = dir.path().join("stick.toml");
        std::fs::write(&text, stick.to_toml()).expect("writable");
        assert_eq!(profile(text.to_str().expect("UTF-8")).expect("its file"), stick);
        let card = dir.path().join("card");
        let how = NewCard { size_bytes: Some(32 << 20), condition: Condition::Preconditioned };
        new(&card, stick.clone(), how).expect("new");
        assert_eq!(profile(card.to_str().expect("UTF-8")).expect("a card").size_bytes, 32 << 20);
        assert!(profile("no-such-thing").is_err());
    }

    #[test]
    fn a_served_card_keeps_and_counts_the_writes_of_clients() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("card");
        let how = NewCard { size_bytes: Some(32 << 20), condition: Condition::Preconditioned };
        new(&path, profile("bergmann-stick").expect("built in"), how).expect("new");
        let address = Address::Unix(dir.path().join("socket"));
        for n in 1..=2 {
            let serving = serve(&path, &address, Serve::default()).expect("free");
            let write = format!("aio_write -P {n} {n}M 64k");
            let status = Command::new("qemu-io")
                .args([
                    "-f",
                    "raw",
                    "-c",
                    &write,
                    "-c",
                    "aio_flush",
                    "-c",
                    "read -P 1 1M 64k",
                    &serving.uri(),
                ])
                .output()
                .expect("scripts/setup installs it");
            let output = String::from_utf8_lossy(&status.stdout).into_owned();
            assert!(status.status.success() && !output.contains("failed"), "{output}");
            serving.stop().expect("put away");
            let stats = stats(&path).expect("put away");
            assert_eq!(stats.counters.host.written_bytes, n * 65536);
            assert!(stats.to_text().contains("write amplification"));
            assert!(serde_json::to_string(&stats).expect("figures").contains("\"wear_blocks_by_erases\""));
        }
    }
}
