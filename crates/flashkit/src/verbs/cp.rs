//! `cp`: copies files into a volume, or out of it. `import` and `export` are for whole trees.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use f2fs::{
    engine::{Engine, FinalSymlink, NewNode, SetAttr},
    format::FileType,
    units::{Ino, Time},
};
use f2fs_tree::{DirSink, ExportOptions, Owners, VolumeSource, export, make_private};

use rustix::{
    fs::{
        AtFlags, Mode, OFlags, RenameFlags, SeekFrom, open, renameat, renameat_with, seek, statat, unlinkat,
    },
    io::Errno,
};

use crate::{
    interrupt,
    notice::notice,
    output, render,
    target::{Further, Target, destination},
};

/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Arguments of `cp`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit cp hosts card.img:/etc/hosts
  flashkit cp *.conf card.img:/etc
  date | flashkit cp - card.img:/etc/built
  flashkit cp card.img:/etc/hosts .
  flashkit cp -f card.img:/etc/hosts hosts
  flashkit cp card.img:/backup.tar - | tar t

A file of the host appears when it is complete. An existing file of the host is replaced only with -f; files of \
an image are replaced.")]
pub struct Args {
    /// Files of the host, - for standard input, or IMAGE:PATH; any number of them.
    #[arg(required = true)]
    from: Vec<OsString>,
    /// IMAGE:PATH, a file or directory of the host, or - for standard output. For several files, a directory.
    to: OsString,
    /// Replace an existing file of the host.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    further: Further,
}

/// Copies.
pub fn run(args: &Args) -> Result<()> {
    let (to, several) = (Target::from(args.to.clone()), args.from.len() > 1);
    let sources: Vec<_> = args.from.iter().map(|from| Target::from(from.clone())).collect();
    // A target whose image differs from the text is a path inside an image. An existing file of exactly this
    // name is the host's.
    let inside = |text: &OsString, target: &Target| target.image != Path::new(text);
    let mut from_inside = args.from.iter().zip(&sources).map(|(text, target)| inside(text, target));
    match inside(&args.to, &to) {
        true if !from_inside.any(|inside| inside) => put(&args.from, &to, &args.further),
        false if from_inside.all(|inside| inside) => {
            let to = Path::new(&args.to);
            if several && !to.is_dir() {
                bail!("{}: no such directory", to.display());
            }
            let mut losses = 0;
            for from in &sources {
                losses += take(from, to, args)?;
            }
            match losses {
                0 => Ok(()),
                losses => bail!("{} could not be copied", render::count(losses, "thing")),
            }
        }
        _ => bail!("one side must be IMAGE:PATH, and the other files of the host"),
    }
}

/// Copies either all of the files or none.
fn put(files: &[OsString], to: &Target, further: &Further) -> Result<()> {
    to.change(further, |volume| {
        if files.len() > 1 || to.is_of_directory() {
            let at = volume.resolve(&to.path, FinalSymlink::Follow)?;
            if volume.stat(at)?.kind != FileType::Directory {
                return Err(f2fs::Error::NotDirectory.into());
            }
        }
        files.iter().try_for_each(|file| match Path::new(file) {
            dash if dash == Path::new("-") => put_stream(volume, to),
            file => put_file(volume, file, to).with_context(|| file.display().to_string()),
        })
    })
}

fn put_file(volume: &mut Engine, from: &Path, to: &Target) -> Result<()> {
    // The kind is checked by name first: opening a FIFO would wait for a writer.
    if !std::fs::metadata(from)?.is_file() {
        bail!("not a regular file; flashkit import copies directories");
    }
    let mut file = File::open(from)?;
    let meta = file.metadata()?;
    let leaf = from.file_name().context("the path has no file name")?.as_encoded_bytes();
    let ino = make(volume, to, leaf, (meta.mode() & 0o777) as u16)?;
    // A file with fewer blocks than bytes has holes. Files that the kernel generates look the same, and only
    // a read finds their end.
    match meta.blocks() * 512 < meta.len() {
        true => put_around_holes(volume, ino, &mut file, meta.len())?,
        false => _ = put_content(volume, ino, 0, &mut file)?,
    }
    let mtime = Time { seconds: meta.mtime(), nanoseconds: meta.mtime_nsec() as u32 };
    Ok(volume.set_attr(ino, &SetAttr { mtime: Some(mtime), ..SetAttr::default() })?)
}

fn put_stream(volume: &mut Engine, to: &Target) -> Result<()> {
    if volume
        .resolve(&to.path, FinalSymlink::Follow)
        .is_ok_and(|at| volume.stat(at).is_ok_and(|stat| stat.kind == FileType::Directory))
    {
        bail!("is a directory; name the file for standard input");
    }
    let ino = make(volume, to, to.name(), 0o644)?;
    put_content(volume, ino, 0, &mut io::stdin().lock()).map(drop)
}

/// Empties the file that receives the content, or makes it with these permissions, and returns it.
fn make(volume: &mut Engine, to: &Target, leaf: &[u8], permissions: u16) -> Result<Ino> {
    let (dir, leaf) = destination(volume, to, leaf, FileType::Regular)?;
    match volume.resolve_from(dir, &leaf, FinalSymlink::Follow) {
        Ok(there) => {
            volume.truncate(there, 0)?;
            Ok(there)
        }
        Err(f2fs::Error::NotFound) => {
            Ok(volume.create(dir, &leaf, &NewNode::new(FileType::Regular.mode_bits() | permissions))?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Copies the data of a file of `bytes` bytes and skips its holes.
fn put_around_holes(volume: &mut Engine, ino: Ino, file: &mut File, bytes: u64) -> Result<()> {
    let mut offset = 0;
    while offset < bytes {
        let start = match seek(&*file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            // The rest is a hole.
            Err(Errno::NXIO) => return Ok(volume.truncate(ino, bytes)?),
            // The host does not report holes.
            Err(_) => offset,
        };
        let end = seek(&*file, SeekFrom::Hole(start)).unwrap_or(bytes);
        seek(&*file, SeekFrom::Start(start))?;
        offset = put_content(volume, ino, start, &mut file.take(end - start))?;
        if offset < end {
            break;
        }
    }
    Ok(())
}

/// Copies content to a file from an offset on. Returns the offset of its end.
fn put_content(volume: &mut Engine, ino: Ino, mut offset: u64, content: &mut dyn Read) -> Result<u64> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match content.read(&mut chunk) {
            Ok(0) => return Ok(offset),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        volume.write(ino, offset, &chunk[..count])?;
        offset += count as u64;
    }
}

/// Copies a file out. A stream gets the data as it is read; a file gets its name only when it is complete.
/// Returns the number of reported losses.
fn take(from: &Target, to: &Path, args: &Args) -> Result<u64> {
    if to == Path::new("-") || to == Path::new("/dev/stdout") {
        let mut out = render::Stdout::lock();
        super::cat::print(from, &args.further, &mut out)?;
        out.flush()?;
        return Ok(0);
    }
    let there = std::fs::metadata(to).map(|meta| meta.file_type());
    if there.is_ok_and(|kind| kind.is_char_device() || kind.is_fifo()) {
        let name = || to.display().to_string();
        let mut out = File::options().write(true).open(to).with_context(name)?;
        return super::cat::print(from, &args.further, &mut out).map(|()| 0).with_context(name);
    }
    let (volume, ino) = from.find_content(&args.further)?;
    if volume.stat(ino).with_context(|| from.to_string())?.kind == FileType::Directory {
        bail!("{from}: is a directory; flashkit export copies it");
    }
    let (folder, name) = place(from, to)?;
    let path = folder.join(&name);
    let shown = || path.display().to_string();
    let is_there = || -> Result<u64> { bail!("{}: exists already; -f replaces it", path.display()) };
    let unfinished = Unfinished::new(&folder, &name)?;
    if !args.force && statat(&unfinished.folder, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return is_there();
    }
    let mut source = VolumeSource::new(&volume, ino, name.as_encoded_bytes())?;
    let dir = unfinished.dir.try_clone().with_context(shown)?;
    let mut sink = DirSink::at(dir, &folder, Owners::permitted())?;
    let mut lost = |error: &f2fs::Error| {
        // The source has the path on the host.
        let f2fs::Error::Lost { source, .. } = error else { return notice!("flashkit: {from}: {error}") };
        notice!("flashkit: {from}: {source}");
    };
    let options = ExportOptions { lost: Some(&mut lost), ..ExportOptions::default() };
    let done = export(&mut source, &mut sink, options)
        .map_err(|error| match error {
            f2fs::Error::Lost { source, .. } if matches!(*source, f2fs::Error::Host { .. }) => *source,
            error => error,
        })
        .with_context(|| from.to_string())?;
    if done.entries == 0 {
        bail!("{from}: no file was created in {}", folder.display());
    }
    let finished = if args.force { unfinished.replace() } else { unfinished.finish() };
    match finished {
        Err(Errno::EXIST) => is_there(),
        renamed => renamed.map(|()| done.losses).with_context(shown),
    }
}

/// An unfinished file of the host, in its own directory beside its final place, which no other user may write
/// to. All operations use handles, so other users with write access to the folder cannot redirect them.
/// Dropping it removes the remains.
struct Unfinished {
    folder: OwnedFd,
    dir: OwnedFd,
    /// Name of the directory.
    dir_name: OsString,
    /// Name of the file, in both directories.
    name: OsString,
}

impl Unfinished {
    fn new(path: &Path, name: &OsStr) -> Result<Arc<Unfinished>> {
        let shown = || path.display().to_string();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(path, flags, Mode::empty()).with_context(shown)?;
        let leaf = |path: &Path| path.file_name().unwrap_or_default().to_owned();
        let (dir, temporary) = tempfile::Builder::new()
            .prefix(output::HIDDEN)
            .make_in(path, |path| make_private(&folder, leaf(path).as_ref()))
            .map_err(output::without_path)
            .with_context(shown)?
            .into_parts();
        // From here on, the directory is removed through the handles.
        let dir_name = leaf(&temporary.keep().with_context(shown)?);
        let unfinished = Arc::new(Unfinished { folder, dir, dir_name, name: name.to_owned() });
        let interrupted = Arc::downgrade(&unfinished);
        interrupt::clean_up(move || {
            if let Some(unfinished) = interrupted.upgrade() {
                unfinished.remove();
            }
        });
        Ok(unfinished)
    }

    /// Moves the file to its final place, if the name is free.
    fn finish(&self) -> Result<(), Errno> {
        match renameat_with(&self.dir, &self.name, &self.folder, &self.name, RenameFlags::NOREPLACE) {
            // The host's file system does not know the flag. The caller has checked that the name is free.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => self.replace(),
            done => done,
        }
    }

    /// Moves the file to its final place, in place of another one.
    fn replace(&self) -> Result<(), Errno> {
        renameat(&self.dir, &self.name, &self.folder, &self.name)
    }

    fn remove(&self) {
        // The file may already be in its final place.
        let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
        let _ = unlinkat(&self.folder, &self.dir_name, AtFlags::REMOVEDIR);
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the host's directory that receives a file, and its name there.
fn place(from: &Target, to: &Path) -> Result<(PathBuf, OsString)> {
    if to.is_dir() {
        return Ok((to.to_path_buf(), OsStr::from_bytes(from.name()).to_owned()));
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if to.as_os_str().as_encoded_bytes().ends_with(b"/") {
        bail!("{}: no such directory", to.display());
    }
    if !folder.is_dir() {
        bail!("{}: no such directory", folder.display());
    }
    let leaf = to.file_name().with_context(|| to.display().to_string())?;
    Ok((folder.to_path_buf(), leaf.to_owned()))
}
