//! The NBD server against a client of our own: every command, and every client error.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use flashkit_block::{
    Device, Export, Geometry, MemoryDevice,
    nbd::{Address, Server},
};

const SIZE: u64 = 1 << 20;
/// Time limit of any step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

struct Fixture {
    _dir: tempfile::TempDir,
    path: PathBuf,
    device: Arc<MemoryDevice>,
    server: Server,
}

fn serve() -> Fixture {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("socket");
    let device = Arc::new(MemoryDevice::new(SIZE));
    let server = Server::start(device.clone(), &Address::Unix(path.clone())).expect("listens");
    Fixture { _dir: dir, path, device, server }
}

struct Client(UnixStream);

impl Client {
    /// Connects and completes the greeting.
    fn greet(fixture: &Fixture) -> Client {
        let stream = UnixStream::connect(&fixture.path).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut client = Client(stream);
        assert_eq!(client.take(18)[..16], *b"NBDMAGICIHAVEOPT");
        client.send(&3u32.to_be_bytes());
        client
    }

    /// Connects and completes the handshake, with structured replies and block status.
    fn connect(fixture: &Fixture) -> Client {
        let mut client = Client::greet(fixture);
        assert_eq!(client.option(8, &[]), [(1, vec![])]);
        let mut query = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15];
        query.extend(b"base:allocation");
        assert_eq!(client.option(10, &query).len(), 2);
        let replies = client.option(7, &[0, 0, 0, 0, 0, 1, 0, 3]);
        assert_eq!(replies[0].1[..10], [&[0, 0][..], &SIZE.to_be_bytes()].concat());
        assert_eq!(replies[1].1[..2], [0, 3]);
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server reads");
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    fn number(&mut self, length: usize) -> u64 {
        self.take(length).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Sends an option. Returns the replies up to the acknowledgement or error.
    fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(b"IHAVEOPT");
        self.send(&option.to_be_bytes());
        self.send(&(data.len() as u32).to_be_bytes());
        self.send(data);
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.number(8), 0x3e889045565a9);
            assert_eq!(self.number(4) as u32, option);
            let kind = self.number(4) as u32;
            let length = self.number(4) as usize;
            replies.push((kind, self.take(length)));
            if kind == 1 || kind >= 1 << 31 {
                return replies;
            }
        }
    }

    fn request(&mut self, flags: u16, command: u16, offset: u64, length: u32, data: &[u8]) {
        let mut bytes = 0x25609513u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(u64::from(command).to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        self.send(&bytes);
    }

    /// Reads a simple reply and returns its error.
    fn simple(&mut self) -> u64 {
        assert_eq!(self.number(4), 0x67446698);
        let error = self.number(4);
        self.take(8);
        error
    }

    /// Reads a structured reply of one chunk and returns its kind and content.
    fn structured(&mut self) -> (u64, Vec<u8>) {
        assert_eq!(self.number(4), 0x668e33ef);
        assert_eq!(self.number(2), 1, "one chunk");
        let kind = self.number(2);
        self.take(8);
        let length = self.number(4) as usize;
        (kind, self.take(length))
    }

    fn simple_request(&mut self, flags: u16, command: u16, offset: u64, length: u32, data: &[u8]) -> u64 {
        self.request(flags, command, offset, length, data);
        self.simple()
    }

    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.request(0, 0, offset, length, &[]);
        match self.structured() {
            (1, data) => {
                assert_eq!(data[..8], offset.to_be_bytes());
                Ok(data[8..].to_vec())
            }
            (0, _) => Ok(Vec::new()),
            (0x8001, data) => Err(u32::from_be_bytes(data[..4].try_into().expect("four bytes"))),
            other => panic!("{other:?}"),
        }
    }

    /// Returns true if the server has closed the connection.
    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0) | Err(_))
    }
}

#[test]
fn every_command_has_its_effect() {
    let fixture = serve();
    let mut client = Client::connect(&fixture);
    assert_eq!(client.simple_request(0, 1, 4095, 3, b"abc"), 0);
    assert_eq!(client.read(4094, 5), Ok(b"\0abc\0".to_vec()));
    assert_eq!(client.read(0, 0), Ok(vec![]));
    assert_eq!(client.simple_request(1, 1, 8192, 4, b"fua!"), 0);
    assert_eq!(client.simple_request(0, 3, 0, 0, &[]), 0, "flush");
    client.request(0, 7, 0, 16384, &[]);
    let status = [
        [0u32, 1, 0].map(u32::to_be_bytes).concat()[4..8].to_vec(),
        [12288u32, 0, 4096, 3].map(u32::to_be_bytes).concat(),
    ];
    assert_eq!(client.structured(), (5, status.concat()));
    client.request(8, 7, 0, 16384, &[]);
    assert_eq!(client.structured().1.len(), 12, "one extent was requested");
    assert_eq!(client.simple_request(2, 6, 4096, 2, &[]), 0, "zeroes, no hole");
    assert_eq!(client.read(4095, 3), Ok(b"a\0\0".to_vec()));
    assert_eq!(client.simple_request(1, 4, 0, 16384, &[]), 0, "trim");
    assert_eq!(fixture.device.allocated_bytes(), 0);
    client.request(0, 2, 0, 0, &[]);
    assert!(client.is_closed());
    let mut old = Client::greet(&fixture);
    old.send(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
    assert_eq!(old.number(8), SIZE);
    let flags = old.number(2);
    assert_eq!(flags & 0b1_0110_1101, 0b1_0110_1101, "{flags:b}");
    assert_eq!(old.simple_request(0, 1, 0, 1, b"x"), 0);
    old.request(0, 0, 0, 1, &[]);
    assert_eq!(old.simple(), 0);
    assert_eq!(old.take(1), b"x");
}

#[test]
fn wrong_requests_are_answered_and_change_nothing() {
    let fixture = serve();
    let mut client = Client::connect(&fixture);
    assert_eq!(client.read(SIZE, 1), Err(22));
    assert_eq!(client.read(u64::MAX, 2), Err(22));
    assert_eq!(client.read(0, u32::MAX), Err(75));
    assert_eq!(client.simple_request(0, 1, SIZE - 1, 2, b"ab"), 28);
    assert_eq!(client.simple_request(0, 4, SIZE, 1, &[]), 28);
    assert_eq!(client.simple_request(0, 6, 0, u32::MAX, &[]), 28);
    assert_eq!(client.simple_request(1 << 7, 1, 0, 1, b"a"), 22, "an unknown flag");
    assert_eq!(client.simple_request(0, 99, 0, 0, &[]), 22, "an unknown command");
    client.request(0, 7, 0, 0, &[]);
    assert_eq!(client.structured().0, 0x8001, "block status of an empty range");
    let too_long = vec![1; (32 << 20) + 1];
    assert_eq!(client.simple_request(0, 1, 0, too_long.len() as u32, &too_long), 75);
    assert_eq!(client.read(0, 1), Ok(vec![0]), "the connection continues");
    assert_eq!(fixture.device.allocated_bytes(), 0);
}

#[test]
fn wrong_options_are_refused_and_the_handshake_continues() {
    let fixture = serve();
    let mut client = Client::greet(&fixture);
    const INVALID: u32 = 0x8000_0003;
    assert_eq!(client.option(5, &[])[0].0, 0x8000_0001, "no TLS");
    assert_eq!(client.option(7, &[0, 0, 0, 9, 1])[0].0, INVALID, "a name that is cut off");
    assert_eq!(client.option(7, &[0, 0, 0, 0, 255, 255])[0].0, INVALID, "kinds that are cut off");
    assert_eq!(client.option(10, &[0; 8])[0].0, INVALID, "no structured replies yet");
    assert_eq!(client.option(3, &[1])[0].0, INVALID);
    assert_eq!(client.option(8, &[1])[0].0, INVALID);
    assert_eq!(client.option(6, &vec![0; 100_000])[0].0, 0x8000_0009);
    assert_eq!(client.option(8, &[])[0].0, 1);
    assert_eq!(client.option(10, &[0, 0, 0, 0, 255, 255, 255, 255])[0].0, INVALID);
    assert_eq!(client.option(9, &[0; 8]), [(4, b"\0\0\0\0base:allocation".to_vec()), (1, vec![])]);
    assert_eq!(client.option(3, &[]), [(2, vec![0; 4]), (1, vec![])]);
    assert_eq!(client.option(2, &[])[0].0, 1, "abort");
    assert!(client.is_closed());
}

#[test]
fn clients_that_break_the_protocol_are_dropped_and_others_continue() {
    let fixture = serve();
    let mut good = Client::connect(&fixture);
    let mut rng = flashkit_block::Rng::new(1);
    for n in 0..20 {
        let mut bad = if n % 2 == 0 { Client::greet(&fixture) } else { Client::connect(&fixture) };
        let noise: Vec<u8> = (0..64).map(|_| rng.next_u64() as u8).collect();
        bad.send(&noise);
        assert!(bad.is_closed());
        assert_eq!(good.read(0, 1), Ok(vec![0]));
    }
    // The client disconnects within a request, and within a request's data.
    for keep in [4, 20, 28, 1000] {
        let mut bad = Client::connect(&fixture);
        let mut bytes = 0x25609513u32.to_be_bytes().to_vec();
        bytes.extend([0, 0, 0, 1]);
        bytes.extend([0; 16]);
        bytes.extend(4096u32.to_be_bytes());
        bytes.resize(28 + 4096, 7);
        bad.send(&bytes[..keep]);
        drop(bad);
    }
    assert_eq!(good.read(0, 1), Ok(vec![0]));
    assert_eq!(fixture.device.allocated_bytes(), 0, "a cut-off write is none");
}

#[test]
fn half_open_clients_do_not_block_other_clients() {
    let fixture = serve();
    let silent: Vec<UnixStream> =
        (0..8).map(|_| UnixStream::connect(&fixture.path).expect("listens")).collect();
    // A client that requests a lot of data and reads none.
    let mut deaf = Client::connect(&fixture);
    for _ in 0..100 {
        deaf.request(0, 0, 0, SIZE as u32, &[]);
    }
    let start = Instant::now();
    let mut good = Client::connect(&fixture);
    for n in 0..100u64 {
        assert_eq!(good.simple_request(0, 1, n * 512, 1, b"x"), 0);
    }
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    let start = Instant::now();
    fixture.server.stop();
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    drop((silent, deaf));
}

/// Idle clients take no slot from others, however many there are, over TCP as well.
#[test]
fn silent_clients_do_not_lock_others_out() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let server = Server::start(device, &"127.0.0.1:0".parse().expect("an address")).expect("listens");
    let Address::Tcp(address) = *server.address() else { panic!("an address of TCP") };
    let before = flashkit_block::nbd::Client::connect(server.address()).expect("a place is free");
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.read_exact(&mut [0; 18]).expect("the greeting");
        silent.push(stream);
    }
    let after = flashkit_block::nbd::Client::connect(server.address()).expect("a place is free");
    for client in [&before, &after] {
        client.read(0, &mut [0; 512]).expect("within the device");
    }
    // The oldest had to make way, and the newest may continue.
    assert!(matches!(silent[0].read(&mut [0]), Ok(0) | Err(_)));
    let newest = silent.last_mut().expect("there are some");
    newest.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").expect("the server reads");
    newest.read_exact(&mut [0; 10]).expect("size and flags");
    assert!(server.connections() <= 2 + 16, "{}", server.connections());
}

/// A large device of zeroes that counts reads.
struct CountsReads(AtomicU64);

impl Device for CountsReads {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: 1 << 30, sector_bytes: 512 }
    }
    fn read(&self, _: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.fetch_add(buf.len() as u64, Ordering::SeqCst);
        buf.fill(0);
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

impl Export for CountsReads {}

/// A client that requests much and reads nothing takes only the memory of one longest request, and gets all
/// data later.
#[test]
fn a_deaf_client_takes_little_memory() {
    const LENGTH: u32 = 32 << 20;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("socket");
    let device = Arc::new(CountsReads(AtomicU64::new(0)));
    let server = Server::start(device.clone(), &Address::Unix(path.clone())).expect("listens");
    let stream = UnixStream::connect(path).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut client = Client(stream);
    client.take(18);
    client.send(&[0, 0, 0, 3]);
    client.send(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
    client.take(10);
    for _ in 0..12 {
        client.request(0, 0, 0, LENGTH, &[]);
    }
    std::thread::sleep(Duration::from_millis(300));
    let read = device.0.load(Ordering::SeqCst);
    assert!(read <= u64::from(LENGTH), "{} MiB wait for the client", read >> 20);
    for _ in 0..12 {
        assert_eq!(client.simple(), 0);
        assert!(client.take(LENGTH as usize).iter().all(|byte| *byte == 0));
    }
    drop(client);
    server.stop();
}

#[test]
fn too_many_connections_are_closed_at_once() {
    let fixture = serve();
    let clients: Vec<Client> = (0..16).map(|_| Client::connect(&fixture)).collect();
    let mut one_more = UnixStream::connect(&fixture.path).expect("the socket is there");
    assert!(matches!(one_more.read(&mut [0; 18]), Ok(0) | Err(_)));
    assert_eq!(fixture.server.connections(), 16);
    drop(clients);
    let start = Instant::now();
    while fixture.server.connections() > 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    Client::connect(&fixture);
}

#[test]
fn a_stop_ends_connections_and_removes_the_socket() {
    let Fixture { _dir, path, device, server } = serve();
    let fixture = Fixture { _dir, path: path.clone(), device, server };
    let mut client = Client::connect(&fixture);
    assert_eq!(client.simple_request(0, 1, 0, 1, b"x"), 0);
    let start = Instant::now();
    let Fixture { server, device, _dir, .. } = fixture;
    server.stop();
    assert!(start.elapsed() < PATIENCE);
    assert!(client.is_closed() && !path.exists());
    let mut byte = [0];
    device.read(0, &mut byte).expect("the device is ours again");
    assert_eq!(&byte, b"x");
}

#[test]
fn a_dead_server_s_socket_is_taken_over_and_a_live_one_s_is_not() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let address = Address::Unix(dir.path().join("socket"));
    let device = Arc::new(MemoryDevice::new(SIZE));
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("socket")).expect("binds"));
    let server = Server::start(device.clone(), &address).expect("nobody listens");
    assert!(Server::start(device, &address).is_err());
    drop(server);
}

#[test]
fn only_this_machine_is_served() {
    assert!("unix:/run/card".parse::<Address>().is_ok());
    assert!("127.0.0.1:0".parse::<Address>().is_ok() && "localhost:10809".parse::<Address>().is_ok());
    for text in ["0.0.0.0:10809", "192.0.2.1:10809", "unix:", "nonsense", ""] {
        assert!(text.parse::<Address>().is_err(), "{text}");
    }
}
