//! Calendar and disks in one loop: the guest's world.
//!
//! The guest does one thing at a time and waits for an answer to all that it says, so there is one order of
//! events, and the loop takes them in that order.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    time::Duration,
};

use block::vhost_user::{Disk, Event, Request, Traits};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    Failure,
    calendar::{Calendar, Said},
    card::{Card, EventModel},
    mailbox::Mailbox,
};
use crate::stop::Stop;

/// The guest's date at the calendar's zero: 2024-02-29 12:00, so that what it writes does not depend on the day.
pub const EPOCH_NS: u64 = 1_709_208_000_000_000_000;

/// How long a guest may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How long it may be silent, on the wall clock.
    pub silence: Duration,
    /// How long one operation may take, on the guest's clock.
    pub operation_ns: u64,
    /// Ends the guest early.
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

/// Which of the guest's disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Card,
    Mailbox,
}

/// All that a guest is in touch with.
pub struct World<M> {
    calendar: Calendar,
    card: Card<M>,
    mailbox: Mailbox,
    card_port: Port,
    mailbox_port: Port,
    /// Requests under way, by the time of their end and the order in which they came.
    under_way: BTreeMap<(u64, u64), Answer>,
    came: u64,
    limits: Limits,
}

struct Answer {
    disk: Which,
    request: Request,
    result: io::Result<Vec<u8>>,
}

impl<M: EventModel> World<M> {
    /// A world for a guest that has connected to its calendar and will connect to its disks.
    pub fn new(
        calendar: UnixStream,
        card_listener: UnixListener,
        mailbox_listener: UnixListener,
        card: Card<M>,
        traits: Traits,
        limits: Limits,
    ) -> World<M> {
        World {
            calendar: Calendar::new(calendar, EPOCH_NS),
            card,
            mailbox: Mailbox::default(),
            card_port: Port { listener: card_listener, disk: None, traits },
            mailbox_port: Port { listener: mailbox_listener, disk: None, traits: Mailbox::traits() },
            under_way: BTreeMap::new(),
            came: 0,
            limits,
        }
    }

    /// The guest's time.
    pub fn now_ns(&self) -> u64 {
        self.calendar.now_ns()
    }

    /// The disk under test.
    pub fn card(&self) -> &Card<M> {
        &self.card
    }

    /// Says a line to the guest's agent. It hears it once the world goes on.
    pub fn say(&mut self, line: &[u8]) {
        if let Some((request, answer)) = self.mailbox.say(line) {
            self.schedule(self.now_ns(), Which::Mailbox, request, Ok(answer));
        }
    }

    /// Lets the world go on until the guest's agent has said a line.
    ///
    /// # Errors
    /// The guest dies, hangs, takes too long, or waits for what will never happen.
    pub fn hear(&mut self) -> Result<Vec<u8>, Failure> {
        let deadline_ns = self.now_ns().saturating_add(self.limits.operation_ns);
        loop {
            if let Some(line) = self.mailbox.hear() {
                return Ok(line);
            }
            if self.limits.stop.is_wished() {
                return Err(Failure::Stopped);
            }
            if !self.calendar.is_waiting() {
                self.listen()?;
                continue;
            }
            let next_ns = self.under_way.first_key_value().map(|((done_ns, _), _)| *done_ns);
            match (next_ns, self.calendar.wanted_ns()) {
                (Some(done_ns), wanted_ns) if wanted_ns.is_none_or(|wanted_ns| done_ns <= wanted_ns) => {
                    self.calendar.advance(done_ns);
                    self.answer()?;
                }
                (_, Some(_)) => self.run()?,
                (_, None) => return Err(Failure::Stuck { at_ns: self.now_ns(), console: String::new() }),
            }
            if self.now_ns() > deadline_ns {
                let limit_ns = self.limits.operation_ns;
                return Err(Failure::TooLong { limit_ns, console: String::new() });
            }
        }
    }

    /// Ends the earliest request and waits until the guest has noticed.
    fn answer(&mut self) -> Result<(), Failure> {
        let (_, Answer { disk: which, request, result }) =
            self.under_way.pop_first().expect("called with requests under way");
        let disk = match which {
            Which::Card => &mut self.card_port.disk,
            Which::Mailbox => &mut self.mailbox_port.disk,
        };
        let Some(disk) = disk else { return Ok(()) };
        disk.answer(
            &request,
            result.as_deref().map_err(|error| io::Error::new(error.kind(), error.to_string())),
        )?;
        if !disk.notify()? {
            return Ok(());
        }
        // Meanwhile the guest puts the interrupt into its calendar.
        loop {
            let disk = match which {
                Which::Card => &self.card_port.disk,
                Which::Mailbox => &self.mailbox_port.disk,
            };
            let disk = disk.as_ref().ok_or_else(|| self.died())?;
            let channel = disk.back_channel().expect("what it is notified over");
            let [acknowledged, said] = self.wait_for([channel, self.calendar.socket()])?;
            if said {
                self.mind_the_calendar()?;
            } else if acknowledged {
                let disk = match which {
                    Which::Card => &mut self.card_port.disk,
                    Which::Mailbox => &mut self.mailbox_port.disk,
                };
                let noticed = disk.as_mut().expect("it was there just now").acknowledged()?;
                return if noticed { Ok(()) } else { Err(self.died()) };
            }
        }
    }

    /// Gives the guest the time that it wants, and waits until it has taken it.
    fn run(&mut self) -> Result<(), Failure> {
        self.calendar.run()?;
        loop {
            self.wait_for([self.calendar.socket()])?;
            match self.calendar.listen()? {
                Said::Acknowledged => return Ok(()),
                Said::Something => {}
                Said::Goodbye => return Err(self.died()),
            }
        }
    }

    /// Takes one thing that the guest says.
    fn listen(&mut self) -> Result<(), Failure> {
        let sockets = [self.calendar.socket(), self.card_port.socket(), self.mailbox_port.socket()];
        let [calendar, card, mailbox] = self.wait_for(sockets)?;
        if card && self.card_port.serve()? {
            self.take_card_requests()?;
        }
        if mailbox && self.mailbox_port.serve()? {
            self.take_messages()?;
        }
        if calendar {
            self.mind_the_calendar()?;
        }
        Ok(())
    }

    fn mind_the_calendar(&mut self) -> Result<(), Failure> {
        match self.calendar.listen()? {
            Said::Something => Ok(()),
            Said::Acknowledged => Err(io::Error::other("the guest acknowledges what it was not told").into()),
            Said::Goodbye => Err(self.died()),
        }
    }

    fn take_card_requests(&mut self) -> io::Result<()> {
        while let Some(request) = self.card_port.next_request()? {
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
        while let Some(request) = self.mailbox_port.next_request()? {
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

    /// Waits until one of the sockets can be read; says which.
    fn wait_for<const N: usize>(&self, sockets: [BorrowedFd<'_>; N]) -> Result<[bool; N], Failure> {
        let mut waited_for = sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN));
        let patience = Timespec::try_from(self.limits.silence).map_err(io::Error::other)?;
        loop {
            match poll(&mut waited_for, Some(&patience)) {
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
                Ok(0) => {
                    let silent_s = self.limits.silence.as_secs();
                    return Err(Failure::Hung { at_ns: self.now_ns(), silent_s, console: String::new() });
                }
                Ok(_) => return Ok(waited_for.map(|socket| !socket.revents().is_empty())),
            }
        }
    }

    fn died(&self) -> Failure {
        Failure::Died { at_ns: self.now_ns(), console: String::new() }
    }
}

/// Where one of the disks is plugged in.
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

    /// Takes a message, or the guest's connection; whether there may be requests now. A guest that hangs up
    /// lets the next one in: what becomes of the machine, the calendar sees.
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
