//! The users of a device or image file. Every writer checks for them before it writes.
//!
//! *Invariant*: the answer follows the bytes and not the name; see [`Backing`]. The host's tables list
//! mounts, swap and holders. An attempt to open a block device exclusively finds its other users, such as
//! mounts in other namespaces. Programs that lock with `flock` are found by the lock itself
//! ([`Claim`](super::claim::Claim)), and those with record locks, such as QEMU, in `/proc/locks`.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Dev, OFlags, makedev, statfs},
    io::Errno,
};

use super::{
    backing::{self, Backing, Identity, View},
    mounts::{Mount, mounts, unescape},
    record_locks,
};
use crate::InUse;

/// Number of attempts to open a busy device, and the pause between them. Another process that checks for
/// users holds the device for a moment.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// Returns the user of the block device or image file at `path`, the most serious one if there are several.
/// Without `/proc` or `/sys`, users found only there are missed; the writer's lock is the second line of
/// defence.
///
/// # Errors
/// `path` cannot be examined.
pub fn in_use(path: impl AsRef<Path>) -> io::Result<Option<InUse>> {
    let identity = backing::identity(path.as_ref())?;
    let backing = Backing::of(identity);
    let views = backing.views();
    let user = users(&backing, &views, &[]).into_iter().next();
    let is_file = matches!(identity, Identity::File { .. });
    let device = views.iter().find(|view| is_file && view.is_loop);
    Ok(user.or_else(|| device.map(|view| InUse::Loop(view.name.clone()))))
}

/// Returns the users that the host knows, the most serious first. The caller itself has exclusively opened the
/// devices in `own`.
pub(crate) fn users(backing: &Backing, views: &[View], own: &[Dev]) -> Vec<InUse> {
    let mut mounts = mounts().unwrap_or_default();
    mounts.retain(|mount| is_of(mount, backing, views));
    let swaps = fs::read("/proc/swaps").unwrap_or_default();
    let mut users: Vec<InUse> = mounts.iter().map(mounted).collect();
    users.extend(swap_names(&swaps).any(|name| is_at(&name, backing)).then_some(InUse::Swap));
    users.extend(views.iter().flat_map(View::holders).map(InUse::Holder));
    users.extend(backing.file().and_then(|(device, inode)| record_locks::user(device, inode)));
    // The mount holds these devices. It may be read-only although they are not.
    let is_mounted = |view: &View| mounts.iter().any(|mount| number(mount) == view.device);
    let held = exclusive(views).filter(|view| !view.is_held_by(own) && !is_mounted(view) && is_held(view));
    users.extend(held.map(|view| InUse::Held { name: view.name.clone(), read_only: view.is_read_only() }));
    // The sort is stable: mounts come first among those that write, and among those that do not.
    users.sort_by_key(|user| !user.writes());
    users
}

fn number(mount: &Mount) -> Dev {
    makedev(mount.device.0, mount.device.1)
}

fn mounted(mount: &Mount) -> InUse {
    // The kernel may have cached the directory's attributes, but not these.
    let is_dead = || statfs(&mount.dir).is_err_and(|errno| errno == Errno::NOTCONN);
    if mount.kind.starts_with("fuse") && is_dead() {
        return InUse::Dead(mount.dir.clone());
    }
    let read_only = mount.file_system_options.split(',').any(|option| option == "ro");
    InUse::Mounted { at: mount.dir.clone(), read_only }
}

/// Returns true if a mount uses these bytes. The device number decides or, if the file system has made up its
/// own number, the name of its source.
fn is_of(mount: &Mount, backing: &Backing, views: &[View]) -> bool {
    if mount.device.0 != 0 {
        return views.iter().any(|view| view.device == number(mount));
    }
    // Other sources may look like paths and lie on a server that does not answer.
    let names_a_file = mount.source.starts_with("/dev/") || mount.kind.starts_with("fuse");
    names_a_file && is_at(Path::new(&mount.source), backing)
}

/// Returns true if the file at a path shares some of these bytes.
fn is_at(path: &Path, backing: &Backing) -> bool {
    path.is_absolute() && backing::identity(path).is_ok_and(|identity| backing.is_made_of(identity))
}

/// Parses the names in the text of `/proc/swaps`.
fn swap_names(swaps: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = swaps.split(|byte| *byte == b'\n').skip(1);
    let words =
        lines.filter_map(|line| line.split(u8::is_ascii_whitespace).next().filter(|word| !word.is_empty()));
    words.map(|name| Path::new(OsStr::from_bytes(&unescape(name))).to_path_buf())
}

/// Returns the devices to claim for all of the bytes: a disk's partitions, or the disk itself if it has none.
/// The kernel does not open a disk exclusively while another user holds one of its partitions, nor the
/// reverse.
pub(crate) fn exclusive(views: &[View]) -> impl Iterator<Item = &View> {
    views.iter().filter(|view| view.is_partition() || !view.has_partitions())
}

fn is_held(view: &View) -> bool {
    let Some(node) = view.node() else { return false };
    open_exclusively(&node).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

/// Opens a block device exclusively, for reading.
///
/// # Errors
/// Those of open(2); [`io::ErrorKind::ResourceBusy`] if another user has it.
pub(crate) fn open_exclusively(node: &Path) -> io::Result<File> {
    open_exclusively_with(node, File::options().read(true))
}

/// Opens a block device exclusively, for reading and writing.
///
/// # Errors
/// Those of [`open_exclusively`].
pub(crate) fn open_exclusively_to_write(node: &Path) -> io::Result<File> {
    open_exclusively_with(node, File::options().read(true).write(true))
}

fn open_exclusively_with(node: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // O_EXCL without O_CREAT opens a block device exclusively.
    let flags = OFlags::CLOEXEC | OFlags::EXCL | OFlags::NONBLOCK;
    options.custom_flags(flags.bits() as i32);
    patiently(|| options.open(node))
}

/// Retries an action that may briefly fail because another process checks for users.
pub(crate) fn patiently<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut opened = open();
    for _ in 1..TRIES {
        if !opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
            break;
        }
        thread::sleep(PAUSE);
        opened = open();
    }
    opened
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts_in;

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let file = tempfile::NamedTempFile::with_prefix("card image").expect("a temporary file");
        let source = file.path().to_str().expect("text").replace(' ', "\\040");
        let table = format!(
            "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
             40 22 0:44 / /mnt/image rw - fuse.flashkit {source} rw,user_id=0\n\
             41 22 0:45 / /mnt/other ro - nfs4 {source} rw\n"
        );
        let mounts = mounts_in(table);
        let backing = Backing::of(backing::identity(file.path()).expect("it exists"));
        let found: Vec<_> = mounts.iter().map(|mount| is_of(mount, &backing, &[])).collect();
        assert_eq!(found, [false, true, false]);
        let view = View { name: "sda1".into(), device: makedev(8, 1), disk: makedev(8, 0), is_loop: false };
        let views = [view];
        assert!(is_of(&mounts[0], &backing, &views) && !is_of(&mounts[2], &backing, &views));
        assert_eq!(mounted(&mounts[1]), InUse::Mounted { at: "/mnt/image".into(), read_only: false });
    }

    #[test]
    fn swaps_are_found_by_name() {
        let swaps = b"Filename\tType\tSize\n/dev/sda2 partition 100 0 -2\n/swap\\040file file 1 0 -3\n";
        let names: Vec<_> = swap_names(swaps).collect();
        assert_eq!(names, [Path::new("/dev/sda2"), Path::new("/swap file")]);
        assert_eq!(swap_names(b"").count(), 0);
    }

    #[test]
    fn a_fresh_file_is_free() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        assert_eq!(in_use(file.path()).expect("it exists"), None);
        assert!(in_use(file.path().join("nothing")).is_err());
    }
}
