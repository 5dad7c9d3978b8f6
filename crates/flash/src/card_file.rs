//! A card in a file: its data in `FILE`, sparse, and its state and history in `FILE.card`.
//!
//! *Invariant*: `FILE.card` is replaced as a whole when the card is put away. A card that was not put away,
//! because its program was killed, comes back as after a power cut: the data is there, and the counters and
//! the mapping are those of the last time. A state is used only if it is possible for its card: hostile bytes
//! are errors.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use block::{FileDevice, OpenOptions};
use serde::{Deserialize, Serialize};

use crate::{
    card::{Card, Pace},
    condition::Condition,
    model::{Model, State},
    profile::{Profile, ProfileError},
};

/// Errors of a card's files.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// The profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A file has invalid content.
    #[error("{path}: {what}")]
    State {
        /// The file.
        path: PathBuf,
        /// Description of the error.
        what: String,
    },
}

/// Version of the state's format.
const FORMAT: u32 = 3;

#[derive(Serialize, Deserialize)]
struct Stored<S> {
    format: u32,
    /// The card is in use, or was when its program died.
    in_use: bool,
    /// The profile, in the form of a profile's file.
    profile: String,
    #[serde(rename = "preconditioned")]
    condition: Condition,
    state: S,
}

/// A card with its files open. [`close`](CardFile::close) puts it away.
pub struct CardFile {
    path: PathBuf,
    card: std::sync::Arc<Card>,
    condition: Condition,
}

impl CardFile {
    /// Makes the two files of a new card. Neither may exist. If one of them cannot be made, neither is left.
    ///
    /// # Errors
    /// [`CardError::Io`].
    pub fn create(path: &Path, profile: Profile, condition: Condition) -> Result<(), CardError> {
        let state_path = state_path(path);
        if state_path.exists() {
            let what = "the card exists already; remove it, or choose another name".into();
            return Err(CardError::State { path: state_path, what });
        }
        // Stays open, and so locked, until the card is complete.
        let _data = FileDevice::create(path, profile.size_bytes).map_err(|e| io_error(path, e))?;
        let model = Model::new(profile, condition);
        store(path, &model, condition, Usage::PutAway).inspect_err(|_| {
            // The new file is useless. The caller gets the first error.
            let _ = fs::remove_file(path);
        })
    }

    /// Opens a card for use.
    ///
    /// # Errors
    /// [`CardError`]; [`io::ErrorKind::ResourceBusy`] if another program has it.
    pub fn open(path: &Path, pace: Pace) -> Result<CardFile, CardError> {
        let options = OpenOptions { write: true, direct: false };
        if !CardFile::is_at(path) {
            return Err(no_card(path.to_path_buf()));
        }
        let data = FileDevice::open(path, options).map_err(|e| io_error(path, e))?;
        let Loaded { mut model, condition, usage } = load(path)?;
        if usage == Usage::InUse {
            model.power_cycle().map_err(|refusal| io_error(path, refusal.into()))?;
        }
        let size_bytes = block::Device::geometry(&data).size_bytes;
        if size_bytes != model.profile().size_bytes {
            let what = format!("the card has {} bytes and its data {size_bytes}", model.profile().size_bytes);
            return Err(CardError::State { path: state_path(path), what });
        }
        store(path, &model, condition, Usage::InUse)?;
        let card = std::sync::Arc::new(Card::from_parts(model, Box::new(data), pace));
        Ok(CardFile { path: path.to_path_buf(), card, condition })
    }

    /// Returns true if the file at `path` is a card's, usable or not: it has a state file beside it.
    pub fn is_at(path: &Path) -> bool {
        state_path(path).exists()
    }

    /// Reads the state of a card, which may be in use, as of the last time that it was put away.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn peek(path: &Path) -> Result<Model, CardError> {
        Ok(load(path)?.model)
    }

    /// The card, to be used and served.
    pub fn card(&self) -> &std::sync::Arc<Card> {
        &self.card
    }

    /// Puts the card away: makes its data and state durable. Restores the power first if it was cut.
    ///
    /// # Errors
    /// [`CardError::Io`].
    pub fn close(self) -> Result<(), CardError> {
        self.card.put_away().map_err(|e| io_error(&self.path, e))?;
        self.card.with_model(|model| store(&self.path, model, self.condition, Usage::PutAway))
    }
}

/// Returns the path of the state of the card at `path`.
fn state_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".card");
    name.into()
}

/// The use of a card at the time when its state was stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    PutAway,
    InUse,
}

/// The content of a card's state.
struct Loaded {
    model: Model,
    condition: Condition,
    usage: Usage,
}

fn load(path: &Path) -> Result<Loaded, CardError> {
    let path = state_path(path);
    let text = fs::read(&path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => no_card(path.with_extension("")),
        _ => io_error(&path, e),
    })?;
    let broken = |what: String| CardError::State {
        path: path.clone(),
        what: format!("not the state of a card: {what}"),
    };
    let stored: Stored<State> = serde_json::from_slice(&text).map_err(|e| broken(e.to_string()))?;
    if stored.format != FORMAT {
        return Err(broken(format!("its format is {}, and this program reads {FORMAT}", stored.format)));
    }
    let profile = Profile::parse(&stored.profile).map_err(|e| broken(format!("its profile: {e}")))?;
    let condition = stored.condition;
    let model = Model::resume_checked(profile, stored.state, condition).map_err(broken)?;
    let usage = if stored.in_use { Usage::InUse } else { Usage::PutAway };
    Ok(Loaded { model, condition, usage })
}

fn store(path: &Path, model: &Model, condition: Condition, usage: Usage) -> Result<(), CardError> {
    let path = state_path(path);
    let stored = Stored {
        format: FORMAT,
        in_use: usage == Usage::InUse,
        profile: model.profile().to_toml(),
        condition,
        state: model.state(),
    };
    let mut fresh = path.clone().into_os_string();
    fresh.push(".new");
    let write = || -> io::Result<()> {
        let mut file = io::BufWriter::new(create_anew(Path::new(&fresh))?);
        if let Ok(old) = fs::metadata(&path) {
            file.get_ref().set_permissions(old.permissions())?;
        }
        serde_json::to_writer(&mut file, &stored)?;
        let file = file.into_inner().map_err(|e| e.into_error())?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        // The new name becomes durable with its directory.
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(dir)?.sync_all()
    };
    write().map_err(|e| {
        // The remains are useless. The caller gets the first error.
        let _ = fs::remove_file(&fresh);
        io_error(&path, e)
    })
}

/// Makes a new file in place of one left by a killed program. A planted link is replaced, not followed.
fn create_anew(path: &Path) -> io::Result<fs::File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::File::options().write(true).create_new(true).open(path),
    }
}

fn no_card(path: PathBuf) -> CardError {
    CardError::State { path, what: "no card; `flashkit card new` makes one".into() }
}

fn io_error(path: &Path, source: io::Error) -> CardError {
    CardError::Io { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use block::Device;

    use super::*;
    use crate::counters::Counters;

    fn small(name: &str) -> Profile {
        Profile::named(name).expect("built in").with_size(64 << 20).expect("a smaller card")
    }

    #[test]
    fn a_reopened_card_continues_with_its_saved_state() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for name in ["bergmann-stick", "survey-class10", "survey-ssd", "nand-2003", "survey-class4"] {
            let path = dir.path().join(name);
            // A full bare chip would have to be erased first.
            let condition = Condition::from(name != "nand-2003");
            let whole = Card::new(small(name), condition);
            CardFile::create(&path, small(name), condition).expect("a new card");
            let mut rng = block::Rng::new(1);
            for round in 0..3u8 {
                let file = CardFile::open(&path, Pace::Virtual).expect("put away");
                for n in 0..200u64 {
                    let at = match name {
                        "nand-2003" => (u64::from(round) * 200 + n) * 4096,
                        _ => rng.below(4096) * 4096,
                    };
                    file.card().write(at, &[round + 1; 4096]).expect("within the card");
                    whole.write(at, &[round + 1; 4096]).expect("within the card");
                }
                file.card().flush().expect("flushed");
                whole.flush().expect("flushed");
                file.close().expect("put away");
            }
            let model = CardFile::peek(&path).expect("put away");
            // Putting the card away adds a flush, and the work done in pauses depends on flushes.
            let apart = |counters: &Counters| {
                let mut counters = counters.clone();
                let moved = std::mem::take(&mut counters.layer.slc_moved_pages);
                counters.flash.page_programs -= moved;
                counters.flash.page_reads -= moved;
                (counters.host.writes, counters.flash, counters.layer)
            };
            let counters = whole.with_model(|model| apart(model.counters()));
            assert_eq!(apart(model.counters()), counters, "{name}");
            let file = CardFile::open(&path, Pace::Virtual).expect("put away");
            let (mut one, mut two) = (vec![0; 16 << 20], vec![0; 16 << 20]);
            file.card().read(0, &mut one).expect("within the card");
            whole.read(0, &mut two).expect("within the card");
            assert!(one == two, "{name}");
        }
    }

    #[test]
    fn a_card_whose_program_died_opens_as_after_a_power_cut() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("card");
        CardFile::create(&path, small("bergmann-stick"), Condition::Preconditioned).expect("a new card");
        let file = CardFile::open(&path, Pace::Virtual).expect("free");
        assert!(matches!(CardFile::open(&path, Pace::Virtual), Err(CardError::Io { .. })), "it is in use");
        file.card().write(8 << 20, &[7; 4096]).expect("within the card");
        file.card().flush().expect("flushed");
        drop(file);
        let file = CardFile::open(&path, Pace::Virtual).expect("free again");
        let mut buf = [0; 4096];
        file.card().read(8 << 20, &mut buf).expect("within the card");
        assert_eq!(buf, [7; 4096]);
        assert!(file.card().with_model(|model| model.layer().open_units().is_empty()));
    }

    #[test]
    fn a_card_keeps_its_counters_after_a_power_cut() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("card");
        CardFile::create(&path, small("survey-emmc51"), Condition::Preconditioned).expect("a new card");
        let file = CardFile::open(&path, Pace::Virtual).expect("free");
        file.card().set_faults(crate::FaultPlan { power_cut_at: Some(5), ..Default::default() });
        let written = (0..9).filter(|n| file.card().write(n * 4096, &[7; 4096]).is_ok()).count();
        assert_eq!(written, 5);
        file.close().expect("the power is back");
        let model = CardFile::peek(&path).expect("put away");
        assert_eq!((model.counters().host.writes, model.is_powered()), (5, true));
        let nothing = CardFile::open(&dir.path().join("nothing"), Pace::Virtual);
        assert!(nothing.is_err_and(|error| error.to_string().contains("card new")));
    }

    #[test]
    fn planted_links_are_not_followed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("card");
        let other = dir.path().join("other");
        fs::write(&other, "somebody's").expect("writable");
        for name in ["card.card.new", "card.new"] {
            std::os::unix::fs::symlink(&other, dir.path().join(name)).expect("a link");
        }
        CardFile::create(&path, small("bergmann-stick"), Condition::Preconditioned).expect("a new card");
        CardFile::open(&path, Pace::Virtual).expect("free").close().expect("put away");
        assert_eq!(fs::read_to_string(&other).expect("readable"), "somebody's");
        // A link in the place of the state is replaced, not followed.
        let state = state_path(&path);
        fs::rename(&state, dir.path().join("moved")).expect("it exists");
        std::os::unix::fs::symlink("moved", &state).expect("a link");
        let before = fs::read(dir.path().join("moved")).expect("readable");
        CardFile::open(&path, Pace::Virtual).expect("free").close().expect("put away");
        assert!(fs::symlink_metadata(&state).expect("it exists").is_file());
        assert!(fs::read(dir.path().join("moved")).expect("readable") == before);
    }

    #[test]
    fn a_card_that_cannot_be_made_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        // The data file has a name of the maximum length, so the name of the state file is too long.
        let path = dir.path().join("c".repeat(255));
        CardFile::create(&path, small("bergmann-stick"), Condition::Preconditioned)
            .expect_err("no name for its state");
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
        // An existing file of another user stays unchanged.
        fs::write(dir.path().join("card"), "somebody's").expect("writable");
        CardFile::create(&dir.path().join("card"), small("bergmann-stick"), Condition::Preconditioned)
            .expect_err("it exists");
        assert_eq!(fs::read_to_string(dir.path().join("card")).expect("readable"), "somebody's");
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
    }

    #[test]
    fn the_state_has_the_permissions_of_new_files_and_keeps_its_own() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("card");
        let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
        CardFile::create(&path, small("bergmann-stick"), Condition::Preconditioned).expect("a new card");
        assert_eq!(mode(&state_path(&path)), mode(&path));
        fs::set_permissions(state_path(&path), fs::Permissions::from_mode(0o640)).expect("ours");
        CardFile::open(&path, Pace::Virtual).expect("free").close().expect("put away");
        assert_eq!(mode(&state_path(&path)), 0o640);
    }

    #[test]
    fn damaged_states_are_named_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("card");
        CardFile::create(&path, small("bergmann-stick"), Condition::Fresh).expect("a new card");
        let again = CardFile::create(&path, small("bergmann-stick"), Condition::Fresh);
        assert!(matches!(again, Err(CardError::State { .. })));
        let good = fs::read_to_string(state_path(&path)).expect("readable");
        for bad in [
            String::new(),
            good[..good.len() / 2].to_string(),
            good.replace("\"format\":3", "\"format\":9"),
            good.replace("page_bytes = 4096", "page_bytes = 4095"),
            good.replace("\"writes_by_log2_bytes\":{}", "\"writes_by_log2_bytes\":{\"64\":1}"),
            good.replace("size_bytes = 67108864", "size_bytes = 134217728"),
        ] {
            assert_ne!(bad, good);
            fs::write(state_path(&path), &bad).expect("writable");
            assert!(CardFile::is_at(&path));
            assert!(CardFile::open(&path, Pace::Virtual).is_err());
            assert_eq!(fs::read_to_string(state_path(&path)).expect("readable"), bad);
        }
    }
}
