//! The NBD server against common clients: qemu-img, qemu-io, nbdinfo, nbdcopy.
//!
//! `scripts/setup` installs them. Without them these tests fail with a message.

mod support;

use std::{path::Path, process::Command, sync::Arc};

use flashkit_block::{
    Device, Export, FileDevice, MemoryDevice, OpenOptions,
    nbd::{Address, Client, Server},
};
use support::{SIZE, run, sparse_file};

/// A socket name with characters that need care in a URI.
const NAME: &str = "a socket, 50% &#+=?é";
/// The same for QEMU. Its version 10.0 interprets even escaped % and & as parts of the URI (7.2 did not).
const NAME_FOR_QEMU: &str = "a socket, 50 #+=?é";

fn unix(dir: &Path, name: &str) -> (Address, String) {
    let address = Address::Unix(dir.join(name));
    let uri = address.to_string();
    (address, uri)
}

#[test]
fn qemu_img_converts_and_compares() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let source = dir.path().join("source");
    sparse_file(&source);
    let source = source.to_str().expect("UTF-8");
    let device = Arc::new(MemoryDevice::new(SIZE));
    let (address, uri) = unix(dir.path(), NAME_FOR_QEMU);
    let server = Server::start(device.clone(), &address).expect("listens");
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
    assert!(device.allocated_bytes() < SIZE / 4, "holes stay holes: {}", device.allocated_bytes());
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.matches("\"zero\": true").count() > 50, "{map}");
    server.stop();
    let mut bytes = vec![0; SIZE as usize];
    device.read(0, &mut bytes).expect("within the device");
    assert!(bytes == std::fs::read(source).expect("readable"));
}

#[test]
fn nbdcopy_copies_both_ways_over_several_tcp_connections() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source, back) = (dir.path().join("source"), dir.path().join("back"));
    sparse_file(&source);
    let server = Server::start(
        Arc::new(FileDevice::create(dir.path().join("served"), SIZE).expect("a new file")),
        &"127.0.0.1:0".parse().expect("an address"),
    )
    .expect("listens");
    let uri = server.address().to_string();
    let (source_text, back_text) = (source.to_str().expect("UTF-8"), back.to_str().expect("UTF-8"));
    run("nbdcopy", &["--connections=4", "--flush", source_text, &uri]);
    run("nbdcopy", &["--connections=4", &uri, back_text]);
    assert!(std::fs::read(&source).expect("readable") == std::fs::read(&back).expect("readable"));
    server.stop();
    let served = FileDevice::open(dir.path().join("served"), OpenOptions::default()).expect("there");
    let mut bytes = vec![0; SIZE as usize];
    served.read(0, &mut bytes).expect("within the file");
    assert!(bytes == std::fs::read(&source).expect("readable"));
}

#[test]
fn nbdinfo_lists_the_offered_features() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (address, uri) = unix(dir.path(), NAME);
    let _server = Server::start(Arc::new(MemoryDevice::new(SIZE)), &address).expect("listens");
    let list = run("nbdinfo", &["--list", &uri]);
    for what in [
        "export-size: 67108864",
        "base:allocation",
        "can_multi_conn: true",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
    ] {
        assert!(list.contains(what), "{what}\n{list}");
    }
    run("nbdinfo", &["--map", &uri]);
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), "67108864");
}

#[test]
fn qemu_io_keeps_several_requests_under_way() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (address, uri) = unix(dir.path(), NAME_FOR_QEMU);
    let _server = Server::start(Arc::new(MemoryDevice::new(SIZE)), &address).expect("listens");
    let mut script: Vec<String> = Vec::new();
    for n in 0..32 {
        script.push(format!("aio_write -P {} {}k 64k", n + 1, n * 100));
    }
    script.push("aio_flush".into());
    for n in 0..32 {
        script.push(format!("aio_read -P {} {}k 64k", n + 1, n * 100));
    }
    script.extend(
        [
            "aio_flush",
            "write -f -P 9 0 512",
            "write -z 100k 64k",
            "read -P 0 100k 64k",
            "discard 0 1M",
            "flush",
        ]
        .map(String::from),
    );
    let mut arguments = vec!["-f", "raw"];
    for line in &script {
        arguments.extend(["-c", line]);
    }
    arguments.push(&uri);
    let output = run("qemu-io", &arguments);
    assert!(!output.contains("verification failed") && !output.contains("error"), "{output}");
    assert_eq!(output.matches("bytes at offset").count(), 68, "{output}");
}

#[test]
fn a_read_only_file_is_served_as_such() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("source");
    sparse_file(&path);
    let (address, uri) = unix(dir.path(), NAME_FOR_QEMU);
    let file = FileDevice::open(&path, OpenOptions::default()).expect("there");
    let _server = Server::start(Arc::new(file), &address).expect("listens");
    assert!(run("nbdinfo", &[&uri]).contains("is_read_only: true"));
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", path.to_str().expect("UTF-8"), &uri]);
    let written = Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 512", &uri]).output();
    assert!(!written.expect("installed").status.success());
}

#[test]
fn our_own_client_is_a_device() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (unix, _) = unix(dir.path(), NAME);
    for address in [unix, "127.0.0.1:0".parse().expect("an address")] {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let server = Server::start(device.clone(), &address).expect("listens");
        // The address in the form of the URI that the server prints.
        let client = Client::connect(&server.address().to_string().parse().expect("an address"));
        let client = client.expect("the server listens");
        assert_eq!((client.geometry().size_bytes, client.is_read_only()), (SIZE, false));
        // More data than one request can carry.
        let data: Vec<u8> = (0..33 << 20).map(|n: u32| (n >> 9) as u8 | 1).collect();
        client.write(512, &data).expect("within the device");
        client.flush().expect("flushed");
        let mut back = vec![0; data.len()];
        client.read(512, &mut back).expect("within the device");
        assert!(back == data);
        client.discard(0, SIZE).expect("within the device");
        device.read(1 << 20, &mut back[..4096]).expect("within the device");
        assert!(back[..4096].iter().all(|byte| *byte == 0));
        assert!(client.read(SIZE - 1, &mut [0; 2]).is_err() && client.write(SIZE, &[0]).is_err());
        server.stop();
        assert!(client.flush().is_err() && client.flush().is_err(), "the server is gone");
    }
}

#[test]
fn our_own_client_reports_errors_and_continues() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("source");
    sparse_file(&path);
    let (address, _) = unix(dir.path(), NAME);
    let file = FileDevice::open(&path, OpenOptions::default()).expect("there");
    let _server = Server::start(Arc::new(file), &address).expect("listens");
    let client = Client::connect(&address).expect("listens");
    assert!(client.is_read_only());
    assert_eq!(client.write(0, &[1; 512]).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    client.read(0, &mut [0; 512]).expect("still connected");
}
