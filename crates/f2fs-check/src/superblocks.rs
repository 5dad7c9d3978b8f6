//! The two superblocks.

use std::{cmp::Ordering, mem::offset_of, ops::Range, sync::Arc};

use block::{Device, Overlay};
use f2fs::{
    Error, Place, Result,
    format::{
        BlockSize, MAGIC,
        crc::f2fs_crc,
        superblock::{self, Features, Superblock, raw},
    },
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Certainty, Finding, Fix, Kind, Report};

/// Features that live in the extra attributes of inodes.
const IN_EXTRA_ATTR: Features = Features(
    Features::PROJECT_QUOTA.0
        | Features::INODE_CHECKSUM.0
        | Features::FLEXIBLE_INLINE_XATTR.0
        | Features::INODE_CRTIME.0
        | Features::COMPRESSION.0,
);

/// A superblock copy: its bytes, and its value if that is usable.
struct Copy {
    bytes: [u8; superblock::BYTES],
    good: Option<Superblock>,
}

/// Checks both copies and returns the one that counts.
///
/// # Errors
/// [`Error::NotF2fs`] if neither copy has the magic number.
pub fn check(device: &dyn Device, report: &mut Report) -> Result<Option<Superblock>> {
    let size = device.geometry().size_bytes;
    if size < 2 * BlockSize::B4K.bytes() as u64 {
        return Err(Error::NotF2fs(format!("{size} bytes are too few").into()));
    }
    let first_bytes = read(device, 0);
    let candidates = [BlockSize::B4K, BlockSize::B16K].map(|size| read(device, size.bytes() as u64));
    let has_magic =
        |bytes: &Option<[u8; superblock::BYTES]>| bytes.is_some_and(|bytes| magic(&bytes) == MAGIC);
    if !has_magic(&first_bytes) && !candidates.iter().any(has_magic) {
        let found = first_bytes.map_or(0, |bytes| magic(&bytes));
        let what = format!("magic number {found:#010x} instead of {MAGIC:#010x} in both superblocks");
        return Err(Error::NotF2fs(what.into()));
    }
    let first = one(first_bytes, 0, size, report);
    let block_size = first.as_ref().and_then(|copy| copy.good.as_ref()).map(|good| good.block_size);
    let second_bytes = match block_size {
        Some(BlockSize::B4K) => candidates[0],
        Some(BlockSize::B16K) => candidates[1],
        // The position follows from the block size, which only the second copy tells now.
        None => candidates.into_iter().find(has_magic).unwrap_or(candidates[0]),
    };
    let second = one(second_bytes, 1, size, report);
    if let (Some(Copy { bytes: one, good: Some(_) }), Some(Copy { bytes: other, good: Some(_) })) =
        (&first, &second)
    {
        report_difference(one, other, report);
    }
    let (number, used) = match (first, second) {
        (Some(Copy { bytes, good: Some(good) }), _) => (0, Some((bytes, good))),
        (_, Some(Copy { bytes, good: Some(good) })) => (1, Some((bytes, good))),
        _ => (0, None),
    };
    let Some((bytes, good)) = used else { return Ok(None) };
    let raw = raw::Superblock::ref_from_bytes(&bytes).expect("the array has the struct's size");
    features(&good, number, report);
    errors(raw, number, report);
    quota_inodes(raw, number, report);
    Ok(Some(good))
}

/// Fields that change while a volume is in use, and on which nothing else depends: the label, the extensions, the
/// versions of programs, the recorded errors, the checksum. A power cut between the writes of both copies leaves them
/// different.
const CHANGEABLE: [Range<usize>; 5] = [
    offset_of!(raw::Superblock, volume_name)..offset_of!(raw::Superblock, cp_payload),
    offset_of!(raw::Superblock, version)..offset_of!(raw::Superblock, feature),
    offset_of!(raw::Superblock, hot_ext_count)..offset_of!(raw::Superblock, s_encoding),
    offset_of!(raw::Superblock, s_stop_reason)..offset_of!(raw::Superblock, reserved),
    offset_of!(raw::Superblock, crc)..superblock::BYTES,
];

/// The device as it would be with the second superblock in place of the first, if both are usable and differ in more than
/// what may change at any time; and the order of both by their checksums: less if the second has more features of them.
/// Nothing is written to the device.
///
/// # Errors
/// Errors of the device.
pub fn with_second(device: &Arc<dyn Device>) -> Result<Option<(Arc<dyn Device>, Ordering)>> {
    let size = device.geometry().size_bytes;
    let good = |bytes: &[u8; superblock::BYTES], copy: u8| Superblock::check(bytes, copy, size).ok();
    let Some(first) = read(device, 0) else { return Ok(None) };
    let Some(one) = good(&first, 0) else { return Ok(None) };
    let Some(second) = read(device, one.block_size.bytes() as u64) else { return Ok(None) };
    let Some(other) = good(&second, 1).filter(|other| other.block_size == one.block_size) else {
        return Ok(None);
    };
    if is_changeable(&first, &second) {
        return Ok(None);
    }
    let checksums = |superblock: &Superblock| {
        let of = [Features::SB_CHECKSUM, Features::INODE_CHECKSUM];
        of.into_iter().filter(|feature| superblock.features.has(*feature)).count()
    };
    Ok(Some((with_first(device, &second)?, checksums(&one).cmp(&checksums(&other)))))
}

/// Returns a superblock that is usable if its lists of extensions are counted anew: that of the first copy, else of the second.
pub fn with_counted_extensions(device: &dyn Device) -> Option<[u8; superblock::BYTES]> {
    let size = device.geometry().size_bytes;
    let starts = [0, BlockSize::B4K.bytes() as u64, BlockSize::B16K.bytes() as u64];
    let mut copies = starts.into_iter().filter_map(|start| count_extensions(read(device, start)?));
    copies.find(|bytes| Superblock::check(bytes, 0, size).is_ok())
}

/// Sets impossible counts of the lists of extensions by the lists, and the checksum. It has to be right before or then: otherwise
/// more is damaged.
fn count_extensions(mut bytes: [u8; superblock::BYTES]) -> Option<[u8; superblock::BYTES]> {
    let end = superblock::BYTES - 4;
    let before = f2fs_crc(&bytes[..end]);
    let raw = raw::Superblock::mut_from_bytes(&mut bytes).expect("the array has the struct's size");
    let (cold, hot) = (raw.extension_count.get(), u32::from(raw.hot_ext_count));
    let most = raw.extension_list.len() as u32;
    let used = raw.extension_list.iter().take_while(|slot| slot[0] != 0).count() as u32;
    if cold.checked_add(hot).is_some_and(|sum| sum <= most) {
        return None;
    }
    match used.checked_sub(hot) {
        Some(cold) => raw.extension_count.set(cold),
        None => raw.hot_ext_count = u8::try_from(used.checked_sub(cold)?).ok()?,
    }
    let (stored, features) = (raw.crc.get(), Features(raw.feature.get()));
    let after = f2fs_crc(&raw.as_bytes()[..end]);
    if features.has(Features::SB_CHECKSUM) {
        raw.crc.set(after);
        return [before, after].contains(&stored).then_some(bytes);
    }
    Some(bytes)
}

/// The device with a superblock in place of the first copy. Nothing is written to the device.
///
/// # Errors
/// Errors of the device.
pub fn with_first(device: &Arc<dyn Device>, bytes: &[u8; superblock::BYTES]) -> Result<Arc<dyn Device>> {
    let overlay = Overlay::new(device.clone());
    let at = Place::Superblock(0);
    overlay.write(superblock::OFFSET as u64, bytes).map_err(|source| Error::Io { at, source })?;
    Ok(Arc::new(overlay))
}

/// The finding that the second superblock counts, which it does if the volume fits it better.
pub fn second_counts(errors: u64, errors_of_first: u64) -> Finding {
    let known = format!(
        "the copies differ; the rest of the volume has {errors_of_first} faults by this copy, {errors} by the second"
    );
    Finding::new(Kind::SuperblocksDiffer, Place::Superblock(0), known)
        .repaired_by("copy the second superblock over the first")
}

/// Returns true if two copies differ only in fields that change while a volume is in use.
fn is_changeable(first: &[u8], second: &[u8]) -> bool {
    let mut differing = (0..superblock::BYTES).filter(|at| first[*at] != second[*at]);
    differing.all(|at| CHANGEABLE.iter().any(|field| field.contains(&at)))
}

fn report_difference(first: &[u8], second: &[u8], report: &mut Report) {
    let Some(at) = (0..superblock::BYTES).find(|at| first[*at] != second[*at]) else { return };
    let known = format!("byte {at} is {:#04x}, in the first copy {:#04x}", second[at], first[at]);
    let certainty = if is_changeable(first, second) { Certainty::Certain } else { Certainty::Likely };
    let finding = Finding::new(Kind::SuperblocksDiffer, Place::Superblock(1), known);
    report.add(finding.with_certainty(certainty));
}

fn magic(bytes: &[u8; superblock::BYTES]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn read(device: &dyn Device, block_offset: u64) -> Option<[u8; superblock::BYTES]> {
    // Whole blocks, because real devices do not read smaller units.
    let mut block = [0; BlockSize::B4K.bytes()];
    device.read(block_offset, &mut block).ok()?;
    block[superblock::OFFSET..].try_into().ok()
}

fn one(
    bytes: Option<[u8; superblock::BYTES]>,
    copy: u8,
    device_bytes: u64,
    report: &mut Report,
) -> Option<Copy> {
    let at = Place::Superblock(copy);
    let Some(bytes) = bytes else {
        report.add(Finding::new(Kind::SuperblockInvalid, at, "it cannot be read"));
        return None;
    };
    let raw = raw::Superblock::ref_from_bytes(&bytes).expect("the array has the struct's size");
    let mut kind = Kind::SuperblockInvalid;
    if raw.magic.get() != MAGIC {
        let known = format!("magic number {:#010x}, must be {MAGIC:#010x}", raw.magic.get());
        report.add(Finding::new(Kind::SuperblockMagic, at, known));
        return Some(Copy { bytes, good: None });
    }
    let end = superblock::BYTES - 4;
    if Features(raw.feature.get()).has(Features::SB_CHECKSUM)
        && raw.crc.get() != f2fs_crc(&raw.as_bytes()[..end])
    {
        kind = Kind::SuperblockChecksum;
    }
    let good = match Superblock::check(&bytes, copy, device_bytes) {
        Ok(good) => Some(good),
        Err(Error::Corrupt { what, .. }) => {
            report.add(Finding::new(kind, at, what));
            None
        }
        Err(error) => {
            report.add(Finding::new(kind, at, error.to_string()));
            None
        }
    };
    Some(Copy { bytes, good })
}

fn features(superblock: &Superblock, copy: u8, report: &mut Report) {
    let (features, at) = (superblock.features, Place::Superblock(copy));
    if features.unknown() != 0 {
        let known = format!("feature bits {:#x} are unknown", features.unknown());
        report.add(Finding::new(Kind::FeatureUnknown, at, known));
    }
    let needing = Features(features.0 & IN_EXTRA_ATTR.0);
    if needing.0 != 0 && !features.has(Features::EXTRA_ATTR) {
        let names: Vec<&str> = needing.names().collect();
        let known = format!("{} without extra_attr", names.join(", "));
        report.add(Finding::new(Kind::FeatureNeeds, at, known));
    }
}

fn quota_inodes(raw: &raw::Superblock, copy: u8, report: &mut Report) {
    let inodes = raw.qf_ino.map(|ino| ino.get());
    if inodes != [0; 3] && !Features(raw.feature.get()).has(Features::QUOTA) {
        let known = format!("quota inodes {inodes:?} without quota");
        report.add(Finding::new(Kind::QuotaFeature, Place::Superblock(copy), known));
        report.fix(Fix::ClearQuotaInodes);
    }
}

fn errors(raw: &raw::Superblock, copy: u8, report: &mut Report) {
    // Reason 0 is a shutdown that a program asked for, which is no error.
    let reasons: Vec<usize> = (1..raw.s_stop_reason.len()).filter(|n| raw.s_stop_reason[*n] != 0).collect();
    let errors = raw.s_errors.iter().map(|byte| byte.count_ones()).sum::<u32>();
    if errors > 0 || !reasons.is_empty() {
        let known = format!(
            "Linux recorded {errors} kinds of errors, and stopped checkpoints for the reasons {reasons:?}"
        );
        report.add(Finding::new(Kind::ErrorsRecorded, Place::Superblock(copy), known));
        report.fix(Fix::ClearErrors);
    }
}
