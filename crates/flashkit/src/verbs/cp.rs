//! `cp`: copies files into a volume, or out of it. `import` and `export` are for whole trees.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf, is_separator},
};

use anyhow::{Context, Result, bail};
use f2fs::{
    engine::{Caller, Engine, FinalSymlink, NewNode, SetAttr},
    format::FileType,
    units::Ino,
};
use f2fs_tree::{ExportOptions, VolumeSource, export};

use crate::{
    host::{self, Unfinished},
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
    let (permissions, mtime) = host::permissions_and_time(&meta);
    let ino = make(volume, to, leaf, permissions)?;
    match host::may_have_holes(&meta) {
        true => put_around_holes(volume, ino, &mut file, meta.len())?,
        false => _ = put_content(volume, ino, 0, &mut file)?,
    }
    Ok(volume.begin(Caller::ADMIN).set_attr(ino, &SetAttr { mtime: Some(mtime), ..SetAttr::default() })?)
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
            volume.begin(Caller::ADMIN).truncate(there, 0)?;
            Ok(there)
        }
        Err(f2fs::Error::NotFound) => Ok(volume.begin(Caller::ADMIN).create(
            dir,
            &leaf,
            &NewNode::new(FileType::Regular.mode_bits() | permissions),
        )?),
        Err(error) => Err(error.into()),
    }
}

/// Copies the data of a file of `bytes` bytes and skips its holes.
fn put_around_holes(volume: &mut Engine, ino: Ino, file: &mut File, bytes: u64) -> Result<()> {
    let mut offset = 0;
    while offset < bytes {
        // Files of the kernel may not know holes at all.
        let Some(data) = host::next_data(file, offset, bytes).unwrap_or(Some(offset..bytes)) else {
            // The rest is a hole.
            return Ok(volume.begin(Caller::ADMIN).truncate(ino, bytes)?);
        };
        file.seek(SeekFrom::Start(data.start))?;
        offset = put_content(volume, ino, data.start, &mut file.take(data.end - data.start))?;
        if offset < data.end {
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
        volume.begin(Caller::ADMIN).write(ino, offset, &chunk[..count])?;
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
    if there.is_ok_and(host::is_stream) {
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
    if !args.force && unfinished.is_taken() {
        return is_there();
    }
    let mut source = VolumeSource::new(&volume, ino, name.as_encoded_bytes())?;
    let mut sink = unfinished.sink()?;
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
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => is_there(),
        renamed => renamed.map(|()| done.losses).with_context(shown),
    }
}

/// Returns the host's directory that receives a file, and its name there.
fn place(from: &Target, to: &Path) -> Result<(PathBuf, OsString)> {
    if to.is_dir() {
        return Ok((to.to_path_buf(), host::name_of(from.name()).with_context(|| from.to_string())?));
    }
    let folder = output::folder(to);
    if to.as_os_str().as_encoded_bytes().last().is_some_and(|last| is_separator(char::from(*last))) {
        bail!("{}: no such directory", to.display());
    }
    if !folder.is_dir() {
        bail!("{}: no such directory", folder.display());
    }
    let leaf = to.file_name().with_context(|| to.display().to_string())?;
    Ok((folder.to_path_buf(), leaf.to_owned()))
}
