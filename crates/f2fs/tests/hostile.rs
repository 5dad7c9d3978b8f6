//! An image that is not a volume, or a damaged one, is refused with an error that states a location.

use std::sync::Arc;

use block::{Device, MemoryDevice, Overlay};
use f2fs::{
    Error,
    engine::{Engine, Options},
};

#[path = "support/golden.rs"]
mod golden;

fn refusal(device: Arc<dyn Device>) -> Error {
    Engine::open(device, Options::read_only()).err().expect("must be refused")
}

fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::from_bytes(bytes))
}

#[test]
fn a_file_that_is_not_a_volume_is_reported_as_such() {
    for size in [0, 1, 511, 1024, 4096, 5000, 1 << 20] {
        assert!(matches!(refusal(memory(&vec![0; size])), Error::NotF2fs(_)), "{size} bytes");
    }
    // Magic numbers of ext4, XFS and FAT.
    for (at, mark) in [(1080, &b"\x53\xEF"[..]), (0, b"XFSB"), (510, b"\x55\xAA")] {
        let mut bytes = vec![0; 1 << 20];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        let error = refusal(memory(&bytes));
        assert!(matches!(error, Error::NotF2fs(_)), "{error}");
    }
    assert!(matches!(refusal(memory(&[0xFF; 1 << 16])), Error::NotF2fs(_)));
}

#[test]
fn a_truncated_image_is_refused_before_anything_is_read_past_its_end() {
    let whole = golden::device("fresh");
    let size = whole.geometry().size_bytes;
    let mut bytes = vec![0; size as usize];
    whole.read(0, &mut bytes).expect("in memory");
    for keep in [2048, 4096, 5120, 8192, 1 << 20, 2 << 20, size as usize / 2, size as usize - 4096] {
        let error = refusal(memory(&bytes[..keep]));
        let text = error.to_string();
        let said = match error {
            Error::NotF2fs(_) => keep < 8192,
            _ => text.contains("superblock") && text.contains("truncated image?"),
        };
        assert!(said, "{keep} bytes: {text}");
    }
}

#[test]
fn damage_is_named_by_its_place() {
    let image = golden::device("extra-attr");
    let volume = Engine::open(image.clone(), Options::read_only()).expect("a good volume");
    let root = volume.superblock().root_ino;
    let root_at = u64::from(volume.nat_entry(root.into()).expect("in use").addr.0) * 4096;
    let pack = u64::from(volume.geometry().pack(volume.last_pack()).0) * 4096;
    let other = u64::from(volume.geometry().pack(1 - volume.last_pack()).0) * 4096;

    let damaged = |writes: &[(u64, &[u8])]| -> Arc<dyn Device> {
        let device = Overlay::new(image.clone());
        writes.iter().for_each(|(at, bytes)| device.write(*at, bytes).expect("in memory"));
        Arc::new(device)
    };
    let superblock = refusal(damaged(&[(1024 + 16, &[0xFF; 4]), (4096 + 1024 + 16, &[0xFF; 4])]));
    assert!(superblock.to_string().starts_with("corrupt superblock copy 0: "), "{superblock}");
    let checkpoint = refusal(damaged(&[(pack, &[0xFF; 16]), (other, &[0xFF; 16])]));
    assert!(checkpoint.to_string().starts_with("corrupt checkpoint pack "), "{checkpoint}");

    let open = |writes: &[(u64, &[u8])]| Engine::open(damaged(writes), Options::read_only()).expect("opens");
    let footer = open(&[(root_at + 4072, &7u32.to_le_bytes())]).stat(root).expect_err("a wrong footer");
    let place = format!("corrupt node 3 at block {}: the footer has node 7", root_at / 4096);
    assert_eq!(footer.to_string(), place);
    let mode = open(&[(root_at, &[0, 0])]).entries(root, 0).err().expect("no kind of file");
    assert!(mode.to_string().contains("mode 0o0 has no known file type"), "{mode}");
}
