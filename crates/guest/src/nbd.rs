//! The kernel's NBD driver as a client: network, handshake, and passing the socket to the kernel.
//!
//! Numbers: NetworkBlockDevice/nbd, doc/proto.md; Linux, `include/uapi/linux/nbd.h`.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{TcpStream, UdpSocket},
    path::Path,
    thread,
    time::Duration,
};

use crate::ioctl;

/// Address of the guest in QEMU's user network (qemu(1), -netdev user). The host is 10.0.2.2.
const ADDRESS: [u8; 4] = [10, 0, 2, 15];
const NETMASK: [u8; 4] = [255, 255, 255, 0];

const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// Fixed newstyle, without zeroes after the answer.
const CLIENT_FLAGS: u32 = 3;
const OPTION_EXPORT_NAME: u32 = 1;
/// Block size of the device in bytes, the smallest that the driver accepts.
const BLOCK_BYTES: u64 = 512;

/// Connects `device` to the server at `server`, `ADDRESS:PORT`. Returns the size in bytes.
///
/// # Errors
/// There is no network or no server, or the server does not speak the protocol.
pub fn attach(server: &str, device: &Path) -> io::Result<u64> {
    bring_network_up()?;
    let mut socket = TcpStream::connect(server)?;
    socket.set_nodelay(true)?;
    let (size_bytes, flags) = shake_hands(&mut socket)?;
    let device = File::options().read(true).write(true).open(device)?;
    ioctl::nbd_set_block_bytes(&device, BLOCK_BYTES as usize)?;
    ioctl::nbd_set_blocks(&device, (size_bytes / BLOCK_BYTES) as usize)?;
    ioctl::nbd_set_flags(&device, usize::from(flags))?;
    ioctl::nbd_set_socket(&device, &socket)?;
    // The call that serves the device returns when the connection ends.
    thread::spawn(move || {
        let _socket = socket;
        if let Err(errno) = ioctl::nbd_do_it(&device) {
            eprintln!("nbd: {errno}");
        }
    });
    thread::sleep(Duration::from_millis(100));
    Ok(size_bytes)
}

/// Ends the connection once all requests are answered.
///
/// # Errors
/// The kernel's.
pub fn detach(device: &Path) -> io::Result<()> {
    let device = File::options().read(true).write(true).open(device)?;
    device.sync_all()?;
    Ok(ioctl::nbd_disconnect(&device)?)
}

/// Returns the size in bytes and the transmission flags of the default export.
fn shake_hands(socket: &mut (impl Read + Write)) -> io::Result<(u64, u16)> {
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting)?;
    if greeting[..16] != *GREETING {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not an NBD server with the newstyle handshake",
        ));
    }
    let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
    hello.extend(&GREETING[8..]);
    hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
    // The default export has the empty name.
    hello.extend(0u32.to_be_bytes());
    socket.write_all(&hello)?;
    let mut answer = [0; 10];
    socket.read_exact(&mut answer)?;
    let (size, flags) = answer.split_at(8);
    Ok((
        u64::from_be_bytes(size.try_into().expect("eight bytes")),
        u16::from_be_bytes(flags.try_into().expect("two bytes")),
    ))
}

fn bring_network_up() -> io::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir("/sys/class/net")? {
        names.extend(entry?.file_name().into_string().ok().filter(|name| name != "lo"));
    }
    let name = names.pop().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no network card"))?;
    // Any socket works for requests about an interface.
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    ioctl::set_interface_address(&socket, &name, ADDRESS)?;
    ioctl::set_interface_netmask(&socket, &name, NETMASK)?;
    Ok(ioctl::set_interface_up(&socket, &name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Peer {
        says: io::Cursor<Vec<u8>>,
        hears: Vec<u8>,
    }

    impl Read for Peer {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.says.read(buf)
        }
    }

    impl Write for Peer {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.hears.write(buf)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_server_reports_size_and_flags() {
        let says = [GREETING.as_slice(), &[0, 3], &(1u64 << 28).to_be_bytes(), &[0, 13]].concat();
        let mut peer = Peer { says: io::Cursor::new(says), hears: Vec::new() };
        assert_eq!(shake_hands(&mut peer).expect("a server"), (1 << 28, 13));
        assert_eq!(peer.hears, [&[0, 0, 0, 3], b"IHAVEOPT".as_slice(), &[0, 0, 0, 1, 0, 0, 0, 0]].concat());
        let mut peer = Peer { says: io::Cursor::new(b"SSH-2.0-OpenSSH_9.2".to_vec()), hears: Vec::new() };
        assert_eq!(shake_hands(&mut peer).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
