//! Encrypted volumes and `--key`.

use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc};

use f2fs::{
    engine::{Engine, Options},
    format::{FileType, inode::advise},
    units::Ino,
};
use fscrypt::{DEVICE_UNIT_BYTES, DeviceCipher};

use support::{fails, flashkit, ok};

mod support;

/// Unpacks the golden image whose encrypted directory has the key of 64 bytes 0x5A.
fn encrypted(dir: &Path) {
    unpack("encrypted", dir);
    fs::write(dir.join("master.key"), [0x5A; 64]).expect("a file");
    fs::write(dir.join("other.key"), "5b".repeat(64) + "\n").expect("a file");
}

fn unpack(name: &str, dir: &Path) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../testdata/golden/{name}.img.zst"));
    let packed = fs::File::open(golden).expect("a golden image");
    let image = fs::File::create(dir.join("card.img")).expect("a file");
    zstd::stream::copy_decode(packed, image).expect("a zstd stream");
}

#[test]
fn files_and_names_are_shown_with_the_key() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    encrypted(dir);
    let names = ok(dir, &["ls", "card.img:/locked", "--key", "master.key"]);
    assert!(
        names.starts_with("crowd\ndir\nempty\nfifo\nlong\n") && names.ends_with("short\nsymlink\n"),
        "{names}"
    );
    let digits = "5a".repeat(64);
    assert_eq!(ok(dir, &["cat", "card.img:/locked/symlink", "--key", &digits]), "secret\n");
    assert_eq!(
        ok(dir, &["cat", "card.img:/locked/short", "--key", "other.key", "--key", "master.key"]),
        "secret\n"
    );
    ok(dir, &["cp", "card.img:/locked/dir/child", "copy", "--key", "master.key"]);
    assert_eq!(fs::read(dir.join("copy")).expect("it was copied"), b"child");
    ok(dir, &["export", "card.img", "out", "--key", "master.key"]);
    assert_eq!(fs::read(dir.join("out/locked/short")).expect("it was exported"), b"secret\n");
    assert_eq!(fs::read_link(dir.join("out/locked/symlink")).expect("a link"), Path::new("short"));
    assert_eq!(fs::read_dir(dir.join("out/locked/crowd")).expect("a directory").count(), 250);
}

#[test]
fn a_wrong_key_is_an_error_and_never_rubbish() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    encrypted(dir);
    let right = "29028e0936eaa81dcfae55bb7e802a83";
    for path in ["card.img:/locked", "card.img:/locked/short"] {
        let told = fails(dir, &["ls", path, "--key", "other.key"]);
        assert!(
            told.contains(&format!("encrypted with the key {right}, which is none of those given")),
            "{told}"
        );
    }
    let told = fails(dir, &["cat", "card.img:/plain", "--key", "5a5a"]);
    assert!(told.contains("5a5a"), "{told}");
    fs::write(dir.join("wrapped.key"), [1; 96]).expect("a file");
    let told = fails(dir, &["cat", "card.img:/plain", "--key", "wrapped.key"]);
    assert!(told.contains("wrapped by hardware"), "{told}");
    assert_eq!(ok(dir, &["cat", "card.img:/plain", "--key", "other.key"]), "open to all\n");
}

/// A mistyped key was taken for the name of a file, and printed.
#[test]
fn a_mistyped_key_is_not_printed() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    encrypted(dir);
    let digits = "5a".repeat(64);
    let descriptor = "0123456789abcdef";
    for typed in [
        digits[1..].to_owned(),
        digits.replacen("5a5a", "5a5z", 1),
        format!("{digits}5a"),
        format!("0x{digits}"),
        format!("{descriptor}:{}", &digits[1..]),
    ] {
        for verb in [&["cat", "card.img:/plain"][..], &["mount", "card.img", "."]] {
            let told = fails(dir, &[verb, &["--key", &typed]].concat());
            assert!(!told.contains("5a5a5a5a") && told.contains("--key: "), "{told}");
        }
    }
    let told = fails(dir, &["cat", "card.img:/plain", "--key", "./missing.key"]);
    assert!(told.contains("./missing.key: No such file"), "{told}");
}

#[test]
fn a_raw_export_has_compressed_files_as_they_are_stored() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    unpack("encrypted-modes", dir);
    ok(dir, &["export", "card.img", "raw", "--raw"]);
    let mut sizes = Vec::new();
    for policy in fs::read_dir(dir.join("raw")).expect("a directory").map(|it| it.expect("an entry").path()) {
        let names = fs::read_dir(&policy).into_iter().flatten();
        sizes.extend(names.map(|it| it.expect("an entry").metadata().expect("facts").len()));
    }
    // Each of the nine directories has one, whose content has 9 blocks and 5 bytes.
    assert_eq!(sizes.into_iter().filter(|size| *size == 9 * 4096 + 5).count(), 9);
}

/// SM4 is mode 7 of contents, and 8 of names. Linux encrypts so only where it is built in.
#[test]
fn export_leaves_out_files_of_an_unknown_cipher_and_goes_on() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    encrypted(dir);
    let mut image = fs::read(dir.join("card.img")).expect("a file");
    // The contexts of this image: version 2, AES-256-XTS, AES-256-CTS.
    let places: Vec<usize> = image
        .windows(7)
        .enumerate()
        .filter(|(_, it)| it.starts_with(b"c\x02\x01\x04"))
        .map(|(n, _)| n)
        .collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| image[at + 2..at + 4].copy_from_slice(&[7, 8]));
    fs::write(dir.join("card.img"), image).expect("a file");
    let output = flashkit(dir, &["export", "card.img", "out", "--key", "master.key"]);
    let told = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("locked: encrypted, and not readable with the key") && told.contains("SM4"),
        "{told}"
    );
    assert_eq!(fs::read(dir.join("out/plain")).expect("it was exported"), b"open to all\n");
}

#[test]
fn export_leaves_out_files_without_a_key_and_goes_on() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    encrypted(dir);
    let output = flashkit(dir, &["export", "card.img", "out"]);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(told.contains("locked: encrypted, and the key is missing"), "{told}");
    assert_eq!(fs::read(dir.join("out/plain")).expect("it was exported"), b"open to all\n");
    assert!(!dir.join("out/locked").exists());
    ok(dir, &["export", "card.img", "raw", "--raw"]);
    assert_eq!(fs::read_dir(dir.join("raw/locked")).expect("a directory").count(), 8);
}

#[test]
fn verbs_below_the_files_take_no_keys_and_rescue_loses_what_is_encrypted() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    encrypted(dir);
    for verb in [&["rescue", "card.img", "out"][..], &["fsck", "card.img"], &["resize", "card.img", "-n"]] {
        let output = flashkit(dir, &[verb, &["--key", "master.key"]].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains("unexpected argument '--key'"), "{verb:?}: {told}");
    }
    assert!(!dir.join("out").exists());
    let output = flashkit(dir, &["rescue", "card.img", "out"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(fs::read(dir.join("out/plain")).expect("it was rescued"), b"open to all\n");
    let secret = |name: &str| fs::read(dir.join("out/locked").join(name)).is_ok_and(|it| it == b"secret\n");
    assert!(!secret("short") && !secret("#5"));
}

/// Returns the bytes of the image that hold a text.
fn clear_places(dir: &Path, text: &[u8]) -> Vec<usize> {
    let image = fs::read(dir.join("card.img")).expect("the image");
    let found = image.windows(text.len()).enumerate().filter(|(_, window)| *window == text);
    found.map(|(at, _)| at).collect()
}

#[test]
fn a_directory_becomes_encrypted_and_everything_in_it() {
    const TEXT: &str = "a text that is nowhere on the volume";
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    fs::write(dir.join("master.key"), (1..=64).collect::<Vec<u8>>()).expect("a file");
    fs::write(dir.join("other.key"), [7; 64]).expect("a file");
    fs::create_dir_all(dir.join("tree/below")).expect("a directory");
    fs::write(dir.join("tree/below").join(TEXT), TEXT.repeat(1000)).expect("a file");
    let ways: [&[&str]; 7] = [
        &[],
        &["--modes", "aes-256-hctr2", "--padding", "4"],
        &["--modes", "aes-128", "--policy", "1"],
        &["--modes", "adiantum"],
        &["--modes", "adiantum", "--scheme", "direct", "--policy", "1"],
        &["--scheme", "ino-lblk64"],
        &["--scheme", "ino-lblk32", "--padding", "16"],
    ];
    for (n, way) in ways.iter().enumerate() {
        let _ = fs::remove_file(dir.join("card.img"));
        ok(dir, &["mkfs", "card.img", "--size", "64M", "-O", "encrypt"]);
        let told = fails(dir, &["encrypt", "card.img:/private"]);
        assert!(told.contains("--key is missing"), "{told}");
        let run = flashkit(dir, &[&["encrypt", "card.img:/private", "--key", "master.key"], *way].concat());
        let told = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.success() && told.contains("encrypted with the key"), "{way:?}: {told}");
        ok(dir, &["import", "tree", "card.img:/private", "--key", "master.key"]);
        let path = format!("card.img:/private/below/{TEXT}");
        assert_eq!(ok(dir, &["cat", &path, "--key", "master.key"]), TEXT.repeat(1000), "{way:?}");
        fails(dir, &["cat", &path]);
        if !way.contains(&"--policy") {
            let told = fails(dir, &["cat", &path, "--key", "other.key"]);
            assert!(told.contains("none of those given"), "{told}");
        }
        let clear = clear_places(dir, TEXT.as_bytes());
        assert!(clear.is_empty(), "{way:?}: {clear:?}");
        model::fsck::fsck_image(&dir.join("card.img")).expect("a consistent volume");
        if n == 0 {
            let told = fails(dir, &["encrypt", "card.img:/private", "--key", "other.key"]);
            assert!(told.contains("exists"), "{told}");
            let told = fails(dir, &["encrypt", "card.img:/x", "--key", "master.key", "--scheme", "direct"]);
            assert!(told.contains("this policy is impossible"), "{told}");
        }
    }
    ok(dir, &["mkfs", "plain.img", "--size", "64M"]);
    let told = fails(dir, &["encrypt", "plain.img:/private", "--key", "master.key"]);
    assert!(told.contains("tune -O encrypt"), "{told}");
    ok(dir, &["tune", "plain.img", "-O", "encrypt"]);
    ok(dir, &["encrypt", "plain.img:/private", "--key", "master.key"]);
}

/// The blocks of the contents of encrypted files.
fn contents(image: &Path) -> Vec<u64> {
    let device = block::FileDevice::open(image, block::OpenOptions::default()).expect("an image");
    let volume = Engine::open(Arc::new(device), Options::read_only()).expect("a volume");
    let mut blocks = Vec::new();
    let inodes = (3..2000).map(Ino).filter_map(|ino| volume.inode(ino).ok());
    for inode in inodes.filter(|inode| inode.has_advise(advise::ENCRYPT)) {
        if inode.file_type() != FileType::Regular {
            continue;
        }
        let all = 0..inode.head().size.get().div_ceil(DEVICE_UNIT_BYTES as u64);
        let addrs = all.filter_map(|block| volume.address(&inode, block).ok());
        blocks.extend(addrs.filter(|addr| addr.is_real()).map(|addr| u64::from(addr.0)));
    }
    blocks
}

/// Encrypts an image as a phone does: each block except the contents of encrypted files.
fn encrypt_metadata(image: &Path, key: &[u8]) {
    let (left_out, cipher) = (contents(image), DeviceCipher::new(key).expect("a key"));
    assert!(left_out.len() > 10, "{left_out:?}");
    let file = fs::OpenOptions::new().read(true).write(true).open(image).expect("the image");
    let units = file.metadata().expect("its size").len() / DEVICE_UNIT_BYTES as u64;
    let mut bytes = vec![0; DEVICE_UNIT_BYTES];
    for unit in (0..units).filter(|unit| !left_out.contains(unit)) {
        file.read_exact_at(&mut bytes, unit * DEVICE_UNIT_BYTES as u64).expect("it is read");
        cipher.encrypt(unit, &mut bytes);
        file.write_all_at(&bytes, unit * DEVICE_UNIT_BYTES as u64).expect("it is written");
    }
}

#[test]
fn images_with_metadata_encryption_are_read_with_their_key() {
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    encrypted(dir);
    let before = ["clear.tar", "stored.tar"];
    let exports = [&["--key", "master.key"][..], &["--raw"]];
    for (archive, options) in before.iter().zip(exports) {
        ok(dir, &[&["export", "card.img", archive], options].concat());
    }
    for length in [64, 32] {
        encrypted(dir);
        let key: Vec<u8> = (0..length).map(|n| n * 3).collect();
        fs::write(dir.join("metadata.key"), &key).expect("a file");
        encrypt_metadata(&dir.join("card.img"), &key);
        fails(dir, &["ls", "card.img"]);
        for (archive, options) in before.iter().zip(exports) {
            let unlocked = ["export", "card.img", "now.tar", "--metadata-key", "metadata.key"];
            ok(dir, &[&unlocked[..], options].concat());
            let [now, then] = [Path::new("now.tar"), archive.as_ref()].map(|name| fs::read(dir.join(name)));
            assert!(
                now.expect("an archive") == then.expect("an archive"),
                "{archive}, a key of {length} bytes"
            );
        }
        let told = ok(dir, &["fsck", "card.img", "--metadata-key", "metadata.key"]);
        assert!(told.contains(": clean"), "{told}");
        let told = fails(dir, &["rm", "card.img:/plain", "--metadata-key", "metadata.key"]);
        assert!(told.contains("(--metadata-key) is only read"), "{told}");
    }
    let told = fails(dir, &["ls", "card.img", "--metadata-key", "master.key"]);
    assert!(told.contains("--metadata-key"), "{told}");
    fs::write(dir.join("short.key"), [1; 33]).expect("a file");
    let refused = flashkit(dir, &["ls", "card.img", "--metadata-key", "short.key"]);
    let told = String::from_utf8_lossy(&refused.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("64 bytes (AES-256-XTS) or 32 (Adiantum), and this one has 33"), "{told}");
}
