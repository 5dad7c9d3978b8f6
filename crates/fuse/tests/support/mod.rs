//! Shared helpers of the mount tests: an image made by mkfs.f2fs, mounted by a separate process, and checked
//! by fsck.f2fs afterwards.

#![allow(dead_code)] // each test file uses its own part

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Timeout for anything that should be quick.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of attempts, 10 ms apart (one minute), for things that the kernel does asynchronously.
pub const TRIES: u32 = 6000;

/// An image and its mount point.
pub struct Bench {
    dir: tempfile::TempDir,
    /// The process that answers requests.
    pub mounted: Option<Child>,
}

/// Returns true if this machine can mount; otherwise prints the reason.
pub fn can_mount() -> bool {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: /dev/fuse: {error}");
            false
        }
    }
}

/// Returns `direct_write` if files with direct I/O can be mapped for writing (since Linux 6.6), otherwise no
/// option.
pub fn direct_write() -> &'static str {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux names its kind");
    let numbers: Vec<u32> =
        release.split(['.', '-']).map_while(|number| number.trim().parse().ok()).collect();
    if numbers[..] >= [6, 6][..] {
        return "direct_write";
    }
    eprintln!("direct_write is not tried: Linux {release}");
    ""
}

/// Skips a test if mounting is impossible, or if a program that it uses is not installed.
#[macro_export]
macro_rules! needs_fuse {
    ($($program:literal),*) => {
        if !support::can_mount() $(|| !support::has($program))* {
            return;
        }
    };
}

impl Bench {
    /// Creates an image of `mebibytes` MiB.
    pub fn new(mebibytes: u64, features: &[&str]) -> Bench {
        let bench = Bench::empty();
        let image = bench.image();
        File::create(&image).and_then(|file| file.set_len(mebibytes << 20)).expect("the image can be made");
        let made =
            tool("mkfs.f2fs").arg("-q").args(features).arg(&image).output().expect("mkfs.f2fs is installed");
        assert!(made.status.success(), "mkfs.f2fs {features:?}: {}", text(&made));
        bench
    }

    /// Creates a bench without an image; the test supplies it.
    pub fn empty() -> Bench {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("mnt")).expect("a directory to mount on");
        Bench { dir, mounted: None }
    }

    /// Creates an image of `mebibytes` MiB and mounts it with the usual options.
    pub fn mounted(mebibytes: u64) -> Bench {
        let mut bench = Bench::new(mebibytes, &["-O", "extra_attr,inode_checksum,sb_checksum,inode_crtime"]);
        bench.mount("allow_other");
        bench
    }

    /// Path of the image.
    pub fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Path beside the mount point.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Path in the mounted directory; with an empty name, the mount point.
    pub fn path(&self, name: &str) -> PathBuf {
        let root = self.dir.path().join("mnt");
        if name.is_empty() { root } else { root.join(name) }
    }

    /// Mounts the image in a separate process. `Err` holds the messages of that process.
    pub fn try_mount(&mut self, options: &str) -> Result<(), String> {
        self.mount_by(Command::new(mounter()), options)
    }

    /// Mounts the image in a separate mount namespace.
    pub fn mount_apart(&mut self) {
        let mut runner = Command::new("unshare");
        runner.args(["--mount", "--"]);
        self.mount_with(runner);
    }

    /// Mounts the image through `runner`, a program that runs the command line after its own arguments.
    pub fn mount_with(&mut self, mut runner: Command) {
        runner.arg(mounter());
        self.mount_by(runner, "").expect("it can be mounted");
    }

    /// Mounts like [`mount_with`](Self::mount_with). `Err` holds the messages of the process.
    pub fn try_mount_with(&mut self, mut runner: Command, options: &str) -> Result<(), String> {
        runner.arg(mounter());
        self.mount_by(runner, options)
    }

    /// Mounts with the options of the environment variable `FLASHKIT_TEST_MOUNT_OPTIONS` (for all tests over one transport,
    /// for instance), and then with those of the test.
    fn mount_by(&mut self, mut mounter: Command, options: &str) -> Result<(), String> {
        assert!(self.mounted.is_none(), "it is mounted already");
        let mut child = mounter
            .args([self.image(), self.path("")])
            .arg(format!("{},{options}", std::env::var("FLASHKIT_TEST_MOUNT_OPTIONS").unwrap_or_default()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the example `mount` is built with the tests");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("its output is text");
        if line == "ready\n" {
            self.mounted = Some(child);
            return Ok(());
        }
        let mut messages = String::new();
        child
            .stderr
            .take()
            .expect("it is piped")
            .read_to_string(&mut messages)
            .expect("its messages are text");
        child.wait().expect("it ended");
        Err(messages)
    }

    /// Mounts the image; panics on failure.
    pub fn mount(&mut self, options: &str) {
        self.try_mount(options).expect("it can be mounted");
    }

    /// ID of the process that answers requests.
    pub fn pid(&self) -> u32 {
        self.mounted.as_ref().expect("it is mounted").id()
    }

    /// Unmounts and waits until the process has ended.
    pub fn unmount(&mut self) {
        self.call_umount();
        self.wait_for_end();
    }

    /// Unmounts and checks that the volume is clean.
    pub fn unmount_clean(&mut self) {
        self.unmount();
        self.assert_clean();
    }

    /// Calls umount(8).
    pub fn call_umount(&self) {
        // A process that another test has just forked holds copies of our files until it calls exec.
        for left in (0..TRIES).rev() {
            let run = Command::new("umount").arg(self.path("")).output().expect("umount is installed");
            if run.status.success() {
                break;
            }
            assert!(left > 0, "umount: {}", text(&run));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Unmounts, and returns what the process that answers has written to standard error.
    pub fn unmount_and_hear(&mut self) -> String {
        self.call_umount();
        self.wait_and_hear()
    }

    /// Waits until the process that answers has ended, and checks its exit status.
    pub fn wait_for_end(&mut self) {
        self.wait_and_hear();
    }

    fn wait_and_hear(&mut self) -> String {
        let mut child = self.mounted.take().expect("it is mounted");
        let started = Instant::now();
        let status = loop {
            match child.try_wait().expect("it is our child") {
                Some(status) => break status,
                None if started.elapsed() > PATIENCE => {
                    let _ = child.kill();
                    panic!("the mount does not end");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut messages = String::new();
        child
            .stderr
            .take()
            .expect("it is piped")
            .read_to_string(&mut messages)
            .expect("its messages are text");
        assert!(status.success(), "the mount ended with {status}: {messages}");
        messages
    }

    /// Sends a signal to the process that answers.
    pub fn signal(&self, name: &str) {
        let run = Command::new("kill")
            .args(["-s", name, &self.pid().to_string()])
            .status()
            .expect("kill is installed");
        assert!(run.success());
    }

    /// Kills the process that answers, and checks that it ends soon.
    pub fn kill(&mut self) {
        let connection = self.connection();
        let mut child = self.mounted.take().expect("it is mounted");
        child.kill().expect("it can be killed");
        let started = Instant::now();
        while child.try_wait().expect("it is our child").is_none() {
            if started.elapsed() > PATIENCE {
                // Otherwise every sync on this machine would block.
                let _ = connection.map(|path| std::fs::write(path.join("abort"), "1"));
                let _ = Command::new("umount").arg("-l").arg(self.path("")).status();
                panic!("it cannot be killed");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Control directory of the FUSE connection, if the mount is visible in the process's namespace.
    fn connection(&self) -> Option<PathBuf> {
        let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).ok()?;
        let dir = self.path("").into_os_string().into_string().ok()?;
        let line = mounts.lines().find(|line| line.contains(&dir))?;
        let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
        let device = major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?;
        Some(PathBuf::from(format!("/sys/fs/fuse/connections/{device}")))
    }

    /// Aborts the FUSE connection, which ends the process that answers. Fails where only root may do that, and without
    /// the file system fusectl.
    pub fn abort(&self) -> std::io::Result<()> {
        let connection = self.connection().ok_or(std::io::ErrorKind::NotFound)?;
        std::fs::write(connection.join("abort"), "1")
    }

    /// Kills the process that answers, as a crash would, and removes the dead mount.
    pub fn crash(&mut self) {
        self.kill();
        let run = Command::new("umount").arg("-l").arg(self.path("")).status().expect("umount is installed");
        assert!(run.success());
    }

    /// Runs a shell script in the mounted directory, checks that it succeeds, and returns its output.
    pub fn shell(&self, script: &str) -> String {
        let run = Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(self.path(""))
            .output()
            .expect("bash is installed");
        assert!(run.status.success(), "{script}\n{}", text(&run));
        String::from_utf8_lossy(&run.stdout).into_owned()
    }

    /// Checks that fsck.f2fs finds nothing in the image.
    pub fn assert_clean(&self) {
        let run = tool("fsck.f2fs").args(["--dry-run", "-f"]).arg(self.image()).output().expect("fsck.f2fs");
        let said = text(&run);
        let unmount_error = ["[ASSERT]", "[FIX]", "Fail]", "Wrong", "Invalid", "Mismatch"]
            .iter()
            .find(|word| said.contains(*word));
        assert!(run.status.success() && unmount_error.is_none(), "fsck.f2fs ({unmount_error:?}):\n{said}");
        assert!(said.contains("[FSCK] other corrupted bugs"), "fsck.f2fs did not check:\n{said}");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut child) = self.mounted.take() {
            // A failed test must leave nothing behind.
            let _ = Command::new("umount").arg("-l").arg(self.path("")).status();
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Calls `access` with a buffer of `length` bytes, aligned for O_DIRECT.
pub fn with_aligned<T>(length: usize, access: impl FnOnce(&mut [u8]) -> T) -> T {
    const ALIGNMENT: usize = 4096;
    let mut room = vec![0; length + ALIGNMENT];
    let from = room.as_ptr().align_offset(ALIGNMENT);
    access(&mut room[from..from + length])
}

/// Returns true if this process has the capability with this number (capabilities(7)). In a container, root
/// lacks some.
pub fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let effective =
        status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("it has capabilities");
    let bits = u64::from_str_radix(effective.trim(), 16).expect("they are one number");
    bits >> number & 1 == 1
}

/// Returns true if a program is installed; otherwise prints a message.
pub fn has(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().expect("sh is installed");
    if !found.status.success() {
        eprintln!("{program} is not installed; see scripts/setup");
    }
    found.status.success()
}

/// Path of the example `mount`, built with the tests.
fn mounter() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let build = test.parent().and_then(Path::parent).expect("tests lie two levels deep");
    build.join("examples/mount")
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    // The tools are in directories that are not in the PATH of ordinary users.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn text(run: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
}
