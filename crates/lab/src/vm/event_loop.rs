//! The event loop of a guest: its time-travel server and its disks.
//!
//! The guest does one thing at a time and waits for an answer to every message, so events are totally
//! ordered, and the loop processes them in that order. A guest in real time runs concurrently with the loop,
//! and each of its requests is answered at once: then only the guest's computation takes time.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

use block::vhost_user::{Disk, Event, Request, Traits};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    Failure,
    card::{Card, EventModel},
    mailbox::Mailbox,
    time_travel::{Received, TimeTravelServer},
};
use crate::{
    patience::{Patience, TICK},
    stop::Stop,
};

/// The guest's date at time 0: 2024-02-29 12:00. It is fixed, so that written data does not depend on the
/// current date.
pub const EPOCH_NS: u64 = 1_709_208_000_000_000_000;

/// Time limits of a guest.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum silence on the wall clock, without the time in which the guest waits for a processor.
    pub silence: Duration,
    /// Maximum duration of one operation, in guest time.
    pub operation_ns: u64,
    /// Stop request that ends the guest early.
    pub stop: Stop,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            silence: Duration::from_secs(120),
            operation_ns: 24 * 3600 * 1_000_000_000,
            stop: Stop::default(),
        }
    }
}

/// Index of a disk of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Card,
    Mailbox,
}

/// The event loop of a guest, with everything that the guest communicates with.
pub struct EventLoop<M> {
    clock: Clock,
    card: Card<M>,
    mailbox: Mailbox,
    /// Indexed by [`Which`].
    ports: [Port; 2],
    /// Requests in flight, by the time of their end and the order of their arrival.
    under_way: BTreeMap<(u64, u64), Answer>,
    came: u64,
    limits: Limits,
    program: Option<Program>,
}

/// Clock of the guest.
enum Clock {
    /// Virtual time, which the guest requests from the time-travel server.
    Virtual(TimeTravelServer),
    /// The host's clock, since this instant.
    Wall(Instant),
}

impl Clock {
    fn now_ns(&self) -> u64 {
        match self {
            Clock::Virtual(server) => server.now_ns(),
            Clock::Wall(started) => started.elapsed().as_nanos() as u64,
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Clock::Virtual(server) => Some(server.socket()),
            Clock::Wall(_) => None,
        }
    }
}

/// The process of the guest.
struct Program {
    id: u32,
    /// A pidfd, readable once the process has ended.
    life: Option<OwnedFd>,
}

struct Answer {
    disk: Which,
    request: Request,
    result: io::Result<Vec<u8>>,
}

impl<M: EventModel> EventLoop<M> {
    /// Creates the event loop for a guest that will connect to its disks. In virtual time, the guest has
    /// already connected to its time-travel server.
    pub fn new(
        server: Option<UnixStream>,
        card_listener: UnixListener,
        mailbox_listener: UnixListener,
        card: Card<M>,
        traits: Traits,
        limits: Limits,
    ) -> EventLoop<M> {
        EventLoop {
            clock: match server {
                Some(stream) => Clock::Virtual(TimeTravelServer::new(stream, EPOCH_NS)),
                None => Clock::Wall(Instant::now()),
            },
            card,
            mailbox: Mailbox::default(),
            ports: [
                Port { listener: card_listener, disk: None, traits },
                Port { listener: mailbox_listener, disk: None, traits: Mailbox::traits() },
            ],
            under_way: BTreeMap::new(),
            came: 0,
            limits,
            program: None,
        }
    }

    /// Names the process of the guest. Then its end is noticed at once, even if its children keep the sockets
    /// open, and time in which it waits for a processor does not count as silence.
    pub fn of_program(self, id: Pid) -> EventLoop<M> {
        let life = pidfd_open(id, PidfdFlags::empty()).ok();
        EventLoop { program: Some(Program { id: id.as_raw_nonzero().get() as u32, life }), ..self }
    }

    /// Returns the guest's time.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Returns the disk under test.
    pub fn card(&self) -> &Card<M> {
        &self.card
    }

    /// Sends a line to the guest's agent. It receives the line when the event loop continues.
    pub fn send(&mut self, line: &[u8]) {
        if let Some((request, answer)) = self.mailbox.send(line) {
            self.schedule(self.now_ns(), Which::Mailbox, request, Ok(answer));
        }
    }

    /// Runs the event loop until a line from the guest's agent is received.
    ///
    /// # Errors
    /// The guest dies, hangs, takes too long, or waits although no event is pending.
    pub fn receive(&mut self) -> Result<Vec<u8>, Failure> {
        let deadline_ns = self.now_ns().saturating_add(self.limits.operation_ns);
        loop {
            if let Some(line) = self.mailbox.receive() {
                return Ok(line);
            }
            if self.limits.stop.is_wished() {
                return Err(Failure::Stopped);
            }
            self.go_on()?;
            if self.now_ns() > deadline_ns {
                let limit_ns = self.limits.operation_ns;
                return Err(Failure::TooLong { limit_ns, console: String::new() });
            }
        }
    }

    /// Processes one event.
    fn go_on(&mut self) -> Result<(), Failure> {
        let next_ns = self.under_way.first_key_value().map(|((done_ns, _), _)| *done_ns);
        match (&mut self.clock, next_ns) {
            (Clock::Wall(_), Some(_)) => self.answer(),
            (Clock::Wall(_), None) => self.listen(),
            (Clock::Virtual(server), _) if !server.is_waiting() => self.listen(),
            (Clock::Virtual(server), next_ns) => match (next_ns, server.wanted_ns()) {
                (Some(done_ns), wanted_ns) if wanted_ns.is_none_or(|wanted_ns| done_ns <= wanted_ns) => {
                    server.advance(done_ns);
                    self.answer()
                }
                (_, Some(_)) => self.run(),
                (_, None) => Err(Failure::Stuck { at_ns: self.now_ns(), console: String::new() }),
            },
        }
    }

    /// Completes the earliest request and waits until the guest has acknowledged the interrupt.
    fn answer(&mut self) -> Result<(), Failure> {
        let (_, Answer { disk: which, request, result }) =
            self.under_way.pop_first().expect("called with requests under way");
        let Some(disk) = &mut self.ports[which as usize].disk else { return Ok(()) };
        disk.answer(
            &request,
            result.as_deref().map_err(|error| io::Error::new(error.kind(), error.to_string())),
        )?;
        if !disk.notify()? {
            return Ok(());
        }
        // Before it acknowledges, the guest enters the interrupt into its timer queue at the time-travel
        // server. A guest in real time may be sending a request just now, and handles no interrupt before
        // that is answered.
        loop {
            let disk = self.ports[which as usize].disk.as_ref().ok_or_else(|| self.died())?;
            let channel = disk.back_channel().expect("the call socket of the queue");
            let ready = self.wait_for(&[&[channel], &self.sockets()[..]].concat())?;
            if ready[1..].contains(&true) {
                self.listen()?;
            } else {
                let disk = self.ports[which as usize].disk.as_mut();
                let noticed = disk.expect("it existed before").acknowledged()?;
                return if noticed { Ok(()) } else { Err(self.died()) };
            }
        }
    }

    /// Lets the guest run at the time that it requested, and waits for its acknowledgement.
    fn run(&mut self) -> Result<(), Failure> {
        let Clock::Virtual(server) = &mut self.clock else { return Ok(()) };
        server.run()?;
        loop {
            self.wait_for(self.clock.socket().as_slice())?;
            let Clock::Virtual(server) = &mut self.clock else { return Ok(()) };
            match server.listen()? {
                Received::Acknowledgement => return Ok(()),
                Received::Request => {}
                Received::EndOfFile => return Err(self.died()),
            }
        }
    }

    /// Receives one message of the guest.
    fn listen(&mut self) -> Result<(), Failure> {
        let ready = self.wait_for(&self.sockets())?;
        let (card, mailbox, server) = (ready[0], ready[1], ready.get(2) == Some(&true));
        if card && self.ports[Which::Card as usize].serve()? {
            self.take_card_requests()?;
        }
        if mailbox && self.ports[Which::Mailbox as usize].serve()? {
            self.take_messages()?;
        }
        if server {
            self.mind_the_calendar()?;
        }
        Ok(())
    }

    /// Returns all sockets on which the guest may send: card, mailbox, and in virtual time the time-travel
    /// server.
    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        self.ports.iter().map(Port::socket).chain(self.clock.socket()).collect()
    }

    fn mind_the_calendar(&mut self) -> Result<(), Failure> {
        let Clock::Virtual(server) = &mut self.clock else { return Ok(()) };
        match server.listen()? {
            Received::Request => Ok(()),
            Received::Acknowledgement => {
                Err(io::Error::other("the guest acknowledges a message that was not sent").into())
            }
            Received::EndOfFile => Err(self.died()),
        }
    }

    fn take_card_requests(&mut self) -> io::Result<()> {
        while let Some(request) = self.ports[Which::Card as usize].next_request()? {
            let now_ns = self.now_ns();
            let (done_ns, result) = match request.ask() {
                Some(ask) => self.card.submit(now_ns, ask, &request.data()?),
                None => (now_ns, Ok(Vec::new())),
            };
            self.schedule(done_ns, Which::Card, request, result);
        }
        Ok(())
    }

    fn take_messages(&mut self) -> io::Result<()> {
        while let Some(request) = self.ports[Which::Mailbox as usize].next_request()? {
            let answered = match request.ask() {
                Some(ask) => {
                    let data = request.data()?;
                    self.mailbox.submit(request, ask, &data)
                }
                None => Some((request, Vec::new())),
            };
            if let Some((request, answer)) = answered {
                self.schedule(self.now_ns(), Which::Mailbox, request, Ok(answer));
            }
        }
        Ok(())
    }

    fn schedule(&mut self, done_ns: u64, disk: Which, request: Request, result: io::Result<Vec<u8>>) {
        self.came += 1;
        self.under_way.insert((done_ns, self.came), Answer { disk, request, result });
    }

    /// Waits until at least one of the sockets is readable, and returns which are. Fails if the program has
    /// ended.
    fn wait_for(&self, sockets: &[BorrowedFd<'_>]) -> Result<Vec<bool>, Failure> {
        let life = self.program.as_ref().and_then(|program| program.life.as_ref());
        let all = sockets.iter().copied().chain(life.map(AsFd::as_fd));
        let mut waited_for: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
        // Most waits end before the first tick, and need no check of the process.
        let mut patience: Option<Patience> = None;
        loop {
            match poll(&mut waited_for, Some(&tick)) {
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
                Ok(0) if self.limits.stop.is_wished() => return Err(Failure::Stopped),
                Ok(0) => {
                    let program = self.program.as_ref().map(|program| program.id);
                    let patience =
                        patience.get_or_insert_with(|| Patience::new(self.limits.silence, program));
                    if patience.is_spent() {
                        let silent_s = self.limits.silence.as_secs();
                        return Err(Failure::Hung { at_ns: self.now_ns(), silent_s, console: String::new() });
                    }
                }
                Ok(_) => {
                    let of_guest = waited_for.iter().take(sockets.len());
                    let ready: Vec<bool> = of_guest.map(|socket| !socket.revents().is_empty()).collect();
                    // Messages sent before its end are received first.
                    return if ready.contains(&true) { Ok(ready) } else { Err(self.died()) };
                }
            }
        }
    }

    fn died(&self) -> Failure {
        Failure::Died { at_ns: self.now_ns(), console: String::new() }
    }
}

/// Connection of one of the disks.
struct Port {
    listener: UnixListener,
    disk: Option<Disk>,
    traits: Traits,
}

impl Port {
    fn socket(&self) -> BorrowedFd<'_> {
        match &self.disk {
            Some(disk) => disk.socket(),
            None => self.listener.as_fd(),
        }
    }

    /// Receives a message, or accepts the guest's connection. Returns true if there may be requests now.
    /// After a disconnect another connection is accepted; the time-travel server notices the end of the
    /// guest.
    fn serve(&mut self) -> io::Result<bool> {
        let Some(disk) = &mut self.disk else {
            let (stream, _) = self.listener.accept()?;
            self.disk = Some(Disk::new(stream, self.traits.clone()));
            return Ok(false);
        };
        match disk.serve()? {
            Event::Kick => return Ok(true),
            Event::Served => {}
            Event::HungUp => self.disk = None,
        }
        Ok(false)
    }

    fn next_request(&mut self) -> io::Result<Option<Request>> {
        match &mut self.disk {
            Some(disk) => disk.next_request(),
            None => Ok(None),
        }
    }
}
