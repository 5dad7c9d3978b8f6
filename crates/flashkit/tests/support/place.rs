//! An image that `flashkit mount` mounts, in the background.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_flashkit");
/// Time limit of quick operations.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An image and a mount point.
pub struct Place(pub tempfile::TempDir);

/// Returns true if this host cannot mount, and prints the reason.
pub fn skipped() -> bool {
    let possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !possible {
        eprintln!("skipped: this needs root and /dev/fuse");
    }
    !possible
}

/// Returns true if ordinary users cannot mount on this host, and prints the reason.
pub fn skipped_for_users() -> bool {
    let setuid = |path: &str| fs::metadata(path).is_ok_and(|facts| facts.mode() & 0o4000 != 0);
    let possible = ["/usr/bin/fusermount3", "/bin/fusermount3"].into_iter().any(setuid);
    if !possible {
        eprintln!("skipped: fusermount3 is for root alone here");
    }
    !possible
}

impl Place {
    pub fn new(mebibytes: u64) -> Place {
        let place = Place(tempfile::tempdir().expect("a temporary directory"));
        fs::create_dir(place.dir()).expect("it is new");
        let size = format!("{mebibytes}M");
        let made = Command::new(PROGRAM).args(["mkfs", "-q", "--size", &size]).arg(place.image()).output();
        succeeded(&made.expect("it starts"));
        place
    }

    pub fn image(&self) -> PathBuf {
        self.0.path().join("image")
    }

    pub fn dir(&self) -> PathBuf {
        self.0.path().join("mnt")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub fn call_mount(&self, options: &str) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg("mount").args([self.image(), self.dir()]).args(["-o", options]);
        command.output().expect("it starts")
    }

    pub fn mount(&self) {
        succeeded(&self.call_mount("allow_other"));
        assert!(self.is_mounted(), "it returned before it was mounted");
    }

    pub fn is_mounted(&self) -> bool {
        let device = |path: &Path| fs::metadata(path).map(|facts| facts.dev()).ok();
        device(&self.dir()) != device(self.0.path())
    }

    /// Returns the process that serves the mount.
    pub fn daemon(&self) -> Option<u32> {
        let image = self.image().into_os_string().into_string().expect("it is text");
        let is_it = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("--stays") && line.contains(&image)
        };
        let entries = fs::read_dir("/proc").expect("there is /proc");
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(is_it)
    }

    pub fn signal(&self, name: &str) {
        let pid = self.daemon().expect("somebody answers").to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("there is kill").success());
    }

    /// Waits until no process has the image open.
    pub fn wait_for_end(&self) {
        let started = Instant::now();
        while self.daemon().is_some() {
            assert!(started.elapsed() < PATIENCE, "the mount does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn unmount(&self) {
        succeeded(&Command::new("umount").arg(self.dir()).output().expect("there is umount"));
        self.wait_for_end();
        assert!(!self.is_mounted());
    }

    pub fn assert_clean(&self) {
        model::fsck::fsck_image(&self.image()).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The test failed. Nothing of it may stay behind.
        if let Some(pid) = self.daemon() {
            let _ = Command::new("umount").arg("-l").arg(self.dir()).status();
            let _ = Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status();
        }
    }
}

pub fn succeeded(run: &Output) {
    let (said, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{}: {said}{errors}", run.status);
}
