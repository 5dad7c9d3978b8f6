//! User-mode Linux as a process: starting it, sending it operations, and ending it.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::{
        fd::AsFd,
        unix::{
            fs::symlink,
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use block::vhost_user::Traits;
use flash::Pace;
use guest::{
    Entry, Op, Reply,
    op::{Answer, Message},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    param::clock_ticks_per_second,
    process::{Pid, Signal, kill_process_group},
};
use tempfile::TempDir;

use super::{Card, EventLoop, EventModel, Failure, Limits, Totals};
use crate::{patience::Patience, programs};

/// Library beside the kernel that replaces the host's random bytes by ones derived from the seed. Without it,
/// runs of file systems that make random choices, such as ext4, differ slightly.
pub const RANDOM_BYTES: &str = "random.so";
/// Time until the program must connect to its time-travel server, without the time in which it waits for a
/// processor.
const START_TIME: Duration = Duration::from_secs(30);
/// Number of console lines in a failure message.
const CONSOLE_LINES: usize = 25;
/// A tmpfs that permits executable mappings; the guest's memory is a file there.
const MEMORY_DIR: &str = "/dev/shm";

/// Configuration of a guest.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The kernel: user-mode Linux with time travel.
    pub kernel: PathBuf,
    /// Its init: our agent, statically linked.
    pub agent: PathBuf,
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// Queue depth of each disk.
    pub queue_depth: u32,
    /// Properties of the card's disk, as the guest sees it.
    pub traits: Traits,
    /// Clock of the guest. In virtual time, computation takes no time and the card takes as long as its model
    /// says. In real time, computation takes its actual time and the card takes none.
    pub pace: Pace,
    /// Seed of its random choices.
    pub seed: u64,
    /// Time limits.
    pub limits: Limits,
}

/// Result and cost of an operation.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Guest time of the start.
    pub started_ns: u64,
    /// Guest time of the end.
    pub ended_ns: u64,
    /// Requests to the card meanwhile. They do not include writes that are still in the guest's memory.
    pub totals: Totals,
    /// Processor time of the guest's kernel meanwhile; `None` if unknown.
    pub cpu_ns: Option<u64>,
    /// The answer of the operation.
    pub answer: Option<Answer>,
    /// Entries of a manifest.
    pub entries: Vec<Entry>,
    /// Messages that the kernel logged.
    pub log: Vec<Message>,
}

impl Measured {
    /// Combines this result with that of the next operation.
    pub fn and(mut self, next: Measured) -> Measured {
        self.ended_ns = next.ended_ns;
        self.totals.add(&next.totals);
        self.cpu_ns = self.cpu_ns.zip(next.cpu_ns).map(|(this, next)| this + next);
        self.answer = next.answer.or(self.answer);
        self.entries.extend(next.entries);
        self.log.extend(next.log);
        self
    }

    /// Returns the duration in guest time.
    pub fn duration_ns(&self) -> u64 {
        self.ended_ns - self.started_ns
    }
}

/// A running guest. Dropping it kills it; data not yet written to the card is lost.
pub struct Uml<M> {
    events: EventLoop<M>,
    program: Child,
    work: TempDir,
    pace: Pace,
}

impl<M: EventModel> Uml<M> {
    /// Boots a guest with a card; the card is `/disk/card` there.
    ///
    /// # Errors
    /// The program cannot be started, or its kernel does not boot.
    pub fn boot(setup: &Setup, card: Card<M>) -> Result<Uml<M>, Failure> {
        let work = tempfile::tempdir()?;
        let at = |name: &str| work.path().join(name);
        fs::create_dir(at("root"))?;
        if fs::hard_link(&setup.agent, at("root/init")).is_err() {
            fs::copy(&setup.agent, at("root/init"))?;
        }
        // Host programs that run in the guest expect their loader and libraries there.
        for dir in ["lib", "lib64"] {
            symlink(format!("{}/{dir}", guest::host::DIR), at("root").join(dir))?;
        }
        let server = UnixListener::bind(at("server"))?;
        let listeners = (UnixListener::bind(at("card"))?, UnixListener::bind(at("mailbox"))?);
        let console = File::create(at("console"))?;
        File::open(&setup.kernel).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", setup.kernel.display()))
        })?;
        // The command line uses relative names in a separate directory, so that it is the same in each run:
        // the kernel seeds its random numbers from it, too.
        let kernel = std::path::absolute(&setup.kernel)?;
        let random = Some(kernel.with_file_name(RANDOM_BYTES)).filter(|library| library.is_file());
        let mut program = programs::bound(&kernel)
            .args(arguments(setup))
            .current_dir(work.path())
            .envs(random.map(|library| ("LD_PRELOAD", library)))
            .env("LAB_SEED", setup.seed.to_string())
            .env("TMPDIR", MEMORY_DIR)
            .process_group(0) // its own child processes end with it
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot start setpriv: {error}")))?;
        let connected = match setup.pace {
            Pace::RealTime => None,
            Pace::Virtual => match connection(&server, &mut program) {
                Ok(stream) => Some(stream),
                Err(failure) => {
                    kill(&mut program);
                    return Err(failure.with_console(console_end(work.path())));
                }
            },
        };
        let (traits, limits) = (setup.traits.clone(), setup.limits.clone());
        let events = EventLoop::new(connected, listeners.0, listeners.1, card, traits, limits)
            .of_program(id(&program));
        let mut uml = Uml { events, program, work, pace: setup.pace };
        match uml.reply()? {
            Reply::Ready => Ok(uml),
            other => Err(io::Error::other(format!("the agent began with {other:?}")).into()),
        }
    }

    /// Returns the process ID of the program.
    pub fn id(&self) -> Pid {
        id(&self.program)
    }

    /// Returns the path of a file in the guest's root directory.
    pub(crate) fn shared(&self, name: &str) -> PathBuf {
        self.work.path().join("root").join(name)
    }

    /// Returns the event loop, with the clock and the card.
    pub fn events(&self) -> &EventLoop<M> {
        &self.events
    }

    /// Executes one operation.
    ///
    /// # Errors
    /// The guest's kernel refuses it, or the guest fails.
    pub fn run(&mut self, op: &Op) -> Result<Measured, Failure> {
        let started_ns = self.events.now_ns();
        let before = *self.events.card().totals();
        let cpu_before = self.cpu_ns();
        let line = serde_json::to_vec(op).map_err(io::Error::other)?;
        self.events.send(&line);
        let mut entries = Vec::new();
        loop {
            match self.reply()? {
                Reply::Entry(entry) => entries.push(*entry),
                Reply::Done { answer, log } => {
                    let totals = self.events.card().totals().since(&before);
                    let ended_ns = self.events.now_ns();
                    let cpu_ns =
                        self.cpu_ns().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
                    return Ok(Measured { started_ns, ended_ns, totals, cpu_ns, answer, entries, log });
                }
                Reply::Failed { errno, error, log } => return Err(Failure::refused(op, errno, error, log)),
                Reply::Ready => return Err(io::Error::other("the agent restarted").into()),
            }
        }
    }

    /// Returns the processor time of the guest's kernel so far. In user-mode Linux the kernel is the first
    /// process; programs run in separate processes. In virtual time, the result would include the cost of
    /// time travel itself, so it is `None`.
    fn cpu_ns(&self) -> Option<u64> {
        if self.pace == Pace::Virtual {
            return None;
        }
        let threads = fs::read_dir(format!("/proc/{}/task", self.program.id())).ok()?;
        threads.map(|thread| ran_ns(&thread.ok()?.path())).sum()
    }

    /// Returns the host processes that run the guest's programs, one for each. The guest's own accounting
    /// cannot tell their time from the kernel's. Returns `None` if the host's kernel does not list child
    /// processes.
    pub fn programs(&self) -> Option<BTreeSet<u32>> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.program.id())).ok()?.flatten();
        // Threads may end meanwhile.
        let lists: Vec<String> =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok()).collect();
        let programs = lists.iter().flat_map(|list| list.split(' ')).filter_map(|id| id.parse().ok());
        (!lists.is_empty()).then(|| programs.collect())
    }

    /// Returns the processor time of one of these processes so far, or `None` if it has ended.
    pub fn computed_ns(&self, program: u32) -> Option<u64> {
        ran_ns(Path::new(&format!("/proc/{program}")))
    }

    /// Returns the processor time of all ended child processes, in the resolution of the host's kernel.
    pub fn ended_computed_ns(&self) -> Option<u64> {
        // proc(5), /proc/PID/stat: fields 16 and 17, in ticks; the name in brackets may contain blanks.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.program.id())).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = fields.get(13)?.parse::<u64>().ok()? + fields.get(14)?.parse::<u64>().ok()?;
        Some(ticks * 1_000_000_000 / clock_ticks_per_second())
    }

    fn reply(&mut self) -> Result<Reply, Failure> {
        let line =
            self.events.receive().map_err(|failure| failure.with_console(console_end(self.work.path())))?;
        serde_json::from_slice(&line).map_err(|error| {
            io::Error::other(format!("the agent said {}: {error}", String::from_utf8_lossy(&line))).into()
        })
    }
}

impl<M> Drop for Uml<M> {
    fn drop(&mut self) {
        kill(&mut self.program);
    }
}

/// Returns the processor time of a process or thread (proc(5), schedstat: nanoseconds on a processor, waiting
/// for one, number of time slices).
fn ran_ns(dir: &Path) -> Option<u64> {
    fs::read_to_string(dir.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
}

fn kill(program: &mut Child) {
    // Fails only if the processes have ended already.
    let _ = kill_process_group(id(program), Signal::KILL);
    let _ = program.wait();
}

fn id(program: &Child) -> Pid {
    Pid::from_raw(program.id() as i32).expect("a child's id is positive")
}

fn arguments(setup: &Setup) -> Vec<String> {
    let time = match setup.pace {
        Pace::Virtual => Some("time-travel=ext:server".into()),
        Pace::RealTime => None,
    };
    let all = vec![
        format!("mem={}M", setup.memory_mib),
        "virtio_uml.device=card:2".into(),
        "virtio_uml.device=mailbox:2".into(),
        format!("virtio_blk.queue_depth={}", setup.queue_depth),
        "root=/dev/root".into(),
        "rootfstype=hostfs".into(),
        // hostfs requires an absolute path.
        "rootflags=/proc/self/cwd/root".into(),
        "rw".into(),
        "init=/init".into(),
        "con=null".into(),
        "con0=null,fd:1".into(),
        "loglevel=5".into(),
        "panic=-1".into(),
    ];
    time.into_iter().chain(all).collect()
}

/// Waits for the program to connect to its time-travel server.
fn connection(server: &UnixListener, program: &mut Child) -> Result<UnixStream, Failure> {
    let mut patience = Patience::new(START_TIME, Some(program.id()));
    while !patience.is_spent() {
        let mut waited_for = [PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if let Ok(1..) = poll(&mut waited_for, Some(&moment)) {
            return Ok(server.accept()?.0);
        }
        if program.try_wait()?.is_some() {
            return Err(Failure::Died { at_ns: 0, console: String::new() });
        }
    }
    Err(Failure::Hung { at_ns: 0, silent_s: START_TIME.as_secs(), console: String::new() })
}

/// Returns the console lines around a kernel panic, or else the last lines.
pub(super) fn console_end(work: &Path) -> String {
    let text = fs::read(work.join("console")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len().saturating_sub(CONSOLE_LINES);
    // The lines before a panic show its cause; a backtrace follows it.
    let panic = lines.iter().rposition(|line| line.contains("Kernel panic"));
    let first = panic.map_or(last, |n| n.saturating_sub(CONSOLE_LINES / 2));
    lines[first..lines.len().min(first + CONSOLE_LINES)].join("\n")
}
