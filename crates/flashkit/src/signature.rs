//! Recognition of a device's content, before it is overwritten and where a volume was expected.

mod disk;
mod table;

use std::{collections::HashMap, io};

use block::Device;
use image::Source;

use disk::Disk;
use table::{CONTAINERS, CONVERT, Signature, VOLUMES};

/// Bytes of a device read at once.
const WINDOW_BYTES: u64 = 64 << 10;
/// Overlap of adjacent windows in bytes: one sector, so that each magic lies entirely in one window.
const OVERLAP_BYTES: u64 = 512;

/// Returns the file system, array member or partition table that a device seems to carry.
pub fn find(device: &dyn Device) -> io::Result<Option<&'static str>> {
    let mut windows = Windows::new(device);
    Ok(windows.first_of(VOLUMES.iter())?.map(|found| found.name))
}

/// Does the work of [`find`], and also finds archives, programs and disk images that a file may hold.
pub fn find_in_file(device: &dyn Device) -> io::Result<Option<&'static str>> {
    let mut windows = Windows::new(device);
    let containers = CONTAINERS.iter().map(|(signature, _)| signature);
    Ok(windows.first_of(containers.chain(VOLUMES))?.map(|found| found.name))
}

/// Describes the content of `source` that is not F2FS, and the way to a volume inside it, for a message.
pub fn describe(device: &dyn Device, source: &Source) -> io::Result<Option<String>> {
    if let Some(disk) = Disk::read(device)? {
        return Ok(Some(disk.describe(source)));
    }
    let mut windows = Windows::new(device);
    for (signature, advice) in CONTAINERS {
        if windows.has(signature)? {
            return Ok(Some(format!("{}: {advice}", signature.name)));
        }
    }
    Ok(windows.first_of(VOLUMES.iter())?.map(|found| format!("it carries {}", found.name)))
}

/// Describes a disk image that keeps the blocks of its disk in an order of its own, and the way to a raw one. A start that
/// cannot be read tells of none.
pub fn describe_reordered(device: &dyn Device) -> Option<String> {
    let mut windows = Windows::new(device);
    let mut reordered = CONTAINERS.iter().filter(|(_, advice)| *advice == CONVERT);
    let found = reordered.find(|(signature, _)| windows.has(signature).unwrap_or(false));
    found.map(|(signature, advice)| format!("{}: {advice}", signature.name))
}

/// The windows of a device read so far.
struct Windows<'a> {
    device: &'a dyn Device,
    size: u64,
    read: HashMap<u64, Vec<u8>>,
}

impl<'a> Windows<'a> {
    fn new(device: &'a dyn Device) -> Windows<'a> {
        Windows { device, size: device.geometry().size_bytes, read: HashMap::new() }
    }

    fn first_of<'s>(
        &mut self,
        signatures: impl IntoIterator<Item = &'s Signature>,
    ) -> io::Result<Option<&'s Signature>> {
        for signature in signatures {
            if self.has(signature)? {
                return Ok(Some(signature));
            }
        }
        Ok(None)
    }

    fn has(&mut self, signature: &Signature) -> io::Result<bool> {
        for magic in signature.magics {
            for place in signature.places {
                for offset in place.offsets(self.size, magic.len() as u64) {
                    if self.at(offset)?.starts_with(magic) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Returns the bytes from an offset on: at least one sector, unless the device ends before.
    fn at(&mut self, offset: u64) -> io::Result<&[u8]> {
        let start = offset / WINDOW_BYTES * WINDOW_BYTES;
        if !self.read.contains_key(&start) {
            let length = (self.size - start).min(WINDOW_BYTES + OVERLAP_BYTES);
            let mut bytes = vec![0; length as usize];
            self.device.read(start, &mut bytes)?;
            self.read.insert(start, bytes);
        }
        Ok(&self.read[&start][(offset - start) as usize..])
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt, path::Path, process::Command};

    use block::MemoryDevice;

    use super::*;

    /// Large enough for every place in the table, and not a multiple of a large unit.
    const BYTES: u64 = (80 << 20) + 12_288;

    #[test]
    fn each_magic_is_found_at_each_of_its_places() {
        let blank = MemoryDevice::new(BYTES);
        let source = Source::parse("blank");
        assert_eq!((find(&blank).unwrap(), describe(&blank, &source).unwrap()), (None, None));
        for signature in VOLUMES.iter().chain(CONTAINERS.iter().map(|(signature, _)| signature)) {
            for (place, magic) in signature
                .places
                .iter()
                .flat_map(|place| signature.magics.iter().map(move |magic| (place, magic)))
            {
                let all: Vec<u64> = place.offsets(BYTES, magic.len() as u64).collect();
                assert!(!all.is_empty(), "{}", signature.name);
                for offset in [all[0], all[all.len() - 1]] {
                    blank.write(offset, magic).unwrap();
                    assert!(find_in_file(&blank).unwrap().is_some(), "{} at {offset}", signature.name);
                    blank.write(offset, &vec![0; magic.len()]).unwrap();
                }
            }
        }
        assert_eq!(find_in_file(&blank).unwrap(), None);
    }

    #[test]
    fn archives_and_programs_are_not_volumes() {
        let device = MemoryDevice::new(1 << 20);
        device.write(0, b"\x7FELF").unwrap();
        assert_eq!(find(&device).unwrap(), None);
        assert_eq!(find_in_file(&device).unwrap(), Some("an ELF program"));
        let description = describe(&device, &Source::parse("program")).unwrap().unwrap();
        assert_eq!(description, "an ELF program: it holds no volume");
    }

    #[test]
    fn a_device_that_is_too_short_has_none() {
        for size in [0, 1, 100, 511, 4095] {
            assert_eq!(find_in_file(&MemoryDevice::new(size)).unwrap(), None, "{size} bytes");
        }
    }

    /// Offsets and bytes from the formats' own documents, independent of the table.
    const INDEPENDENT: &[(&str, i64, &[u8])] = &[
        ("GPT", 512, b"EFI PART"),
        ("GPT", 4096, b"EFI PART"),
        ("GPT", -512, b"EFI PART"),
        ("GPT", -4096, b"EFI PART"),
        ("MBR", 510, &[0x55, 0xAA]),
        ("LVM", 24, b"LVM2 001"),
        ("LVM", 536, b"LVM2 001"),
        ("LVM", 1048, b"LVM2 001"),
        ("LVM", 1560, b"LVM2 001"),
        ("md RAID", -65536, &[0xFC, 0x4E, 0x2B, 0xA9]),
        ("md RAID", -8192, &[0xFC, 0x4E, 0x2B, 0xA9]),
        ("md RAID", 0, &[0xFC, 0x4E, 0x2B, 0xA9]),
        ("md RAID", 4096, &[0xFC, 0x4E, 0x2B, 0xA9]),
        ("DDF", -512, &[0xDE, 0x11, 0xDE, 0x11]),
        ("Intel", -1024, b"Intel Raid ISM Cfg Sig. "),
        ("ZFS", 131_072, &[0x0C, 0xB1, 0xBA, 0, 0, 0, 0, 0]),
        ("ZFS", -131_072, &[0, 0, 0, 0, 0, 0xBA, 0xB1, 0x0C]),
        ("BitLocker", 0, b"\xEB\x58\x90-FVE-FS-"),
        (
            "bcachefs",
            4120,
            &[0xC6, 0x85, 0x73, 0xF6, 0x66, 0xCE, 0x90, 0xA9, 0xD9, 0x6A, 0x60, 0xCF, 0x80, 0x3D, 0xF7, 0xEF],
        ),
        (
            "bcache",
            4120,
            &[0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA, 0x82, 0x65, 0xF5, 0x7F, 0x48, 0xBA, 0x6D, 0x81],
        ),
        ("APFS", 32, b"NXSB"),
        ("HFS", 1024, b"H+"),
        ("ReiserFS", 65588, b"ReIsEr2Fs"),
        ("JFS", 32768, b"JFS1"),
        ("UDF", 34817, b"NSR02"),
        ("ISO 9660", 32769, b"CD001"),
        ("swap", 4086, b"SWAPSPACE2"),
        ("swap", 16374, b"SWAPSPACE2"),
        ("swap", 65526, b"SWAPSPACE2"),
        ("LUKS", 0, b"LUKS\xBA\xBE"),
        ("LUKS", 16384, b"SKUL\xBA\xBE"),
        ("ext", 1080, &[0x53, 0xEF]),
        ("XFS", 0, b"XFSB"),
        ("Btrfs", 65600, b"_BHRfS_M"),
        ("NTFS", 3, b"NTFS    "),
        ("exFAT", 3, b"EXFAT   "),
        ("FAT", 54, b"FAT16   "),
        ("FAT", 82, b"FAT32   "),
        ("SquashFS", 0, b"hsqs"),
        ("VDO", 0, b"dmvdo001"),
        ("NILFS2", 1030, &[0x34, 0x34]),
    ];

    #[test]
    fn well_known_formats_are_found_at_their_documented_offsets() {
        for (name, offset, bytes) in INDEPENDENT {
            let size = 64 << 20;
            let device = MemoryDevice::new(size);
            device.write(size.checked_add_signed(*offset).unwrap() % size, bytes).unwrap();
            let found = find(&device).unwrap().unwrap_or_default();
            assert!(found.contains(name), "{name} at {offset}: {found:?}");
        }
    }

    /// Programs that make formats, with their arguments before the file.
    const MAKERS: &[(&str, &[&str])] = &[
        ("mke2fs", &["-q", "-F", "-t", "ext4"]),
        ("mkfs.xfs", &["-q", "-f"]),
        ("mkfs.btrfs", &["-q", "-f"]),
        ("mkfs.vfat", &[]),
        ("mkfs.exfat", &["-q"]),
        ("mkfs.nilfs2", &["-q", "-f"]),
        ("mkfs.f2fs", &["-q", "-f"]),
        ("mkfs.minix", &[]),
        ("mkfs.cramfs", &[]),
        ("mkfs.bfs", &[]),
        ("mkfs.jfs", &["-q"]),
        ("mkfs.reiserfs", &["-q", "-ff"]),
        ("mkfs.udf", &[]),
        ("mkfs.hfsplus", &[]),
        ("mkfs.ntfs", &["-q", "-F"]),
        ("mkswap", &[]),
        ("mkswap", &["-p", "65536"]),
        ("bcachefs", &["format", "-q"]),
        (
            "cryptsetup",
            &[
                "-q",
                "luksFormat",
                "--pbkdf-force-iterations",
                "4",
                "--pbkdf",
                "argon2id",
                "--key-file",
                "/dev/zero",
                "--keyfile-size",
                "8",
            ],
        ),
        ("sfdisk", &["-q", "--label", "gpt"]),
        ("sfdisk", &["-q", "--label", "gpt", "--sector-size", "4096"]),
        ("sfdisk", &["-q", "--label", "dos"]),
        ("sfdisk", &["-q", "--label", "sun"]),
        ("sfdisk", &["-q", "--label", "sgi"]),
    ];

    /// wipefs of util-linux reports a format only if magic and checksums agree. Everything that it reports
    /// must be found.
    #[test]
    #[allow(clippy::print_stderr)] // a test reports skipped cases
    fn every_signature_that_wipefs_reports_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        // One partition, for sfdisk.
        let script = dir.path().join("script");
        std::fs::write(&script, ",\n").unwrap();
        for (program, arguments) in MAKERS {
            File::create(&path).and_then(|file| file.set_len(512 << 20)).unwrap();
            let made = Command::new(program)
                .args(*arguments)
                .arg(&path)
                .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
                .stdin(File::open(&script).unwrap())
                .output();
            if !made.as_ref().is_ok_and(|made| made.status.success()) {
                eprintln!("skipped: {program} {arguments:?} is missing or does not make a volume in a file");
                continue;
            }
            let offsets = reported_by_wipefs(&path);
            assert!(!offsets.is_empty(), "{program} {arguments:?}");
            let device = block::FileDevice::open(&path, block::OpenOptions::default()).unwrap();
            assert!(find(&device).unwrap().is_some(), "{program} {arguments:?}: {offsets:?}");
            for offset in offsets {
                assert!(is_found_alone(&path, offset), "{program} {arguments:?}: only the magic at {offset}");
            }
        }
    }

    /// Returns the offsets of the signatures that wipefs finds in a file.
    fn reported_by_wipefs(path: &Path) -> Vec<u64> {
        let reported =
            Command::new("/usr/sbin/wipefs").args(["-n", "-p"]).arg(path).output().expect("wipefs");
        let reported = String::from_utf8_lossy(&reported.stdout).into_owned();
        (reported.lines().filter(|line| !line.starts_with('#')))
            .filter_map(|line| u64::from_str_radix(line.split(',').next()?.strip_prefix("0x")?, 16).ok())
            .collect()
    }

    /// Returns true if the magic at an offset is found without the rest of the volume.
    fn is_found_alone(path: &Path, offset: u64) -> bool {
        let (mut magic, file) = ([0; 32], File::open(path).unwrap());
        let length = file.metadata().unwrap().len();
        let kept = (length - offset).min(32) as usize;
        file.read_exact_at(&mut magic[..kept], offset).unwrap();
        let alone = MemoryDevice::new(length);
        alone.write(offset, &magic[..kept]).unwrap();
        // A boot sector's jump alone is not a signature.
        let is_jump = offset == 0 && magic[0] == 0xEB;
        find(&alone).unwrap().is_some() || is_jump
    }
}
