//! An NBD client: a device that another process serves.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::{Address, MAX_REQUEST_BYTES, wire::*};
use crate::{Device, Geometry};

/// Maximum time that a server may be silent. Slow cards take seconds for a write.
const PATIENCE: Duration = Duration::from_secs(120);

/// The default export of an NBD server as a device. It handles one request at a time.
pub struct Client {
    size_bytes: u64,
    flags: u16,
    connection: Mutex<Connection>,
}

struct Connection {
    socket: Socket,
    cookie: u64,
    /// True after a lost answer, when further answers can no longer be assigned to requests.
    broken: bool,
}

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// Those of the connection; [`io::ErrorKind::InvalidData`] if the server does not speak the protocol.
    pub fn connect(address: &Address) -> io::Result<Client> {
        let mut socket = match address {
            Address::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
        };
        socket.set_timeouts(Some(PATIENCE), Some(PATIENCE))?;
        let magic = (read_u64(&mut socket)?, read_u64(&mut socket)?);
        let stranger = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "not an NBD server with the fixed newstyle \
            handshake",
            )
        };
        if magic != (INIT_MAGIC, OPTION_MAGIC) {
            return Err(stranger());
        }
        let offered = read_u16(&mut socket)?;
        if offered & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(stranger());
        }
        let mut hello = u32::from(offered & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)).to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPT_EXPORT_NAME.to_be_bytes());
        // The default export has the empty name.
        hello.extend(0u32.to_be_bytes());
        socket.write_all(&hello)?;
        let size_bytes = read_u64(&mut socket)?;
        let flags = read_u16(&mut socket)?;
        if offered & FLAG_NO_ZEROES == 0 {
            socket.read_exact(&mut [0; EXPORT_ZEROES])?;
        }
        let connection = Mutex::new(Connection { socket, cookie: 0, broken: false });
        Ok(Client { size_bytes, flags, connection })
    }

    /// Returns true if the server refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.flags & TRANSMIT_READ_ONLY != 0
    }

    /// Sends one request and reads its answer, which fills `read`.
    fn ask(
        &self,
        command: u16,
        offset_bytes: u64,
        length: u32,
        data: &[u8],
        read: &mut [u8],
    ) -> io::Result<()> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if connection.broken {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection to the server broke"));
        }
        let answer = connection.ask(command, offset_bytes, length, data, read);
        connection.broken = answer.is_err();
        match answer? {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }
}

impl Connection {
    /// Sends one request. Returns the error number of the server's answer, 0 for success.
    fn ask(
        &mut self,
        command: u16,
        offset_bytes: u64,
        length: u32,
        data: &[u8],
        read: &mut [u8],
    ) -> io::Result<u32> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(0u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset_bytes.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(data);
        self.socket.write_all(&request)?;
        let magic = read_u32(&mut self.socket)?;
        let errno = read_u32(&mut self.socket)?;
        let cookie = read_u64(&mut self.socket)?;
        if (magic, cookie) != (SIMPLE_REPLY_MAGIC, self.cookie) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the answer of the server belongs to another \
                request",
            ));
        }
        if errno == 0 {
            self.socket.read_exact(read)?;
        }
        Ok(errno)
    }
}

/// Splits a request at the server's maximum: offset on the device, and range in the buffer.
fn pieces(offset_bytes: u64, length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let most = MAX_REQUEST_BYTES as usize;
    (0..length).step_by(most).map(move |from| (offset_bytes + from as u64, from..(from + most).min(length)))
}

impl Device for Client {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes, sector_bytes: crate::ATOMIC_BYTES as u32 }
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
        match self.flags & TRANSMIT_FLUSH {
            0 => Ok(()),
            _ => self.ask(CMD_FLUSH, 0, 0, &[], &mut []),
        }
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        if !self.geometry().contains(offset_bytes, length_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.flags & TRANSMIT_TRIM == 0 {
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
