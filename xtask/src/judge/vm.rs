//! A virtual machine with the judge's kernel: QEMU without acceleration, so that it works everywhere.
//!
//! The guest's init takes one [`Op`] per line over a virtio port and answers each with lines of [`Reply`].
//!
//! *Power cuts*: the disks are raw files, written without a cache of QEMU's own. A write that the guest's
//! kernel knows to be complete is in the file, and one that it has not yet sent is not. So the file at one
//! instant, with QEMU stopped, is the medium after a power cut at that instant: see [`Vm::cut`].

use std::{
    collections::VecDeque,
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use guest::{
    Entry, Manifest, Op, Reply,
    op::{Answer, Message},
};
use lab::{
    patience::{Patience, TICK},
    programs,
    vm::{KERNEL_LINE, MACHINE},
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    judge::initramfs,
    judge::kernel::{Kernel, Machine},
    workspace::run,
};

/// Time limit of the guest's boot. As with all limits here, time in which it waits for a processor does not
/// count.
const BOOT_TIME: Duration = Duration::from_secs(180);
/// Maximum time without an answer after that, unless another limit is set.
const SILENCE: Duration = Duration::from_secs(600);
/// The guest's clock at boot. It makes the images independent of the day.
const BOOT_DATE: &str = "2024-02-29T12:00:00";
/// Maximum number of operations in flight to the guest, so that neither side's pipe fills up.
const IN_FLIGHT: usize = 64;
/// Number of the console's lines in an error.
const CONSOLE_LINES: usize = 25;
/// Maximum number of disks of one machine: 8 functions in each of the free slots.
pub const DISKS_MAX: usize = 8 * 24;

/// A disk of the guest; it is `/disk/N` there, N its index.
#[derive(Debug, Clone)]
pub struct Disk {
    /// A raw file, or another file name that QEMU accepts, such as `nbd+unix:///?socket=PATH`.
    pub source: PathBuf,
    /// True if the guest's writes go to the source; if false, they are discarded at the end.
    pub writable: bool,
    /// Logical sector in bytes.
    pub sector_bytes: u32,
}

impl Disk {
    /// Makes a disk whose file stays unchanged, whatever the guest does.
    pub fn scratch(source: impl Into<PathBuf>) -> Disk {
        Disk { source: source.into(), writable: false, sector_bytes: 512 }
    }

    /// Makes a disk whose file the guest writes to.
    pub fn writable(source: impl Into<PathBuf>) -> Disk {
        Disk { source: source.into(), writable: true, sector_bytes: 512 }
    }
}

/// Result of an operation.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The manifest, if one was requested.
    pub manifest: Option<Manifest>,
    /// Another answer.
    pub answer: Option<Answer>,
    /// Messages of the guest's kernel during the operation.
    pub log: Vec<Message>,
}

/// The guest's kernel refused an operation.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Error number, 0 if the error is the agent's.
    pub errno: i32,
    /// Error message.
    pub error: String,
    /// Messages of the guest's kernel during the operation.
    pub log: Vec<Message>,
}

/// A running machine, which is killed on drop.
#[derive(Debug)]
pub struct Vm {
    qemu: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    work: TempDir,
    machine: Machine,
    disks: Vec<Disk>,
    patience: Duration,
}

impl Vm {
    /// Boots the judge's kernel on `machine` with `disks`.
    pub fn boot(machine: Machine, disks: &[Disk]) -> Result<Vm> {
        Vm::boot_with(machine, disks, &[])
    }

    /// Boots the machine with a network card, behind which 10.0.2.2 is the host's loopback interface, and
    /// with the host's files, read-only, for [`Vm::host_files`].
    pub fn boot_in_host(machine: Machine, disks: &[Disk]) -> Result<Vm> {
        // The slots behind those of the disks.
        let host = [
            "-netdev",
            "user,id=net",
            "-device",
            "virtio-net-pci,netdev=net,addr=0x1b,romfile=",
            "-fsdev",
            "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device",
            "virtio-9p-pci,fsdev=host,mount_tag=host,addr=0x1c",
        ];
        Vm::boot_with(machine, disks, &host)
    }

    /// Sets the time limit of operations from here on. The default is ten minutes.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Returns the operation that mounts the host's files in a guest of [`Vm::boot_in_host`], for
    /// [`guest::host::program`].
    pub fn host_files() -> Op {
        Op::Mount {
            source: "host".into(),
            dir: guest::host::DIR.into(),
            fs: "9p".into(),
            options: "trans=virtio,version=9p2000.L,cache=loose".into(),
            read_only: true,
        }
    }

    fn boot_with(machine: Machine, disks: &[Disk], more: &[&str]) -> Result<Vm> {
        if disks.len() > DISKS_MAX {
            bail!("{} disks, but a machine has at most {DISKS_MAX}", disks.len());
        }
        let kernel = Kernel::find(machine)?;
        let initramfs = initramfs::build(machine, &kernel)?;
        let work = tempfile::tempdir()?;
        let (program, board, cpu, serial) = match machine {
            Machine::Amd64 => ("qemu-system-x86_64", "q35", "max", "ttyS0"),
            // QEMU's own pointer authentication is much faster than the architecture's.
            Machine::Arm64With16K => ("qemu-system-aarch64", "virt", "max,pauth-impdef=on", "ttyAMA0"),
        };
        let kernel_line = format!("console={serial} {KERNEL_LINE}");
        let mut command = programs::command(program);
        command
            .args(MACHINE)
            .args(["-cpu", cpu, "-M", board, "-m", "3072"])
            .args(["-rtc", &format!("base={BOOT_DATE}")])
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(&initramfs)
            .args(["-append", &kernel_line])
            .args(["-chardev", &format!("file,id=console,path={}", quoted(&work.path().join("console"))?)])
            .args(["-serial", "chardev:console"])
            .args(["-chardev", "stdio,id=port,signal=off", "-device", "virtio-serial-pci,addr=2"])
            .args(["-device", "virtserialport,chardev=port,name=judge"])
            .args(more);
        for (n, disk) in disks.iter().enumerate() {
            command.args(disk_arguments(n, disk)?);
        }
        let stderr = fs::File::create(work.path().join("qemu"))?;
        let mut qemu = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let input = qemu.stdin.take().expect("standard input is a pipe");
        let output = qemu.stdout.take().expect("standard output is a pipe");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut vm = Vm { qemu, input, lines, work, machine, disks: disks.to_vec(), patience: SILENCE };
        match vm.reply(BOOT_TIME).context("the guest does not come up")? {
            Reply::Ready => Ok(vm),
            other => bail!("the guest began with {other:?}"),
        }
    }

    /// Returns the kind of machine.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Executes one operation.
    ///
    /// # Errors
    /// The guest refused it, died or fell silent.
    pub fn run(&mut self, op: Op) -> Result<Outcome> {
        Ok(self.run_all([op])?.pop().expect("one operation has one outcome"))
    }

    /// Executes operations one after the other and stops at the first that the guest refuses.
    pub fn run_all(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        let mut refused = None;
        self.try_all(ops, |op, result| match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(refusal) if refused.is_none() => refused = Some((op, refusal)),
            Err(_) => {}
        })?;
        match refused {
            None => Ok(outcomes),
            Some((op, refusal)) => bail!("{op:?}: {}\n{}", refusal.error, show(&refusal.log)),
        }
    }

    /// Executes one operation. A refusal of the guest's kernel is a value.
    pub fn attempt(&mut self, op: Op) -> Result<Result<Outcome, Refusal>> {
        let mut results = Vec::new();
        self.try_all([op], |_, result| results.push(result))?;
        Ok(results.pop().expect("one operation has one result"))
    }

    fn try_all(
        &mut self,
        ops: impl IntoIterator<Item = Op>,
        mut done: impl FnMut(Op, Result<Outcome, Refusal>),
    ) -> Result<()> {
        let mut waiting = VecDeque::new();
        for op in ops {
            if waiting.len() == IN_FLIGHT {
                self.settle(&mut waiting, &mut done)?;
            }
            let mut line = serde_json::to_vec(&op)?;
            line.push(b'\n');
            let sent = self.input.write_all(&line).and_then(|()| self.input.flush());
            sent.with_context(|| self.post_mortem("cannot reach the guest"))?;
            waiting.push_back(op);
        }
        while !waiting.is_empty() {
            self.settle(&mut waiting, &mut done)?;
        }
        Ok(())
    }

    /// Waits for the answer to the oldest operation.
    fn settle(
        &mut self,
        waiting: &mut VecDeque<Op>,
        done: &mut impl FnMut(Op, Result<Outcome, Refusal>),
    ) -> Result<()> {
        let op = waiting.pop_front().expect("called with operations on their way");
        let result = self.outcome().with_context(|| format!("the guest failed at {op:?}"))?;
        done(op, result);
        Ok(())
    }

    fn outcome(&mut self) -> Result<Result<Outcome, Refusal>> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            match self.reply(self.patience)? {
                Reply::Entry(entry) => entries.push(*entry),
                Reply::Done { answer: Some(Answer::Manifest(mut manifest)), log } => {
                    manifest.entries = entries;
                    manifest.sort();
                    return Ok(Ok(Outcome { manifest: Some(manifest), answer: None, log }));
                }
                Reply::Done { answer, log } => return Ok(Ok(Outcome { manifest: None, answer, log })),
                Reply::Failed { errno, error, log } => return Ok(Err(Refusal { errno, error, log })),
                Reply::Ready => bail!("the guest restarted"),
            }
        }
    }

    fn reply(&mut self, patience: Duration) -> Result<Reply> {
        let mut waited = Patience::new(patience, Some(self.qemu.id()));
        loop {
            match self.lines.recv_timeout(TICK) {
                Ok(line) => {
                    return serde_json::from_str(&line).with_context(|| {
                        format!(
                            "unexpected line of the guest: \
                        {line}"
                        )
                    });
                }
                Err(RecvTimeoutError::Timeout) if waited.is_spent() => {
                    bail!(self.post_mortem(&format!("no answer for {} s", patience.as_secs())))
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!(self.post_mortem("the guest died")),
            }
        }
    }

    /// Copies disk `n` and those after it to the files `to`, as a power cut at this instant would leave them,
    /// and lets the guest continue.
    pub fn cut(&mut self, n: usize, to: &[PathBuf]) -> Result<()> {
        let disks = &self.disks[n..n + to.len()];
        if disks.iter().any(|disk| !disk.writable) {
            bail!("the disk lost written data");
        }
        self.freeze(Signal::STOP)?;
        self.wait_until_stopped()?;
        let copied = disks.iter().zip(to).try_for_each(|(disk, to)| copy_sparse(&disk.source, to));
        self.freeze(Signal::CONT)?;
        copied
    }

    fn freeze(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.qemu.id() as i32).expect("a child's id is positive");
        Ok(kill_process(pid, signal)?)
    }

    /// Every thread of QEMU must be stopped, because some of them write to the disks.
    fn wait_until_stopped(&self) -> Result<()> {
        let tasks = format!("/proc/{}/task", self.qemu.id());
        // A thread that waits for a disk stops only when the disk has answered.
        let mut waited = Patience::new(SILENCE, Some(self.qemu.id()));
        while !waited.is_spent() {
            let mut running = false;
            for task in fs::read_dir(&tasks)? {
                // A thread may end during the check.
                let stat = fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
                let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
                running |= !matches!(state, None | Some('T' | 't' | 'Z' | 'X'));
            }
            if !running {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(2));
        }
        bail!("QEMU does not stop")
    }

    /// Describes a guest that no longer answers: QEMU's output and the end of the console.
    fn post_mortem(&self, what: &str) -> String {
        let read = |name| fs::read(self.work.path().join(name)).unwrap_or_default();
        let (qemu, console) = (read("qemu"), read("console"));
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().collect();
        let end = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
        format!("{what}\n{}{end}", String::from_utf8_lossy(&qemu))
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // Both fail only if QEMU has ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn disk_arguments(n: usize, disk: &Disk) -> Result<[String; 4]> {
    let file = quoted(&disk.source)?;
    let snapshot = if disk.writable { "off" } else { "on" };
    let (slot, function) = (n / 8 + 3, n % 8);
    let sector = disk.sector_bytes;
    Ok([
        "-drive".into(),
        format!("if=none,id=disk{n},format=raw,cache=unsafe,discard=unmap,snapshot={snapshot},file={file}"),
        "-device".into(),
        format!(
            "virtio-blk-pci,drive=disk{n},serial={n},logical_block_size={sector},\
             physical_block_size={sector},addr={slot}.{function},multifunction=on"
        ),
    ])
}

/// Quotes a path in an option of QEMU's, where a comma is written twice.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.replace(',', ",,"))
}

/// Copies a file without writing its zeroes.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--sparse=always").arg(from).arg(to)).map(drop)
}

/// Formats messages as lines.
pub fn show(log: &[Message]) -> String {
    log.iter().map(|message| format!("<{}> {}\n", message.level, message.text)).collect()
}
