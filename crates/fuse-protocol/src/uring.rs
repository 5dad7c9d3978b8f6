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

/// Returns the queues that the kernel wants, one for each possible processor, each with the state of its processor.
///
/// # Errors
/// Those of reading /sys.
pub fn queues() -> std::io::Result<Vec<Processor>> {
    let list = |name: &str| {
        let list = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}"))?;
        numbers(list.trim()).ok_or(std::io::Error::from(std::io::ErrorKind::InvalidData))
    };
    let online = list("online")?;
    let state = |number: &u16| match online.contains(number) {
        true => Processor::Online,
        false => Processor::Offline,
    };
    // The kernel numbers the queues from 0 on, and selects them by the number of the processor.
    Ok((0..list("possible")?.len() as u16).map(|number| state(&number)).collect())
}

/// State of a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processor {
    /// Programs run on it.
    Online,
    /// It could be added.
    Offline,
}

/// Returns the numbers in a list of processors such as `0-3,8`.
fn numbers(list: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        if first > last {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!([numbers("0"), numbers("0-1")], [Some(vec![0]), Some(vec![0, 1])]);
        assert_eq!(numbers("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!([numbers(""), numbers("3-1"), numbers("0-x")], [None, None, None]);
        let queues = queues().unwrap();
        assert!(queues.contains(&Processor::Online), "{queues:?}");
    }
}
