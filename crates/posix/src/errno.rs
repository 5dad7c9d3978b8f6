//! Mapping from errors to errnos.

use std::io;

pub use rustix::io::Errno;

/// Returns the errno for an error of the engine.
pub fn of(error: &f2fs::Error) -> Errno {
    use f2fs::Error as E;
    match error {
        // Linux's EFSCORRUPTED.
        E::Corrupt { .. } | E::NotF2fs(_) => Errno::UCLEAN,
        E::Io { source, .. } | E::Host { source, .. } => of_device(source),
        E::Unsupported(_) | E::NoNonces => Errno::OPNOTSUPP,
        E::NoSpace { .. } | E::NoInodes => Errno::NOSPC,
        E::Quota => Errno::DQUOT,
        E::ReadOnly(_) => Errno::ROFS,
        E::Invalid(_) => Errno::INVAL,
        E::OtherProject | E::OtherPolicy => Errno::XDEV,
        E::NotFound => Errno::NOENT,
        E::NoAttribute => Errno::NODATA,
        E::AttributeTooLarge => Errno::TOOBIG,
        E::Exists => Errno::EXIST,
        E::NotDirectory => Errno::NOTDIR,
        E::IsDirectory => Errno::ISDIR,
        E::NotEmpty => Errno::NOTEMPTY,
        E::NameTooLong => Errno::NAMETOOLONG,
        E::FileTooLarge => Errno::FBIG,
        E::TooManySymlinks => Errno::LOOP,
        E::TooManyLinks => Errno::MLINK,
        E::NotPermitted => Errno::PERM,
        E::NoKey | E::OtherKey(_) | E::UnusableKey(_) => Errno::NOKEY,
        _ => Errno::IO,
    }
}

/// Returns the errno for an I/O error of the device: ENOSPC, EFBIG or EIO.
pub fn of_device(error: &io::Error) -> Errno {
    of_failure(error.kind())
}

/// Returns the errno for a kind of I/O errors of the device.
pub fn of_failure(kind: io::ErrorKind) -> Errno {
    match kind {
        // The image is sparse and the host's file system is full.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Errno::NOSPC,
        // The image reaches beyond the file size limit of this process (`RLIMIT_FSIZE`).
        io::ErrorKind::FileTooLarge => Errno::FBIG,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use f2fs::Place;

    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_errno() {
        let io = |kind: io::ErrorKind| f2fs::Error::Io { at: Place::Volume, source: kind.into() };
        assert_eq!(of(&f2fs::Error::corrupt(Place::Volume, "x")), Errno::UCLEAN);
        assert_eq!(of(&io(io::ErrorKind::UnexpectedEof)), Errno::IO);
        assert_eq!(of(&io(io::ErrorKind::StorageFull)), Errno::NOSPC);
        assert_eq!(of(&io(io::ErrorKind::FileTooLarge)), Errno::FBIG);
        assert_eq!(of(&f2fs::Error::NotEmpty), Errno::NOTEMPTY);
        assert_eq!(of(&f2fs::Error::ReadOnly("x".into())), Errno::ROFS);
        assert_eq!(of(&f2fs::Error::NoKey), Errno::NOKEY);
        assert_eq!(of(&f2fs::Error::UnusableKey("x".into())), Errno::NOKEY);
        assert_eq!(of(&f2fs::Error::OtherPolicy), Errno::XDEV);
        assert_eq!(of(&f2fs::Error::AttributeTooLarge), Errno::TOOBIG);
    }
}
