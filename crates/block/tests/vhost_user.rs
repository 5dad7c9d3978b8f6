//! A guest without a kernel talks to a disk, correctly and incorrectly.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream},
};

use flashkit_block::{
    Device, Geometry, MemoryDevice, Rng, Verb,
    vhost_user::{
        Disk, Event, Traits,
        fake_guest::{FakeGuest, MEMORY_BYTES, MEMORY_START},
    },
};

const SIZE: u64 = 1 << 20;
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;

fn traits() -> Traits {
    let geometry = Geometry { size_bytes: SIZE, sector_bytes: 512 };
    Traits { geometry, serial: "card".into(), write_cache: true, discard: true, read_only: false }
}

fn connected(traits: Traits) -> (FakeGuest, Disk) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut disk = Disk::new(ours, traits);
    let mut guest = FakeGuest::new(theirs).unwrap();
    guest.connect(|| disk.serve().map(drop)).unwrap();
    (guest, disk)
}

/// Serves the queue from `device`. Returns the requests.
fn serve(disk: &mut Disk, device: &dyn Device) -> io::Result<Vec<(Verb, u64, u64)>> {
    let mut asked = Vec::new();
    while let Some(request) = disk.next_request()? {
        let Some(ask) = request.ask() else {
            disk.answer(&request, Ok(&[]))?;
            continue;
        };
        asked.push((ask.verb, ask.offset_bytes, ask.length_bytes));
        let mut data = Vec::new();
        match ask.verb {
            Verb::Read => {
                data.resize(ask.length_bytes as usize, 0);
                device.read(ask.offset_bytes, &mut data)?;
            }
            Verb::Write => device.write(ask.offset_bytes, &request.data()?)?,
            Verb::Flush => device.flush()?,
            Verb::Discard => device.discard(ask.offset_bytes, ask.length_bytes)?,
        }
        disk.answer(&request, Ok(&data))?;
    }
    Ok(asked)
}

#[test]
fn written_data_is_read_back_and_every_request_is_answered_in_band() {
    let (mut guest, mut disk) = connected(traits());
    let device = MemoryDevice::new(SIZE);
    let block: Vec<u8> = (0..4096).map(|i| (i * 7) as u8).collect();
    let write = guest.submit(WRITE, 8, &block, 0).unwrap();
    let flush = guest.submit(FLUSH, 0, &[], 0).unwrap();
    let read = guest.submit(READ, 8, &[], 4096).unwrap();
    let name = guest.submit(GET_ID, 0, &[], 20).unwrap();

    let mut event = None;
    guest.kick(|| disk.serve().map(|e| event = Some(e))).unwrap();
    assert_eq!(event, Some(Event::Kick));
    let asked = serve(&mut disk, &device).unwrap();
    assert_eq!(asked, [(Verb::Write, 4096, 4096), (Verb::Flush, 0, 0), (Verb::Read, 4096, 4096)]);

    assert!(disk.notify().unwrap(), "the guest acknowledges");
    guest.interrupt().unwrap();
    assert!(disk.acknowledged().unwrap());
    let answers = guest.answers(4096).unwrap();
    let codes: Vec<(u16, u8)> = answers.iter().map(|answer| (answer.0, answer.1)).collect();
    assert_eq!(codes, [(write, 0), (flush, 0), (read, 0), (name, 0)]);
    assert_eq!(answers[2].2, block);
    assert_eq!(&answers[3].2[..5], b"card\0");

    let mut range = 2u64.to_le_bytes().to_vec();
    range.extend_from_slice(&16u64.to_le_bytes());
    guest.submit(DISCARD, 0, &range, 0).unwrap();
    guest.kick(|| disk.serve().map(drop)).unwrap();
    assert_eq!(serve(&mut disk, &device).unwrap(), [(Verb::Discard, 1024, 8192)]);
}

#[test]
fn invalid_requests_fail_and_later_ones_succeed() {
    let (mut guest, mut disk) = connected(Traits { discard: false, ..traits() });
    let device = MemoryDevice::new(SIZE);
    let cases =
        [(READ, SIZE / 512, 512), (READ, u64::MAX / 4, 512), (READ, 0, 100), (DISCARD, 0, 0), (77, 0, 512)];
    for (kind, sector, length) in cases {
        guest.submit(kind, sector, &[], length).unwrap();
        guest.kick(|| disk.serve().map(drop)).unwrap();
        assert!(serve(&mut disk, &device).unwrap().is_empty());
        let answers = guest.answers(0).unwrap();
        assert_eq!(answers.len(), 1);
        assert_ne!(answers[0].1, 0, "{kind} of {length} at {sector} must fail");
    }
    guest.submit(READ, 0, &[], 512).unwrap();
    guest.kick(|| disk.serve().map(drop)).unwrap();
    assert_eq!(serve(&mut disk, &device).unwrap().len(), 1);
    assert_eq!(guest.answers(0).unwrap()[0].1, 0);
}

#[test]
fn failures_and_read_only_devices_are_reported_to_the_guest() {
    let (mut guest, mut disk) = connected(traits());
    guest.submit(WRITE, 0, &[1; 512], 0).unwrap();
    guest.kick(|| disk.serve().map(drop)).unwrap();
    let request = disk.next_request().unwrap().unwrap();
    disk.answer(&request, Err(io::Error::other("medium"))).unwrap();
    assert_eq!(guest.answers(0).unwrap()[0].1, 1);

    let (mut guest, mut disk) = connected(Traits { read_only: true, ..traits() });
    guest.submit(WRITE, 0, &[1; 512], 0).unwrap();
    guest.kick(|| disk.serve().map(drop)).unwrap();
    assert!(serve(&mut disk, &MemoryDevice::new(SIZE)).unwrap().is_empty());
    assert_eq!(guest.answers(0).unwrap()[0].1, 1);
}

/// A guest changes the descriptors of a write after the request was parsed: shorter, cut off, longer.
#[test]
fn a_guest_cannot_change_the_length_of_a_submitted_write() {
    let (length_at, flags_at) = (MEMORY_START + 16 + 8, MEMORY_START + 12);
    for (what, at, bytes, is_fine) in [
        ("shorter", length_at, 8u32.to_le_bytes(), false),
        ("the head alone", flags_at, 0u32.to_le_bytes(), false),
        ("a head of four bytes", MEMORY_START + 8, 4u32.to_le_bytes(), false),
        ("longer", length_at, (2u32 << 20).to_le_bytes(), true),
    ] {
        let (mut guest, mut disk) = connected(traits());
        guest.submit(WRITE, 0, &[7; 512], 0).unwrap();
        guest.kick(|| disk.serve().map(drop)).unwrap();
        let request = disk.next_request().unwrap().unwrap();
        guest.put(at, &bytes).unwrap();
        let data = request.data();
        assert_eq!(data.is_ok(), is_fine, "{what}");
        assert!(data.is_err() || data.is_ok_and(|data| data.len() == 512), "{what}");
    }
}

#[test]
fn a_message_that_does_not_end_is_an_error() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut disk = Disk::new(ours, traits());
    let mut guest = FakeGuest::new(theirs).unwrap();
    guest.send_bytes(9, &[0; 8], 40, &[]).unwrap();
    assert_eq!(disk.serve().unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_guest_that_hangs_up_ends_the_session() {
    let (guest, mut disk) = connected(traits());
    drop(guest);
    assert_eq!(disk.serve().unwrap(), Event::HungUp);
}

#[test]
fn messages_that_break_the_protocol_are_errors() {
    type Send<'a> = &'a dyn Fn(&mut FakeGuest) -> io::Result<()>;
    let file = tempfile::tempfile().unwrap();
    let cases: [(&str, Send<'_>); 12] = [
        ("unknown", &|guest| guest.send(99, &[], &[])),
        ("cut off", &|guest| guest.send(9, &[0], &[])),
        ("too long", &|guest| guest.send_bytes(5, &[], u32::MAX, &[])),
        ("regions without files", &|guest| guest.send(5, &[1, 0, 4096, 0, 0], &[])),
        ("no region", &|guest| guest.send(5, &[0], &[])),
        ("a region beyond its file", &|guest| guest.send(5, &[1, 0, 1 << 40, 0, 0], &[file.as_fd()])),
        ("queue 1", &|guest| guest.send(8, &[1 | 16 << 32], &[])),
        ("a queue of 3", &|guest| guest.send(8, &[3 << 32], &[])),
        ("a queue outside the memory", &|guest| guest.send(9, &[0, 0, 0, 0, 0], &[])),
        ("a queue across the end", &|guest| {
            let end = MEMORY_START + MEMORY_BYTES - 16;
            guest.send(9, &[0, end, end, end, 0], &[])?;
            guest.send(18, &[1 << 32], &[])
        }),
        ("a short question", &|guest| guest.send_bytes(24, &[0; 11], 11, &[])),
        ("features", &|guest| guest.send(2, &[u64::MAX], &[])),
    ];
    for (what, send) in cases {
        let (mut guest, mut disk) = connected(traits());
        send(&mut guest).unwrap();
        guest.fall_silent().unwrap();
        let error = loop {
            match disk.serve() {
                Ok(Event::HungUp) => panic!("{what} is taken"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}: {error}");
    }
}

/// A read behind the end of a mapped file would raise a signal, which ends the process.
#[test]
fn a_guest_cannot_shorten_the_memory_that_it_has_handed_out() {
    let (mut guest, mut disk) = connected(traits());
    let refused = guest.shorten_memory().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    let device = MemoryDevice::new(SIZE);
    guest.submit(WRITE, 0, &[7; 512], 0).unwrap();
    guest.kick(|| disk.serve().map(drop)).unwrap();
    assert_eq!(serve(&mut disk, &device).unwrap(), [(Verb::Write, 0, 512)]);
}

#[test]
fn a_broken_queue_is_an_error_or_a_failed_request_but_never_a_panic() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut guest, mut disk) = connected(traits());
        let geometry = traits().geometry;
        for _ in 0..4 {
            let kind = [READ, WRITE, FLUSH][rng.below(3) as usize];
            guest.submit(kind, rng.below(4096), &[], 512).unwrap();
        }
        // Bytes of descriptors, rings and heads are replaced.
        for _ in 0..=rng.below(40) {
            let byte = rng.next_u64() as u8;
            guest.put(MEMORY_START + rng.below(0x3100), &[byte]).unwrap();
        }
        let mut turns = 0;
        guest.kick(|| disk.serve().map(drop)).unwrap();
        while let Ok(Some(request)) = disk.next_request() {
            let _ = request.data();
            let mut data = Vec::new();
            if let Some(ask) = request.ask() {
                assert!(geometry.contains(ask.offset_bytes, ask.length_bytes));
                data.resize(ask.length_bytes as usize, 0);
            }
            let _ = disk.answer(&request, Ok(&data));
            turns += 1;
            assert!(turns <= 1024, "the queue never ends");
        }
    }
}
