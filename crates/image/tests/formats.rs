//! Formats of images, made and judged by their makers' programs.

use std::{
    fs::{self, File},
    io::Write,
    ops::Range,
    path::Path,
    process::Command,
};

use block::{Device, FileDevice, MemoryDevice, OpenOptions, Rng, data_ranges};
use flashkit_image::{Format, Image, Source, sparse};

const WRITE: OpenOptions = OpenOptions { write: true, direct: false };
const DISK: u64 = 24 << 20;

/// Runs a program. Returns its output, or None with a message if it is missing.
fn run(dir: &Path, program: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(arguments).current_dir(dir).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {program} is missing");
            return None;
        }
        output => output.expect("it starts"),
    };
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {said}{errors}");
    Some(said.into_owned())
}

fn open(dir: &Path, name: &str, options: OpenOptions) -> std::io::Result<Image> {
    Image::open(&Source::parse(dir.join(name)), options)
}

fn open_qcow2(dir: &Path, name: &str, options: OpenOptions) -> std::io::Result<Image> {
    Image::open(&Source::parse(dir.join(name)).with_format(Format::Qcow2), options)
}

fn content(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![9; device.geometry().size_bytes as usize];
    // Odd steps cross the borders of all units.
    let mut at = 0;
    for step in [1, 4095, 65_537, 1_000_003].into_iter().cycle() {
        let end = (at + step).min(bytes.len());
        device.read(at as u64, &mut bytes[at..end]).unwrap();
        at = end;
        if at == bytes.len() {
            return bytes;
        }
    }
    unreachable!()
}

/// A disk with noise, patterns, zeroes and holes.
fn disk(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; DISK as usize];
    for _ in 0..40 {
        let start = rng.below(DISK / 4096) as usize * 4096;
        let end = (start + (1 + rng.below(200) as usize) * 4096).min(bytes.len());
        match rng.below(3) {
            0 => bytes[start..end].fill(0),
            1 => bytes[start..end].fill(rng.below(256) as u8),
            _ => bytes[start..end].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8),
        }
    }
    bytes
}

#[test]
fn sparse_images_are_read_and_written_as_img2simg_and_simg2img_do() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for seed in 0..4 {
        let bytes = disk(seed);
        fs::write(dir.join("raw"), &bytes).unwrap();
        if run(dir, "img2simg", &["raw", "theirs"]).is_none() {
            return;
        }
        let theirs = open(dir, "theirs", OpenOptions::default()).unwrap();
        assert!(content(&*theirs.device()) == bytes);
        let raw = FileDevice::open(dir.join("raw"), OpenOptions::default()).unwrap();
        let mut out = File::create(dir.join("ours")).unwrap();
        sparse::write(&raw, std::iter::once(0..DISK), &mut out, |_| {}).unwrap();
        let _ = fs::remove_file(dir.join("back"));
        run(dir, "simg2img", &["ours", "back"]).unwrap();
        assert!(fs::read(dir.join("back")).unwrap() == bytes);
        assert!(content(&*open(dir, "ours", OpenOptions::default()).unwrap().device()) == bytes);
        assert_eq!(
            fs::read(dir.join("ours")).unwrap(),
            fs::read(dir.join("theirs")).unwrap(),
            "byte for byte"
        );
        let error = open(dir, "ours", WRITE).err().unwrap().to_string();
        assert!(error.contains("cannot be changed in place; flashkit convert"), "{error}");
    }
}

#[test]
fn unused_ranges_get_no_content_and_read_as_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let bytes = vec![7; 1 << 20];
    fs::write(dir.join("raw"), &bytes).unwrap();
    let raw = FileDevice::open(dir.join("raw"), OpenOptions::default()).unwrap();
    let mut out = File::create(dir.join("ours")).unwrap();
    let used: [Range<u64>; 3] = [4096..8192, 8192..9000, 500_000..500_001];
    sparse::write(&raw, used, &mut out, |_| {}).unwrap();
    let read = content(&*open(dir, "ours", OpenOptions::default()).unwrap().device());
    assert!(
        read.len() == bytes.len()
            && read.iter().enumerate().all(|(at, byte)| {
                let block = at / 4096;
                *byte == if block == 1 || block == 2 || block == 122 { 7 } else { 0 }
            })
    );
}

#[test]
fn holes_of_the_source_become_zeroes_of_a_sparse_image() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for seed in 0..4 {
        let bytes = disk(seed);
        fs::write(dir.join("dense"), &bytes).unwrap();
        let dense = FileDevice::open(dir.join("dense"), OpenOptions::default()).unwrap();
        let holed = MemoryDevice::new(DISK);
        holed.write(0, &bytes).unwrap();
        assert!(holed.allocated_bytes() < DISK, "zeroes take no memory");
        for (name, device) in [("from dense", &dense as &dyn Device), ("from holes", &holed)] {
            let mut out = File::create(dir.join(name)).unwrap();
            sparse::write(device, [5000..DISK / 2, DISK / 2 + 9000..DISK - 5], &mut out, |_| {}).unwrap();
        }
        assert!(fs::read(dir.join("from dense")).unwrap() == fs::read(dir.join("from holes")).unwrap());
        let image = open(dir, "from holes", OpenOptions::default()).unwrap().device();
        let mut at = 0;
        for data in data_ranges(&*image, 0..DISK).chain(std::iter::once(DISK..DISK)) {
            let mut hole = vec![1; (data.start - at) as usize];
            image.read(at, &mut hole).unwrap();
            assert!(hole.iter().all(|byte| *byte == 0), "{at}..{}", data.start);
            at = data.end;
        }
    }
}

/// A sparse image with every kind of chunk, and two sums.
fn with_sums(last: [u8; 4]) -> Vec<u8> {
    let mut image = vec![0x3A, 0xFF, 0x26, 0xED, 1, 0, 0, 0, 28, 0, 12, 0];
    for number in [4096u32, 7, 6, 0] {
        image.extend(number.to_le_bytes());
    }
    let mut chunk = |kind: u16, blocks: u32, body: &[u8]| {
        image.extend(kind.to_le_bytes());
        image.extend([0, 0]);
        image.extend(blocks.to_le_bytes());
        image.extend((12 + body.len() as u32).to_le_bytes());
        image.extend(body);
    };
    let noise: Vec<u8> = (0..8192u32).map(|n| (n * n / 7) as u8).collect();
    let fill: Vec<u8> = [1, 2, 3, 4].repeat(1024);
    chunk(0xCAC1, 2, &noise);
    chunk(0xCAC4, 0, &crc32fast::hash(&noise).to_le_bytes());
    chunk(0xCAC3, 3, &[]);
    chunk(0xCAC2, 1, &[1, 2, 3, 4]);
    chunk(0xCAC2, 1, &last);
    let zeroes = vec![0; 3 * 4096];
    chunk(0xCAC4, 0, &crc32fast::hash(&[&noise[..], &zeroes, &fill, &fill].concat()).to_le_bytes());
    image
}

#[test]
fn sums_in_a_sparse_image_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("good"), with_sums([1, 2, 3, 4])).unwrap();
    assert_eq!(open(dir, "good", OpenOptions::default()).unwrap().device().geometry().size_bytes, 7 * 4096);
    fs::write(dir.join("bad"), with_sums([1, 2, 3, 5])).unwrap();
    let error = open(dir, "bad", OpenOptions::default()).err().unwrap().to_string();
    assert!(error.contains("the checksum at byte 8292 does not match"), "{error}");
}

/// Changes an image at random beside a vector, and lets qemu-img check both the tables and the content.
fn change_at_random(dir: &Path, name: &str, mut expected: Vec<u8>, seed: u64) {
    let mut rng = Rng::new(seed);
    for round in 0..4 {
        let image = open_qcow2(dir, name, WRITE).unwrap();
        let device = image.device();
        for _ in 0..60 {
            let start = rng.below(DISK);
            let most = 1 << rng.below(20);
            let end = (start + rng.below(most)).min(DISK);
            let part = start as usize..end as usize;
            match rng.below(8) {
                0 => {
                    device.discard(start, end - start).unwrap();
                    device.read(start, &mut expected[part]).unwrap();
                }
                1 => device.flush().unwrap(),
                2 => {
                    let mut bytes = vec![0; part.len()];
                    device.read(start, &mut bytes).unwrap();
                    assert!(bytes == expected[part]);
                }
                _ => {
                    expected[part.clone()].fill(1 + rng.below(255) as u8);
                    device.write(start, &expected[part]).unwrap();
                }
            }
        }
        device.flush().unwrap();
        drop((device, image));
        run(dir, "qemu-img", &["check", "-q", "-f", "qcow2", name]).unwrap();
        run(dir, "qemu-img", &["convert", "-f", "qcow2", "-O", "raw", name, "back"]).unwrap();
        assert!(fs::read(dir.join("back")).unwrap() == expected, "{name}, round {round}");
        assert!(content(&*open_qcow2(dir, name, OpenOptions::default()).unwrap().device()) == expected);
    }
}

#[test]
fn qcow2_images_are_changed_and_qemu_img_finds_them_consistent() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let size = DISK.to_string();
    for (seed, options) in [
        "cluster_size=65536",
        "cluster_size=4096",
        "cluster_size=512",
        "cluster_size=2M,refcount_bits=64",
        "compat=0.10",
        "refcount_bits=8,preallocation=metadata",
    ]
    .into_iter()
    .enumerate()
    {
        if run(dir, "qemu-img", &["create", "-q", "-f", "qcow2", "-o", options, "q", &size]).is_none() {
            return;
        }
        change_at_random(dir, "q", vec![0; DISK as usize], seed as u64);
    }
}

#[test]
fn a_file_may_end_inside_its_last_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // One cluster of 64 KiB, of which only the first 4 KiB are in the file.
    let mut disk = vec![0; 1 << 20];
    disk[..4096].fill(7);
    fs::write(dir.join("raw"), &disk).unwrap();
    if run(dir, "qemu-img", &["convert", "-O", "qcow2", "raw", "q"]).is_none() {
        return;
    }
    let file = fs::File::options().write(true).open(dir.join("q")).unwrap();
    let size = file.metadata().unwrap().len().next_multiple_of(65_536);
    file.set_len(size - 61_440).unwrap();
    let image = open_qcow2(dir, "q", WRITE).unwrap();
    let device = image.device();
    let mut tail = [9; 4096];
    device.read(32 << 10, &mut tail).unwrap();
    assert_eq!(tail, [0; 4096]);
    device.write(60 << 10, &[5; 4096]).unwrap();
    device.flush().unwrap();
    drop((device, image));
    run(dir, "qemu-img", &["convert", "-O", "raw", "q", "back"]).unwrap();
    disk[60 << 10..64 << 10].fill(5);
    assert!(fs::read(dir.join("back")).unwrap() == disk);
}

#[test]
fn backing_files_and_compressed_clusters_are_read_and_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // The backing file is shorter than the disk.
    let mut bytes = disk(11);
    let (half, size) = (DISK as usize / 2 + 5 * 512, DISK.to_string());
    fs::write(dir.join("raw"), &bytes[..half]).unwrap();
    bytes[half..].fill(0);
    for (kind, convert) in [
        ("raw", &["convert", "-f", "raw", "-O", "raw", "raw", "base"][..]),
        ("qcow2", &["convert", "-f", "raw", "-O", "qcow2", "-c", "raw", "base"]),
        (
            "qcow2",
            &["convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd", "raw", "base"],
        ),
    ] {
        if run(dir, "qemu-img", convert).is_none() {
            return;
        }
        let base = fs::read(dir.join("base")).unwrap();
        run(dir, "qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base", "-F", kind, "top", &size])
            .unwrap();
        assert!(content(&*open_qcow2(dir, "top", OpenOptions::default()).unwrap().device()) == bytes);
        change_at_random(dir, "top", bytes.clone(), 21);
        assert!(fs::read(dir.join("base")).unwrap() == base);
        if kind == "qcow2" {
            // Compressed clusters are replaced in the image itself.
            let mut whole = vec![0; DISK as usize];
            whole[..half].copy_from_slice(&bytes[..half]);
            run(dir, "qemu-img", &["resize", "-q", "-f", "qcow2", "base", &size]).unwrap();
            change_at_random(dir, "base", whole, 22);
        }
    }
}

#[test]
fn a_backing_file_outside_of_the_image_s_directory_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("images")).unwrap();
    fs::write(dir.join("secret"), vec![b's'; 1 << 20]).unwrap();
    let create = |name: &str| {
        run(
            dir,
            "qemu-img",
            &["create", "-q", "-u", "-f", "qcow2", "-b", name, "-F", "raw", "images/q", "1M"],
        )
    };
    let absolute = dir.join("secret");
    for name in ["../secret", absolute.to_str().unwrap(), "link", "/dev/zero"] {
        let _ = std::os::unix::fs::symlink("../secret", dir.join("images/link"));
        if create(name).is_none() {
            return;
        }
        let error = open_qcow2(dir, "images/q", OpenOptions::default()).err().unwrap().to_string();
        assert!(error.contains("outside of the directory of the image"), "{name}: {error}");
    }
    for (image, backing) in [("one", "two"), ("two", "one")] {
        let arguments = ["create", "-q", "-u", "-f", "qcow2", "-b", backing, "-F", "qcow2", image, "1M"];
        run(dir, "qemu-img", &arguments).unwrap();
    }
    let error = open_qcow2(dir, "one", OpenOptions::default()).err().unwrap().to_string();
    assert!(error.contains("more than 16 files behind each other"), "{error}");
}

/// A guest can write any header to the start of a raw image.
#[test]
fn a_backing_file_is_opened_only_if_the_caller_names_the_format_or_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("images")).unwrap();
    fs::write(dir.join("images/secret"), vec![b's'; 1 << 20]).unwrap();
    fs::write(dir.join("other"), vec![b'o'; 1 << 20]).unwrap();
    let create = ["create", "-q", "-f", "qcow2", "-b", "secret", "-F", "raw", "images/guest", "1M"];
    if run(dir, "qemu-img", &create).is_none() {
        return;
    }
    let source = Source::parse(dir.join("images/guest"));
    let first = |source: &Source| {
        let mut byte = [0];
        let device = Image::open(source, OpenOptions::default())?.device();
        device.read(0, &mut byte).map(|()| byte[0])
    };
    let error = first(&source).unwrap_err().to_string();
    let told = "the backing file \"secret\" of";
    assert!(error.contains(told) && error.contains("it is not opened unasked"), "{error}");
    assert_eq!(first(&source.clone().with_format(Format::Raw)).unwrap(), b'Q');
    assert_eq!(first(&source.clone().with_format(Format::Qcow2)).unwrap(), b's');
    assert_eq!(first(&source.clone().with_backing(dir.join("other"))).unwrap(), b'o');
    let error = first(&source.clone().with_format(Format::Raw).with_backing(dir.join("other"))).unwrap_err();
    assert!(error.to_string().contains("a raw image has no backing file"), "{error}");
    // A header that does not name the format: the kind of the extension is unknown.
    let mut bytes = fs::read(dir.join("images/guest")).unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == [0xE2, 0x79, 0x2A, 0xCA]).unwrap();
    bytes[at] = 1;
    fs::write(dir.join("images/guest"), bytes).unwrap();
    let error = first(&source.with_format(Format::Qcow2)).unwrap_err().to_string();
    assert!(error.contains("does not name the format of that file; qemu-img rebase -u"), "{error}");
}

#[test]
fn a_discard_of_a_disk_that_claims_an_exbibyte_ends() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if run(dir, "qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=2M", "q", "1E"]).is_none() {
        return;
    }
    let image = open(dir, "q", WRITE).unwrap();
    let device = image.device();
    device.write(1 << 59, &[7; 512]).unwrap();
    device.discard(0, 1 << 60).unwrap();
    device.flush().unwrap();
    let mut bytes = [9; 512];
    device.read(1 << 59, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 512]);
}

#[test]
fn an_image_that_qemu_would_not_change_is_only_read() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if run(dir, "qemu-img", &["create", "-q", "-f", "qcow2", "q", "1M"]).is_none() {
        return;
    }
    run(dir, "qemu-img", &["snapshot", "-c", "one", "q"]).unwrap();
    assert!(open(dir, "q", OpenOptions::default()).is_ok());
    let error = open(dir, "q", WRITE).err().unwrap().to_string();
    assert!(error.contains("the image has snapshots; qemu-img snapshot -d removes them"), "{error}");
}

/// Formats with bytes changed at random are read, changed and closed without a panic, in bounded time.
#[test]
fn damaged_images_give_errors() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let small = vec![0x5A; 1 << 20];
    fs::write(dir.join("raw"), &small).unwrap();
    let mut seeds = vec![with_sums([1, 2, 3, 4])];
    for arguments in [
        ["convert", "-f", "raw", "-O", "qcow2", "raw", "q"].as_slice(),
        &["convert", "-c", "-f", "raw", "-O", "qcow2", "raw", "q"],
        &["convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=512", "raw", "q"],
    ] {
        if run(dir, "qemu-img", arguments).is_some() {
            seeds.push(fs::read(dir.join("q")).unwrap());
        }
    }
    let mut rng = Rng::new(5);
    for round in 0..400 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..1 + rng.below(4) {
            // Most damage hits headers and tables.
            let reach = [64, 128, 4096, bytes.len() as u64][rng.below(4) as usize].min(bytes.len() as u64);
            let at = rng.below(reach) as usize;
            bytes[at] = [0, 0xFF, rng.below(256) as u8, 1 << rng.below(8)][rng.below(4) as usize];
        }
        bytes.truncate(if rng.below(8) == 0 { rng.below(bytes.len() as u64) as usize } else { bytes.len() });
        File::create(dir.join("hostile")).unwrap().write_all(&bytes).unwrap();
        for options in [OpenOptions::default(), WRITE] {
            let Ok(image) = open(dir, "hostile", options) else { continue };
            let device = image.device();
            let size = device.geometry().size_bytes;
            let mut buf = vec![0; 70_000];
            for _ in 0..8 {
                let at = rng.below(size.max(1));
                let length = (size - at.min(size)).min(buf.len() as u64) as usize;
                let _ = device.read(at, &mut buf[..length]);
                if options.write {
                    let _ = device.write(at, &buf[..length]);
                    let _ = device.discard(at, length as u64);
                }
            }
            let _ = device.flush();
        }
    }
}

/// Makes a qcow2 image of 1 MiB with 64 KiB clusters and puts bytes at a place in the file. Returns the error of a write.
fn write_to_damaged(dir: &Path, at: u64, bytes: &[u8]) -> Option<std::io::Result<()>> {
    run(dir, "qemu-img", &["create", "-q", "-f", "qcow2", "q", "1M"])?;
    let file = fs::File::options().write(true).open(dir.join("q")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
    drop(file);
    let image = open(dir, "q", WRITE).unwrap();
    let device = image.device();
    Some(device.write(0, &[7; 512]).and_then(|()| device.flush()))
}

/// Places of the refcount block and the L1 table in an image that qemu-img makes.
const REFCOUNT_BLOCK_AT: u64 = 0x20000;
const L1_AT: u64 = 0x30000;

#[test]
fn clusters_with_metadata_are_not_allocated() {
    let dir = tempfile::tempdir().unwrap();
    for cluster in 0..4 {
        let Some(written) = write_to_damaged(dir.path(), REFCOUNT_BLOCK_AT + 2 * cluster, &[0, 0]) else {
            return;
        };
        let error = written.unwrap_err().to_string();
        let told = format!("the cluster at byte {} has metadata and no refcount", cluster << 16);
        assert!(error.contains(&told), "{error}");
    }
}

#[test]
fn an_l1_entry_without_a_place_is_a_hole_unless_it_has_reserved_bits() {
    let dir = tempfile::tempdir().unwrap();
    let Some(written) = write_to_damaged(dir.path(), L1_AT, &(1u64 << 63).to_be_bytes()) else { return };
    written.unwrap();
    run(dir.path(), "qemu-img", &["check", "-q", "-f", "qcow2", "q"]).unwrap();
    let error = write_to_damaged(dir.path(), L1_AT, &(1u64 << 60).to_be_bytes()).unwrap().unwrap_err();
    let told = "entry 0 of the L1 table, 0x1000000000000000, has reserved bits";
    assert!(error.to_string().contains(told), "{error}");
    // The image still has the entry, and readers see it as well.
    let device = open(dir.path(), "q", OpenOptions::default()).unwrap().device();
    let error = device.read(0, &mut [0; 512]).unwrap_err().to_string();
    assert!(error.contains(told), "{error}");
}

#[test]
fn a_write_to_a_cluster_behind_the_end_of_the_file_does_not_extend_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if run(dir, "qemu-img", &["create", "-q", "-f", "qcow2", "q", "1M"]).is_none() {
        return;
    }
    let image = open(dir, "q", WRITE).unwrap();
    image.device().write(0, &[7; 512]).and_then(|()| image.device().flush()).unwrap();
    drop(image);
    let mut bytes = fs::read(dir.join("q")).unwrap();
    let entry = |bytes: &[u8], at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let l2 = (entry(&bytes, L1_AT as usize) & (u64::MAX >> 8)) as usize;
    let far = 1 << 63 | 1 << 40u64;
    bytes[l2..l2 + 8].copy_from_slice(&u64::to_be_bytes(far));
    fs::write(dir.join("q"), &bytes).unwrap();
    let image = open(dir, "q", WRITE).unwrap();
    let error = image.device().write(0, &[7; 512]).unwrap_err().to_string();
    assert!(error.contains("cluster 0 lies at byte 1099511627776, behind the end of the file"), "{error}");
    drop(image);
    assert_eq!(fs::metadata(dir.join("q")).unwrap().len(), bytes.len() as u64);
}

#[test]
fn an_l2_table_of_two_l1_entries_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if run(dir, "qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", "q", "1M"]).is_none() {
        return;
    }
    let image = open(dir, "q", WRITE).unwrap();
    image.device().write(0, &[7; 512]).and_then(|()| image.device().flush()).unwrap();
    drop(image);
    let mut bytes = fs::read(dir.join("q")).unwrap();
    let l1 = u64::from_be_bytes(bytes[40..48].try_into().unwrap()) as usize;
    bytes.copy_within(l1..l1 + 8, l1 + 8);
    fs::write(dir.join("q"), bytes).unwrap();
    let error = open(dir, "q", WRITE).err().unwrap().to_string();
    assert!(error.contains("two entries of the L1 table refer to byte"), "{error}");
}

#[test]
fn an_extended_partition_is_read_and_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = vec![0; 1 << 20];
    bytes[450] = 0x05;
    bytes[454] = 8;
    bytes[458] = 64;
    bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
    fs::write(dir.path().join("disk"), bytes).unwrap();
    assert_eq!(
        open(dir.path(), "disk#1", OpenOptions::default()).unwrap().device().geometry().size_bytes,
        64 * 512
    );
    let error = open(dir.path(), "disk#1", WRITE).err().unwrap().to_string();
    assert_eq!(error, "partition \"1\" contains the logical partitions, so it is not written");
}
