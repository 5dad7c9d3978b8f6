//! `cp`: files into a volume, or out of it. `import` and `export` are for whole trees.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use f2fs::{
    Volume,
    format::FileType,
    tree::{DirSink, ExportOptions, VolumeSource, export},
    units::{Ino, Time},
    volume::{NewNode, SetAttr},
};

use rustix::{
    fs::{CWD, RenameFlags, SeekFrom, renameat_with, seek},
    io::Errno,
};

use crate::{
    interrupt, output, render,
    target::{Further, Target, destination},
};

/// Bytes that are copied at once.
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

A file of the host appears when it is complete. One that is there is replaced only with -f; files of an image are \
replaced.")]
pub struct Args {
    /// Files of the host, or - for standard input; or IMAGE:PATH, any number of them.
    #[arg(required = true)]
    from: Vec<OsString>,
    /// IMAGE:PATH, or a file or directory of the host, or - for standard output; of several files a directory.
    to: OsString,
    /// Replace a file of the host that is there.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    further: Further,
}

/// Copies.
pub fn run(args: &Args) -> Result<()> {
    let (to, several) = (Target::from(args.to.clone()), args.from.len() > 1);
    let sources: Vec<_> = args.from.iter().map(|from| Target::from(from.clone())).collect();
    // A path inside an image was split off; what exists as it stands is the host's.
    let inside = |text: &OsString, target: &Target| target.image != Path::new(text);
    let mut from_inside = args.from.iter().zip(&sources).map(|(text, target)| inside(text, target));
    match inside(&args.to, &to) {
        true if !from_inside.any(|inside| inside) => put(&args.from, &to, &args.further),
        false if from_inside.all(|inside| inside) => {
            let to = Path::new(&args.to);
            if several && !to.is_dir() {
                bail!("{}: no such directory", to.display());
            }
            sources.iter().try_for_each(|from| take(from, to, args))
        }
        _ => bail!("one side must be IMAGE:PATH, and the other files of the host"),
    }
}

/// All of the files, or none.
fn put(files: &[OsString], to: &Target, further: &Further) -> Result<()> {
    to.change(further, |volume| {
        if files.len() > 1 || to.is_of_directory() {
            let at = volume.resolve(&to.path, true)?;
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

fn put_file(volume: &mut Volume, from: &Path, to: &Target) -> Result<()> {
    // Asked by name first: opening a FIFO would wait for somebody.
    if !std::fs::metadata(from)?.is_file() {
        bail!("is no regular file; import takes directories");
    }
    let mut file = File::open(from)?;
    let meta = file.metadata()?;
    let leaf = from.file_name().context("has no name")?.as_encoded_bytes();
    let ino = make(volume, to, leaf, (meta.mode() & 0o777) as u16)?;
    // What has fewer blocks than bytes has holes; so seem files that the kernel makes up, where they end tells reading.
    match meta.blocks() * 512 < meta.len() {
        true => put_around_holes(volume, ino, &mut file, meta.len())?,
        false => _ = put_content(volume, ino, 0, &mut file)?,
    }
    let mtime = Time { seconds: meta.mtime(), nanoseconds: meta.mtime_nsec() as u32 };
    Ok(volume.set_attr(ino, &SetAttr { mtime: Some(mtime), ..SetAttr::default() })?)
}

fn put_stream(volume: &mut Volume, to: &Target) -> Result<()> {
    if volume
        .resolve(&to.path, true)
        .is_ok_and(|at| volume.stat(at).is_ok_and(|stat| stat.kind == FileType::Directory))
    {
        bail!("is a directory; name the file that standard input goes to");
    }
    let ino = make(volume, to, to.name(), 0o644)?;
    put_content(volume, ino, 0, &mut io::stdin().lock()).map(drop)
}

/// The empty file that content goes into; made where there is none, with these permissions.
fn make(volume: &mut Volume, to: &Target, leaf: &[u8], permissions: u16) -> Result<Ino> {
    let (dir, leaf) = destination(volume, to, leaf, FileType::Regular)?;
    match volume.resolve_from(dir, &leaf, true) {
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

/// What a file of so many bytes holds beside its holes.
fn put_around_holes(volume: &mut Volume, ino: Ino, file: &mut File, bytes: u64) -> Result<()> {
    let mut offset = 0;
    while offset < bytes {
        let start = match seek(&*file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            // The rest is a hole.
            Err(Errno::NXIO) => return Ok(volume.truncate(ino, bytes)?),
            // Nobody knows where.
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

/// Content from an offset on; says where it ended.
fn put_content(volume: &mut Volume, ino: Ino, mut offset: u64, content: &mut dyn Read) -> Result<u64> {
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

/// Copies a file out: to a stream as it comes, to a file so that it has its name only when it is complete.
fn take(from: &Target, to: &Path, args: &Args) -> Result<()> {
    if to == Path::new("-") || to == Path::new("/dev/stdout") {
        let mut out = render::Stdout::lock();
        super::cat::print(from, &args.further, &mut out)?;
        return Ok(out.flush()?);
    }
    let there = std::fs::metadata(to).map(|meta| meta.file_type());
    if there.is_ok_and(|kind| kind.is_char_device() || kind.is_fifo()) {
        let name = || to.display().to_string();
        let mut out = File::options().write(true).open(to).with_context(name)?;
        return super::cat::print(from, &args.further, &mut out).with_context(name);
    }
    let (volume, ino) = from.find_content(&args.further)?;
    if volume.stat(ino).with_context(|| from.to_string())?.kind == FileType::Directory {
        bail!("{from}: is a directory; export takes it out");
    }
    let (folder, name) = place(from, to)?;
    let path = folder.join(&name);
    let is_there = || -> Result<()> { bail!("{}: exists already; -f replaces it", path.display()) };
    if !args.force && path.symlink_metadata().is_ok() {
        return is_there();
    }
    let unfinished = tempfile::Builder::new()
        .prefix(output::HIDDEN)
        .tempdir_in(&folder)
        .map_err(output::without_path)
        .with_context(|| folder.display().to_string())?;
    interrupt::remove(unfinished.path());
    let owners = rustix::process::geteuid().is_root();
    let mut source = VolumeSource::new(&volume, ino, name.as_encoded_bytes())?;
    let mut sink = DirSink::new(unfinished.path(), owners).with_context(|| path.display().to_string())?;
    export(&mut source, &mut sink, ExportOptions::default())
        .map_err(|error| match error {
            // Its path is that of the unfinished file.
            f2fs::Error::Host { source, .. } => {
                anyhow::Error::new(source).context(path.display().to_string())
            }
            error => error.into(),
        })
        .with_context(|| from.to_string())?;
    match rename(&unfinished.path().join(&name), &path, args.force) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => is_there(),
        done => done.with_context(|| path.display().to_string()),
    }
}

/// Renames a file of the host; replaces another only with `force`.
fn rename(from: &Path, to: &Path, force: bool) -> io::Result<()> {
    if !force {
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // The host's file system does not know the flag; that nothing was there has been asked before.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            done => return Ok(done?),
        }
    }
    std::fs::rename(from, to)
}

/// The directory of the host that a file goes to, and its name there.
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
