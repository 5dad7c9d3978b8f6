//! Encrypted and sealed files by paths.

use f2fs::{
    EncryptionPolicy, Key, KeyName, NONCE_SEED_BYTES,
    format::verity::{HashAlgorithm, Parameters},
};

use super::*;

fn key() -> Key {
    Key::new(&[0x5A; 64]).expect("64 bytes are a key")
}

/// A new volume in memory with a key, and its device.
fn make_encrypted() -> (Volume, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(SIZE_BYTES));
    let features = mkfs::parse_features("encrypt,verity").expect("known features");
    let options = mkfs::Options { features, ..options() };
    let open = OpenOptions::new().clock(|| NOW).key(key()).nonce_seed([7; NONCE_SEED_BYTES]);
    (open.make(device.clone(), &options).expect("the size fits"), device)
}

#[test]
fn files_are_encrypted_written_and_read_with_a_key_that_comes_and_goes() {
    let (volume, device) = make_encrypted();
    let policy = EncryptionPolicy::of_key(&key());
    volume.create_dir("/private").expect("a directory");
    volume.set_encryption_policy("/private", &policy).expect("it is empty");
    volume.write("/private/letter", "dear diary").expect("a file");
    let mut open = volume.create_file("/private/open").expect("a file");
    open.write_all(b"first").expect("the key is there");
    assert_eq!(volume.encryption_policy("/private/open").expect("a policy"), Some(policy));
    assert_eq!(volume.encryption_policy("/").expect("none"), None);
    let name = KeyName::Identifier(key().identifier());
    assert!(volume.remove_key(&name).expect("it is written"));
    assert!(!volume.remove_key(&name).expect("it is gone"));
    open.write_all(b"second").expect_err("the key is gone");
    assert!(matches!(volume.read("/private/letter"), Err(Error::OtherKey(_))));
    assert!(volume.metadata("/private").expect("facts").is_encrypted());
    volume.add_key(key()).expect("no panic");
    open.write_all(b"third").expect("the key is back");
    drop(open);
    volume.close().expect("a checkpoint");

    let volume = Volume::open(device.clone()).expect("the volume opens");
    assert!(matches!(volume.read("/private/letter"), Err(Error::NotFound)));
    volume.add_key(key()).expect("no panic");
    assert_eq!(volume.read("/private/letter").expect("the key is there"), b"dear diary");
    assert_eq!(volume.read("/private/open").expect("the key is there"), b"firstthird");
    drop(volume);
    // Without random bytes for nonces, nothing is made.
    let volume = OpenOptions::new().write().clock(|| NOW).key(key()).open(device).expect("the volume opens");
    assert!(matches!(volume.write("/private/new", "x"), Err(Error::NoNonces)));
    volume.write("/private/letter", "dear reader").expect("it is there");
    assert_eq!(volume.read("/private/letter").expect("the key is there"), b"dear reader");
    volume.close().expect("a checkpoint");
}

#[test]
fn a_file_is_sealed_once_and_is_then_read_only() {
    let (volume, device) = make_encrypted();
    volume.write("/file", vec![7; 100_000]).expect("a file");
    let parameters =
        Parameters { algorithm: HashAlgorithm::Sha256, log_block_bytes: 12, salt: b"salt".to_vec() };
    assert_eq!(volume.verity("/file").expect("readable"), None);
    let descriptor = volume.seal("/file", &parameters, b"").expect("it is sealed");
    assert!(matches!(volume.seal("/file", &parameters, b""), Err(Error::Exists)));
    assert!(volume.write("/file", "x").is_err());
    volume.close().expect("a checkpoint");
    let volume = Volume::open(device).expect("the volume opens");
    assert_eq!(volume.verity("/file").expect("a descriptor"), Some(descriptor));
    assert!(volume.metadata("/file").expect("facts").is_sealed());
    assert!(volume.read("/file").expect("it matches") == vec![7; 100_000]);
}
