//! The text of a failure: the event, its causes, and advice.
//!
//! *Invariant*: only this file turns errors into text. Names in them are safe for a terminal, and errors of
//! the operating system have no number.

use std::io;

use anyhow::anyhow;
use f2fs::{Error, Place, printable};

use crate::notice;

/// Text before the number in an operating system error of `std`.
const OS_ERROR: &str = " (os error ";

/// Prints a failure on standard error.
pub fn tell(error: &anyhow::Error) {
    notice::write(&format!("flashkit: {}", text(error)));
}

/// Removes the numbers of operating system errors from a message and makes it safe for a terminal.
pub fn plain(message: &str) -> String {
    let mut parts = message.split(OS_ERROR);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        match part[digits..].strip_prefix(')') {
            Some(rest) if digits > 0 => plain += rest,
            _ => plain.extend([OS_ERROR, part]),
        }
    }
    printable::message(&plain).into_owned()
}

/// Formats an error with its causes and with advice, if there is any. A cause already contained in its
/// error's text is not repeated.
pub fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| plain(&cause.to_string())) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    match error.chain().find_map(|cause| advice(cause.downcast_ref()?)) {
        Some(advice) => format!("{text}\n{advice}"),
        None => text,
    }
}

/// Error of a verb that relies on the tables of a volume, for a damaged one. `risk` is what could happen.
pub fn damaged(risk: &str) -> anyhow::Error {
    anyhow!(
        "the volume is damaged, so {risk}; `flashkit fsck` tells more, and -y repairs it; nothing was changed"
    )
}

/// Returns advice for an error of the engine.
fn advice(error: &Error) -> Option<&'static str> {
    match error {
        // Most images are sparse files.
        Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => Some(
            "the disk that holds the image is full, not the volume; free space on that disk and try again",
        ),
        Error::NoSpace { .. } => {
            Some("free space in the volume (flashkit rm), or enlarge it (flashkit resize)")
        }
        // With most damage in these places the volume cannot be opened, so nothing can be exported.
        Error::Corrupt { at: Place::Superblock(_) | Place::Checkpoint(_), .. } => Some(
            "flashkit rescue saves the files, and flashkit fsck lists all damage and repairs it with -y if \
             possible; copy a truncated image again",
        ),
        Error::Corrupt { .. } => Some(
            "the volume is damaged: flashkit export -k saves all readable files, flashkit fsck lists all \
             damage, and repairs it with -y",
        ),
        Error::Lost { source, .. } => advice(source),
        Error::NoInodes => Some(
            "the size of a volume limits its number of files: remove some (flashkit rm), make a larger volume, or, from 512 GiB on, \
             make it with flashkit mkfs -i, which gives it more node numbers",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use f2fs::{format::BlockSize, units::Ino};

    use super::*;

    #[test]
    fn a_full_disk_below_is_not_a_full_volume() {
        let below = Error::Io { at: Place::Volume, source: io::ErrorKind::StorageFull.into() };
        let volume = Error::no_space(BlockSize::B4K, 512, 1);
        let text = |error: Error| text(&anyhow::Error::new(error).context("card.img"));
        assert!(text(below).ends_with("free space on that disk and try again"));
        let told = text(volume);
        let (what, advice) = told.split_once('\n').unwrap();
        assert_eq!(what, "card.img: no space left on the volume: 2.00 MiB needed, 4.00 KiB free");
        assert!(advice.contains("flashkit rm") && advice.contains("flashkit resize"), "{advice}");
        assert_eq!(text(Error::NotFound), "card.img: not found");
    }

    #[test]
    fn errors_of_the_system_have_no_numbers() {
        let cause = io::Error::from_raw_os_error(2);
        assert_eq!(text(&anyhow::Error::new(cause).context("a.img")), "a.img: No such file or directory");
        let cause = Error::Host { path: "a".into(), source: io::Error::from_raw_os_error(13) };
        assert_eq!(text(&anyhow::Error::new(cause)), "a: Permission denied");
        assert_eq!(
            plain("a (os error 5), then b (os error x) (os error "),
            "a, then b (os error x) (os error "
        );
    }

    #[test]
    fn names_are_safe_for_a_terminal() {
        let error = anyhow::anyhow!("not found").context("a\u{1b}]0;title\u{7}\nflashkit: fine\u{202e}");
        assert_eq!(text(&error), "a\\u{1b}]0;title\\u{7}\n  flashkit: fine\\u{202e}: not found");
    }

    #[test]
    fn advice_names_a_possible_action() {
        let told = |at: Place| text(&anyhow::Error::new(Error::corrupt(at, "it is cut off")));
        assert!(
            !told(Place::Superblock(0)).contains("export")
                && told(Place::Superblock(0)).contains("copy a truncated image again")
        );
        assert!(told(Place::Inode(Ino(5))).contains("flashkit export -k"));
    }
}
