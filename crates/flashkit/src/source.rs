//! Sources of content (directories, tar archives, standard input) and changes to the content.

use std::{
    fs::File,
    io::{self, BufReader, Seek},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, anyhow, bail};
use block::{FileDevice, OpenOptions};
use f2fs::units::Time;
use f2fs_tree::{
    DirSource, Exclusion, FileContexts, FsConfig, Layer, Overlay, OwnerMap, Source, TarSource, Transform,
    decompressed,
};
use image::Source as ImageSource;

use crate::{exclude::Exclude, fake_root, signature};

/// Changes to the content.
#[derive(clap::Args)]
#[command(next_help_heading = "Changes on import")]
pub struct Changes {
    /// Owner and group of everything.
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    pub all_owned_by: Option<(u32, u32)>,
    /// Owner and group of the root directory; by default those of the source, or of the caller for a new
    /// volume without a source.
    #[arg(short = 'R', long, value_name = "UID:GID", value_parser = owner)]
    pub root_owner: Option<(u32, u32)>,
    /// File that maps owners and groups; see flashkit-filling(7).
    #[arg(long, value_name = "FILE")]
    pub owner_map: Option<PathBuf>,
    /// Android's fs_config: one line per path with uid, gid, mode and capabilities.
    #[arg(long, value_name = "FILE")]
    pub fs_config: Option<PathBuf>,
    /// SELinux's file_contexts: labels by path.
    #[arg(long, value_name = "FILE")]
    pub file_contexts: Option<PathBuf>,
    /// Time of every entry, in seconds since 1970, instead of the times of the source.
    #[arg(long, value_name = "SECONDS")]
    pub all_times: Option<i64>,
    /// Mount point of the volume, the prefix of paths in fs_config and file_contexts; / by default.
    #[arg(long, value_name = "PATH")]
    pub mount_point: Option<String>,
}

impl Changes {
    /// Reads the files named by the options.
    pub fn read(&self) -> Result<Transform> {
        fn parsed<T>(path: Option<&PathBuf>, parse: impl Fn(&str) -> f2fs::Result<T>) -> Result<Option<T>> {
            path.map(|path| {
                let name = || path.display().to_string();
                let bytes = std::fs::read(path).with_context(name)?;
                parse(FileContexts::text(&bytes).with_context(name)?).with_context(name)
            })
            .transpose()
        }
        if self.mount_point.is_some() && self.fs_config.is_none() && self.file_contexts.is_none() {
            bail!(
                "--mount-point changes the paths of --fs-config and --file-contexts; give one of them, or neither"
            );
        }
        Ok(Transform {
            owners: parsed(self.owner_map.as_ref(), OwnerMap::parse)?,
            all_owned_by: self.all_owned_by,
            root_owner: self.root_owner,
            mount_point: self
                .mount_point
                .as_deref()
                .unwrap_or_default()
                .trim_matches('/')
                .as_bytes()
                .to_vec(),
            fs_config: parsed(self.fs_config.as_ref(), FsConfig::parse)?,
            file_contexts: parsed(self.file_contexts.as_ref(), FileContexts::parse)?,
            all_times: self.all_times.map(|seconds| Time { seconds, nanoseconds: 0 }),
            latest: epoch()?,
        })
    }
}

impl Changes {
    /// Refuses options that change a source if there is no source. A new volume's root has an owner all the
    /// same.
    pub fn refuse_without_source(&self) -> Result<()> {
        for (option, is_given) in [
            ("--owner-map", self.owner_map.is_some()),
            ("--fs-config", self.fs_config.is_some()),
            ("--file-contexts", self.file_contexts.is_some()),
            ("--all-times", self.all_times.is_some()),
        ] {
            if is_given {
                bail!("{option} changes the imported source; name the source with --from");
            }
        }
        Ok(())
    }
}

/// Returns SOURCE_DATE_EPOCH: the latest time that anything in a reproducible image may have.
pub fn epoch() -> Result<Option<Time>> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => {
            let seconds =
                text.parse().with_context(|| format!("SOURCE_DATE_EPOCH={text:?} is not a number"))?;
            Ok(Some(Time { seconds, nanoseconds: 0 }))
        }
        Err(_) => Ok(None),
    }
}

/// The content of one or more sources, the later ones laid over the earlier ones.
pub struct Content {
    parts: Vec<Part>,
    exclusion: Arc<Exclusion>,
    /// The names of all sources, if the tree of one alone is not the content.
    overlay: Option<Overlay>,
}

/// A source of content. Some can be read repeatedly.
enum Part {
    /// A directory, and files in it to skip: the output files.
    Directory(PathBuf, Vec<PathBuf>),
    /// A tar archive in a file.
    Archive(PathBuf, File),
    /// A tar archive on standard input, which can be read only once.
    Stream,
}

/// The number of times that content is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Once.
    Once,
    /// First to count its space.
    Twice,
}

impl Content {
    /// Finds the sources named by `--from` or an import. Their owners are the host's unless `owners` maps them.
    pub fn find(sources: &[PathBuf], exclude: &Exclude, owners: Option<&OwnerMap>) -> Result<Content> {
        if sources.iter().filter(|source| is_stream(source)).count() > 1 {
            bail!("standard input can be one source only");
        }
        let parts = sources.iter().map(|source| Part::find(source, owners)).collect::<Result<_>>()?;
        Ok(Content { parts, exclusion: exclude.read()?, overlay: None })
    }

    /// Skips these files if they lie in a directory: the output files.
    pub fn leaving_out<'a>(mut self, files: impl IntoIterator<Item = &'a Path>) -> Content {
        let files: Vec<_> = files.into_iter().filter(|file| file.is_file()).map(Path::to_path_buf).collect();
        for part in &mut self.parts {
            if let Part::Directory(_, left_out) = part {
                left_out.extend_from_slice(&files);
            }
        }
        self
    }

    /// Prepares the content for so many reads. Standard input is copied to a file without a name if it is read more than
    /// once: also if the names of all sources must be known before the content of the first one.
    pub fn prepared(mut self, reads: Reads) -> Result<Content> {
        let has_archive = self.parts.iter().any(|part| !matches!(part, Part::Directory(..)));
        let is_overlay = self.parts.len() > 1 || has_archive && !self.exclusion.is_empty();
        if is_overlay || reads == Reads::Twice {
            self.parts = self.parts.into_iter().map(Part::kept).collect::<Result<_>>()?;
        }
        if is_overlay {
            let overlay = Overlay::plan(self.layers()?, self.exclusion.clone());
            self.overlay = Some(overlay.map_err(|error| self.explain_source(error))?);
        }
        Ok(self)
    }

    /// Returns true if the content can be read again from the start.
    pub fn is_repeatable(&self) -> bool {
        self.parts.iter().all(Part::is_repeatable)
    }

    /// Opens the content from its start.
    pub fn open(&self) -> Result<Box<dyn Source + Send + '_>> {
        let mut layers = self.layers()?;
        Ok(match &self.overlay {
            Some(overlay) => Box::new(overlay.tree(layers)),
            None => layers.pop().context("a source is needed")?.source,
        })
    }

    fn layers<'s>(&'s self) -> Result<Vec<Layer<'s>>> {
        let layer =
            |part: &'s Part| Ok(Layer { name: part.name(), source: part.open(self.exclusion.clone())? });
        self.parts.iter().map(layer).collect()
    }

    /// Explains an error of filling `image`. An error of a source does not name the image. For any other error,
    /// `of_image` makes the message.
    pub fn explain(
        &self,
        error: f2fs::Error,
        image: &Path,
        of_image: impl FnOnce(f2fs::Error) -> anyhow::Error,
    ) -> anyhow::Error {
        match error {
            f2fs::Error::Host { .. } => self.explain_source(error),
            error => of_image(error).context(image.display().to_string()),
        }
    }

    /// Explains an error of a source. If it is not an archive, the message names the kind of file.
    fn explain_source(&self, error: f2fs::Error) -> anyhow::Error {
        let f2fs::Error::Host { path, source } = &error else { return error.into() };
        if source.to_string().ends_with("not a tar archive") {
            let archive = self.parts.iter().find_map(|part| match part {
                Part::Archive(name, file) if part.name() == *path => holds(name, file),
                _ => None,
            });
            if let Some(what) = archive {
                return anyhow!("{path}: not a tar archive but {what}");
            }
        }
        error.into()
    }
}

fn is_stream(source: &Path) -> bool {
    source == Path::new("-")
}

impl Part {
    fn find(source: &Path, owners: Option<&OwnerMap>) -> Result<Part> {
        if is_stream(source) {
            return Ok(Part::Stream);
        }
        let kind = std::fs::metadata(source).with_context(|| source.display().to_string())?;
        if kind.is_dir() {
            if owners.is_none() {
                fake_root::require_seen(source)?;
            }
            return Ok(Part::Directory(source.to_path_buf(), Vec::new()));
        }
        let file = File::open(source).with_context(|| source.display().to_string())?;
        Ok(Part::Archive(source.to_path_buf(), file))
    }

    /// Name of the source, for messages.
    fn name(&self) -> String {
        match self {
            Part::Directory(path, _) | Part::Archive(path, _) => path.display().to_string(),
            Part::Stream => "standard input".into(),
        }
    }

    fn is_repeatable(&self) -> bool {
        match self {
            Part::Directory(..) => true,
            Part::Archive(_, file) => file.metadata().is_ok_and(|kind| kind.is_file()),
            Part::Stream => false,
        }
    }

    /// Copies a stream to a file without a name, so that it can be read again.
    fn kept(self) -> Result<Part> {
        if self.is_repeatable() {
            return Ok(self);
        }
        let mut file = tempfile::tempfile().context("cannot create a temporary file for the archive")?;
        let name = PathBuf::from(self.name());
        match self {
            Part::Archive(_, mut stream) => io::copy(&mut stream, &mut file),
            _ => io::copy(&mut io::stdin().lock(), &mut file),
        }
        .context("cannot copy the archive to a temporary file")?;
        Ok(Part::Archive(name, file))
    }

    /// Opens the source from its start. The entries of an archive that `exclusion` leaves out are still there.
    fn open(&self, exclusion: Arc<Exclusion>) -> Result<Box<dyn Source + Send + '_>> {
        let name = self.name();
        Ok(match self {
            Part::Directory(path, left_out) => {
                let source = DirSource::new(path).context(name)?;
                Box::new(source.leaving_out(left_out).excluding(exclusion))
            }
            Part::Archive(_, file) => {
                let mut file = file;
                if self.is_repeatable() {
                    file.rewind().with_context(|| name.clone())?;
                }
                tar(&name, BufReader::with_capacity(1 << 20, file))?
            }
            Part::Stream => {
                if std::io::IsTerminal::is_terminal(&io::stdin()) {
                    bail!("standard input is a terminal; pipe a tar archive into it");
                }
                tar(&name, BufReader::with_capacity(1 << 20, io::stdin()))?
            }
        })
    }
}

/// Opens a tar archive, compressed or not.
fn tar<'a>(name: &str, stream: impl io::Read + Send + 'a) -> Result<Box<dyn Source + Send + 'a>> {
    let stream = decompressed(stream).with_context(|| name.to_string())?;
    Ok(Box::new(TarSource::named(name, stream)))
}

/// Returns the disk, volume or program in a file that was given as an archive.
fn holds(path: &Path, file: &File) -> Option<String> {
    if !file.metadata().is_ok_and(|facts| facts.is_file()) {
        return None;
    }
    let device = FileDevice::open(path, OpenOptions::default()).ok()?;
    match signature::find_in_file(&device).ok()?? {
        "F2FS" => {
            Some(format!("an F2FS volume; flashkit export {} - makes an archive of it", path.display()))
        }
        // The file was decompressed, and its content is not an archive.
        compressed if compressed.ends_with("-compressed data") => None,
        _ => signature::describe(&device, &ImageSource::parse(path)).ok()?,
    }
}

/// Parses `UID:GID` as numbers.
fn owner(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').ok_or("write it as UID:GID, in numbers")?;
    let number = |text: &str| {
        owner_number(text).ok_or_else(|| format!("{text:?} is not the number of a user or group"))
    };
    Ok((number(uid)?, number(gid)?))
}

/// Parses a number that a user or group can have. Linux reserves the highest one (chown(2)).
pub fn owner_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}
