//! The begin of a connection: the kernel offers a version and flags, the file system selects some.

use rustix::io::Errno;

use crate::{
    abi::{InitIn, InitMoreIn, InitOut, MAJOR, MINOR, MINOR_LEAST, init_flags},
    message::Arguments,
};

/// Bytes of a page, the unit of [`InitOut::max_pages`].
const PAGE_BYTES: u32 = 4096;

/// The kernel's init request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// Minor version of the kernel's protocol.
    pub minor: u32,
    /// Maximum length of the kernel's readahead, in bytes.
    pub max_readahead: u32,
    /// [Flags](init_flags) that the kernel offers.
    pub flags: u64,
}

/// The negotiated version and init flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Negotiated {
    /// Minor version of the kernel's protocol.
    pub minor: u32,
    /// [Flags](init_flags) that both sides have.
    pub flags: u64,
}

/// Limits of the requests of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Maximum payload of one request, in bytes.
    pub payload_bytes: u32,
    /// Maximum length of a read, in bytes. Together with the header it should fit a pipe, whose limit for
    /// unprivileged users is 1 MiB (pipe(7)).
    pub read_bytes: u32,
    /// Maximum number of background requests (`max_background`): requests for which no process waits.
    pub background: u16,
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits { payload_bytes: 1 << 20, read_bytes: 512 << 10, background: 64 }
    }
}

impl InitRequest {
    /// Parses the arguments of INIT.
    ///
    /// # Errors
    /// EINVAL if they are too short, EPROTO if the kernel is older than [`MINOR_LEAST`].
    pub fn parse(arguments: &mut Arguments<'_>) -> Result<InitRequest, Errno> {
        let InitIn { minor, max_readahead, flags, .. } = arguments.take()?;
        if minor < MINOR_LEAST {
            return Err(Errno::PROTO);
        }
        let mut flags = u64::from(flags);
        if flags & init_flags::INIT_EXT != 0 {
            flags |= u64::from(arguments.take::<InitMoreIn>()?.flags2) << 32;
        }
        Ok(InitRequest { minor, max_readahead, flags })
    }

    /// Selects the wanted flags from those that the kernel offers.
    #[must_use]
    pub fn negotiate(&self, wanted: u64) -> Negotiated {
        Negotiated { minor: self.minor, flags: self.flags & wanted }
    }

    /// Returns the answer to the request.
    #[must_use]
    pub fn answer(&self, negotiated: &Negotiated, limits: &RequestLimits) -> InitOut {
        InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: self.max_readahead.max(limits.payload_bytes),
            flags: negotiated.flags as u32,
            flags2: (negotiated.flags >> 32) as u32,
            max_background: limits.background,
            congestion_threshold: limits.background / 4 * 3,
            max_write: limits.payload_bytes,
            time_granularity_ns: 1,
            max_pages: u16::try_from(limits.payload_bytes / PAGE_BYTES).unwrap_or(u16::MAX),
            ..Default::default()
        }
    }
}

impl Negotiated {
    /// Returns true if both sides have all of these flags.
    #[must_use]
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an init request as a kernel of this minor version sends it.
    fn request(minor: u32, flags: u32, more: &[u32]) -> Result<InitRequest, Errno> {
        let words = [&[7, minor, 128 << 10, flags], more].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        InitRequest::parse(&mut Arguments(&bytes))
    }

    #[test]
    fn flags_that_the_kernel_does_not_offer_are_not_selected() {
        let offered = (init_flags::WRITEBACK_CACHE | 1 << 1) as u32;
        let wanted = init_flags::WRITEBACK_CACHE | init_flags::ASYNC_READ;
        assert_eq!(request(30, offered, &[]).unwrap().negotiate(wanted).flags, init_flags::WRITEBACK_CACHE);
    }

    #[test]
    fn init_requests_of_old_and_new_kernels_are_understood() {
        // The request has 16 bytes up to Linux 5.16 (7.35), and 64 since.
        for minor in [23, 31, 34, 35] {
            let InitRequest { max_readahead, flags, .. } = request(minor, 1 << 5, &[]).unwrap();
            assert_eq!((max_readahead, flags), (128 << 10, 1 << 5), "7.{minor}");
        }
        let mut more = [0; 12];
        more[0] = 1 << 3;
        let newest = request(45, init_flags::INIT_EXT as u32 | 1, &more).unwrap();
        assert_eq!(newest.flags, init_flags::INIT_EXT | 1 | 1 << 35);
        assert_eq!(request(36, 1, &more).unwrap().flags, 1, "flags that are not announced do not count");
        assert_eq!(request(36, init_flags::INIT_EXT as u32, &[]).err(), Some(Errno::INVAL));
        assert_eq!(request(22, 1, &[]).err(), Some(Errno::PROTO));
    }
}
