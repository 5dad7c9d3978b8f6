//! `mount`: mounts a volume on the host through FUSE.

use std::{
    ffi::OsString,
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use fuse::{Event, Mount, MountOptions, Watched};
use image::Source;

use crate::{
    daemon::{Ready, spawn_daemon},
    failure, keys,
    notice::notice,
    suggested::Suggested,
    target::{Image, warn_of_writer, with_content},
    unpacked::{Purpose, Unpacked},
    watcher::{self, Watcher},
};

/// Names under which mount(8) calls the program as a helper. It uses the second to remount a mount made by
/// root, which has that type, and the last for `mount -t f2fs` on a kernel without f2fs.
const HELPER_NAMES: [&str; 4] =
    ["mount.fuse.flashkit", "mount.fuseblk.flashkit", "mount.flashkit", "mount.f2fs"];

/// Socket of the system log (syslog(3)).
const LOG: &str = "/dev/log";
/// Prefix of a log message: facility daemon, severity warning (syslog(3): 3 * 8 + 4).
const WARNING: &str = "<28>";

/// Arguments of `mount`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = with_options())]
pub struct Args {
    #[command(flatten)]
    image: Image,
    /// The directory to mount on.
    dir: PathBuf,
    /// Mount options, separated by commas; `--help` lists them.
    #[arg(
        short = 'o',
        value_name = "OPTIONS",
        value_parser = Suggested(option_names),
        hide_possible_values = true
    )]
    options: Vec<String>,
    /// Stay in the foreground.
    #[arg(short, long)]
    foreground: bool,
    /// True in the background process, which the returning process starts.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    stays: bool,
    /// Process of the mount, in the one that watches over it, and a word for its standard input.
    #[arg(
        long,
        hide = true,
        num_args = 2,
        value_names = ["PROCESS", "WORD"],
        conflicts_with_all = ["foreground", "stays"]
    )]
    watches: Option<Vec<String>>,
}

const EXAMPLES: &str = "An image or device that another program writes to, or that is mounted under any name (a \
    hard link, a loop device over it), is refused. With -o ro it is mounted nevertheless, with a warning: files \
    may then be shown old or half written. `mount --bind -o ro DIR OTHER` shows a mount in another place as it \
    is.\n\n\
    Examples:\n  flashkit mount card.img /mnt/card\n  \
    flashkit mount disk.img#2 /mnt/card\n  \
    flashkit mount /dev/sdb1 /mnt/card -o ro,allow_other\n  flashkit mount card.img /mnt/card --key master.key\n  umount /mnt/card\n\n\
    In /etc/fstab, with the program also installed as /sbin/mount.fuse.flashkit:\n  \
    /srv/card.img  /mnt/card  fuse.flashkit  noauto,allow_other  0  0\n\n\
    To remount with other flags:\n  \
    flashkit mount card.img /mnt/card -o remount,ro\n\n\
    `mount -o remount,ro /mnt/card` of util-linux 2.39 and newer needs the program also installed as \
    /sbin/mount.fuseblk.flashkit. Without it, mount passes all options back, and Linux refuses; \
    `mount --options-mode ignore -o ...` avoids that.";

/// Returns the names of the options, and those that take a value up to the `=`.
fn option_names() -> Vec<&'static str> {
    let spellings = fuse::KNOWN_OPTIONS.into_iter().flat_map(|(spellings, _)| spellings.split(", "));
    let named = spellings.filter(|spelling| !spelling.ends_with("..."));
    named.filter_map(|spelling| spelling.split_inclusive('=').next()).collect()
}

/// Returns the help with all options that `-o` accepts.
fn with_options() -> String {
    let lines = fuse::KNOWN_OPTIONS.map(|(spelling, does)| format!("  {spelling}\n          {does}\n"));
    format!("Options of the mount (with their defaults):\n{}\n{EXAMPLES}", lines.concat())
}

/// Mounts the volume. Returns once it is mounted or, in the foreground, once it is unmounted.
pub fn run(args: &Args) -> Result<()> {
    if let Some([process, word]) = args.watches.as_deref() {
        return Ok(watcher::watch(word, process.parse()?)?);
    }
    // The background process gets the keys from the calling one, which has read them.
    let given = match args.stays {
        true => keys::from_lines(io::stdin())?,
        false => keys::given(&args.image.further.keys)?,
    };
    let mut options = MountOptions { keys: keys::ring(&given)?, ..MountOptions::default() };
    args.options.iter().try_for_each(|list| options.apply(list))?;
    let found = std::fs::metadata(&args.dir).map_err(|error| not_a_directory(&args.dir, error))?;
    if !found.is_dir() {
        bail!("{}: not a directory; a volume is mounted on an existing directory", args.dir.display());
    }
    if options.remount {
        return Ok(fuse::remount(&args.dir, &args.options)?);
    }
    if !args.foreground && !args.stays {
        let started = spawn_daemon(daemon_arguments(args)?, keys::to_lines(&given).as_bytes());
        return match started.map_err(|error| no_process(&args.dir, error))? {
            Ok(()) => Ok(()),
            // The background process has printed the reason.
            Err(status) => std::process::exit(status.code().unwrap_or(1)),
        };
    }
    let ready = args.stays.then(Ready::detach).transpose()?;
    let mut sources = args.image.further.place.sources(&args.image.image);
    // The paths to the temporary files are valid as long as these are open.
    unpack(&mut sources, &mut options)?;
    let mount = Mount::new(&sources, &args.dir, options);
    let mount = mount
        .map_err(|error| with_content(&args.image.further.place.range.of(&args.image.image), error.into()))?;
    if let Some(reason) = mount.read_only_reason() {
        notice!("flashkit: mounted read-only: {reason}");
    }
    if let Some(user) = mount.writer() {
        warn_of_writer(&args.image.image, user);
    }
    if mount.asks_for_fsck() {
        let image = args.image.image.display();
        notice!("flashkit: damage was found earlier; unmount the volume and run flashkit fsck {image}");
    }
    let image = args.image.image.clone();
    // Examining the directory itself would need an answer of the mount, which gives none yet.
    let (dir, device) = (mount.dir().to_path_buf(), mount.device().filter(|_| !mount.is_read_only()));
    // It watches this thread, which therefore starts it.
    let mut watcher = None;
    let announce = || {
        // A mount without it only ends less well when it is killed.
        let watched = device.and_then(|device| Watched::open(&dir, device).ok());
        let started = watched.map(|watched| Watcher::start(&args.image.image, &dir, watched));
        watcher = started.and_then(|started| started.inspect_err(|error| without_watcher(&dir, error)).ok());
        ready.map_or(Ok(()), Ready::announce)
    };
    let ended = mount.run(announce, move |event| report(&image, event));
    drop(watcher);
    Ok(ended?)
}

/// Decompresses compressed images, which are only mounted for reading. The mount table shows the name of the first image.
fn unpack(sources: &mut [Source], options: &mut MountOptions) -> Result<()> {
    let purpose = if options.read_only { Purpose::Read } else { Purpose::Mount };
    for (n, source) in sources.iter_mut().enumerate() {
        let Some(unpacked) = Unpacked::of(source, purpose)? else { continue };
        if n == 0 && options.source_name.is_none() {
            let path = source.path().canonicalize()?;
            options.source_name = Some(source.with_path(path).to_string());
        }
        *source = unpacked.source;
    }
    Ok(())
}

/// Writes an event of the mount to standard error and to the system log.
fn report(image: &Path, event: &Event) {
    let message = failure::plain(&format!("{}: {event}", image.display()));
    notice!("flashkit: {message}");
    let line = format!("{WARNING}flashkit[{}]: {message}", std::process::id());
    // A machine without a system log is fine.
    let _ = UnixDatagram::unbound().and_then(|log| log.send_to(line.as_bytes(), LOG));
    if *event == Event::MustAbort {
        std::process::abort();
    }
}

/// Explains the error of a directory that cannot be examined, with advice.
fn not_a_directory(dir: &Path, error: io::Error) -> anyhow::Error {
    let dir = dir.display();
    match error.kind() {
        io::ErrorKind::NotConnected => {
            anyhow!("{dir}: the program of an existing mount has ended; umount {dir} and try again")
        }
        _ => anyhow::Error::new(error).context(dir.to_string()),
    }
}

/// Explains that no background process can be started, with advice if a limit is the cause.
fn no_process(dir: &Path, source: io::Error) -> anyhow::Error {
    match source.kind() {
        io::ErrorKind::WouldBlock => fuse::Error::NoThread { dir: dir.to_path_buf(), source }.into(),
        _ => anyhow::Error::new(source).context("cannot start the background process of the mount"),
    }
}

/// Tells that nobody ends the mount if its process is killed.
fn without_watcher(dir: &Path, error: &io::Error) {
    let (dir, error) = (dir.display(), failure::plain(&error.to_string()));
    notice!(
        "flashkit: warning: the process that watches over the mount cannot be started: {error}; if the mount is \
         killed, programs may wait for it until `umount -f {dir}`"
    );
}

/// Returns the command line of the background process.
fn daemon_arguments(args: &Args) -> Result<Vec<OsString>> {
    let absolute = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
    let absolute_image = |image: &Path| -> Result<OsString> {
        let source = Source::parse(image);
        if source.is_served() {
            return Ok(source.name());
        }
        Ok(source.with_path(absolute(source.path())?).name())
    };
    let mut list: Vec<OsString> = vec!["mount".into(), "--stays".into()];
    for options in &args.options {
        list.extend(["-o".into(), options.into()]);
    }
    for device in &args.image.further.place.devices {
        list.extend(["--device".into(), absolute_image(device)?]);
    }
    let range = &args.image.further.place.range;
    for (name, bytes) in [("--offset", range.offset), ("--length", range.length)] {
        list.extend(bytes.into_iter().flat_map(|bytes| [name.into(), bytes.to_string().into()]));
    }
    let format = &range.format;
    list.extend(format.image_format.into_iter().flat_map(|format| ["--format".into(), format.name().into()]));
    if let Some(backing) = &format.backing {
        list.extend(["--backing".into(), absolute(backing)?.into()]);
    }
    list.extend(format.hashes.words(absolute)?);
    if let Some(given) = &format.metadata_key {
        list.extend(["--metadata-key".into(), absolute(&given.file)?.into()]);
    }
    list.extend(["--".into(), absolute_image(&args.image.image)?, absolute(&args.dir)?.into()]);
    Ok(list)
}

/// Translates a command line under the name of a mount(8) helper. Returns `None` if the name is another.
///
/// mount(8) calls `mount.fuse.flashkit SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
pub fn helper_call(arguments: &[OsString]) -> Option<Result<Vec<OsString>>> {
    let (name, rest) = arguments.split_first()?;
    let name = Path::new(name).file_name()?;
    HELPER_NAMES.iter().any(|helper| name == *helper).then(|| translate(rest))
}

fn translate(arguments: &[OsString]) -> Result<Vec<OsString>> {
    let mut list: Vec<OsString> = vec!["flashkit".into(), "mount".into()];
    let (mut places, mut arguments) = (Vec::new(), arguments.iter());
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-o") => {
                let options = arguments.next().context("-o needs options")?;
                list.extend(["-o".into(), options.clone()]);
            }
            // mount(8) calls this helper only for the helper's own types.
            Some("-t" | "-N") => _ = arguments.next(),
            Some(flags)
                if flags.starts_with('-') && flags[1..].chars().all(|flag| "sfnvrw".contains(flag)) =>
            {
                if flags.contains('r') {
                    list.extend(["-o".into(), "ro".into()]);
                }
            }
            Some(unknown) if unknown.starts_with('-') => bail!("unknown argument {unknown}"),
            _ => places.push(argument.clone()),
        }
    }
    list.push("--".into());
    list.extend(places);
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(words: &[&str]) -> Option<Vec<String>> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let list = helper_call(&words)?.unwrap();
        Some(list.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn arguments_of_mount_8_are_translated() {
        let words =
            ["/sbin/mount.fuse.flashkit", "a.img", "/mnt", "-n", "-o", "rw,dev", "-t", "fuse.flashkit"];
        assert_eq!(call(&words).unwrap(), ["flashkit", "mount", "-o", "rw,dev", "--", "a.img", "/mnt"]);
        assert_eq!(call(&["flashkit", "mount", "a.img", "/mnt"]), None);
        let words = ["mount.f2fs", "a", "b", "-o", "rw,background_gc=on"];
        assert_eq!(call(&words).unwrap(), ["flashkit", "mount", "-o", "rw,background_gc=on", "--", "a", "b"]);
        let words = ["mount.flashkit", "-rv", "a", "b"];
        assert_eq!(call(&words).unwrap(), ["flashkit", "mount", "-o", "ro", "--", "a", "b"]);
        let words = ["mount.fuseblk.flashkit", "/dev/loop0", "/mnt", "-o", "rw,remount,blksize=4096"];
        let wanted = ["flashkit", "mount", "-o", "rw,remount,blksize=4096", "--", "/dev/loop0", "/mnt"];
        assert_eq!(call(&words).unwrap(), wanted);
    }
}
