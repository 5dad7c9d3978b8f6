//! The text of a matrix, and its values.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;
use toml::Spanned;

use super::{Matrix, MatrixError, OwnWorkload, Reach, WorkloadId, repeated};
use crate::{
    experiment::Experiment,
    plan::Age,
    preset::Preset,
    record::digest,
    rivals::{FileSystem, OwnPrograms},
    scale::DIRTY_PERCENT,
    study::kernel_name,
    systems::Programs,
};

/// Word for a file system that is not aged.
const NEW: &str = "new";
/// Default size of the file of buffered writes, and default seed.
const USUAL_SIZE: &str = "128M";
const USUAL_SEED: u64 = 2012;
/// Maximum number of cells of a matrix. More would take years.
const CELLS_MAX: u64 = 1 << 20;

/// The keys of a matrix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entries {
    #[serde(default)]
    experiments: Vec<Spanned<String>>,
    #[serde(default)]
    presets: Vec<Spanned<String>>,
    #[serde(default)]
    cards: Vec<Spanned<String>>,
    #[serde(default)]
    sizes: Vec<Spanned<String>>,
    #[serde(default)]
    ages: Vec<Spanned<String>>,
    #[serde(default)]
    seeds: Vec<Spanned<u64>>,
    card_size: Option<Spanned<String>>,
    timed_writes: Option<Spanned<u64>>,
    dirty_percent: Option<Spanned<u64>>,
    #[serde(default)]
    costs: bool,
    #[serde(default)]
    file_systems: Vec<FileSystemEntry>,
    #[serde(default)]
    kernels: Vec<KernelEntry>,
    #[serde(default)]
    workloads: Vec<WorkloadEntry>,
}

/// A file system; each combination of its options is one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSystemEntry {
    kind: Spanned<String>,
    #[serde(default)]
    mount: Vec<String>,
    #[serde(default)]
    mkfs: Vec<String>,
    name: Option<Spanned<String>>,
    make: Option<Spanned<String>>,
    check: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelEntry {
    path: Spanned<PathBuf>,
    name: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadEntry {
    name: Spanned<String>,
    fio: Option<Spanned<PathBuf>>,
    trace: Option<Spanned<PathBuf>>,
    steps: Option<Spanned<PathBuf>>,
}

/// The text and the path of a matrix, for the places of errors and of other files.
pub(super) struct Reader<'a> {
    pub text: &'a str,
    pub file: &'a Path,
    pub reach: Reach,
}

impl Reader<'_> {
    fn error(&self, span: Range<usize>, key: &str, what: impl ToString) -> MatrixError {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        MatrixError {
            file: self.file.to_owned(),
            line: 1 + before.iter().filter(|byte| **byte == b'\n').count(),
            key: key.to_owned(),
            what: what.to_string(),
        }
    }

    /// Converts all values of a key. An empty list has the default.
    fn all<T, V: Clone + std::fmt::Display + Ord>(
        &self,
        key: &str,
        values: &[Spanned<V>],
        usual: Vec<T>,
        convert: impl Fn(&V) -> Result<T, String>,
    ) -> Result<Vec<T>, MatrixError> {
        if let Some(twice) = repeated(values.iter().map(Spanned::get_ref)) {
            let last = values.iter().rfind(|value| value.get_ref() == twice).expect("it is there");
            return Err(self.error(last.span(), key, format!("{twice} is there twice")));
        }
        let convert = |value: &Spanned<V>| {
            let error = |what| self.error(value.span(), key, what);
            convert(value.get_ref()).map_err(error)
        };
        let values: Vec<T> = values.iter().map(convert).collect::<Result<_, _>>()?;
        Ok(if values.is_empty() { usual } else { values })
    }

    /// Returns a path relative to the matrix's directory.
    fn path(&self, path: &Path) -> PathBuf {
        self.file.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Returns a path like [`path`](Self::path), if the matrix may name it.
    fn input(&self, path: &Path) -> Result<PathBuf, String> {
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        match self.reach == Reach::Anywhere || is_below {
            true => Ok(self.path(path)),
            false => Err(format!("{}: lies outside of the directory of the matrix", path.display())),
        }
    }

    /// Checks a name that becomes part of file names.
    fn name(&self, key: &str, name: &Spanned<String>) -> Result<String, MatrixError> {
        let text = name.get_ref();
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        match !text.is_empty() && text.len() <= 40 && text.chars().all(is_valid) {
            true => Ok(text.clone()),
            false => {
                let what =
                    format!("{text:?}: a name has 1 to 40 of the characters a-z, A-Z, 0-9, _, . and -");
                Err(self.error(name.span(), key, what))
            }
        }
    }
}

impl Entries {
    /// Parses the text.
    pub fn parse(reader: &Reader<'_>) -> Result<Entries, MatrixError> {
        toml::from_str(reader.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            // The message of an unknown key names it.
            reader.error(span, "", error.message())
        })
    }

    /// Checks all values, and reads the files that they name.
    pub fn resolve(self, reader: &Reader<'_>) -> Result<Matrix, MatrixError> {
        let mut matrix = Matrix {
            file: reader.file.to_owned(),
            inputs: vec![reader.file.to_owned()],
            costs: self.costs,
            ..Matrix::default()
        };
        let usual = if self.workloads.is_empty() { Experiment::USUAL.to_vec() } else { Vec::new() };
        matrix.experiments = reader.all("experiments", &self.experiments, usual, |name| {
            let all = || Experiment::ALL.map(Experiment::name).join(", ");
            Experiment::named(name).ok_or_else(|| format!("there is no {name:?}; choose from {}", all()))
        })?;
        matrix.cards = self.cards(reader, &mut matrix.inputs)?;
        let usual = if matrix.cards.is_empty() { vec![Preset::Desktop] } else { Vec::new() };
        matrix.presets = reader.all("presets", &self.presets, usual, |name| {
            name.parse().map_err(|error: std::io::Error| error.to_string())
        })?;
        let usual = size(USUAL_SIZE).expect("it is a size");
        matrix.sizes = reader.all("sizes", &self.sizes, vec![usual], |text| size(text))?;
        matrix.ages = reader.all("ages", &self.ages, vec![None], |text| match text.as_str() {
            NEW => Ok(None),
            age => age.parse::<Age>().map(Some).map_err(|what| format!("{NEW}, or {what}")),
        })?;
        matrix.seeds = reader.all("seeds", &self.seeds, vec![USUAL_SEED], |seed| Ok(*seed))?;
        let bytes = |text: &Spanned<String>| {
            size(text.get_ref()).map_err(|what| reader.error(text.span(), "card_size", what))
        };
        matrix.card_bytes = self.card_size.as_ref().map(bytes).transpose()?;
        matrix.timed_writes = self.timed_writes.as_ref().map(|writes| *writes.get_ref());
        matrix.dirty_percent = match &self.dirty_percent {
            None => DIRTY_PERCENT,
            Some(percent) if (1..=100).contains(percent.get_ref()) => *percent.get_ref(),
            Some(percent) => return Err(reader.error(percent.span(), "dirty_percent", "it is 1 to 100")),
        };
        matrix.file_systems = self.file_systems(reader)?;
        matrix.kernels = self.kernels(reader)?;
        matrix.workloads = self.workloads(reader, &mut matrix.inputs)?;
        match matrix.cells_max() {
            0..=CELLS_MAX => Ok(matrix),
            cells => {
                Err(reader.error(0..0, "", format!("it has {cells} cells, at most {CELLS_MAX} are possible")))
            }
        }
    }

    fn cards(
        &self,
        reader: &Reader<'_>,
        inputs: &mut Vec<PathBuf>,
    ) -> Result<Vec<flash::Profile>, MatrixError> {
        let mut files = Vec::new();
        let cards = reader.all("cards", &self.cards, Vec::new(), |text| {
            let card = match flash::Profile::named(text) {
                Ok(card) => card,
                Err(error) => {
                    let file = reader.input(Path::new(text))?;
                    if !file.is_file() {
                        return Err(format!("{error}; and there is no file {}", file.display()));
                    }
                    flash::verbs::profile_in(&file).map_err(|error| error.to_string())?
                }
            };
            match card.is_raw() {
                true => Err(format!("{} is a raw chip; use presets = [\"nor\"] or [\"nand\"]", card.name)),
                false => Ok(card),
            }
        })?;
        for (entry, card) in self.cards.iter().zip(&cards) {
            if cards.iter().filter(|other| other.name == card.name).count() > 1 {
                let what = format!("two cards have the name {}; change `name` in one file", card.name);
                return Err(reader.error(entry.span(), "cards", what));
            }
            if flash::Profile::named(entry.get_ref()).is_err() {
                files.push(reader.path(Path::new(entry.get_ref())));
            }
        }
        inputs.extend(files);
        Ok(cards)
    }

    fn file_systems(&self, reader: &Reader<'_>) -> Result<Vec<FileSystem>, MatrixError> {
        let mut all: Vec<FileSystem> = Vec::new();
        for entry in &self.file_systems {
            let kind = reader.name("kind", &entry.kind)?;
            let fail = |what: String| Err(reader.error(entry.kind.span(), "file_systems", what));
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
            let own = match (&entry.make, &entry.check) {
                (None, None) if entry.name.is_none() => None,
                (None, _) => return fail("`name` and `check` need `make`, the command that formats".into()),
                (Some(make), _) if !make.get_ref().contains("{image}") => {
                    return Err(reader.error(make.span(), "make", "the command does not contain {image}"));
                }
                (Some(make), check) => Some(Box::new(OwnPrograms {
                    name: entry.name.as_ref().map_or(Ok(kind.clone()), |name| reader.name("name", name))?,
                    make: words(make.get_ref()),
                    check: check.as_ref().map_or(Vec::new(), |check| words(check.get_ref())),
                })),
            };
            let or_plain =
                |list: &[String]| if list.is_empty() { vec![String::new()] } else { list.to_vec() };
            for mount in or_plain(&entry.mount) {
                for mkfs in or_plain(&entry.mkfs) {
                    let mkfs = words(&mkfs);
                    let (kind, mount, own) = (kind.clone(), mount.clone(), own.clone());
                    all.push(FileSystem { kind, mkfs, mount, own });
                    if let Some(twice) = repeated(all.iter().map(FileSystem::name)) {
                        return fail(format!("{twice} is there twice"));
                    }
                }
            }
        }
        match all.is_empty() {
            true => {
                Err(reader.error(0..0, "file_systems", "there are none; add [[file_systems]] with `kind`"))
            }
            false => Ok(all),
        }
    }

    fn kernels(&self, reader: &Reader<'_>) -> Result<BTreeMap<String, Programs>, MatrixError> {
        let mut all = BTreeMap::new();
        for entry in &self.kernels {
            let fail = |what: String| Err(reader.error(entry.path.span(), "kernels", what));
            let dir = reader.path(entry.path.get_ref());
            let Some(programs) = Programs::find(&dir) else {
                return fail(format!(
                    "{}: contains no lab kernel (`linux` and `guest-agent`); cargo xtask uml-kernel builds one",
                    dir.display()
                ));
            };
            let name = match &entry.name {
                Some(name) => reader.name("name", name)?,
                None => match kernel_name(&programs.kernel) {
                    Some(name) => name,
                    None => return fail(format!("{}: has no note of its build; add `name`", dir.display())),
                },
            };
            if all.insert(name.clone(), programs).is_some() {
                return fail(format!("two kernels have the name {name}; add `name` to one"));
            }
        }
        Ok(all)
    }

    fn workloads(
        &self,
        reader: &Reader<'_>,
        inputs: &mut Vec<PathBuf>,
    ) -> Result<BTreeMap<String, (WorkloadId, OwnWorkload)>, MatrixError> {
        let mut all = BTreeMap::new();
        for entry in &self.workloads {
            let name = reader.name("name", &entry.name)?;
            let given = [("fio", &entry.fio), ("trace", &entry.trace), ("steps", &entry.steps)];
            let mut given = given.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?)));
            let (Some((key, path)), None) = (given.next(), given.next()) else {
                let what = format!("{name}: name one file: `fio`, `trace` or `steps`");
                return Err(reader.error(entry.name.span(), "workloads", what));
            };
            let file = reader.input(path.get_ref()).map_err(|what| reader.error(path.span(), key, what))?;
            let fail = |what: String| reader.error(path.span(), key, format!("{}: {what}", file.display()));
            let text = fs::read_to_string(&file).map_err(|error| fail(error.to_string()))?;
            let workload = match key {
                "fio" => Ok(OwnWorkload::Fio(file.clone())),
                "trace" => OwnWorkload::of_trace(&text),
                _ => OwnWorkload::of_steps(&text),
            };
            let sha256 = digest(text.as_bytes()).expect("memory can be read");
            let id = WorkloadId { name: name.clone(), sha256 };
            if all.insert(name.clone(), (id, workload.map_err(fail)?)).is_some() {
                return Err(reader.error(entry.name.span(), "name", format!("{name} is there twice")));
            }
            inputs.push(file);
        }
        Ok(all)
    }
}

/// Parses a size in bytes.
fn size(text: &str) -> Result<u64, String> {
    let config = parse_size::Config::new().with_binary();
    config.parse_size(text).map_err(|error| format!("{text:?}: {error}; write it as 64M"))
}
