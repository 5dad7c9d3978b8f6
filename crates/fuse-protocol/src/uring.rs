//! FUSE over io_uring: the parts that exchange requests and answers with the kernel (Linux 6.14,
//! `Documentation/filesystems/fuse/fuse-io-uring.rst`).

mod deferral;
// Without a ring nothing lends its buffers.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")),
    allow(dead_code)
)]
mod entry;
mod memory;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")),
    path = "uring/no_ring.rs"
)]
mod ring;

pub use deferral::{Deferrals, Slot};
pub use entry::Entry;
pub use memory::Region;
pub use ring::{Refused, Ring};

/// Returns the number of queues that the kernel wants: one for each possible processor.
///
/// # Errors
/// Those of reading /sys.
pub fn queues() -> std::io::Result<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(list.trim()).ok_or(std::io::ErrorKind::InvalidData.into())
}

/// Returns the number of processors in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        Some(usize::from(last.checked_sub(first)?) + 1)
    };
    list.split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_a_list_are_counted() {
        assert_eq!([count("0"), count("0-1"), count("0-3,8,10-11")], [Some(1), Some(2), Some(7)]);
        assert_eq!([count(""), count("3-1"), count("0-x")], [None; 3]);
    }
}
