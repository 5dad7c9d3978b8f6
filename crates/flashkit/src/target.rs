//! The object of a verb: `IMAGE` or `IMAGE:PATH`.

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, anyhow, bail};
use block::{Device, FileDevice, InUse, OpenOptions, Refillable};
use f2fs::{
    engine::{Engine, FinalSymlink, Options},
    format::{FileType, superblock::Features},
    units::{CheckpointVer, Ino, Time},
};
use image::Source;

use crate::{
    clock, host,
    image_format::ImageFormat,
    keys,
    notice::notice,
    render, signature, size,
    unpacked::{Purpose, Unpacked},
};

/// An image (or block device), and a path inside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The file or block device.
    pub image: PathBuf,
    /// Path inside the volume, `/` if none was given. A name may contain any bytes.
    pub path: Vec<u8>,
}

impl From<OsString> for Target {
    /// The path starts after the first colon whose left side is an existing file, or a partition of one. So a file
    /// whose own name contains a colon is found, too.
    fn from(text: OsString) -> Target {
        let bytes = text.as_encoded_bytes();
        if let Some(at) = end_of_uri(bytes) {
            let image = PathBuf::from(host::name_of(&bytes[..at]).unwrap_or_default());
            return Target { image, path: absolute(bytes.get(at + 1..).unwrap_or_default()) };
        }
        let start = host::drive_bytes(bytes);
        let colons = || (start..bytes.len()).filter(|at| bytes[*at] == b':');
        // The bytes before a colon are a name, since the text is one.
        let image = |at: usize| PathBuf::from(host::name_of(&bytes[..at]).unwrap_or_default());
        let is_whole = Path::new(&text).exists();
        let exists = |at: &usize| Source::parse(image(*at)).path().exists();
        match colons().find(exists).or(colons().next()).filter(|_| !is_whole) {
            Some(at) => Target { image: image(at), path: absolute(&bytes[at + 1..]) },
            None => Target { image: text.into(), path: b"/".to_vec() },
        }
    }
}

/// Returns the end of the URI of an NBD export, which has a slash behind its server: the colon behind the export, or the end
/// of the text. A URI of TCP has a colon before the port as well.
fn end_of_uri(text: &[u8]) -> Option<usize> {
    if !image::is_uri(text) {
        return None;
    }
    let server = text.windows(3).position(|bytes| bytes == b"://")? + 3;
    let export = text[server..].iter().position(|byte| *byte == b'/')? + server;
    let colon = text[export..].iter().position(|byte| *byte == b':');
    Some(colon.map_or(text.len(), |at| export + at))
}

/// Normalises a path: one slash before each name, and one at the end if there were any, which denotes a
/// directory.
fn absolute(path: &[u8]) -> Vec<u8> {
    let names: Vec<_> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    let end = if path.ends_with(b"/") && !names.is_empty() { &b"/"[..] } else { b"" };
    [b"/", names.join(&b'/').as_slice(), end].concat()
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", render::name(self.image.as_os_str().as_encoded_bytes()), render::name(&self.path))
    }
}

/// The image that a verb processes as a whole.
#[derive(clap::Args, Debug, Clone)]
pub struct Image {
    /// The image or block device; a partition of it as IMAGE#NUMBER or IMAGE#NAME.
    pub image: PathBuf,
    #[command(flatten)]
    pub further: Further,
}

/// The image of a verb that works below the files, and so takes no keys.
#[derive(clap::Args, Debug, Clone)]
pub struct BareImage {
    /// The image or block device; a partition of it as IMAGE#NUMBER or IMAGE#NAME.
    pub image: PathBuf,
    #[command(flatten)]
    pub place: Place,
}

impl BareImage {
    /// Returns the source of each device of the volume, the first of which is the image.
    pub fn sources(&self) -> Vec<Source> {
        self.place.sources(&self.image)
    }
}

/// The place of a volume beyond its image, and its keys.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Further {
    #[command(flatten)]
    pub place: Place,
    /// The master key of encrypted files and directories: a file of its bytes or of hexadecimal digits, or the digits
    /// themselves, which other users of the machine may see; repeat for more keys. For a policy of version 1 whose
    /// descriptor is not derived from the key: DESCRIPTOR:FILE.
    #[arg(long = "key", value_name = "FILE|HEX")]
    pub keys: Vec<OsString>,
}

/// The place of a volume beyond its image: a range of the image, and the further devices.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Place {
    /// A further device of a multi-device volume; repeat in the volume's order.
    #[arg(long = "device", value_name = "FILE")]
    pub devices: Vec<PathBuf>,
    #[command(flatten)]
    pub range: Range,
}

impl Place {
    /// Returns the source of each device of the volume, the first of which is the image.
    pub fn sources(&self, image: &Path) -> Vec<Source> {
        let further = self.devices.iter().map(|path| self.range.format.of(Source::parse(path)));
        std::iter::once(self.range.of(image)).chain(further).collect()
    }
}

/// The range of an image that holds the volume, for an image without a table of partitions; and the format of the image.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Range {
    /// First byte of the volume in the image: 1M, 68157440.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub offset: Option<u64>,
    /// Length of the volume from --offset on; to the end of the image by default.
    #[arg(long, value_name = "SIZE", requires = "offset", value_parser = size::parse)]
    pub length: Option<u64>,
    #[command(flatten)]
    pub format: ImageFormat,
}

impl Range {
    /// Returns the range of an image.
    pub fn of(&self, image: &Path) -> Source {
        let source = self.format.of(Source::parse(image));
        match self.offset {
            Some(offset) => source.range(offset, self.length),
            None => source,
        }
    }
}

/// Returns the directory and name for an object with this `name` and `kind` put at a path: inside the path if
/// that is a directory, otherwise in its place.
pub fn destination(volume: &Engine, at: &Target, name: &[u8], kind: FileType) -> Result<(Ino, Vec<u8>)> {
    match volume.resolve(&at.path, FinalSymlink::Follow) {
        Ok(ino) if volume.stat(ino)?.kind == FileType::Directory => Ok((ino, name.to_vec())),
        // The final slash asks for a directory, and there is none.
        Err(error @ f2fs::Error::NotFound) if at.is_of_directory() && kind != FileType::Directory => {
            Err(error.into())
        }
        Ok(_) | Err(f2fs::Error::NotFound) => {
            let (dir, name) = at.parent(volume)?;
            Ok((dir, name.to_vec()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Bytes of a sector of a regular file, in which f2fs-tools count.
const FILE_SECTOR_BYTES: u32 = 512;

/// Returns the size of the sectors in which f2fs-tools count the size of a block device or file, which need not exist.
pub fn sector_bytes(path: &Path) -> io::Result<u32> {
    if !path.exists() {
        return Ok(FILE_SECTOR_BYTES);
    }
    let file = FileDevice::open(path, OpenOptions::default())?;
    Ok(if file.is_block_device() { file.geometry().sector_bytes } else { FILE_SECTOR_BYTES })
}

/// Opens an image for reading only.
pub fn open_device(source: &Source) -> Result<Arc<dyn Device>> {
    Ok(open_image(source, OpenOptions::default())?.device())
}

/// Opens an image for changes. Another user of it is an error.
pub fn open_device_to_write(source: &Source) -> Result<Arc<dyn Device>> {
    Ok(open_image(source, OpenOptions { write: true, direct: false })?.device())
}

/// Opens an image. For reading, opens it even if another process writes to it, with a warning. A compressed image is read
/// from a temporary file.
pub fn open_image(source: &Source, how: OpenOptions) -> Result<image::Image> {
    let image = open_unwarned(source, how)?;
    if let Some(user) = image.writer() {
        warn_of_writer(source.path(), user);
    }
    Ok(image)
}

/// Opens an image like [`open_image`], without the warning.
pub fn open_unwarned(source: &Source, how: OpenOptions) -> Result<image::Image> {
    let unpacked = Unpacked::of(source, if how.write { Purpose::Change } else { Purpose::Read })?;
    let held = unpacked.as_ref().map_or(source, |unpacked| &unpacked.source);
    image::Image::open(held, how).with_context(|| source.to_string())
}

/// Warns that an image is read while another process writes to it, once per image.
pub fn warn_of_writer(path: &Path, user: &InUse) {
    static TOLD: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if !told.iter().any(|other| other == path) {
        told.push(path.to_path_buf());
        notice!("flashkit: {}: {user}: files may be shown old or half written", path.display());
    }
}

/// Opens a volume for reading only. A volume that was not unmounted is shown in its recovered state; nothing
/// is written to it.
pub fn open_read_only(image: &Path, further: &Further) -> Result<Engine> {
    let volume = open(image, further, OpenOptions::default(), Options::read_only(), |file| file)?;
    if let Some(reason) = volume.read_only_reason().filter(|_| volume.headless_checkpoint().is_some()) {
        notice!("flashkit: {}: the files are those of an older checkpoint: {reason}", image.display());
    }
    Ok(volume)
}

/// Opens a volume for changes, with times from `clock`.
pub fn open_writable(
    image: &Path,
    further: &Further,
    clock: impl Fn() -> Time + Send + Sync + 'static,
) -> Result<Engine> {
    open_with(image, further, Options::new(clock), |file| file)
}

/// A volume with changes, none of which is durable before [`keep`](AllOrNothing::keep).
pub struct AllOrNothing {
    /// The volume.
    pub volume: Engine,
    filled: Filled,
    before: CheckpointVer,
}

/// The files of the host whose holes the changes fill.
#[derive(Clone, Default)]
struct Filled {
    files: Vec<Arc<Refillable>>,
    is_closing: Arc<Mutex<bool>>,
}

impl Filled {
    /// Makes the holes again. No later write reaches the files.
    fn give_back(&self) {
        for file in &self.files {
            // The changes are gone all the same, and the caller already reports another error or ends.
            let _ = file.give_back();
        }
    }

    /// Forbids interrupts to [give back](Self::give_back) from now on. Waits for one that does.
    fn begin_closing(&self) {
        *self.is_closing.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl AllOrNothing {
    /// Opens a volume for changes.
    pub fn open(image: &Path, further: &Further, options: Options) -> Result<AllOrNothing> {
        let mut filled = Filled::default();
        let options = Options { checkpoint_when_asked: true, ..options };
        let volume = open_with(image, further, options, |file| {
            let file = Arc::new(Refillable::new(file));
            filled.files.push(file.clone());
            file
        })?;
        // Opening may have recovered the volume. That part stays.
        filled.files.iter().for_each(|file| file.begin());
        let before = volume.last_checkpoint().version;
        Ok(AllOrNothing { volume, filled, before })
    }

    /// Makes all changes durable. A failure may leave them on the volume; otherwise their space is returned.
    pub fn keep(self, image: &Path) -> Result<()> {
        let AllOrNothing { volume, filled, before } = self;
        filled.begin_closing();
        let device = volume.device().clone();
        let closed = close(volume, image);
        if closed.is_err() && newest_checkpoint(&device) == Some(before) {
            filled.give_back();
        }
        closed
    }

    /// Returns the action for an interrupt: like [`give_up`](Self::give_up), but during a change of the
    /// volume.
    pub fn undo(&self) -> impl Fn() + Send + 'static {
        let filled = self.filled.clone();
        move || {
            let is_closing = filled.is_closing.lock().unwrap_or_else(PoisonError::into_inner);
            if !*is_closing {
                filled.give_back();
            }
        }
    }

    /// Discards the changes and returns their space to the host's disk.
    pub fn give_up(self) {
        let AllOrNothing { volume, filled, before } = self;
        let is_untouched = volume.last_checkpoint().version == before;
        drop(volume);
        if is_untouched {
            filled.give_back();
        }
    }
}

/// Returns the version of the newest checkpoint that a device has. `None` if it cannot be told: a pack that cannot be read
/// may have a newer one.
fn newest_checkpoint(device: &Arc<dyn Device>) -> Option<CheckpointVer> {
    // Without the recovery, which counts as another checkpoint.
    let options = Options { roll_forward: false, ..Options::read_only() };
    let volume = Engine::open(device.clone(), options).ok()?;
    let (area, block) = (volume.superblock().checkpoint, volume.superblock().block_size.bytes());
    let mut bytes = vec![0; block];
    for n in 0..area.blocks() {
        device.read((u64::from(area.start.0) + n) * block as u64, &mut bytes).ok()?;
    }
    volume.headless_checkpoint().is_none().then(|| volume.last_checkpoint().version)
}

fn open_with<D: Device + 'static>(
    image: &Path,
    further: &Further,
    options: Options,
    wrap: impl FnMut(Arc<FileDevice>) -> Arc<D>,
) -> Result<Engine> {
    let volume = open(image, further, OpenOptions { write: true, direct: false }, options, wrap)?;
    if let Some(reason) = volume.read_only_reason() {
        bail!("{}: {reason}", image.display());
    }
    Ok(volume)
}

fn open<D: Device + 'static>(
    image: &Path,
    further: &Further,
    how: OpenOptions,
    options: Options,
    mut wrap: impl FnMut(Arc<FileDevice>) -> Arc<D>,
) -> Result<Engine> {
    let sources = further.place.sources(image);
    let mut device = |source: &Source| -> Result<Arc<dyn Device>> {
        let image = open_image(source, how)?;
        Ok(match image.file() {
            Some(file) => image.device_over(wrap(file.clone())),
            None => image.device(),
        })
    };
    let devices = sources.iter().map(&mut device).collect::<Result<Vec<_>>>()?;
    let not_opened = |error| not_opened(&sources[0], error);
    let device = f2fs::engine::join(devices).map_err(not_opened)?;
    let superblock = f2fs::engine::read_superblock(&*device, u64::MAX);
    let can_encrypt = superblock.is_ok_and(|(found, _)| found.features.has(Features::ENCRYPT));
    let nonces = can_encrypt.then(keys::nonces).transpose()?;
    let options = Options { keys: keys::keyring(&further.keys)?, nonces, ..options };
    Engine::open(device, options).map_err(not_opened)
}

/// Adds the image's name to an error of opening it. If the image is not F2FS, the message names its content.
pub fn not_opened(source: &Source, error: f2fs::Error) -> anyhow::Error {
    with_content(source, anyhow::Error::from(error).context(source.to_string()))
}

/// Explains an error of opening an image. If the image is not F2FS, the message names its content.
pub fn with_content(source: &Source, error: anyhow::Error) -> anyhow::Error {
    // The writer may be this process itself, whose call has failed.
    let open = || open_unwarned(source, OpenOptions::default()).ok();
    let content = || signature::describe(&*open()?.device(), source).ok()?;
    let is_other = error.chain().any(|cause| matches!(cause.downcast_ref(), Some(f2fs::Error::NotF2fs(_))));
    if is_other && source.metadata_key().is_some() {
        return anyhow!(
            "{source}: the key of --metadata-key decrypts it to no F2FS volume: another key, or not all of the image is encrypted"
        );
    }
    match is_other.then(content).flatten() {
        Some(what) => anyhow!("{source}: not an F2FS volume: {what}"),
        None => error,
    }
}

impl Image {
    /// Changes the volume. The changes are durable when this returns. If it fails, none of them is on the
    /// device, unless the volume was so full that a checkpoint was needed meanwhile to make space.
    pub fn change<R>(&self, change: impl FnOnce(&mut Engine) -> f2fs::Result<R>) -> Result<R> {
        let name = || self.image.display().to_string();
        change_volume(&self.image, &self.further, |volume| change(volume).with_context(name))
    }
}

fn change_volume<R>(
    image: &Path,
    further: &Further,
    change: impl FnOnce(&mut Engine) -> Result<R>,
) -> Result<R> {
    let mut volume = open_writable(image, further, clock::now)?;
    let before = volume.last_checkpoint().version;
    // On an error, the volume is dropped with everything that no checkpoint has made durable.
    let result = change(&mut volume).map_err(|error| match volume.last_checkpoint().version == before {
        true => error,
        false => error
            .context("partly done: the nearly full volume needed a checkpoint in the middle of the change"),
    })?;
    close(volume, image)?;
    Ok(result)
}

/// Makes all changes durable. Warns if the volume has started to require fsck.
pub fn close(mut volume: Engine, image: &Path) -> Result<()> {
    volume.unmount().with_context(|| image.display().to_string())?;
    if volume.io().met_damage() && volume.asks_for_fsck() {
        let image = image.display();
        notice!(
            "flashkit: {image}: found damage and left it unchanged; flashkit fsck {image} lists it, and repairs it with -y"
        );
    }
    Ok(())
}

impl Target {
    /// Changes the volume like [`Image::change`].
    pub fn change(&self, further: &Further, mut change: impl FnMut(&mut Engine) -> Result<()>) -> Result<()> {
        Target::change_all(std::slice::from_ref(self), further, |volume, _| change(volume))
    }

    /// Changes several paths of one image: either all or none.
    pub fn change_all(
        targets: &[Target],
        further: &Further,
        mut change: impl FnMut(&mut Engine, &Target) -> Result<()>,
    ) -> Result<()> {
        let Some(first) = targets.first() else { return Ok(()) };
        targets.iter().try_for_each(|other| first.same_image(other))?;
        change_volume(&first.image, further, |volume| {
            targets.iter().try_for_each(|target| change(volume, target).with_context(|| target.to_string()))
        })
    }

    /// Returns true if the path ends with a slash, which denotes a directory.
    pub fn is_of_directory(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// Returns the path without a final slash.
    fn bare_path(&self) -> &[u8] {
        self.path.strip_suffix(b"/").unwrap_or(&self.path)
    }

    /// Returns the path's last component; empty for the root directory.
    pub fn name(&self) -> &[u8] {
        self.bare_path().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// Returns the path before its last component.
    pub fn parent_path(&self) -> &[u8] {
        let path = self.bare_path();
        &path[..path.len() - self.name().len()]
    }

    /// Returns the directory of the path's last component, which need not exist, and the component.
    pub fn parent(&self, volume: &Engine) -> Result<(Ino, &[u8])> {
        Ok(volume.resolve_parent(&self.path)?)
    }

    /// Returns the [`parent`](Self::parent) of an existing entry, and the entry's kind. Fails if a slash
    /// follows the name of anything but a directory, even of a link to one.
    pub fn entry(&self, volume: &Engine) -> Result<(Ino, &[u8], FileType)> {
        let (dir, name, _, kind) = volume.resolve_entry(&self.path)?;
        Ok((dir, name, kind))
    }

    /// Refuses a second path in another image.
    pub fn same_image(&self, other: &Target) -> Result<()> {
        if self.image != other.image {
            bail!("{self} and {other}: both paths must be in one image");
        }
        Ok(())
    }

    /// Opens the volume for reading only and finds the path. Does not follow a symbolic link at its end.
    pub fn find(&self, further: &Further) -> Result<(Engine, Ino)> {
        self.open_at(further, FinalSymlink::NoFollow)
    }

    /// Does the work of [`find`](Self::find), but follows a symbolic link at the end.
    pub fn find_content(&self, further: &Further) -> Result<(Engine, Ino)> {
        self.open_at(further, FinalSymlink::Follow)
    }

    fn open_at(&self, further: &Further, link: FinalSymlink) -> Result<(Engine, Ino)> {
        let volume = open_read_only(&self.image, further)?;
        let ino = volume.resolve(&self.path, link).with_context(|| self.to_string())?;
        if !further.keys.is_empty() {
            volume.require_key(ino).with_context(|| self.to_string())?;
        }
        Ok((volume, ino))
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn the_path_starts_after_the_colon_that_follows_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("card.img");
        let odd = folder.path().join("a:b.img");
        std::fs::write(&plain, "").unwrap();
        std::fs::write(&odd, "").unwrap();
        let parse = |text: String| Target::from(OsString::from(text));
        let plain_text = plain.display();
        let odd_text = odd.display();
        assert_eq!(parse(format!("{plain_text}")), Target { image: plain.clone(), path: b"/".to_vec() });
        assert_eq!(
            parse(format!("{plain_text}:/etc/x:y")),
            Target { image: plain.clone(), path: b"/etc/x:y".to_vec() }
        );
        assert_eq!(
            parse(format!("{plain_text}:etc/")),
            Target { image: plain.clone(), path: b"/etc/".to_vec() }
        );
        for root in [":", ":/", "://"] {
            let target = Target { image: plain.clone(), path: b"/".to_vec() };
            assert_eq!(parse(format!("{plain_text}{root}")), target);
        }
        assert_eq!(parse(format!("{odd_text}:/c")), Target { image: odd.clone(), path: b"/c".to_vec() });
        for (text, image, path) in [
            ("nbd://host:99/disk:/a:b", "nbd://host:99/disk", "/a:b"),
            ("nbd://host/", "nbd://host/", "/"),
            ("nbd://host/#2:/etc", "nbd://host/#2", "/etc"),
            ("nbd+unix:///?socket=/run/s:/etc", "nbd+unix:///?socket=/run/s", "/etc"),
        ] {
            assert_eq!(parse(text.into()), Target { image: image.into(), path: path.into() });
        }
        let odd_path = [plain.as_os_str().as_bytes(), b":\xff/\n"].concat();
        let odd_path = Target::from(OsStr::from_bytes(&odd_path).to_owned());
        assert_eq!(odd_path, Target { image: plain.clone(), path: b"/\xff/\n".to_vec() });
        assert!(odd_path.to_string().ends_with(r":/\xff/\n"), "{odd_path}");
        assert_eq!(parse("none.img:/c".into()), Target { image: "none.img".into(), path: b"/c".to_vec() });
    }
}
