//! A stock kernel in QEMU, in real time: for machines without a kernel with time travel.
//!
//! The card is an NBD disk whose requests take as long as the model says, on the host's clock. The overhead
//! of the host and of QEMU comes on top. So figures are indicative: they show which file system is faster,
//! not by how much.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Stdio},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use block::nbd::{Address, Server};
use flash::{Card, Profile};
use guest::{Op, Reply};
use tempfile::TempDir;

use super::{Failure, Limits, Measured, console_end};
use crate::programs;

/// Options of every virtual machine: software emulation, which works everywhere, and no default devices.
///
/// One processor, with a maximum of two: this makes QEMU keep the guest's memory barriers and atomic
/// operations. With a maximum of one it translates them as if no other thread accessed the memory, but its
/// disk threads do. Then the guest occasionally misses the completion of a request and waits for it for ever.
/// (QEMU 8.1 keeps the barriers, see "tcg: Do not elide memory barriers for !CF_PARALLEL"; `lock`ed
/// instructions are atomic only with a maximum of two.)
pub const MACHINE: [&str; 9] = [
    "-accel",
    "tcg",
    "-smp",
    "1,maxcpus=2",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
];
/// Kernel command line of every virtual machine. A slow host must not look like a broken timer
/// (no_timer_check). The kernel must not rate-limit lines of our init, which would add a log line of its own
/// (printk.devkmsg).
pub const KERNEL_LINE: &str =
    "loglevel=5 panic=-1 mitigations=off cryptomgr.notests no_timer_check printk.devkmsg=on";
const PROGRAM: &str = "qemu-system-x86_64";
/// Name of the serial port of the agent.
const PORT: &str = "judge";
/// The guest's clock at boot.
const BOOT_DATE: &str = "2024-02-29T12:00:00";
/// Memory for the kernel and its initramfs.
const KERNEL_MIB: u32 = 256;
/// Interval of the checks for a stop request.
const TICK: Duration = Duration::from_millis(100);

/// Configuration of a guest.
#[derive(Debug, Clone)]
pub struct QemuSetup {
    /// The compressed kernel.
    pub kernel: PathBuf,
    /// Its initramfs, whose init is our agent.
    pub initial: PathBuf,
    /// Memory in MiB, in addition to that for the kernel.
    pub memory_mib: u32,
    /// Profile of the card.
    pub profile: Profile,
    /// Time limits.
    pub limits: Limits,
}

/// A running guest. Dropping it kills it.
pub struct Qemu {
    program: Child,
    input: ChildStdin,
    lines: Receiver<io::Result<String>>,
    work: TempDir,
    card: Arc<Card>,
    /// Serves the card while the guest runs.
    _server: Server,
    started: Instant,
    limits: Limits,
}

impl Qemu {
    /// Boots a guest with a card; the card is `/disk/card` there.
    ///
    /// # Errors
    /// QEMU cannot be started, or its kernel does not boot.
    pub fn boot(setup: &QemuSetup, card: Card) -> Result<Qemu, Failure> {
        let work = tempfile::tempdir()?;
        let card = Arc::new(card);
        let server = Server::start(card.clone(), &Address::Unix(work.path().join("card")))?;
        let mut program = programs::bound(PROGRAM)
            .args(arguments(setup, work.path()))
            .process_group(0) // only this process receives an interrupt
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(work.path().join("qemu"))?)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("cannot start {PROGRAM}: {error}")))?;
        let input = program.stdin.take().expect("standard input is a pipe");
        let output = program.stdout.take().expect("standard output is a pipe");
        let (send, lines) = channel();
        thread::spawn(move || {
            // The receiver is gone once the guest has been dropped.
            BufReader::new(output).lines().all(|line| send.send(line).is_ok())
        });
        let limits = setup.limits.clone();
        let mut qemu =
            Qemu { program, input, lines, work, card, _server: server, started: Instant::now(), limits };
        match qemu.reply()? {
            Reply::Ready => Ok(qemu),
            other => Err(io::Error::other(format!("the agent began with {other:?}")).into()),
        }
    }

    /// Returns the modelled card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Executes one operation. The result has no card counters; those come from [`card`](Self::card).
    ///
    /// # Errors
    /// The guest's kernel refuses it, or the guest fails.
    pub fn run(&mut self, op: &Op) -> Result<Measured, Failure> {
        let started_ns = self.now_ns();
        let mut line = serde_json::to_vec(op).map_err(io::Error::other)?;
        line.push(b'\n');
        self.input.write_all(&line).and_then(|()| self.input.flush()).map_err(|_| self.died())?;
        let mut entries = Vec::new();
        loop {
            match self.reply()? {
                Reply::Entry(entry) => entries.push(*entry),
                Reply::Done { answer, log } => {
                    let (ended_ns, totals) = (self.now_ns(), super::Totals::default());
                    return Ok(Measured { started_ns, ended_ns, totals, cpu_ns: None, answer, entries, log });
                }
                Reply::Failed { errno, error, log } => return Err(Failure::refused(op, errno, error, log)),
                Reply::Ready => return Err(io::Error::other("the agent restarted").into()),
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn reply(&mut self) -> Result<Reply, Failure> {
        let deadline = Instant::now() + Duration::from_nanos(self.limits.operation_ns);
        loop {
            match self.lines.recv_timeout(TICK) {
                Ok(line) => {
                    let line = line?;
                    let heard = serde_json::from_slice(line.as_bytes());
                    return heard.map_err(|error| {
                        io::Error::other(format!(
                            "unexpected line of the agent: {line}: \
                            {error}"
                        ))
                        .into()
                    });
                }
                Err(RecvTimeoutError::Timeout) if self.limits.stop.is_wished() => {
                    return Err(Failure::Stopped);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let limit_ns = self.limits.operation_ns;
                    return Err(Failure::TooLong { limit_ns, console: console_end(self.work.path()) });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
            }
        }
    }

    fn died(&self) -> Failure {
        let said = std::fs::read_to_string(self.work.path().join("qemu")).unwrap_or_default();
        Failure::Died { at_ns: self.now_ns(), console: said + &console_end(self.work.path()) }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn arguments(setup: &QemuSetup, work: &Path) -> Vec<String> {
    let QemuSetup { profile, .. } = setup;
    // A comma in an option value is doubled (qemu(1)).
    let at = |name: &str| work.join(name).display().to_string().replace(',', ",,");
    let host = &profile.host;
    let on = |is: bool| if is { "on" } else { "off" };
    let all = [
        format!("-append console=ttyS0 {KERNEL_LINE}"),
        format!("-kernel {}", setup.kernel.display()),
        format!("-initrd {}", setup.initial.display()),
        format!("-m {}", setup.memory_mib + KERNEL_MIB),
        "-cpu max".into(),
        "-M q35".into(),
        format!("-rtc base={BOOT_DATE}"),
        format!("-chardev file,id=console,path={}", at("console")),
        "-serial chardev:console".into(),
        "-chardev stdio,id=port,signal=off".into(),
        "-device virtio-serial-pci,addr=2".into(),
        format!("-device virtserialport,chardev=port,name={PORT}"),
        format!(
            "-drive if=none,id=card,format=raw,cache=none,discard={},file={}",
            if host.discard { "unmap" } else { "ignore" },
            Address::Unix(work.join("card"))
        ),
        format!(
            "-device virtio-blk-pci,drive=card,serial=card,request-merging=off,seg-max-adjust=off,queue-size=4,\
             num-queues=1,write-cache={},discard={},addr=3",
            on(host.flush),
            on(host.discard)
        ),
    ];
    let split = |option: &String| match option.split_once(' ') {
        Some((name, value)) => vec![name.to_owned(), value.to_owned()],
        None => vec![option.clone()],
    };
    MACHINE.map(String::from).into_iter().chain(all.iter().flat_map(split)).collect()
}
