//! The holes of a device: ranges that hold nothing and read as zeroes.

use std::{collections::VecDeque, ops::Range};

use crate::{Device, FileDevice, MemoryDevice};

/// Maximum number of parts in an answer. The caller asks again for the rest.
pub(crate) const PARTS_MAX: usize = 4096;
/// Bytes that a search for data asks for at once.
const WINDOW_BYTES: u64 = 1 << 30;

/// Returns the ranges of a device that are no holes, ascending and without overlap. The device is asked as the iterator goes on.
pub fn data_ranges(device: &dyn Device, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let (mut at, mut asked) = (range.start, range.start);
    let mut parts: VecDeque<(u64, bool)> = VecDeque::new();
    std::iter::from_fn(move || {
        loop {
            if parts.is_empty() && asked < range.end {
                let window_end = (asked / WINDOW_BYTES + 1).saturating_mul(WINDOW_BYTES);
                parts.extend(device.allocation(asked..range.end.min(window_end)));
                asked += parts.iter().map(|(length, _)| length).sum::<u64>();
            }
            let (length, is_hole) = parts.pop_front()?;
            let part = at..at + length;
            at = part.end;
            if !is_hole {
                return Some(part);
            }
        }
    })
}

/// Returns the parts of a range of a file.
pub(crate) fn of_file(file: &FileDevice, range: Range<u64>) -> Vec<(u64, bool)> {
    let mut parts = Vec::new();
    let mut at = range.start;
    while at < range.end && parts.len() < PARTS_MAX {
        let (end, is_hole) = file.extent(at, range.end);
        push(&mut parts, (end - at, is_hole));
        at = end;
    }
    parts
}

/// Returns the parts of a range of memory.
pub(crate) fn of_memory(memory: &MemoryDevice, range: Range<u64>) -> Vec<(u64, bool)> {
    let held = memory.allocated_pages_in(range.clone());
    let mut parts: Vec<(u64, bool)> = Vec::new();
    let mut at = range.start;
    for page in held {
        let (start, end) = (page.max(range.start), (page + 4096).min(range.end));
        push(&mut parts, (start - at, true));
        push(&mut parts, (end - start, false));
        at = end;
        if parts.len() >= PARTS_MAX {
            return parts;
        }
    }
    push(&mut parts, (range.end - at, true));
    parts
}

/// Adds a part, and merges it with the last one if both are holes or both are not.
fn push(parts: &mut Vec<(u64, bool)>, (length, is_hole): (u64, bool)) {
    match parts.last_mut() {
        _ if length == 0 => {}
        Some((last, kind)) if *kind == is_hole => *last += length,
        _ => parts.push((length, is_hole)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_status_reports_at_most_one_answer_of_extents() {
        let device = MemoryDevice::new(64 << 20);
        for page in 0..8192 {
            device.write(page * 8192, &[7; 4096]).expect("within the device");
        }
        let mut at = 0;
        while at < 64 << 20 {
            let parts = device.allocation(at..64 << 20);
            assert!((1..=PARTS_MAX + 1).contains(&parts.len()));
            for (length, is_hole) in parts {
                assert_eq!((length, is_hole), (4096, at % 8192 != 0));
                at += length;
            }
        }
        assert_eq!(data_ranges(&device, 0..64 << 20).count(), 8192);
    }

    #[test]
    fn a_search_for_data_skips_holes_of_many_windows() {
        let device = MemoryDevice::new(64 << 30);
        for at in [4096, 5 << 30, (5 << 30) + 4096, (64 << 30) - 100] {
            device.write(at, &[7; 100]).expect("within the device");
        }
        let end = 64 << 30;
        let found: Vec<_> = data_ranges(&device, 4100..end).collect();
        assert_eq!(found, [4100..8192, 5 << 30..(5 << 30) + 8192, end - 4096..end]);
        assert_eq!(data_ranges(&device, 8192..1 << 30).count(), 0);
    }
}
