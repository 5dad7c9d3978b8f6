//! The test directory, and the transcript of results and changes.

use std::{
    collections::BTreeMap,
    fmt::{Debug, Write},
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags},
    io::{Errno, Result},
    process::{Gid, Uid},
    time::{ClockId, clock_gettime},
};

/// Interval at which the coarse clock is read, which the kernel uses for timestamps.
const GLANCE: Duration = Duration::from_millis(1);

/// Credentials: user, group and supplementary groups.
#[derive(Clone, Copy)]
pub struct Who(pub u32, pub u32, pub &'static [u32]);

pub const ALICE: Who = Who(65_531, 65_531, &[]);
pub const BOB: Who = Who(65_532, 65_532, &[65_531]);
pub const CAROL: Who = Who(65_533, 65_533, &[4000, 4001]);

/// Watched attributes of a file.
#[derive(Clone, PartialEq, Eq)]
struct Facts {
    ino: u64,
    mode: u16,
    owner: (u32, u32),
    links: u32,
    size: Option<u64>,
    times: [(i64, u32); 3],
}

impl Facts {
    fn of(path: &Path) -> Option<Facts> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS).ok()?;
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let time = |time: rustix::fs::StatxTimestamp| (time.tv_sec, time.tv_nsec);
        // Not compared for symbolic links, because following one updates it.
        let atime = if kind == FileType::Symlink { (0, 0) } else { time(stat.stx_atime) };
        Some(Facts {
            ino: stat.stx_ino,
            mode: stat.stx_mode,
            owner: (stat.stx_uid, stat.stx_gid),
            links: stat.stx_nlink,
            size: (kind != FileType::Directory).then_some(stat.stx_size),
            times: [atime, time(stat.stx_mtime), time(stat.stx_ctime)],
        })
    }
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:o} {}:{} links {}", self.mode, self.owner.0, self.owner.1, self.links)?;
        self.size.map_or(Ok(()), |size| write!(f, " size {size}"))
    }
}

/// The directory of one section, and the transcript.
pub struct Ground {
    root: PathBuf,
    transcript: String,
    watched: Vec<PathBuf>,
    before: BTreeMap<PathBuf, Facts>,
    /// In long tables, one of this many steps is executed.
    share: u64,
    is_table: bool,
}

impl Ground {
    pub fn new(root: &Path, share: u64) -> Ground {
        rustix::process::umask(Mode::from(0o022));
        let root = root.canonicalize().expect("the directory exists");
        Ground {
            root,
            transcript: String::new(),
            watched: Vec::new(),
            before: BTreeMap::new(),
            share,
            is_table: false,
        }
    }

    /// Begins a section in a new empty directory, and watches these names in it.
    pub fn section(&mut self, name: &str, watched: &[&str]) {
        rustix::process::umask(Mode::from(0o022));
        self.is_table = false;
        let dir = self.root.join(name);
        fs::create_dir(&dir).expect("sections have different names");
        rustix::fs::chmod(&dir, Mode::from(0o777)).expect("it is ours");
        std::env::set_current_dir(&dir).expect("it was just made");
        self.watched = watched.iter().map(PathBuf::from).collect();
        self.flush();
        self.say(format!("== {name}"));
        self.look();
    }

    /// Begins a section whose steps are independent of one another.
    pub fn table(&mut self, name: &str, watched: &[&str]) {
        self.section(name, watched);
        self.is_table = true;
    }

    /// Returns true if this run leaves the step out.
    fn skips(&self, what: &str) -> bool {
        let sum = what.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.is_table && sum % self.share != 0
    }

    /// Removes everything in the section's directory.
    pub fn sweep(&mut self) {
        for entry in fs::read_dir(".").expect("it can be listed") {
            let path = entry.expect("it can be listed").path();
            let done = match path.symlink_metadata().is_ok_and(|facts| facts.is_dir()) {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            done.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }

    /// Takes the current attributes as the baseline.
    pub fn look(&mut self) {
        self.before = self.facts();
        // The coarse clock for timestamps may be several ticks late on an idle machine. A fine-grained
        // timestamp that another file system has taken also advances it (Linux 6.13,
        // `ktime_get_coarse_real_ts64_mg`).
        let now = clock_gettime(ClockId::Realtime);
        while clock_gettime(ClockId::RealtimeCoarse) <= now {
            thread::sleep(GLANCE);
        }
    }

    /// Executes one call and records its result and changes. Changes made before the call do not count.
    pub fn step<T: Debug>(&mut self, what: impl AsRef<str>, call: impl FnOnce() -> Result<T>) {
        if self.skips(what.as_ref()) {
            return;
        }
        self.look();
        let result = call();
        self.note(what.as_ref(), &result);
    }

    /// Executes one call with other credentials.
    pub fn step_as<T: Debug + Send>(
        &mut self,
        who: Who,
        what: impl AsRef<str>,
        call: impl FnOnce() -> Result<T> + Send,
    ) {
        if self.skips(what.as_ref()) {
            return;
        }
        self.look();
        let result = acting_as(who, call);
        self.note(&format!("{} by {}", what.as_ref(), who.0), &result);
    }

    /// Adds a line for comparison that is not the result of a call.
    pub fn say(&mut self, what: impl AsRef<str>) {
        self.transcript += what.as_ref();
        self.transcript += "\n";
    }

    /// Prints the transcript so far. It is not printed line by line, because some calls limit the size of all
    /// files.
    pub fn flush(&mut self) {
        print!("{}", std::mem::take(&mut self.transcript));
    }

    fn note<T: Debug>(&mut self, what: &str, result: &Result<T>) {
        let outcome = match result {
            Ok(value) => format!("{value:?}"),
            Err(errno) => name_of(*errno),
        };
        let after = self.facts();
        let mut changes = String::new();
        for path in &self.watched {
            let change = describe(self.before.get(path), after.get(path));
            if !change.is_empty() {
                write!(changes, "; {}{change}", path.display()).expect("memory suffices");
            }
        }
        self.say(format!("{what}: {outcome}{changes}"));
        self.before = after;
    }

    fn facts(&self) -> BTreeMap<PathBuf, Facts> {
        self.watched.iter().filter_map(|path| Some((path.clone(), Facts::of(path)?))).collect()
    }
}

fn describe(before: Option<&Facts>, after: Option<&Facts>) -> String {
    match (before, after) {
        (None, None) => String::new(),
        (Some(_), None) => " gone".into(),
        (None, Some(after)) => format!(" new {after}"),
        (Some(before), Some(after)) if before == after => String::new(),
        (Some(before), Some(after)) => {
            let mut text = String::new();
            if before.ino != after.ino {
                text += " other";
            }
            if (before.mode, before.owner, before.links, before.size)
                != (after.mode, after.owner, after.links, after.size)
            {
                text += &format!(" {before} -> {after}");
            }
            for (name, (before, after)) in
                ["atime", "mtime", "ctime"].iter().zip(before.times.iter().zip(after.times))
            {
                // Times of another inode are not a change.
                if *before != after && !text.starts_with(" other") {
                    text += if *before < after { " +" } else { " -" };
                    text += name;
                }
            }
            text
        }
    }
}

/// Runs a closure with other credentials, on a separate thread.
pub fn acting_as<T: Send>(who: Who, call: impl FnOnce() -> T + Send) -> T {
    let as_them = || {
        let groups: Vec<Gid> = who.2.iter().map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(who.0), Gid::from_raw(who.1));
        rustix::thread::set_thread_groups(&groups).expect("we are root");
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("we are root");
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("we are root");
        call()
    };
    thread::scope(|scope| scope.spawn(as_them).join().expect("calls do not panic"))
}

fn name_of(errno: Errno) -> String {
    // The `Debug` text of an errno depends on the library; the system's message does not.
    let text = std::io::Error::from(errno).to_string();
    text.split(" (").next().unwrap_or_default().to_string()
}

// Helpers for several sections.

/// Creates a regular file with content and mode, independent of the umask.
#[track_caller]
pub fn file(path: &str, content: &[u8], mode: u32) {
    fs::write(path, content).expect("it can be written");
    rustix::fs::chmod(path, Mode::from(mode)).expect("it is ours");
}

#[track_caller]
pub fn dir(path: &str, mode: u32) {
    fs::create_dir(path).expect("it can be made");
    rustix::fs::chmod(path, Mode::from(mode)).expect("it is ours");
}

#[track_caller]
pub fn own(path: &str, who: Who) {
    std::os::unix::fs::lchown(path, Some(who.0), Some(who.1)).expect("we are root");
}

/// Creates a file of one of the [`KINDS`].
pub fn make(kind: &str, path: &str) {
    let node = |kind, device| rustix::fs::mknodat(CWD, path, kind, Mode::from(0o644), device);
    match kind {
        "missing" => Ok(()),
        "file" => rustix::fs::open(path, OFlags::CREATE | OFlags::WRONLY, Mode::from(0o644))
            .and_then(|fd| rustix::io::write(fd, b"text").map(drop)),
        "dir" => rustix::fs::mkdir(path, Mode::from(0o755)),
        "full" => rustix::fs::mkdir(path, Mode::from(0o755))
            .and_then(|()| rustix::fs::mkdir(format!("{path}/in"), Mode::from(0o755))),
        "fifo" => node(FileType::Fifo, 0),
        "socket" => node(FileType::Socket, 0),
        "null" => node(FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        "block" => node(FileType::BlockDevice, rustix::fs::makedev(99, 99)),
        "dangling" => rustix::fs::symlink("nowhere", path),
        "loop" => rustix::fs::symlink(path, path),
        "tofile" => {
            file("target", b"target", 0o644);
            rustix::fs::symlink("target", path)
        }
        "todir" => {
            dir("tdir", 0o755);
            rustix::fs::symlink("tdir", path)
        }
        _ => unreachable!("{kind} is no kind"),
    }
    .expect("it can be made");
}

pub const KINDS: [&str; 12] = [
    "missing", "file", "dir", "full", "fifo", "socket", "null", "block", "dangling", "loop", "tofile",
    "todir",
];
