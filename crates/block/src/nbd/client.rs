//! An NBD client: a device that another process serves.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use super::{
    Address, MAX_REQUEST_BYTES,
    link::{Command, Link},
    uri::{Place, Uri},
    wire::*,
};
use crate::{Device, Export, Geometry};

/// Maximum time of the handshake, of sending a request, and of its reply. Slow cards take seconds for a write; a request
/// has at most 32 MiB.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum number of replies to an option, and the maximum length of one in bytes.
const REPLIES_MAX: usize = 64;
const REPLY_BYTES_MAX: u32 = 64 << 10;

/// An export of an NBD server as a device. Requests of several threads are under way at once.
pub struct Client {
    facts: Facts,
    link: Link,
}

/// Facts that the server gives about its export.
#[derive(Default)]
struct Facts {
    size_bytes: u64,
    /// Flags of the transmission phase.
    flags: u16,
    description: Option<String>,
}

impl Client {
    /// Connects to the default export of a server.
    ///
    /// # Errors
    /// Those of the connection; [`io::ErrorKind::InvalidData`] if the server does not speak the protocol.
    pub fn connect(address: &Address) -> io::Result<Client> {
        let socket = match address {
            Address::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
            Address::Tcp(address) => tcp(address)?,
        };
        Client::negotiate(socket, "", PATIENCE)
    }

    /// Connects to the export that a URI names.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`io::ErrorKind::NotFound`] with the server's reason if it does not serve the export.
    pub fn open(uri: &Uri) -> io::Result<Client> {
        let socket = match &uri.place {
            Place::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
            Place::Tcp(host) => tcp(host)?,
        };
        Client::negotiate(socket, &uri.export, PATIENCE)
    }

    /// Begins the transmission. `patience` is that of the handshake, of each request and of each reply.
    fn negotiate(socket: Socket, export: &str, patience: Duration) -> io::Result<Client> {
        let mut socket = Hurried { socket, deadline: Instant::now() + patience };
        let magic = (read_u64(&mut socket)?, read_u64(&mut socket)?);
        if magic != (INIT_MAGIC, OPTION_MAGIC) {
            return Err(stranger());
        }
        let offered = read_u16(&mut socket)?;
        if offered & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(stranger());
        }
        let flags = u32::from(offered & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES));
        socket.write_all(&flags.to_be_bytes())?;
        let facts = match go(&mut socket, export)? {
            Some(facts) => facts,
            // An old server.
            None => by_name(&mut socket, export, offered)?,
        };
        Ok(Client { facts, link: Link::new(socket.socket, patience)? })
    }

    /// Sends one request and waits for its answer, which fills `read`.
    fn ask(&self, code: u16, offset_bytes: u64, length: u32, data: &[u8], read: &mut [u8]) -> io::Result<()> {
        match self.link.ask(&Command { code, offset_bytes, length }, data, read)? {
            0 => Ok(()),
            errno => Err(error_of(errno)),
        }
    }
}

/// Returns the error of a reply. A number that the protocol does not have is an I/O error: callers repeat a request that is
/// interrupted, for example.
fn error_of(errno: u32) -> io::Error {
    match errno {
        EPERM | ENOMEM | EINVAL | ENOSPC | EOVERFLOW | ENOTSUP | ESHUTDOWN => {
            io::Error::from_raw_os_error(errno as i32)
        }
        _ => io::Error::from_raw_os_error(EIO as i32),
    }
}

fn tcp(address: impl ToSocketAddrs) -> io::Result<Socket> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(Socket::Tcp(stream))
}

fn stranger() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not an NBD server with the fixed newstyle handshake")
}

/// Sends an option with its data.
fn send_option(socket: &mut Hurried, option: u32, data: &[u8]) -> io::Result<()> {
    let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
    message.extend(option.to_be_bytes());
    message.extend((data.len() as u32).to_be_bytes());
    message.extend(data);
    socket.write_all(&message)
}

/// Begins the transmission by `OPT_GO`, which gives a reason for a refusal. Returns the facts about the export, or
/// None if the server does not know the option.
fn go(socket: &mut Hurried, export: &str) -> io::Result<Option<Facts>> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    // One further kind of information is requested.
    data.extend(1u16.to_be_bytes());
    data.extend(INFO_DESCRIPTION.to_be_bytes());
    send_option(socket, OPT_GO, &data)?;
    let (mut facts, mut description) = (None, None);
    for _ in 0..REPLIES_MAX {
        let (magic, option) = (read_u64(socket)?, read_u32(socket)?);
        let (kind, length) = (read_u32(socket)?, read_u32(socket)?);
        if (magic, option) != (OPTION_REPLY_MAGIC, OPT_GO) || length > REPLY_BYTES_MAX {
            return Err(stranger());
        }
        let mut data = vec![0; length as usize];
        socket.read_exact(&mut data)?;
        match kind {
            REP_INFO if data.starts_with(&INFO_EXPORT.to_be_bytes()) && data.len() >= 12 => {
                let size_bytes = u64::from_be_bytes(data[2..10].try_into().expect("8 bytes"));
                facts = Some(Facts {
                    size_bytes,
                    flags: u16::from_be_bytes([data[10], data[11]]),
                    description: None,
                });
            }
            REP_INFO if data.starts_with(&INFO_DESCRIPTION.to_be_bytes()) => {
                description = Some(String::from_utf8_lossy(&data[2..]).into_owned());
            }
            REP_INFO => {}
            REP_ACK => {
                let facts = facts.ok_or_else(stranger)?;
                return Ok(Some(Facts { description, ..facts }));
            }
            REP_ERR_UNSUP => return Ok(None),
            _ => {
                let reason = String::from_utf8_lossy(&data);
                let reason = if reason.is_empty() { "no reason given" } else { &reason };
                let what = format!("the NBD server does not serve the export {export:?}: {reason}");
                return Err(io::Error::new(io::ErrorKind::NotFound, what));
            }
        }
    }
    Err(stranger())
}

/// Begins the transmission by `OPT_EXPORT_NAME`. A server that refuses closes the connection.
fn by_name(socket: &mut Hurried, export: &str, offered: u16) -> io::Result<Facts> {
    send_option(socket, OPT_EXPORT_NAME, export.as_bytes())?;
    let (size_bytes, flags) = (read_u64(socket)?, read_u16(socket)?);
    if offered & FLAG_NO_ZEROES == 0 {
        socket.read_exact(&mut [0; EXPORT_ZEROES])?;
    }
    Ok(Facts { size_bytes, flags, description: None })
}

/// Splits a request at the server's maximum: offset on the device, and range in the buffer.
fn pieces(offset_bytes: u64, length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let most = MAX_REQUEST_BYTES as usize;
    (0..length).step_by(most).map(move |from| (offset_bytes + from as u64, from..(from + most).min(length)))
}

impl Device for Client {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.facts.size_bytes, sector_bytes: crate::ATOMIC_BYTES as u32 }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        for (at, part) in pieces(offset_bytes, buf.len()) {
            let length = part.len() as u32;
            self.ask(CMD_READ, at, length, &[], &mut buf[part])?;
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.geometry().check_write(offset_bytes, buf.len())?;
        for (at, part) in pieces(offset_bytes, buf.len()) {
            self.ask(CMD_WRITE, at, part.len() as u32, &buf[part], &mut [])?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        match self.facts.flags & TRANSMIT_FLUSH {
            0 => Ok(()),
            _ => self.ask(CMD_FLUSH, 0, 0, &[], &mut []),
        }
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if !self.geometry().contains(offset_bytes, length_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.facts.flags & TRANSMIT_TRIM == 0 {
            return Ok(());
        }
        let mut done = 0;
        while done < length_bytes {
            let part = (length_bytes - done).min(1 << 30);
            self.ask(CMD_TRIM, offset_bytes + done, part as u32, &[], &mut [])?;
            done += part;
        }
        Ok(())
    }
}

impl Export for Client {
    fn is_read_only(&self) -> bool {
        self.facts.flags & TRANSMIT_READ_ONLY != 0
    }

    fn description(&self) -> Option<String> {
        self.facts.description.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Answers the handshake byte by byte for two seconds, with replies that a client must read.
    fn trickle(mut socket: UnixStream) {
        let mut bytes = [INIT_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
        bytes.extend(FLAG_FIXED_NEWSTYLE.to_be_bytes());
        bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        bytes.extend([OPT_GO, REP_INFO, REPLY_BYTES_MAX].map(u32::to_be_bytes).concat());
        bytes.resize(400, 0);
        for byte in bytes {
            if socket.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn numbers_of_errors_that_the_protocol_lacks_are_errors_of_the_device() {
        for (errno, wanted) in [(1, 1), (28, 28), (108, 108), (4, 5), (11, 5), (0xFFFF_FFFF, 5)] {
            assert_eq!(error_of(errno).raw_os_error(), Some(wanted), "{errno}");
        }
        assert_ne!(error_of(4).kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn a_server_that_sends_single_bytes_gains_no_time() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(|| trickle(theirs));
        let refused = Client::negotiate(Socket::Unix(ours), "", Duration::from_millis(500));
        // Without a deadline, the end of the stream is the error.
        let kind = refused.err().expect("the reply never ends").kind();
        assert!(matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{kind}");
        server.join().unwrap();
    }
}
