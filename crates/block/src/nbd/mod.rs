//! An NBD server for any device, and a client: fixed newstyle, over a Unix socket or TCP on the loopback
//! interface.
//!
//! *Invariant*: a client harms nobody but itself. Lengths are checked before memory is taken, a connection has the
//! data of one longest request under way and no more, one that breaks the protocol or takes too long for the
//! handshake is closed, and each has its own threads, so that a slow one keeps no other waiting. A client that has
//! finished the handshake may be silent for long, as a mounted file system is: it keeps its own of [`MAX_CONNECTIONS`]
//! places. A client in the handshake takes none of them: of [`MAX_HANDSHAKES`] at once, the oldest gives way to a
//! new one.

mod client;
mod export;
mod handshake;
mod transmission;
mod wire;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt, io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::FileTypeExt,
        net::UnixListener,
    },
    path::PathBuf,
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

pub use client::Client;
pub use export::Export;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::{AsFd, BorrowedFd},
};
use wire::{Hurried, Socket};

/// Longest read or write, in bytes.
const MAX_REQUEST_BYTES: u32 = 32 << 20;
/// Connections at once: half a gigabyte, if all of them have their longest requests under way.
const MAX_CONNECTIONS: usize = 16;
/// Handshakes at once.
const MAX_HANDSHAKES: usize = 16;
/// How long the handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may leave its replies unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take for its last replies when the server stops. What the device has under way is waited for,
/// however long it takes: after the stop it is at rest.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the listener looks whether it should stop.
const TICK: Duration = Duration::from_millis(50);

/// Where a server listens: `unix:PATH`, or `HOST:PORT` on the loopback interface (port 0: any). The URIs that
/// NBD clients take are read too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Address> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_string());
        let path = match text.strip_prefix(UNIX_URI) {
            Some(escaped) => Some(unescape(escaped).ok_or_else(|| invalid("an escape without its digits"))?),
            None => text.strip_prefix("unix:").map(Into::into),
        };
        if let Some(path) = path {
            return match path.is_empty() {
                true => Err(invalid("unix: needs a path")),
                false => Ok(Address::Unix(path.into())),
            };
        }
        let text = text.strip_prefix("nbd://").map_or(text, |rest| rest.trim_end_matches('/'));
        let address = text.to_socket_addrs()?.next().ok_or_else(|| invalid("no such host"))?;
        // The protocol asks nobody who they are.
        match address.ip().is_loopback() {
            true => Ok(Address::Tcp(address)),
            false => Err(invalid("only addresses of this machine (127.0.0.1, ::1, localhost) are served")),
        }
    }
}

impl fmt::Display for Address {
    /// As the URI that NBD clients take.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{UNIX_URI}{}", escape(path.as_os_str())),
            Address::Tcp(address) => write!(f, "nbd://{address}"),
        }
    }
}

/// How the URI of a Unix socket begins.
const UNIX_URI: &str = "nbd+unix:///?socket=";

/// A path as part of a URI's query (RFC 3986); what has no meaning there stays as it is.
fn escape(path: &OsStr) -> String {
    let mut escaped = String::new();
    for &byte in path.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(byte.into());
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

fn unescape(escaped: &str) -> Option<OsString> {
    let mut bytes = Vec::new();
    let mut parts = escaped.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.bytes());
    }
    Some(OsString::from_vec(bytes))
}

/// A server at work. Dropping it stops it.
pub struct Server {
    address: Address,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    stopping: AtomicBool,
    /// By number, in the order in which they were accepted.
    connections: Mutex<BTreeMap<u64, Connection>>,
}

struct Connection {
    socket: Socket,
    thread: JoinHandle<()>,
    /// Set once the client has a place of its own.
    is_admitted: bool,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a place to a client that is about to finish the handshake; false where there is none, or it had to give way.
    fn admit(&self, number: u64) -> bool {
        let mut connections = self.connections();
        if admitted(&connections) >= MAX_CONNECTIONS {
            return false;
        }
        connections.get_mut(&number).is_some_and(|connection| {
            connection.is_admitted = true;
            true
        })
    }
}

/// Clients that have a place.
fn admitted(connections: &BTreeMap<u64, Connection>) -> usize {
    connections.values().filter(|it| it.is_admitted && !it.thread.is_finished()).count()
}

/// The oldest client in the handshake, where all handshakes are taken; it gives way to a new one.
fn take_oldest_handshake(connections: &mut BTreeMap<u64, Connection>) -> Option<Connection> {
    let mut handshakes = connections.iter().filter(|(_, it)| !it.is_admitted).map(|(number, _)| *number);
    let oldest = handshakes.next()?;
    if handshakes.count() + 1 < MAX_HANDSHAKES {
        return None;
    }
    connections.remove(&oldest)
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Server {
    /// Serves `export` at `address` until it is stopped.
    ///
    /// # Errors
    /// Those of listening; [`io::ErrorKind::AddrInUse`] when another server listens on the socket. A socket
    /// that a dead server left is taken over.
    pub fn start(export: Arc<dyn Export>, address: &Address) -> io::Result<Server> {
        let (listener, address) = match address {
            Address::Unix(path) => {
                let is_socket = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_socket());
                if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
                    std::fs::remove_file(path)?;
                }
                (Listener::Unix(UnixListener::bind(path)?), address.clone())
            }
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                let address = Address::Tcp(listener.local_addr()?);
                (Listener::Tcp(listener), address)
            }
        };
        listener.set_nonblocking()?;
        let shared = Arc::new(Shared { stopping: AtomicBool::new(false), connections: Mutex::default() });
        let of_listener = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("nbd-listener".into())
            .spawn(move || listen(&listener, &export, &of_listener))?;
        Ok(Server { address, shared, listener: Some(thread) })
    }

    /// Where it listens; with the port that was chosen, if any was to be.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.shared.connections().values().filter(|it| !it.thread.is_finished()).count()
    }

    /// Takes no further connection or request, answers those under way, and flushes the device.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        if let Some(listener) = self.listener.take() {
            // A listener that panicked has stopped listening.
            let _ = listener.join();
        }
        if let Address::Unix(path) = &self.address {
            // Somebody else may have removed it; it is of no use any more.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.listener.is_some() {
            self.shut_down();
        }
    }
}

impl Listener {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Unix(listener) => listener.set_nonblocking(true),
            Listener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Socket::Unix(stream))
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
        }
    }
}

fn listen(listener: &Listener, export: &Arc<dyn Export>, shared: &Arc<Shared>) {
    let mut number = 0;
    while !shared.stopping.load(Ordering::SeqCst) {
        let fd = listener.as_fd();
        let mut waiting = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let tick = Timespec::try_from(TICK).expect("a fraction of a second");
        if !matches!(rustix::event::poll(&mut waiting, Some(&tick)), Ok(1..)) {
            continue;
        }
        let Ok(socket) = listener.accept() else {
            // Out of descriptors, perhaps: whoever waits to be accepted would make this a busy loop.
            std::thread::sleep(TICK);
            continue;
        };
        let mut connections = shared.connections();
        connections.retain(|_, connection| !connection.thread.is_finished());
        if admitted(&connections) >= MAX_CONNECTIONS {
            continue;
        }
        let oldest = take_oldest_handshake(&mut connections);
        if let Some(connection) = start(socket, number, export, shared) {
            connections.insert(number, connection);
            number += 1;
        }
        drop(connections);
        if let Some(Connection { socket, thread, .. }) = oldest {
            // Its handshake meets the end of the stream.
            socket.close();
            // A connection that panicked is closed.
            let _ = thread.join();
        }
    }
    let connections = std::mem::take(&mut *shared.connections());
    connections.values().for_each(|connection| connection.socket.stop_reading());
    let deadline = Instant::now() + STOP_TIMEOUT;
    for Connection { socket, thread, .. } in connections.into_values() {
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Who does not read its replies now never will.
        socket.close();
        // A connection that panicked is closed.
        let _ = thread.join();
    }
    // There is nobody left to tell.
    let _ = export.flush();
}

/// Starts the thread of a client; none where there are no descriptors or threads left.
fn start(socket: Socket, number: u64, export: &Arc<dyn Export>, shared: &Arc<Shared>) -> Option<Connection> {
    let other = socket.try_clone().ok()?;
    let (export, shared) = (Arc::clone(export), Arc::clone(shared));
    let thread = std::thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
        // A client's mistake ends its connection and concerns nobody else.
        let _ = connect(&socket, &*export, || shared.admit(number));
        // The listener has a copy of the socket, which alone would keep the connection open.
        socket.close();
    });
    Some(Connection { socket: other, thread: thread.ok()?, is_admitted: false })
}

fn connect(socket: &Socket, export: &dyn Export, admit: impl FnMut() -> bool) -> io::Result<()> {
    let mut hurried = Hurried { socket: socket.try_clone()?, deadline: Instant::now() + HANDSHAKE_TIMEOUT };
    let Some(session) = handshake::handshake(&mut hurried, export, admit)? else { return Ok(()) };
    socket.set_timeouts(None, Some(WRITE_TIMEOUT))?;
    let stream = socket.try_clone()?;
    let output = socket.try_clone()?;
    let mut input = io::BufReader::with_capacity(128 << 10, stream);
    transmission::transmit(&mut input, output, || socket.close(), export, session)
}
