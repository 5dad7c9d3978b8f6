//! An NBD server for any device, and a client: fixed newstyle, over a Unix socket or TCP on the loopback
//! interface.
//!
//! *Invariant*: a client can harm only itself.
//! - Lengths are checked before memory is allocated.
//! - A connection holds the data of at most one longest request.
//! - A connection is closed if its client breaks the protocol or takes too long for the handshake.
//! - Each connection has its own threads, so a slow one does not delay others.
//!
//! A client that has finished the handshake may be silent for long, as a mounted file system is, and keeps
//! one of [`MAX_CONNECTIONS`] slots. A client in the handshake takes none of them. Of [`MAX_HANDSHAKES`]
//! handshakes at once, a new client replaces the oldest.

mod client;
mod handshake;
mod link;
mod transmission;
mod uri;
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
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fd::{AsFd, BorrowedFd},
};
pub use uri::Uri;
use wire::{Hurried, Socket};

use crate::Export;

/// Maximum length of a read or write in bytes.
const MAX_REQUEST_BYTES: u32 = 32 << 20;
/// Maximum number of connections. If all have their longest requests under way, they take 512 MiB.
const MAX_CONNECTIONS: usize = 16;
/// Maximum number of concurrent handshakes.
const MAX_HANDSHAKES: usize = 16;
/// Time limit of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a client may leave its replies unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for a client to take its last replies when the server stops. The device's own requests are
/// always awaited, so it is at rest after the stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the listener checks whether to stop.
const TICK: Duration = Duration::from_millis(50);

/// Address of a server: `unix:PATH`, or `HOST:PORT` on the loopback interface (port 0: any free port). The
/// URIs of NBD clients are accepted too.
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
            Some(escaped) => {
                Some(unescape(escaped).ok_or_else(|| invalid("an escape without hexadecimal digits"))?)
            }
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
        // The protocol has no authentication.
        match address.ip().is_loopback() {
            true => Ok(Address::Tcp(address)),
            false => Err(invalid("only addresses of this machine (127.0.0.1, ::1, localhost) are served")),
        }
    }
}

impl fmt::Display for Address {
    /// Writes the address as the URI that NBD clients accept.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{UNIX_URI}{}", escape(path.as_os_str())),
            Address::Tcp(address) => write!(f, "nbd://{address}"),
        }
    }
}

/// Prefix of a Unix socket's URI.
const UNIX_URI: &str = "nbd+unix:///?socket=";

/// Escapes a path for a URI's query (RFC 3986). Characters without a meaning there stay as they are.
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

/// A running server. Dropping it stops it.
pub struct Server {
    address: Address,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    stopping: AtomicBool,
    /// Connections by number, in order of acceptance.
    connections: Mutex<BTreeMap<u64, Connection>>,
}

struct Connection {
    socket: Socket,
    thread: JoinHandle<()>,
    /// True once the client has its own connection slot.
    is_admitted: bool,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a slot to a client that is about to finish the handshake. Returns false if there is none or the
    /// client had to make way.
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

/// Counts the clients that have a slot.
fn admitted(connections: &BTreeMap<u64, Connection>) -> usize {
    connections.values().filter(|it| it.is_admitted && !it.thread.is_finished()).count()
}

/// If all handshakes are taken, removes and returns the oldest, which makes way for a new one.
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
    /// Serves `export` at `address` until stopped. Takes over a socket left by a dead server.
    ///
    /// # Errors
    /// Those of listening; [`io::ErrorKind::AddrInUse`] if another server listens on the socket.
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

    /// Returns the server's address, including a port that the host has chosen.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections().values().filter(|it| !it.thread.is_finished()).count()
    }

    /// Accepts no further connection or request, answers those under way, and flushes the device.
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
            // Another process may have removed it. It is of no use any more.
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
            // Perhaps the process is out of descriptors. The client that waits to be accepted would make this
            // a busy loop.
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
            // Its handshake reads the end of the stream.
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
        // A client that has not read its replies by now never will.
        socket.close();
        // A connection that panicked is closed.
        let _ = thread.join();
    }
    // No client is left that could be told of an error.
    let _ = export.flush();
}

/// Starts the thread of a client. Returns None if the process has no descriptors or threads left.
fn start(socket: Socket, number: u64, export: &Arc<dyn Export>, shared: &Arc<Shared>) -> Option<Connection> {
    let other = socket.try_clone().ok()?;
    let (export, shared) = (Arc::clone(export), Arc::clone(shared));
    let thread = std::thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
        // A client's error ends only its own connection.
        let _ = connect(&socket, &*export, || shared.admit(number));
        // The listener's copy of the socket would keep the connection open.
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
