//! What the tests of mounts share: an image made by mkfs.f2fs, mounted by a process of its own, and judged by fsck.f2fs
//! afterwards.

#![allow(dead_code)] // each test file uses its own part

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// How long anything may take that should be quick.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the kernel is asked for a thing that it does in its own time, 10 ms apart: a minute.
pub const TRIES: u32 = 6000;

/// An image and the directory that it is mounted on.
pub struct Bench {
    dir: tempfile::TempDir,
    /// The process that answers.
    pub mounted: Option<Child>,
}

/// Whether this machine can mount; says why not.
pub fn can_mount() -> bool {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: /dev/fuse: {error}");
            false
        }
    }
}

/// Options of a mount past its cache, where what is opened so can be mapped to be written (from Linux 6.6 on); else none.
pub fn direct_write() -> &'static str {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux says which it is");
    let numbers: Vec<u32> =
        release.split(['.', '-']).map_while(|number| number.trim().parse().ok()).collect();
    if numbers[..] >= [6, 6][..] {
        return "direct_write";
    }
    eprintln!("direct_write is not tried: Linux {release}");
    ""
}

/// Skips a test where nothing can be mounted, or where a program that it uses is not installed.
#[macro_export]
macro_rules! needs_fuse {
    ($($program:literal),*) => {
        if !support::can_mount() $(|| !support::has($program))* {
            return;
        }
    };
}

impl Bench {
    /// Makes an image of so many MiB.
    pub fn new(mebibytes: u64, features: &[&str]) -> Bench {
        let bench = Bench::empty();
        let image = bench.image();
        File::create(&image).and_then(|file| file.set_len(mebibytes << 20)).expect("the image can be made");
        let made =
            tool("mkfs.f2fs").arg("-q").args(features).arg(&image).output().expect("mkfs.f2fs is there");
        assert!(made.status.success(), "mkfs.f2fs {features:?}: {}", text(&made));
        bench
    }

    /// A bench for an image that the test brings itself.
    pub fn empty() -> Bench {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("mnt")).expect("a directory to mount on");
        Bench { dir, mounted: None }
    }

    /// A new image of so many MiB, mounted with the usual options.
    pub fn mounted(mebibytes: u64) -> Bench {
        let mut bench = Bench::new(mebibytes, &["-O", "extra_attr,inode_checksum,sb_checksum,inode_crtime"]);
        bench.mount("allow_other");
        bench
    }

    /// The image.
    pub fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// A place beside the mount.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where it is mounted, or a path there.
    pub fn path(&self, name: &str) -> PathBuf {
        let root = self.dir.path().join("mnt");
        if name.is_empty() { root } else { root.join(name) }
    }

    /// Mounts it in a process of its own; the process's messages where it does not come to that.
    pub fn try_mount(&mut self, options: &str) -> Result<(), String> {
        self.mount_by(Command::new(mounter()), options)
    }

    /// Mounts it in a namespace of mounts that only the process that answers is in.
    pub fn mount_apart(&mut self) {
        let mut runner = Command::new("unshare");
        runner.args(["--mount", "--"]);
        self.mount_with(runner);
    }

    /// Mounts it by a program that runs another one, whose command line follows its own.
    pub fn mount_with(&mut self, mut runner: Command) {
        runner.arg(mounter());
        self.mount_by(runner, "").expect("it can be mounted");
    }

    fn mount_by(&mut self, mut mounter: Command, options: &str) -> Result<(), String> {
        assert!(self.mounted.is_none(), "it is mounted already");
        let mut child = mounter
            .args([self.image(), self.path("")])
            .arg(options)
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

    /// Mounts it.
    pub fn mount(&mut self, options: &str) {
        self.try_mount(options).expect("it can be mounted");
    }

    /// The process that answers.
    pub fn pid(&self) -> u32 {
        self.mounted.as_ref().expect("it is mounted").id()
    }

    /// Unmounts it, and waits until the process has ended.
    pub fn unmount(&mut self) {
        self.call_umount();
        self.wait_for_end();
    }

    /// Unmounts it and wants a clean volume.
    pub fn unmount_clean(&mut self) {
        self.unmount();
        self.assert_clean();
    }

    /// Calls umount(8).
    pub fn call_umount(&self) {
        // A process that another test is just starting has copies of our files until it runs its program.
        for left in (0..TRIES).rev() {
            let run = Command::new("umount").arg(self.path("")).output().expect("umount is there");
            if run.status.success() {
                break;
            }
            assert!(left > 0, "umount: {}", text(&run));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the process that answers has ended, and wants it to have ended well.
    pub fn wait_for_end(&mut self) {
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
    }

    /// Sends a signal to the process that answers.
    pub fn signal(&self, name: &str) {
        let run =
            Command::new("kill").args(["-s", name, &self.pid().to_string()]).status().expect("kill is there");
        assert!(run.success());
    }

    /// Kills the process that answers, and wants it to be gone soon, whatever it was doing.
    pub fn kill(&mut self) {
        let connection = self.connection();
        let mut child = self.mounted.take().expect("it is mounted");
        child.kill().expect("it can be killed");
        let started = Instant::now();
        while child.try_wait().expect("it is our child").is_none() {
            if started.elapsed() > PATIENCE {
                // Nothing on this machine could sync otherwise.
                let _ = connection.map(|path| std::fs::write(path.join("abort"), "1"));
                let _ = Command::new("umount").arg("-l").arg(self.path("")).status();
                panic!("it cannot be killed");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Where the kernel's end of the mount can be controlled, if it is in the process's namespace.
    fn connection(&self) -> Option<PathBuf> {
        let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).ok()?;
        let dir = self.path("").into_os_string().into_string().ok()?;
        let line = mounts.lines().find(|line| line.contains(&dir))?;
        let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
        let device = major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?;
        Some(PathBuf::from(format!("/sys/fs/fuse/connections/{device}")))
    }

    /// Kills the process that answers, as a crash would, and clears the dead mount away.
    pub fn crash(&mut self) {
        self.kill();
        let run = Command::new("umount").arg("-l").arg(self.path("")).status().expect("umount is there");
        assert!(run.success());
    }

    /// Runs a shell script in the mounted directory and wants it to succeed; gives its output.
    pub fn shell(&self, script: &str) -> String {
        let run = Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(self.path(""))
            .output()
            .expect("bash is there");
        assert!(run.status.success(), "{script}\n{}", text(&run));
        String::from_utf8_lossy(&run.stdout).into_owned()
    }

    /// What fsck.f2fs says of the image; it must find nothing at all.
    pub fn assert_clean(&self) {
        let run = tool("fsck.f2fs").args(["--dry-run", "-f"]).arg(self.image()).output().expect("fsck.f2fs");
        let said = text(&run);
        let complaint = ["[ASSERT]", "[FIX]", "Fail]", "Wrong", "Invalid", "Mismatch"]
            .iter()
            .find(|word| said.contains(*word));
        assert!(run.status.success() && complaint.is_none(), "fsck.f2fs ({complaint:?}):\n{said}");
        assert!(said.contains("[FSCK] other corrupted bugs"), "fsck.f2fs did not check:\n{said}");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut child) = self.mounted.take() {
            // A test failed: nothing of it may stay behind.
            let _ = Command::new("umount").arg("-l").arg(self.path("")).status();
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Memory of so many bytes as O_DIRECT wants it.
pub fn with_aligned<T>(length: usize, access: impl FnOnce(&mut [u8]) -> T) -> T {
    const ALIGNMENT: usize = 4096;
    let mut room = vec![0; length + ALIGNMENT];
    let from = room.as_ptr().align_offset(ALIGNMENT);
    access(&mut room[from..from + length])
}

/// Returns true if this process has a capability, given by its number (capabilities(7)). In a container root lacks some.
pub fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let effective =
        status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("it has capabilities");
    let bits = u64::from_str_radix(effective.trim(), 16).expect("they are one number");
    bits >> number & 1 == 1
}

/// Whether a program is installed; says if it is not.
pub fn has(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().expect("sh is there");
    if !found.status.success() {
        eprintln!("{program} is not installed; see scripts/setup");
    }
    found.status.success()
}

/// The example that mounts, built beside the tests.
fn mounter() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let build = test.parent().and_then(Path::parent).expect("tests lie two levels deep");
    build.join("examples/mount")
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    // The tools live where ordinary users have no path to.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn text(run: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
}
