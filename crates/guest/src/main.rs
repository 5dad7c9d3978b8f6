//! The guest's init: loads the requested modules, reads operations from the host line by line, and answers in
//! the same way.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use flashkit_guest::{
    Op, Reply, Runner,
    mailbox::{self, Mailbox},
    op::{Message, WATCH},
};
use rustix::{
    fs::{Mode, OFlags},
    mount::{MountFlags, mount},
    process::{Resource, Rlimit},
    system::RebootCommand,
};

/// Name that the host gives the port.
const PORT: &str = "judge";
/// Index of the modules by feature, written by the host into the initial file system.
const MODULES: &str = "/modules/index.json";

/// Duration after which a running operation is reported.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of open files.
const FILES: u64 = 65_536;

fn main() -> ! {
    if let Err(error) = serve() {
        // Only the console is left for a report.
        eprintln!("guest-agent: {error:#}");
    }
    rustix::fs::sync();
    let _ = rustix::system::reboot(RebootCommand::PowerOff);
    loop {
        thread::park();
    }
}

fn serve() -> Result<()> {
    rustix::process::umask(Mode::empty()); // the host sets exact modes
    // Thousands of files can be kept open to become orphans.
    let files = Rlimit { current: Some(FILES), maximum: Some(FILES) };
    rustix::process::setrlimit(Resource::Nofile, files)?;
    mount_pseudo("devtmpfs", "/dev")?;
    mount_pseudo("proc", "/proc")?;
    mount_pseudo("sysfs", "/sys")?;
    fs::create_dir_all("/mnt")?;
    let mut modules = Modules::find()?;
    modules.load("boot")?;
    link_disks()?;
    let (lines, out) = open_channel()?;
    let mut log = KernelLog::open()?;
    let watch = Watch::start();
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let mut runner = Runner::default();

    answer(&mut out, &Reply::Ready)?;
    out.flush()?;
    let mut lines = BufReader::new(lines);
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Ok(()); // the host hung up
        }
        let reply = match serde_json::from_str::<Op>(&line) {
            Ok(op) => {
                watch.set(Some(line.trim()));
                let reply = perform(&op, &mut runner, &mut modules, &mut log, &mut out);
                watch.set(None);
                reply?
            }
            Err(error) => Reply::Failed { errno: 0, error: error.to_string(), log: Vec::new() },
        };
        answer(&mut out, &reply)?;
        out.flush()?;
    }
}

fn perform(
    op: &Op,
    runner: &mut Runner,
    modules: &mut Modules,
    log: &mut KernelLog,
    out: &mut impl Write,
) -> Result<Reply> {
    let needs = match op {
        Op::Mount { fs, .. } => Some(fs.as_str()),
        Op::Encrypt { .. } | Op::Verity { .. } | Op::Measure { .. } => Some("encryption"),
        Op::NbdAttach { .. } => Some("nbd"),
        _ => None,
    };
    if let Some(what) = needs {
        modules.load(what)?;
    }
    let mut entries = |entry| {
        answer(out, &Reply::Entry(Box::new(entry)))?;
        Ok(())
    };
    let result = runner.run(op, &mut entries);
    let log = log.since_last()?;
    Ok(match result {
        Ok(answer) => Reply::Done { answer, log },
        Err(error) => {
            Reply::Failed { errno: error.raw_os_error().unwrap_or(0), error: error.to_string(), log }
        }
    })
}

fn answer(out: &mut impl Write, reply: &Reply) -> io::Result<()> {
    serde_json::to_writer(&mut *out, reply)?;
    out.write_all(b"\n")
}

fn mount_pseudo(fs: &str, dir: &str) -> Result<()> {
    fs::create_dir_all(dir)?;
    match mount(fs, dir, fs, MountFlags::empty(), None) {
        Err(rustix::io::Errno::BUSY) => Ok(()), // the kernel mounted it already
        mounted => mounted.with_context(|| format!("mount {dir}")),
    }
}

struct Modules {
    wanted: HashMap<String, Vec<String>>,
    loaded: Vec<String>,
}

impl Modules {
    /// Reads the host's index of modules. It is empty if the kernel has everything built in.
    fn find() -> Result<Modules> {
        let wanted = match fs::read(MODULES) {
            Ok(index) => serde_json::from_slice(&index)?,
            Err(error) if error.kind() == ErrorKind::NotFound => HashMap::new(),
            Err(error) => return Err(error).context(MODULES),
        };
        Ok(Modules { wanted, loaded: Vec::new() })
    }

    /// Loads the modules of a feature, in the order of the index. A feature that is not in the index is built
    /// in or missing; the mount will show which.
    fn load(&mut self, what: &str) -> Result<()> {
        for name in self.wanted.get(what).into_iter().flatten() {
            if self.loaded.contains(name) {
                continue;
            }
            let path = Path::new("/modules").join(name);
            let file = File::open(&path).with_context(|| path.display().to_string())?;
            match rustix::system::finit_module(&file, c"", 0) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => self.loaded.push(name.clone()),
                Err(errno) => bail!("module {name}: {errno}"),
            }
        }
        Ok(())
    }
}

/// Makes `/disk/NAME` for each disk with a name from the host (its serial number).
fn link_disks() -> Result<()> {
    fs::create_dir_all("/disk")?;
    for disk in fs::read_dir("/sys/block")? {
        let disk = disk?;
        let Ok(serial) = fs::read_to_string(disk.path().join("serial")) else { continue };
        let device = PathBuf::from("/dev").join(disk.file_name());
        std::os::unix::fs::symlink(device, Path::new("/disk").join(serial.trim()))?;
    }
    Ok(())
}

/// Opens the channel to the host: a mailbox if there is one, otherwise a port.
fn open_channel() -> Result<(Box<dyn Read>, Box<dyn Write>)> {
    let mailbox = Path::new("/disk").join(mailbox::SERIAL);
    if mailbox.exists() {
        let channel = Mailbox::open(&mailbox)?;
        return Ok((Box::new(channel.try_clone()?), Box::new(channel)));
    }
    let port = open_port()?;
    Ok((Box::new(port.try_clone()?), Box::new(port)))
}

/// Opens the port to the host. The kernel starts it when the host has answered, however slow that is. The
/// host gives up on a guest that waits in vain.
fn open_port() -> Result<File> {
    loop {
        for port in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten() {
            let port = port?;
            let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
            if name.trim() == PORT {
                let device = PathBuf::from("/dev").join(port.file_name());
                return Ok(OpenOptions::new().read(true).write(true).open(device)?);
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Reports the running system call in the kernel's log if an operation takes long, so that the host also
/// learns about an operation that never ends.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Option<(Instant, String)>>>);

impl Watch {
    fn start() -> Watch {
        let watch = Watch::default();
        let watched = watch.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(PATIENCE);
                // A failure here cannot be reported.
                let _ = watched.tell();
            }
        });
        watch
    }

    /// Marks the start or end of an operation.
    fn set(&self, op: Option<&str>) {
        let op = op.map(|op| (Instant::now(), op.to_owned()));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = op;
    }

    fn tell(&self) -> io::Result<()> {
        let going = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((since, op)) = going.filter(|(since, _)| since.elapsed() >= PATIENCE) else { return Ok(()) };
        let stack = fs::read_to_string("/proc/1/task/1/stack")?;
        let mut log = OpenOptions::new().write(true).open("/dev/kmsg")?;
        let first = format!("{} s in {op}", since.elapsed().as_secs());
        for line in [&*first].into_iter().chain(stack.lines()) {
            log.write_all(format!("<4>{WATCH} {line}").as_bytes())?;
        }
        Ok(())
    }
}

/// The kernel's messages.
struct KernelLog {
    device: File,
}

impl KernelLog {
    fn open() -> Result<KernelLog> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let mut log = KernelLog { device: options.open("/dev/kmsg")? };
        log.since_last()?; // messages of the boot are on the console
        Ok(log)
    }

    /// Returns each message since the last call.
    fn since_last(&mut self) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.device.read(&mut record) {
                Ok(n) => {
                    let text = String::from_utf8_lossy(&record[..n]);
                    messages.extend(text.lines().next().and_then(parse_message));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(messages),
                Err(error) if error.raw_os_error() == Some(32) => {} // overwritten before it was read
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Parses "level,sequence,microseconds,flags;text", where the level's upper bits are the facility.
fn parse_message(record: &str) -> Option<Message> {
    let (head, text) = record.split_once(';')?;
    let level: u32 = head.split(',').next()?.parse().ok()?;
    Some(Message { level: (level & 7) as u8, text: text.to_owned() })
}
