//! Names and messages as text that is safe for a terminal or a log.
//!
//! *Invariant*: the text contains no control characters (C0, DEL, C1), and no characters that change the
//! direction of text or break a line. So an image cannot move the cursor, set colours, forge lines or
//! disguise a name as another.

use std::borrow::Cow;

/// Formats a name, path or label: UTF-8 unchanged, except that unsafe characters and backslashes are escaped,
/// as are bytes that are not UTF-8. No two names give the same text.
#[must_use]
pub fn name(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c == '\\' || is_unsafe(c)) => Cow::Borrowed(text),
        _ => {
            let mut escaped = String::with_capacity(bytes.len() + 8);
            for chunk in bytes.utf8_chunks() {
                chunk.valid().chars().for_each(|c| match c {
                    '\\' => escaped.extend(c.escape_default()),
                    c => push(&mut escaped, c),
                });
                for byte in chunk.invalid() {
                    escaped += &format!("\\x{byte:02x}");
                }
            }
            Cow::Owned(escaped)
        }
    }
}

/// Formats a path inside a volume like [`name`]; the empty path of the root becomes `/`.
#[must_use]
pub fn path(bytes: &[u8]) -> Cow<'_, str> {
    if bytes.is_empty() { "/".into() } else { name(bytes) }
}

/// Formats a message that may quote names: escapes unsafe characters. Line breaks stay, and the following
/// line is indented, so that it cannot pass for a separate message.
pub fn message(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => escaped += "\n  ",
            c => push(&mut escaped, c),
        }
    }
    Cow::Owned(escaped)
}

/// Formats the output of a program in lines: escapes unsafe characters and bytes that are not UTF-8. Line breaks and tabs
/// stay.
#[must_use]
pub fn lines(bytes: &[u8]) -> Cow<'_, str> {
    let must_escape = |c: char| !matches!(c, '\n' | '\t') && is_unsafe(c);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(must_escape) => Cow::Borrowed(text),
        _ => {
            let mut escaped = String::with_capacity(bytes.len() + 8);
            for chunk in bytes.utf8_chunks() {
                chunk.valid().chars().for_each(|c| match must_escape(c) {
                    true => escaped.extend(c.escape_default()),
                    false => escaped.push(c),
                });
                for byte in chunk.invalid() {
                    escaped += &format!("\\x{byte:02x}");
                }
            }
            Cow::Owned(escaped)
        }
    }
}

/// Escapes unsafe characters in JSON text, which keeps its meaning: they can only be in strings. Line breaks between
/// values stay.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    // JSON itself escapes the control characters of ASCII, except DEL.
    let must_escape = |c: char| is_unsafe(c) && (c == '\u{7f}' || !c.is_ascii());
    if !text.chars().any(must_escape) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match must_escape(c) {
            // All of them have 16 bits.
            true => escaped += &format!("\\u{:04x}", u32::from(c)),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// Adds a character, escaped if it is unsafe.
fn push(text: &mut String, c: char) {
    if is_unsafe(c) { text.extend(c.escape_default()) } else { text.push(c) }
}

/// Returns true if a terminal or log may interpret a character instead of showing it.
fn is_unsafe(c: char) -> bool {
    match c {
        // Marks, embeddings, overrides and isolates of bidirectional text (Unicode Standard Annex 9).
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        // Separators of lines and paragraphs.
        '\u{2028}' | '\u{2029}' => true,
        c => c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_of_names_are_escaped() {
        for (bytes, text) in [
            ("grün 文".as_bytes(), "grün 文"),
            (b"a\x1b[2J\xffb\n", r"a\u{1b}[2J\xffb\n"),
            (b"back\\slash", r"back\\slash"),
            ("\u{7f}\u{9b}31m".as_bytes(), r"\u{7f}\u{9b}31m"),
            ("txt.\u{202e}exe".as_bytes(), r"txt.\u{202e}exe"),
            (
                "\u{2067}a\u{2069}\u{200f}\u{61c}\u{2028}".as_bytes(),
                r"\u{2067}a\u{2069}\u{200f}\u{61c}\u{2028}",
            ),
        ] {
            assert_eq!(name(bytes), text);
        }
    }

    #[test]
    fn unsafe_characters_in_json_are_escaped_and_keep_their_meaning() {
        let text = "{\n  \"grün\": \"a\\n\u{7f}\u{9b}31m\u{202e}\"\n}";
        assert_eq!(json(text), "{\n  \"grün\": \"a\\n\\u007f\\u009b31m\\u202e\"\n}");
        assert!(matches!(json("[\n\"文\"\n]"), Cow::Borrowed(_)));
    }

    #[test]
    fn lines_and_columns_of_output_stay() {
        assert!(matches!(lines("a\tb\ngrün\\".as_bytes()), Cow::Borrowed(_)));
        assert_eq!(lines(b"a\x1b[2J\xff\tb\r\n"), "a\\u{1b}[2J\\xff\tb\\r\n");
    }

    #[test]
    fn messages_keep_their_lines_and_nothing_else() {
        assert_eq!(message("plain, with a \\"), "plain, with a \\");
        assert_eq!(
            message("a\x1b]0;t\x07\nflashkit: fine\u{202e}"),
            "a\\u{1b}]0;t\\u{7}\n  flashkit: fine\\u{202e}"
        );
    }
}
