//! `cp`: a file into a volume, or out of it. `import` and `export` are for whole trees.

use std::{
    fs::File,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use f2fs::{
    Volume,
    format::FileType,
    tree::{DirSink, ExportOptions, VolumeSource, export},
    units::Time,
    volume::{NewNode, SetAttr},
};

use crate::target::{Further, Target, destination};

/// Bytes that are copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Arguments of `cp`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit cp hosts card.img:/etc/hosts
  flashkit cp card.img:/etc/hosts .")]
pub struct Args {
    /// A file of the host, or IMAGE:PATH.
    from: String,
    /// IMAGE:PATH, or a file or directory of the host.
    to: String,
    #[command(flatten)]
    further: Further,
}

/// Copies.
pub fn run(args: &Args) -> Result<()> {
    let (Ok(from), Ok(to)) = (args.from.parse::<Target>(), args.to.parse::<Target>());
    // A path inside an image was split off; what exists as it stands is the host's.
    let inside = |text: &str, target: &Target| target.image != Path::new(text);
    match (inside(&args.from, &from), inside(&args.to, &to)) {
        (false, true) => put(Path::new(&args.from), &to, &args.further),
        (true, false) => take(&from, Path::new(&args.to), &args.further),
        _ => bail!("one of the two must be IMAGE:PATH, and the other a file of the host"),
    }
}

fn put(from: &Path, to: &Target, further: &Further) -> Result<()> {
    let name = || from.display().to_string();
    let mut file = File::open(from).with_context(name)?;
    let meta = file.metadata().with_context(name)?;
    if !meta.is_file() {
        bail!("{}: is no regular file; import takes directories", from.display());
    }
    let leaf = from.file_name().with_context(name)?.as_encoded_bytes().to_vec();
    to.change(further, |volume| {
        let (dir, leaf) = destination(volume, to, &leaf)?;
        let ino = match volume.resolve_from(dir, &leaf, true) {
            Ok(there) => {
                volume.truncate(there, 0)?;
                there
            }
            Err(f2fs::Error::NotFound) => {
                let mode = FileType::Regular.mode_bits() | (meta.mode() & 0o777) as u16;
                volume.create(dir, &leaf, &NewNode::new(mode))?
            }
            Err(error) => return Err(error.into()),
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut offset = 0;
        loop {
            let count = file.read(&mut chunk).with_context(name)?;
            if count == 0 {
                break;
            }
            volume.write(ino, offset, &chunk[..count])?;
            offset += count as u64;
        }
        let mtime = Time { seconds: meta.mtime(), nanoseconds: meta.mtime_nsec() as u32 };
        volume.set_attr(ino, &SetAttr { mtime: Some(mtime), ..SetAttr::default() })?;
        Ok(())
    })
}

fn take(from: &Target, to: &Path, further: &Further) -> Result<()> {
    let (volume, ino) = from.find_content(further)?;
    if volume.stat(ino).with_context(|| from.to_string())?.kind == FileType::Directory {
        bail!("{from}: is a directory; export takes it out");
    }
    let (folder, name) = place(&volume, from, to)?;
    let owners = rustix::process::geteuid().is_root();
    let mut source = VolumeSource::new(&volume, ino, name.as_encoded_bytes())?;
    let mut sink = DirSink::new(&folder, owners).with_context(|| folder.display().to_string())?;
    export(&mut source, &mut sink, ExportOptions::default()).with_context(|| from.to_string())?;
    Ok(())
}

/// The directory of the host that a file goes to, and its name there.
fn place(volume: &Volume, from: &Target, to: &Path) -> Result<(PathBuf, std::ffi::OsString)> {
    if to.is_dir() {
        let (_, leaf) = from.parent(volume)?;
        return Ok((to.to_path_buf(), String::from_utf8_lossy(leaf).into_owned().into()));
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
