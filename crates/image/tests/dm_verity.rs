//! Hash trees of dm-verity that veritysetup makes and judges.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

use block::{Device, OpenOptions, Rng};
use flashkit_image::{
    Image, Source,
    dm_verity::{Request, Trust},
};

/// Runs veritysetup. Returns its output and success, or None with a message if it is missing.
fn veritysetup(dir: &Path, arguments: &[&str]) -> Option<(String, bool)> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let call = Command::new("veritysetup").args(arguments).current_dir(dir).env("PATH", path).output();
    match call {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: veritysetup (cryptsetup-bin) is missing");
            None
        }
        output => {
            let output = output.expect("it starts");
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            Some((said, output.status.success()))
        }
    }
}

/// Makes a tree, and returns the root hash.
fn format(dir: &Path, arguments: &[&str]) -> Option<String> {
    let (said, succeeded) = veritysetup(dir, &[&["format"], arguments].concat())?;
    assert!(succeeded, "{arguments:?}: {said}");
    let root =
        said.lines().find_map(|line| line.strip_prefix("Root hash:")).expect("it prints the root hash");
    Some(root.trim().to_owned())
}

fn open(dir: &Path, name: &str, request: Request) -> std::io::Result<Image> {
    Image::open(&Source::parse(dir.join(name)).with_hashes(request), OpenOptions::default())
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

fn content(image: &Image) -> std::io::Result<Vec<u8>> {
    let device = image.device();
    let mut bytes = vec![0; device.geometry().size_bytes as usize];
    device.read(0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn trees_of_veritysetup_are_read_in_all_their_forms() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let data = noise(4 << 20, 1);
    fs::write(dir.join("data"), &data).unwrap();
    for options in [
        &[][..],
        &["--format=0"],
        &["--hash=sha512", "--data-block-size=1024", "--hash-block-size=512"],
        &["--format=0", "--hash=sha512", "--data-block-size=512", "--salt=-"],
        &["--data-blocks=1"],
        &["--data-blocks=129", "--salt=0123456789"],
        &["--data-blocks=128"],
    ] {
        let _ = fs::remove_file(dir.join("hashes"));
        let Some(root) = format(dir, &[options, &["data", "hashes"]].concat()) else { return };
        let request = |root: &str, device: Option<&str>, offset| Request {
            trust: root.parse().unwrap(),
            device: device.map(|name| dir.join(name)),
            offset,
        };
        let apart = open(dir, "data", request(&root, Some("hashes"), None)).unwrap();
        let read = content(&apart).unwrap();
        assert!(!read.is_empty() && read == data[..read.len()], "{options:?}");
        assert_eq!(apart.verified().unwrap().damage(&mut |_| {}).unwrap().blocks, 0, "{options:?}");
        assert!(!apart.is_whole_file(), "nothing may read past the check");
        let other = format!("{:02x}{}", u8::from_str_radix(&root[..2], 16).unwrap() ^ 1, &root[2..]);
        let error = open(dir, "data", request(&other, Some("hashes"), None)).err().unwrap().to_string();
        assert!(error.contains("does not have this root hash"), "{options:?}: {error}");
        // In one file, behind the data.
        fs::write(dir.join("both"), &data).unwrap();
        let behind = (4 << 20) + 8192;
        let offset = format!("--hash-offset={behind}");
        let root = format(dir, &[options, &[&offset, "both", "both"]].concat()).unwrap();
        let together = open(dir, "both", request(&root, None, Some(behind))).unwrap();
        assert!(content(&together).unwrap() == read, "{options:?}");
        let error = open(dir, "both", request(&root, None, Some(behind + 512))).err().unwrap().to_string();
        assert!(error.contains("there is none"), "{error}");
    }
}

#[test]
fn a_table_stands_for_a_superblock() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let data = noise(1 << 20, 2);
    fs::write(dir.join("data"), &data).unwrap();
    let options = ["--no-superblock", "--salt=0102", "--hash-offset=8192", "data", "hashes"];
    let Some(root) = format(dir, &options) else { return };
    let trust: Trust = format!("1 /dev/a /dev/b 4096 4096 256 2 sha256 {root} 0102").parse().unwrap();
    let request = Request { trust, device: Some(dir.join("hashes")), offset: None };
    assert!(content(&open(dir, "data", request).unwrap()).unwrap() == data);
}

#[test]
fn veritysetup_and_this_crate_find_the_same_damage() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let data = noise(2 << 20, 3);
    fs::write(dir.join("data"), &data).unwrap();
    let Some(root) = format(dir, &["--data-block-size=1024", "--hash-block-size=1024", "data", "hashes"])
    else {
        return;
    };
    let request = || Request { trust: root.parse().unwrap(), device: Some(dir.join("hashes")), offset: None };
    let tree_bytes = fs::metadata(dir.join("hashes")).unwrap().len();
    let mut rng = Rng::new(4);
    for round in 0..12 {
        // Behind the superblock in the tree.
        let (name, at) = match round % 2 {
            0 => ("data", rng.below(data.len() as u64)),
            _ => ("hashes", 1024 + rng.below(tree_bytes - 1024)),
        };
        let file = File::options().read(true).write(true).open(dir.join(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        let (said, theirs) = veritysetup(dir, &["verify", "data", "hashes", &root]).unwrap();
        let ours = match open(dir, "data", request()) {
            Ok(image) => image.verified().unwrap().damage(&mut |_| {}).unwrap().blocks == 0,
            Err(_) => false,
        };
        assert_eq!(ours, theirs, "byte {at} of {name}: {said}");
        if name == "data" {
            let image = open(dir, "data", request()).unwrap();
            let damage = image.verified().unwrap().damage(&mut |_| {}).unwrap();
            let block = at / 1024 * 1024;
            assert_eq!(damage.ranges, std::slice::from_ref(&(block..block + 1024)));
            let error = image.device().read(at, &mut [0]).unwrap_err().to_string();
            assert!(error.contains(&format!("the block at byte {block} does not match")), "{error}");
        }
        file.write_all_at(&byte, at).unwrap();
    }
    let write = OpenOptions { write: true, direct: false };
    let source = Source::parse(dir.join("data")).with_hashes(request());
    assert_eq!(Image::open(&source, write).err().unwrap().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

/// Superblocks and trees with bytes changed at random give errors or data, in bounded time and memory.
#[test]
fn damaged_superblocks_give_errors() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("data"), noise(256 << 10, 5)).unwrap();
    let Some(root) = format(dir, &["data", "hashes"]) else { return };
    let hashes = fs::read(dir.join("hashes")).unwrap();
    let mut rng = Rng::new(6);
    for _ in 0..300 {
        let mut hostile = hashes.clone();
        for _ in 0..1 + rng.below(3) {
            hostile[rng.below(400) as usize] =
                [0, 0xFF, rng.below(256) as u8, 1 << rng.below(8)][rng.below(4) as usize];
        }
        fs::write(dir.join("hostile"), &hostile).unwrap();
        let request =
            Request { trust: root.parse().unwrap(), device: Some(dir.join("hostile")), offset: None };
        if let Ok(image) = open(dir, "data", request) {
            let _ = image.verified().unwrap().damage(&mut |_| {});
            let _ = content(&image);
        }
    }
}
