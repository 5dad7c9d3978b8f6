//! Numbers of the NBD protocol (NetworkBlockDevice/nbd, doc/proto.md) and its sockets.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub const FLAG_NO_ZEROES: u16 = 2;
/// Length in bytes of the zeroes after the answer to `OPT_EXPORT_NAME`, unless the client asked to omit them.
pub const EXPORT_ZEROES: usize = 124;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
pub const REP_ERR_UNSUP: u32 = 0x8000_0001;
pub const REP_ERR_POLICY: u32 = 0x8000_0002;
pub const REP_ERR_INVALID: u32 = 0x8000_0003;
pub const REP_ERR_TOO_BIG: u32 = 0x8000_0009;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_DESCRIPTION: u16 = 2;
pub const INFO_BLOCK_SIZE: u16 = 3;

pub const TRANSMIT_HAS_FLAGS: u16 = 1;
pub const TRANSMIT_READ_ONLY: u16 = 1 << 1;
pub const TRANSMIT_FLUSH: u16 = 1 << 2;
pub const TRANSMIT_FUA: u16 = 1 << 3;
pub const TRANSMIT_TRIM: u16 = 1 << 5;
pub const TRANSMIT_WRITE_ZEROES: u16 = 1 << 6;
pub const TRANSMIT_DF: u16 = 1 << 7;
pub const TRANSMIT_MULTI_CONN: u16 = 1 << 8;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISCONNECT: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

pub const CMD_FLAG_FUA: u16 = 1;
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub const CMD_FLAG_DF: u16 = 1 << 2;
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;

pub const REPLY_FLAG_DONE: u16 = 1;
pub const REPLY_OFFSET_DATA: u16 = 1;
pub const REPLY_BLOCK_STATUS: u16 = 5;
pub const REPLY_ERROR: u16 = 0x8001;

/// `base:allocation`: the range may occupy no space and reads as zeroes.
pub const STATE_HOLE_AND_ZERO: u32 = 3;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const ENOMEM: u32 = 12;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ENOTSUP: u32 = 95;
pub const ESHUTDOWN: u32 = 108;

/// A connection.
pub enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
        })
    }

    pub fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            Socket::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
        }
    }

    /// Limits the time of each read. Copies of the socket share the limit.
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_read_timeout(Some(timeout)),
            Socket::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    /// Limits the time of each write. Copies of the socket share the limit.
    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_write_timeout(Some(timeout)),
            Socket::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }

    /// Ends the connection for all copies of the socket.
    pub fn close(&self) {
        // An error means that the connection is already closed.
        let _ = match self {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Stops reading: the peer's next request reads the end of the stream.
    pub fn stop_reading(&self) {
        // A closed connection has nothing to stop.
        let _ = match self {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Read),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Read),
        };
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.read(buf),
            Socket::Tcp(stream) => stream.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.write(buf),
            Socket::Tcp(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket with a deadline for everything until it is set anew, however slowly its peer sends or receives.
pub struct Hurried {
    pub socket: Socket,
    pub deadline: Instant,
}

impl Hurried {
    /// Returns the time that is left.
    fn left(&self) -> io::Result<Duration> {
        match self.deadline.checked_duration_since(Instant::now()) {
            None | Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
            Some(left) => Ok(left),
        }
    }
}

impl Read for Hurried {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(buf)
    }
}

impl Write for Hurried {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn read_u16(stream: &mut impl Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

pub fn read_u32(stream: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

pub fn read_u64(stream: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// Reads and discards `length` bytes.
pub fn skip(stream: &mut impl Read, length: u64) -> io::Result<()> {
    let skipped = io::copy(&mut stream.take(length), &mut io::sink())?;
    if skipped == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_sends_single_bytes_gains_no_time() {
        let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
        let trickle = std::thread::spawn(move || {
            while theirs.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let deadline = Instant::now() + Duration::from_millis(200);
        let mut hurried = Hurried { socket: Socket::Unix(ours), deadline };
        assert!(hurried.read_exact(&mut [0; 1 << 20]).is_err());
        assert!(Instant::now() >= deadline);
        drop(hurried);
        trickle.join().expect("it met the end");
    }
}
