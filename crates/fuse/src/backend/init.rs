//! The init flags of the mount.

use fuse_protocol::{InitRequest, abi::init_flags};

use super::WriteCaching;
use crate::Reads;

/// Init flags to negotiate if the kernel offers them.
const WANTED_FLAGS: u64 = init_flags::ASYNC_READ
    | init_flags::ATOMIC_O_TRUNC
    | init_flags::EXPORT_SUPPORT
    | init_flags::BIG_WRITES
    | init_flags::DONT_MASK
    | init_flags::HAS_IOCTL_DIR
    | init_flags::DO_READDIRPLUS
    | init_flags::READDIRPLUS_AUTO
    | init_flags::ASYNC_DIO
    | init_flags::WRITEBACK_CACHE
    | init_flags::PARALLEL_DIROPS
    | init_flags::POSIX_ACL
    | init_flags::MAX_PAGES
    | init_flags::CACHE_SYMLINKS
    | init_flags::NO_OPENDIR_SUPPORT
    | init_flags::HANDLE_KILLPRIV_V2
    | init_flags::SETXATTR_EXT
    | init_flags::INIT_EXT
    | init_flags::DIRECT_IO_ALLOW_MMAP;

/// Lifetime of the names in a directory and of the targets of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// They stay until a request changes them.
    Lasting,
    /// They change with the keys of the volume.
    Encrypted,
}

/// Returns the flags to negotiate with a kernel.
pub fn flags(request: &InitRequest, caching: WriteCaching, names: Names, reads: Reads) -> u64 {
    let mut flags = WANTED_FLAGS;
    if reads == Reads::Foreground {
        flags &= !(init_flags::ASYNC_READ | init_flags::ASYNC_DIO);
    }
    if names == Names::Encrypted {
        // The kernel would keep listings and targets from before a key was added or removed.
        flags &= !(init_flags::CACHE_SYMLINKS | init_flags::NO_OPENDIR_SUPPORT);
    }
    if caching == WriteCaching::Bypassed {
        // With WRITEBACK_CACHE the kernel maintains times and sizes, also for writes that bypass its
        // cache, whose changes it would miss. With ATOMIC_O_TRUNC a truncating open does not wait for
        // mapped pages under write-back (`fuse_open`), so their data would reappear after it; a
        // truncation by SETATTR waits.
        flags &= !(init_flags::WRITEBACK_CACHE | init_flags::ATOMIC_O_TRUNC);
    }
    if request.flags & init_flags::HANDLE_KILLPRIV_V2 == 0 {
        // Without this flag a truncating open does not tell us to drop the set-user-id bits; a truncation
        // by SETATTR does.
        flags &= !init_flags::ATOMIC_O_TRUNC;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_truncates_only_where_the_cache_and_the_set_user_id_bits_allow_it() {
        let flags = |flags, caching| flags_of(request(flags), caching, Names::Lasting);
        assert_eq!(flags(u64::MAX, WriteCaching::WriteBack), WANTED_FLAGS);
        let direct = WANTED_FLAGS & !(init_flags::WRITEBACK_CACHE | init_flags::ATOMIC_O_TRUNC);
        assert_eq!(flags(u64::MAX, WriteCaching::Bypassed), direct);
        let without_kill = flags(!init_flags::HANDLE_KILLPRIV_V2, WriteCaching::WriteBack);
        assert_eq!(without_kill & init_flags::ATOMIC_O_TRUNC, 0, "the set-user-id bits would stay");
    }

    #[test]
    fn listings_and_targets_of_links_are_not_cached_if_they_change_with_keys() {
        let negotiated = flags_of(request(u64::MAX), WriteCaching::WriteBack, Names::Encrypted);
        assert_eq!(negotiated & (init_flags::CACHE_SYMLINKS | init_flags::NO_OPENDIR_SUPPORT), 0);
    }

    #[test]
    fn reads_of_a_mount_with_sync_read_are_no_background_requests() {
        let wanted = |reads| flags(&request(u64::MAX), WriteCaching::WriteBack, Names::Lasting, reads);
        let background = init_flags::ASYNC_READ | init_flags::ASYNC_DIO;
        assert_eq!(wanted(Reads::Background) & !wanted(Reads::Foreground), background);
    }

    fn request(flags: u64) -> InitRequest {
        InitRequest { minor: 36, max_readahead: 0, flags }
    }

    fn flags_of(request: InitRequest, caching: WriteCaching, names: Names) -> u64 {
        request.negotiate(flags(&request, caching, names, Reads::Background)).flags
    }
}
