//! Where content comes from: a directory, a tar archive, standard input; and what is changed on the way.

use std::{
    fs::{File, Metadata},
    io::{self, BufReader, Seek},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use block::{FileDevice, OpenOptions};
use f2fs::{
    tree::{DirSource, FileContexts, FsConfig, HostId, OwnerMap, Source, TarSource, Transform, decompressed},
    units::Time,
};

use crate::{fake_root, signature};

/// Changes to what is put in.
#[derive(clap::Args)]
#[command(next_help_heading = "What is changed on the way in")]
pub struct Changes {
    /// Owner and group of everything.
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    pub all_owned_by: Option<(u32, u32)>,
    /// Owner and group of the root directory; those of the source by default, and of a new volume without one
    /// those of who makes it.
    #[arg(short = 'R', long, value_name = "UID:GID", value_parser = owner)]
    pub root_owner: Option<(u32, u32)>,
    /// File of lines that map owners and groups; see flashkit-filling(7).
    #[arg(long, value_name = "FILE")]
    pub owner_map: Option<PathBuf>,
    /// Android's fs_config: a line a path with uid, gid, mode and capabilities.
    #[arg(long, value_name = "FILE")]
    pub fs_config: Option<PathBuf>,
    /// SELinux's file_contexts: labels by path.
    #[arg(long, value_name = "FILE")]
    pub file_contexts: Option<PathBuf>,
    /// Mount point of the volume, which begins the paths of fs_config and file_contexts; / by default.
    #[arg(long, value_name = "PATH")]
    pub mount_point: Option<String>,
}

impl Changes {
    /// Reads the files that are named.
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
            latest: epoch()?,
        })
    }
}

impl Changes {
    /// Refuses what changes a source where there is none; a new volume's root has an owner all the same.
    pub fn refuse_without_source(&self) -> Result<()> {
        for (option, file) in [
            ("--owner-map", &self.owner_map),
            ("--fs-config", &self.fs_config),
            ("--file-contexts", &self.file_contexts),
        ] {
            if file.is_some() {
                bail!("{option} changes the source on its way in; give the source with --from");
            }
        }
        Ok(())
    }
}

/// What SOURCE_DATE_EPOCH says: the latest time that anything in a reproducible image may have.
pub fn epoch() -> Result<Option<Time>> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => {
            let seconds = text.parse().with_context(|| format!("SOURCE_DATE_EPOCH={text:?} is no number"))?;
            Ok(Some(Time { seconds, nanoseconds: 0 }))
        }
        Err(_) => Ok(None),
    }
}

/// Content that can be read, and where it can also be read again.
pub enum Content {
    /// A directory, and the files in it that are left out: those that it is put into.
    Directory(PathBuf, Vec<HostId>),
    /// A tar archive in a file.
    Archive(PathBuf, File),
    /// A tar archive on standard input: read once.
    Stream,
}

impl Content {
    /// The source that `--from` or an import names. Its owners are those of the host, unless there is a map of `owners`.
    pub fn find(name: &Path, owners: Option<&OwnerMap>) -> Result<Content> {
        if name == Path::new("-") {
            return Ok(Content::Stream);
        }
        let kind = std::fs::metadata(name).with_context(|| name.display().to_string())?;
        if kind.is_dir() {
            if owners.is_none() {
                fake_root::require_seen(name)?;
            }
            return Ok(Content::Directory(name.to_path_buf(), Vec::new()));
        }
        let file = File::open(name).with_context(|| name.display().to_string())?;
        Ok(Content::Archive(name.to_path_buf(), file))
    }

    /// Without these files, where they lie in the directory: those that it is put into.
    pub fn leaving_out<'a>(mut self, files: impl IntoIterator<Item = &'a Path>) -> Content {
        if let Content::Directory(_, left_out) = &mut self {
            let facts = files.into_iter().filter_map(|file| std::fs::metadata(file).ok());
            let files = facts.filter(Metadata::is_file);
            left_out.extend(files.map(|facts| HostId { device: facts.dev(), ino: facts.ino() }));
        }
        self
    }

    /// Whether it can be opened again after it was read.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Content::Directory(..) => true,
            Content::Archive(_, file) => file.metadata().is_ok_and(|kind| kind.is_file()),
            Content::Stream => false,
        }
    }

    /// Copies a stream into a file without a name, so that it can be read again.
    pub fn keep(self) -> Result<Content> {
        if self.is_repeatable() {
            return Ok(self);
        }
        let mut file = tempfile::tempfile().context("a file to keep the archive in")?;
        match self {
            Content::Archive(_, mut stream) => io::copy(&mut stream, &mut file),
            _ => io::copy(&mut io::stdin().lock(), &mut file),
        }
        .context("keeping the archive in a temporary file")?;
        Ok(Content::Archive("standard input".into(), file))
    }

    /// Opens it from its start.
    pub fn open(&self) -> Result<Box<dyn Source + '_>> {
        Ok(match self {
            Content::Directory(path, left_out) => {
                let source = DirSource::new(path).with_context(|| path.display().to_string())?;
                Box::new(source.leaving_out(left_out))
            }
            Content::Archive(path, file) => {
                let name = path.display().to_string();
                let mut file = file;
                if self.is_repeatable() {
                    file.rewind().with_context(|| name.clone())?;
                }
                tar(&name, BufReader::with_capacity(1 << 20, file))?
            }
            Content::Stream => {
                if std::io::IsTerminal::is_terminal(&io::stdin()) {
                    bail!("standard input is a terminal; pipe a tar archive into it");
                }
                tar("standard input", BufReader::with_capacity(1 << 20, io::stdin()))?
            }
        })
    }

    /// An error of filling `image`: one of the source is told without the image's name, and with the kind of file that it
    /// is where that is no archive; any other as `of_image` has it.
    pub fn explain(
        &self,
        error: f2fs::Error,
        image: &Path,
        of_image: impl FnOnce(f2fs::Error) -> anyhow::Error,
    ) -> anyhow::Error {
        let f2fs::Error::Host { source, .. } = &error else {
            return of_image(error).context(image.display().to_string());
        };
        match self {
            Content::Archive(path, file) if source.to_string().ends_with("not a tar archive") => {
                match holds(path, file) {
                    Some(what) => anyhow!("{}: not a tar archive but {what}", path.display()),
                    None => error.into(),
                }
            }
            _ => error.into(),
        }
    }
}

/// A tar archive, compressed or not.
fn tar<'a>(name: &str, stream: impl io::Read + 'a) -> Result<Box<dyn Source + 'a>> {
    let stream = decompressed(stream).with_context(|| name.to_string())?;
    Ok(Box::new(TarSource::named(name, stream)))
}

/// The disk, volume or program in a file that was taken for an archive.
fn holds(path: &Path, file: &File) -> Option<String> {
    if !file.metadata().is_ok_and(|facts| facts.is_file()) {
        return None;
    }
    let device = FileDevice::open(path, OpenOptions::default()).ok()?;
    match signature::find_in_file(&device).ok()?? {
        "F2FS" => {
            Some(format!("an F2FS volume; flashkit export {} - makes an archive of it", path.display()))
        }
        // It is in there, and that was no archive.
        compressed if compressed.ends_with("-compressed data") => None,
        _ => signature::describe(&device).ok()?,
    }
}

/// `UID:GID` as numbers.
fn owner(text: &str) -> Result<(u32, u32), String> {
    let (uid, gid) = text.split_once(':').ok_or("write it as UID:GID, in numbers")?;
    let number =
        |text: &str| owner_number(text).ok_or_else(|| format!("{text:?} is no number of a user or group"));
    Ok((number(uid)?, number(gid)?))
}

/// A number that a user or group can have. To Linux the highest is nobody (chown(2)).
pub fn owner_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}
