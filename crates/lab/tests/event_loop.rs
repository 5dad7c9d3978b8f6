//! The event loop with a simulated guest without a kernel: order and times of events, and failures.

use std::{
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    thread::{self, JoinHandle},
    time::Duration,
};

use block::{
    Geometry, MemoryDevice,
    vhost_user::{Traits, fake_guest::FakeGuest},
};
use flash::{Completion, Op, Refusal};
use flashkit_lab::vm::{Card, EventLoop, EventModel, Failure, Limits};
use rustix::event::{PollFd, PollFlags, poll};

const SIZE: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const READ: u32 = 0;
const WRITE: u32 = 1;
/// Sector of the mailbox for messages.
const CHANNEL: u64 = 1024;

const START: u32 = 1;
const REQUEST: u32 = 2;
const WAIT: u32 = 3;
const GET: u32 = 4;
const UPDATE: u32 = 5;
const RUN: u32 = 6;

/// A model that serves requests one after the other, 3 ms each.
struct ThreeMs {
    free_ns: u64,
}

impl EventModel for ThreeMs {
    fn submit(&mut self, now_ns: u64, op: Op) -> Result<Completion, Refusal> {
        if op.offset_bytes == SIZE / 2 {
            return Err(Refusal::Medium { offset_bytes: op.offset_bytes });
        }
        let start_ns = now_ns.max(self.free_ns);
        self.free_ns = start_ns + 3 * MS;
        Ok(Completion { start_ns, done_ns: self.free_ns })
    }
}

/// A simulation of the external interfaces of user-mode Linux.
struct Guest {
    server: UnixStream,
    card: FakeGuest,
    mailbox: FakeGuest,
    now_ns: u64,
}

impl Guest {
    fn connect(dir: &Path) -> io::Result<Guest> {
        let mut server = UnixStream::connect(dir.join("server"))?;
        tell(&mut server, START, 0)?;
        let disk = |name: &str| -> io::Result<FakeGuest> {
            let mut disk = FakeGuest::new(UnixStream::connect(dir.join(name))?)?;
            disk.connect(|| Ok(()))?;
            Ok(disk)
        };
        let (card, mailbox) = (disk("card")?, disk("mailbox")?);
        Ok(Guest { server, card, mailbox, now_ns: 0 })
    }

    /// Sleeps until a time.
    fn sleep_until(&mut self, ns: u64) -> io::Result<()> {
        tell(&mut self.server, REQUEST, ns)?;
        self.wait()
    }

    /// Waits to be run. Like the kernel, it enters an interrupt into the timer queue of the time-travel
    /// server.
    fn wait(&mut self) -> io::Result<()> {
        tell(&mut self.server, WAIT, u64::MAX)?;
        loop {
            let channels = [self.server.as_fd(), self.card.back_channel(), self.mailbox.back_channel()];
            let mut waited_for = channels.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            poll(&mut waited_for, None)?;
            let [_, card, mailbox] = waited_for.map(|fd| !fd.revents().is_empty());
            if card || mailbox {
                self.now_ns = tell(&mut self.server, GET, 0)?;
                tell(&mut self.server, REQUEST, self.now_ns)?;
                if card {
                    self.card.interrupt()?
                } else {
                    self.mailbox.interrupt()?
                }
                continue;
            }
            let (kind, number, ns) = receive(&mut self.server)?;
            assert_eq!(kind, RUN);
            assert!(ns >= self.now_ns, "time goes back");
            self.now_ns = ns;
            return send(&mut self.server, 0, number, 0);
        }
    }

    fn write(&mut self, sector: u64) -> io::Result<()> {
        tell(&mut self.server, UPDATE, self.now_ns)?;
        self.card.submit(WRITE, sector, &[7; 512], 0)?;
        self.card.kick(|| Ok(()))
    }

    /// Receives a message of the host.
    fn receive(&mut self) -> io::Result<String> {
        self.mailbox.submit(READ, CHANNEL, &[], 512)?;
        self.mailbox.kick(|| Ok(()))?;
        loop {
            self.wait()?;
            if let Some((_, 0, data)) = self.mailbox.answers(512)?.pop() {
                return Ok(String::from_utf8_lossy(&data).trim_end_matches('\0').to_owned());
            }
        }
    }

    fn send(&mut self, text: &str) -> io::Result<()> {
        let mut block = text.as_bytes().to_vec();
        block.resize(512, 0);
        self.mailbox.submit(WRITE, CHANNEL, &block, 0)?;
        self.mailbox.kick(|| Ok(()))
    }
}

fn send(stream: &mut UnixStream, kind: u32, number: u32, ns: u64) -> io::Result<()> {
    let mut message = kind.to_le_bytes().to_vec();
    message.extend_from_slice(&number.to_le_bytes());
    message.extend_from_slice(&ns.to_le_bytes());
    stream.write_all(&message)
}

fn receive(stream: &mut UnixStream) -> io::Result<(u32, u32, u64)> {
    let mut message = [0; 16];
    stream.read_exact(&mut message)?;
    let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().unwrap());
    Ok((word(0), word(4), u64::from_le_bytes(message[8..].try_into().unwrap())))
}

/// Sends a message, receives its acknowledgement, and returns the time in it.
fn tell(stream: &mut UnixStream, kind: u32, ns: u64) -> io::Result<u64> {
    send(stream, kind, 42, ns)?;
    let (ack, number, ns) = receive(stream)?;
    assert_eq!((ack, number), (0, 42));
    Ok(ns)
}

fn event_loop(
    limits: Limits,
    script: impl FnOnce(Guest) -> io::Result<()> + Send + 'static,
) -> (EventLoop<ThreeMs>, JoinHandle<io::Result<()>>) {
    let dir = tempfile::tempdir().unwrap();
    let bind = |name: &str| UnixListener::bind(dir.path().join(name)).unwrap();
    let (server, card_port, mailbox_port) = (bind("server"), bind("card"), bind("mailbox"));
    let card = Card::new(ThreeMs { free_ns: 0 }, Box::new(MemoryDevice::new(SIZE))).traced();
    let guest = thread::spawn(move || script(Guest::connect(dir.path())?));
    let (stream, _) = server.accept().unwrap();
    let geometry = Geometry { size_bytes: SIZE, sector_bytes: 512 };
    let traits =
        Traits { geometry, serial: "card".into(), write_cache: false, discard: false, read_only: false };
    (EventLoop::new(Some(stream), card_port, mailbox_port, card, traits, limits), guest)
}

/// Limits in guest time, which do not depend on the load of the machine.
fn a_second() -> Limits {
    Limits { operation_ns: 1000 * MS, ..Limits::default() }
}

#[test]
fn requests_end_at_the_modelled_time_and_messages_take_no_time() {
    let (mut events, guest) = event_loop(Limits::default(), |mut guest| {
        assert_eq!(guest.receive()?, "go\n");
        assert_eq!(guest.now_ns, 0);
        guest.sleep_until(10 * MS)?;
        guest.write(8)?;
        guest.write(16)?;
        guest.wait()?; // the end of the first request
        assert_eq!((guest.now_ns, guest.card.answers(0)?.len()), (13 * MS, 1));
        guest.wait()?;
        assert_eq!((guest.now_ns, guest.card.answers(0)?.len()), (16 * MS, 1));
        guest.send("done\n")?;
        assert_eq!(guest.receive()?, "and again\n");
        // A medium error takes no time and is reported to the guest.
        guest.write(SIZE / 1024)?;
        guest.wait()?;
        assert_eq!(guest.card.answers(0)?[0].1, 1);
        guest.send("failed\n")?;
        guest.wait()
    });
    events.send(b"go");
    assert_eq!(events.receive().unwrap(), b"done");
    assert_eq!(events.now_ns(), 16 * MS);
    let totals = *events.card().totals();
    assert_eq!((totals.writes, totals.written_bytes, totals.busy_ns), (2, 1024, 6 * MS));
    events.send(b"and again");
    assert_eq!(events.receive().unwrap(), b"failed");
    assert_eq!(events.now_ns(), 16 * MS);
    assert_eq!(events.card().totals(), &totals);
    let times: Vec<(u64, u64)> =
        events.card().trace().unwrap().entries.iter().map(|entry| (entry.at_ns, entry.done_ns)).collect();
    assert_eq!(times, [(10 * MS, 13 * MS), (10 * MS, 16 * MS)]);
    drop(events);
    assert!(guest.join().unwrap().is_err(), "its server is gone");
}

#[test]
fn a_guest_that_dies_hangs_or_waits_for_nothing_is_a_failure() {
    let (mut dies, guest) = event_loop(a_second(), |mut guest| {
        guest.sleep_until(7 * MS)?;
        Ok(())
    });
    assert!(matches!(dies.receive(), Err(Failure::Died { at_ns, .. }) if at_ns == 7 * MS));
    guest.join().unwrap().unwrap();

    // Silent until the event loop has given up, however long that takes.
    let (given_up, wait) = std::sync::mpsc::channel();
    let brief = Limits { silence: Duration::from_millis(300), ..a_second() };
    let (mut hangs, guest) = event_loop(brief, move |guest| {
        wait.recv().map_err(io::Error::other)?;
        drop(guest);
        Ok(())
    });
    assert!(matches!(hangs.receive(), Err(Failure::Hung { at_ns: 0, .. })));
    given_up.send(()).unwrap();
    guest.join().unwrap().unwrap();

    let (mut waits, _) = event_loop(a_second(), |mut guest| guest.wait());
    assert!(matches!(waits.receive(), Err(Failure::Stuck { at_ns: 0, .. })));

    let (mut sleeps, _) = event_loop(a_second(), |mut guest| {
        loop {
            let next_ns = guest.now_ns + 100 * MS;
            guest.sleep_until(next_ns)?;
        }
    });
    assert!(matches!(sleeps.receive(), Err(Failure::TooLong { .. })));
    assert!(sleeps.now_ns() > 1000 * MS && sleeps.now_ns() <= 1100 * MS);
}

#[test]
fn malformed_messages_of_the_guest_are_errors() {
    let (mut events, _) = event_loop(a_second(), |mut guest| {
        send(&mut guest.server, 99, 0, 0)?;
        guest.wait()
    });
    assert!(
        matches!(events.receive(), Err(Failure::Io(error)) if error.kind() == io::ErrorKind::InvalidData)
    );
}
