//! Patterns of names and paths, compiled to regular expressions of bytes, since names need not be UTF-8.

use std::{iter::Peekable, str::Chars};

use regex::bytes::{Regex, RegexBuilder};

/// Grammars of patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// As in .gitignore: wildcards do not match a slash, `**` as a component matches any number of components,
    /// and braces enclose alternatives.
    Components,
    /// As in fnmatch(3) without flags: wildcards match slashes and leading dots, and braces stand for themselves.
    Fnmatch,
}

/// Distinction of upper and lower case, of ASCII letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Letters match only themselves.
    Sensitive,
    /// Letters match their other case, too.
    Insensitive,
}

/// A compiled pattern.
#[derive(Debug, Clone)]
pub struct Glob(Regex);

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The reason for which a pattern is malformed.
    pub fn new(pattern: &str, syntax: Syntax, case: Case) -> Result<Glob, String> {
        let mut builder = RegexBuilder::new(&expression(pattern, syntax)?);
        builder.unicode(false).case_insensitive(case == Case::Insensitive);
        builder.build().map(Glob).map_err(|error| error.to_string())
    }

    /// Returns true if the pattern matches all of a text.
    pub fn is_match(&self, text: impl AsRef<[u8]>) -> bool {
        self.0.is_match(text.as_ref())
    }
}

/// Returns the regular expression of a pattern.
///
/// # Errors
/// The reason for which a pattern is malformed.
pub(crate) fn expression(pattern: &str, syntax: Syntax) -> Result<String, String> {
    let mut parser =
        Parser { letters: pattern.chars().peekable(), last: None, depth: 0, out: String::new(), syntax };
    while let Some(letter) = parser.letters.next() {
        let before = parser.last.replace(letter);
        parser.letter(letter, before)?;
    }
    if parser.depth > 0 {
        return Err("an opening brace has no closing one".into());
    }
    Ok(format!(r"(?s-u)\A(?:{})\z", parser.out))
}

struct Parser<'a> {
    letters: Peekable<Chars<'a>>,
    /// The letter that was read last.
    last: Option<char>,
    /// Number of open braces.
    depth: u32,
    out: String,
    syntax: Syntax,
}

impl Parser<'_> {
    fn letter(&mut self, letter: char, before: Option<char>) -> Result<(), String> {
        let has_braces = self.syntax == Syntax::Components;
        match letter {
            '\\' => {
                let escaped = self.letters.next().ok_or("a backslash at the end escapes nothing")?;
                self.literal(escaped);
            }
            '*' => self.star(before),
            '?' => self.out.push_str(if has_braces { "[^/]" } else { "." }),
            '[' => self.class()?,
            '{' if has_braces => {
                self.depth += 1;
                self.out.push_str("(?:");
            }
            ',' if self.depth > 0 => self.out.push('|'),
            '}' if has_braces => {
                self.depth = self.depth.checked_sub(1).ok_or("a closing brace has no opening one")?;
                self.out.push(')');
            }
            other => self.literal(other),
        }
        Ok(())
    }

    fn literal(&mut self, letter: char) {
        for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
            self.out.push_str(&format!(r"\x{byte:02x}"));
        }
    }

    /// Adds the expression of a star and those directly behind it.
    fn star(&mut self, before: Option<char>) {
        let mut stars = 1;
        while self.letters.next_if_eq(&'*').is_some() {
            stars += 1;
        }
        if self.syntax == Syntax::Fnmatch {
            self.out.push_str(".*");
            return;
        }
        let starts = matches!(before, None | Some('/'));
        match self.letters.peek() {
            Some('/') if stars == 2 && starts => {
                // The slash belongs to the components, of which there may be none.
                self.last = self.letters.next();
                self.out.push_str("(?:.*/)?");
            }
            None if stars == 2 && starts => self.out.push_str(".+"),
            _ => self.out.push_str("[^/]*"),
        }
    }

    /// Adds the expression of a class, whose opening bracket was read.
    fn class(&mut self) -> Result<(), String> {
        let unclosed = "a class has no closing bracket";
        let negated = self.letters.next_if(|next| matches!(next, '!' | '^')).is_some();
        let mut ranges = Vec::new();
        loop {
            let first = match self.letters.next().ok_or(unclosed)? {
                ']' if !ranges.is_empty() => break,
                first => first,
            };
            let mut ahead = self.letters.clone();
            let last = match (ahead.next(), ahead.next()) {
                (Some('-'), Some(last)) if last != ']' => {
                    self.letters = ahead;
                    last
                }
                _ => first,
            };
            if last < first {
                return Err(format!("the range {first}-{last} has the wrong order"));
            }
            ranges.push((first, last));
        }
        // Letters of several bytes are not folded: the program has no tables for that.
        let mode = if ranges.iter().all(|range| range.1.is_ascii()) { "" } else { "u-i" };
        self.out.push_str(&format!("(?{mode}:[[{}", if negated { "^" } else { "" }));
        for (first, last) in ranges {
            self.out.push_str(&format!(r"\x{{{:x}}}-\x{{{:x}}}", u32::from(first), u32::from(last)));
        }
        // No class of a component has the slash.
        self.out.push_str(if self.syntax == Syntax::Components { "]&&[^/]])" } else { "]])" });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, syntax: Syntax, text: &[u8]) -> bool {
        Glob::new(pattern, syntax, Case::Sensitive).unwrap().is_match(text)
    }

    #[test]
    fn wildcards_of_components_do_not_match_slashes() {
        for (pattern, inside, outside) in [
            ("a*c", &["ac", "abc"][..], &["a/c", "ab"][..]),
            ("a?c", &["abc"], &["a/c", "ac"]),
            ("a[!b]c", &["axc", "a\nc"], &["a/c", "abc"]),
            ("a[+-0]c", &["a.c"], &["a/c"]),
            ("**/a", &["a", "b/a", "c/b/a"], &["ba", "b/ca"]),
            ("**/**/a", &["a", "b/a"], &["ba"]),
            ("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["ab", "a/xb"]),
            ("a/**", &["a/b", "a/b/c"], &["a", "a/"]),
            ("a**b", &["ab", "axb"], &["a/b"]),
            ("a***", &["a", "ab"], &["a/b"]),
            ("{a,b{c,d}}e", &["ae", "bce", "bde"], &["be", "{a,bc}e"]),
            ("a{,.txt}", &["a", "a.txt"], &["a."]),
            ("a,b", &["a,b"], &["a"]),
            (r"\*\{a\}", &["*{a}"], &["x{a}"]),
            ("[]a]x", &["]x", "ax"], &["x"]),
            (r"[\]x", &[r"\x"], &["x"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("a.+(|)^$", &["a.+(|)^$"], &["ab"]),
        ] {
            for text in inside {
                assert!(matches(pattern, Syntax::Components, text.as_bytes()), "{pattern} matches {text:?}");
            }
            for text in outside {
                assert!(
                    !matches(pattern, Syntax::Components, text.as_bytes()),
                    "{pattern} does not match {text:?}"
                );
            }
        }
    }

    #[test]
    fn wildcards_of_fnmatch_match_slashes_and_braces_are_letters() {
        for pattern in ["a*c", "a**c", "a?c", "a[!b]c", "a[/]c"] {
            assert!(matches(pattern, Syntax::Fnmatch, b"a/c"), "{pattern}");
        }
        assert!(matches("{a,b}", Syntax::Fnmatch, b"{a,b}") && !matches("{a,b}", Syntax::Fnmatch, b"a"));
    }

    #[test]
    fn names_are_bytes_and_letters_of_classes_may_have_several() {
        assert!(
            matches("*.o", Syntax::Components, b"\xff\xfe.o") && matches("?", Syntax::Components, b"\xff")
        );
        assert!(matches("ä*", Syntax::Components, "äb".as_bytes()));
        assert!(matches("[ä-ü]", Syntax::Components, "ö".as_bytes()));
        assert!(!matches("[ä-ü]", Syntax::Components, b"\xc3"));
    }

    #[test]
    fn case_is_ignored_on_request() {
        for pattern in ["readme*", "[q-s]EADme.TXT"] {
            let glob = Glob::new(pattern, Syntax::Fnmatch, Case::Insensitive).unwrap();
            assert!(glob.is_match(b"README.txt"), "{pattern}");
            assert!(!matches(pattern, Syntax::Fnmatch, b"README.txt"), "{pattern}");
        }
        let glob = Glob::new("[ä]A", Syntax::Fnmatch, Case::Insensitive).unwrap();
        assert!(glob.is_match("äa".as_bytes()) && !glob.is_match("Äa".as_bytes()));
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for pattern in ["[a", "[", "[]", "[!]", "{a", "a}", "[z-a]", "a\\"] {
            assert!(Glob::new(pattern, Syntax::Components, Case::Sensitive).is_err(), "{pattern}");
        }
    }
}
