//! Names that mean the same thing on Windows as in a volume.

/// Characters that Windows gives a meaning: separators, streams, wildcards, redirections.
const SPECIAL: &[char] = &['<', '>', ':', '"', '/', '\\', '|', '?', '*'];

/// Names of devices, in every directory and with every extension (Microsoft, "Naming Files, Paths, and Namespaces").
const DEVICES: &[&str] = &["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// Names of devices that a digit completes.
const NUMBERED_DEVICES: &[&str] = &["COM", "LPT"];

/// Returns a name of a volume as one of Windows, or the reason for which no entry can have it.
pub(super) fn checked(name: &[u8]) -> Result<&str, &'static str> {
    let name =
        std::str::from_utf8(name).map_err(|_| "names of Windows are Unicode, and this one is not UTF-8")?;
    if name.contains(SPECIAL) {
        return Err("Windows gives a meaning to one of < > : \" / \\ | ? * in the name");
    }
    if name.contains(|character: char| character.is_ascii_control()) {
        return Err("names of Windows have no control characters");
    }
    if name.is_empty() || name.ends_with(['.', ' ']) {
        return Err("Windows drops dots and spaces at the end of a name");
    }
    if is_device(name) {
        return Err("the name denotes a device on Windows");
    }
    Ok(name)
}

/// Returns true if programs of Windows open a device by this name. The extension, and spaces before it, do not count.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end_matches(' ');
    let is_numbered = |device: &&str| {
        let digit = stem.get(..device.len()).filter(|start| start.eq_ignore_ascii_case(device));
        // Superscript digits of Latin-1 count as well.
        digit.is_some()
            && matches!(
                &stem[device.len()..],
                "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³"
            )
    };
    DEVICES.iter().any(|device| stem.eq_ignore_ascii_case(device)) || NUMBERED_DEVICES.iter().any(is_numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_meaning_on_windows_are_refused() {
        for name in [
            "C:",
            "c:x",
            "a:stream",
            "a::$DATA",
            "..\\x",
            "\\\\host\\share",
            "a/b",
            "a\\b",
            "\\",
            "a?",
            "a*",
            "<a",
            "a>",
            "a|b",
            "\"a\"",
            "a\u{1}",
            "a\n",
            "a\u{7f}",
            "a.",
            "a ",
            ".",
            "..",
            "...",
            " ",
            "",
            "NUL",
            "nul",
            "NUL.txt",
            "nul .txt",
            "con",
            "Con.tar.gz",
            "aux",
            "PRN",
            "com1",
            "COM9.x",
            "lpt0",
            "LPT³",
            "com¹.log",
            "conin$",
            "CONOUT$",
        ] {
            assert!(checked(name.as_bytes()).is_err(), "{name:?}");
        }
        assert!(checked(b"\xff").is_err());
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for name in [
            "a", ".profile", "a.b.c", "a b", " a", "nul_", "null", "console", "com", "com10", "comx", "lpt",
            "lptä", "co", "C", "c-", "ä", "日本", "a$b", "~", "PROGRA~1", "con-1", "xnul.txt", "com¹¹",
        ] {
            assert_eq!(checked(name.as_bytes()), Ok(name), "{name:?}");
        }
    }
}
