//! SELinux's file_contexts files: labels by path.
//!
//! A line is `REGEX [KIND] CONTEXT`. The expression must match the whole path from the root. KIND is one of
//! `--`, `-d`, `-c`, `-b`, `-p`, `-l`, `-s`. The context `<<none>>` leaves a file without a label. As in
//! libselinux, expressions without special characters take precedence over all others. Among the others, the
//! last match counts.

use std::cell::{Cell, OnceCell};

use f2fs::{Error, Result};
use regex::bytes::{Regex, RegexBuilder};

use crate::{Entry, Kind};

/// Name of the attribute that holds a label.
const SELINUX: &[u8] = b"security.selinux";
/// Magic number of compiled file_contexts (libselinux, `SELINUX_MAGIC_COMPILED_FCONTEXT`).
const COMPILED: [u8; 4] = 0xF97C_FF8A_u32.to_le_bytes();

/// Maximum size in bytes of a compiled expression of no length.
const COMPILED_BYTES_MIN: usize = 64 << 10;
/// Maximum size in bytes of a compiled expression for each of its bytes. It makes memory linear in the size of the
/// file, whatever its repetitions are.
const COMPILED_BYTES_PER_BYTE: usize = 1 << 10;
/// Smallest limit in bytes with which an expression is compiled. It doubles until the expression fits, so that the limit
/// tells its size.
const FIRST_LIMIT_BYTES: usize = 2 << 10;
/// Maximum size in bytes of the cache of a compiled expression.
const CACHE_BYTES: usize = 16 << 10;
/// Memory of a compiled expression in bytes beside its size and its cache (measured with regex 1.12: 10 KiB).
const FIXED_BYTES: usize = 10 << 10;
/// Maximum memory of all compiled expressions in bytes: those of 7,000 usual ones.
const ALL_BYTES_MAX: usize = 192 << 20;

/// A parsed file_contexts file.
#[derive(Debug, Default)]
pub struct FileContexts {
    /// The rules, in order of precedence.
    rules: Vec<Rule>,
    /// Memory of the compiled expressions in bytes, at most.
    compiled_bytes: Cell<usize>,
}

#[derive(Debug)]
struct Rule {
    pattern: String,
    /// Required start of a path: the pattern up to its first special character.
    stem: Vec<u8>,
    /// The expression, compiled when the first path with this stem arrives; None if the stem is the whole
    /// pattern.
    regex: Option<OnceCell<Regex>>,
    kind: Option<char>,
    context: Option<String>,
    line: usize,
}

impl FileContexts {
    /// Returns the text of a configuration file. Refuses compiled file_contexts, as made by
    /// sefcontext_compile.
    pub fn text(bytes: &[u8]) -> Result<&str> {
        if bytes.starts_with(&COMPILED) {
            let what = "compiled file_contexts; use the text file that sefcontext_compile compiled";
            return Err(Error::Invalid(what.into()));
        }
        std::str::from_utf8(bytes).map_err(|error| {
            Error::Invalid(format!("not a text in UTF-8, from byte {} on", error.valid_up_to()).into())
        })
    }

    /// Parses a file. An error names the malformed line. An expression that does not compile is an error only
    /// when a path first needs it.
    pub fn parse(text: &str) -> Result<FileContexts> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            rules.push(Rule::parse(line, number + 1).ok_or_else(|| {
                let wanted =
                    "expected a pattern, perhaps a kind (--, -d, -c, -b, -p, -l or -s), and a context";
                Error::Invalid(format!("file_contexts, line {}: {line:?}: {wanted}", number + 1).into())
            })?);
        }
        rules.reverse();
        rules.sort_by_key(|rule| rule.regex.is_some());
        Ok(FileContexts { rules, compiled_bytes: Cell::new(0) })
    }

    /// Returns the label of a path from the root (`/system/bin/sh`), if it has one.
    pub fn label(&self, path: &[u8], kind: &Kind) -> Result<Option<&str>> {
        let letter = letter(kind);
        for rule in self.rules.iter().filter(|rule| rule.kind.is_none() || rule.kind == letter) {
            if rule.matches(path, &self.compiled_bytes)? {
                return Ok(rule.context.as_deref());
            }
        }
        Ok(None)
    }

    /// Labels an entry. `path` is its path from the root.
    pub fn apply(&self, path: &[u8], entry: &mut Entry) -> Result<()> {
        if let Some(label) = self.label(path, &entry.kind)? {
            entry.meta.set_xattr(SELINUX, [label.as_bytes(), b"\0"].concat());
        }
        Ok(())
    }
}

/// Returns the letter of a kind in file_contexts. A hard link has none, because the first name of its file
/// was labelled.
fn letter(kind: &Kind) -> Option<char> {
    Some(match kind {
        Kind::File { .. } => '-',
        Kind::Directory => 'd',
        Kind::CharDevice(_) => 'c',
        Kind::BlockDevice(_) => 'b',
        Kind::Fifo => 'p',
        Kind::Symlink { .. } => 'l',
        Kind::Socket => 's',
        Kind::HardLink { .. } => return None,
    })
}

impl Rule {
    fn parse(line: &str, number: usize) -> Option<Rule> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (pattern, kind, context) = match words[..] {
            [pattern, context] => (pattern, None, context),
            [pattern, kind, context] => {
                let letter = kind.strip_prefix('-')?.chars().next()?;
                (pattern, Some(letter).filter(|letter| "-dcbpls".contains(*letter)), context)
            }
            _ => return None,
        };
        if words.len() == 3 && kind.is_none() {
            return None;
        }
        let (stem, special) = stem(pattern);
        Some(Rule {
            pattern: pattern.into(),
            stem,
            regex: special.then(OnceCell::new),
            kind,
            context: (context != "<<none>>").then(|| context.into()),
            line: number,
        })
    }

    /// Returns true if the rule is for a path. Adds the memory that it needs to `compiled_bytes`.
    fn matches(&self, path: &[u8], compiled_bytes: &Cell<usize>) -> Result<bool> {
        let Some(cell) = &self.regex else { return Ok(path == self.stem) };
        if !path.starts_with(&self.stem) {
            return Ok(false);
        }
        if let Some(regex) = cell.get() {
            return Ok(regex.is_match(path));
        }
        let (regex, bytes) = self.compiled()?;
        let all = compiled_bytes.get() + bytes;
        if all > ALL_BYTES_MAX {
            let what = format!(
                "with this expression, those for the paths so far need more than {} MiB; shorten the widest ones",
                ALL_BYTES_MAX >> 20
            );
            return Err(self.invalid(&what));
        }
        compiled_bytes.set(all);
        Ok(cell.get_or_init(|| regex).is_match(path))
    }

    /// Compiles the expression. Also returns its memory in bytes, at most.
    fn compiled(&self) -> Result<(Regex, usize)> {
        let most = COMPILED_BYTES_MIN + COMPILED_BYTES_PER_BYTE * self.pattern.len();
        // Paths are bytes, and `.` matches any byte.
        let mut builder = RegexBuilder::new(&format!("(?s-u)^(?:{})$", self.pattern));
        builder.dfa_size_limit(CACHE_BYTES);
        let mut limit = FIRST_LIMIT_BYTES.min(most);
        loop {
            match builder.size_limit(limit).build() {
                Ok(regex) => return Ok((regex, limit + CACHE_BYTES + FIXED_BYTES)),
                Err(regex::Error::CompiledTooBig(_)) if limit < most => limit = (2 * limit).min(most),
                Err(error) => return Err(self.invalid(&error)),
            }
        }
    }

    fn invalid(&self, what: &dyn std::fmt::Display) -> Error {
        Error::Invalid(format!("file_contexts, line {}: {what}", self.line).into())
    }
}

/// Returns the literal start of a pattern, unescaped, and true if special characters follow. A character made
/// optional by `?`, `*`, `+` or `{` is not part of the literal start. With a `|` at the outermost level the
/// literal start is empty.
fn stem(pattern: &str) -> (Vec<u8>, bool) {
    let bytes = pattern.as_bytes();
    let (mut stem, mut at, mut last) = (Vec::new(), 0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => match bytes.get(at + 1) {
                // Escaped letters and digits are classes and references.
                Some(next) if !next.is_ascii_alphanumeric() => {
                    last = stem.len();
                    stem.push(*next);
                    at += 2;
                }
                _ => return (without_alternatives(stem, &bytes[at..]), true),
            },
            b'?' | b'*' | b'+' | b'{' => {
                stem.truncate(last);
                return (without_alternatives(stem, &bytes[at..]), true);
            }
            b'.' | b'[' | b'(' | b')' | b']' | b'}' | b'^' | b'$' | b'|' => {
                return (without_alternatives(stem, &bytes[at..]), true);
            }
            _ => {
                last = stem.len();
                stem.push(*byte);
                at += 1;
            }
        }
    }
    (stem, false)
}

fn without_alternatives(stem: Vec<u8>, rest: &[u8]) -> Vec<u8> {
    let mut depth = 0;
    for byte in rest {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'|' if depth <= 0 => return Vec::new(),
            _ => {}
        }
    }
    stem
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Kind = Kind::File { size: 0, data: None };

    fn label(contexts: &str, path: &str, kind: &Kind) -> Option<String> {
        FileContexts::parse(contexts).unwrap().label(path.as_bytes(), kind).unwrap().map(String::from)
    }

    #[test]
    fn the_last_match_counts_but_whole_paths_take_precedence() {
        let contexts =
            "/bin/sh u:shell\n/.* u:root\n/bin(/.*)? u:bin\n/bin/[a-f].* u:early\n# x\n/dev/null <<none>>\n";
        for (path, expected) in [
            ("/bin/sh", Some("u:shell")),
            ("/bin", Some("u:bin")),
            ("/bin/zip", Some("u:bin")),
            ("/bin/cat", Some("u:early")),
            ("/other", Some("u:root")),
            ("/dev/null", None),
            ("/bin/sh2", Some("u:bin")),
        ] {
            assert_eq!(label(contexts, path, &FILE).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn a_kind_restricts_a_rule() {
        let contexts = "/x/.* any\n/x/.* -d dir\n/x/.* -- file\n/x/.* -l link";
        assert_eq!(label(contexts, "/x/a", &Kind::Directory).as_deref(), Some("dir"));
        assert_eq!(label(contexts, "/x/a", &FILE).as_deref(), Some("file"));
        assert_eq!(label(contexts, "/x/a", &Kind::Symlink { target: vec![] }).as_deref(), Some("link"));
        assert_eq!(label(contexts, "/x/a", &Kind::Fifo).as_deref(), Some("any"));
    }

    #[test]
    fn an_expression_whose_repetitions_need_much_memory_is_refused_with_its_line() {
        let contexts = FileContexts::parse("/a any\n/.*(.{1000}){100} any").unwrap();
        let error = contexts.label(b"/b", &FILE).unwrap_err().to_string();
        assert!(error.starts_with("file_contexts, line 2: ") && error.contains("size limit"), "{error}");
    }

    /// Each expression alone is small enough.
    #[test]
    fn expressions_that_need_much_memory_together_are_refused_with_a_line() {
        let line = |n: usize| format!("/.*[^a]{{400}}{n} any\n");
        let contexts = |lines: usize| FileContexts::parse(&(0..lines).map(line).collect::<String>()).unwrap();
        let few = contexts(100);
        assert_eq!(few.label(b"/b", &FILE).unwrap(), None);
        let each = few.compiled_bytes.get() / 100;
        let most = ALL_BYTES_MAX / each;
        assert_eq!(contexts(most).label(b"/b", &FILE).unwrap(), None);
        let error = contexts(most + 7).label(b"/b", &FILE).unwrap_err().to_string();
        // Later lines take precedence, so line 7 is the last that is compiled.
        assert!(error.starts_with("file_contexts, line 7: ") && error.contains("192 MiB"), "{error}");
    }

    #[test]
    fn every_match_begins_with_the_stem() {
        for (pattern, expected, special) in [
            ("/bin/sh", "/bin/sh", false),
            (r"/lib/x\.so", "/lib/x.so", false),
            (r"/lib/x\.so.*", "/lib/x.so", true),
            ("/ab?c", "/a", true),
            (r"/a\.*", "/a", true),
            ("/a|/b", "", true),
            ("/a(b|c)", "/a", true),
            (r"/a\d", "/a", true),
        ] {
            assert_eq!(stem(pattern), (expected.as_bytes().to_vec(), special), "{pattern}");
        }
        assert_eq!(label("/a|/b both", "/b", &FILE).as_deref(), Some("both"));
        assert_eq!(label("/ab?c x", "/ac", &FILE).as_deref(), Some("x"));
    }

    #[test]
    fn names_that_are_not_utf8_are_labelled_too() {
        let contexts = FileContexts::parse("/d/.* x").unwrap();
        assert_eq!(contexts.label(b"/d/\xff\xfe\n", &FILE).unwrap(), Some("x"));
    }

    #[test]
    fn the_compiled_form_is_refused_by_name() {
        let refused = |bytes: &[u8]| FileContexts::text(bytes).unwrap_err().to_string();
        assert!(refused(b"\x8A\xFF\x7C\xF9\x05\0\0\0").contains("sefcontext_compile"));
        assert!(refused(b"/x y\n\xFF").contains("byte 5"));
        assert_eq!(FileContexts::text(b"/x y\n").unwrap(), "/x y\n");
    }

    #[test]
    fn a_malformed_line_is_reported_with_its_number() {
        for text in ["/x", "/x -q c", "/x -- a b"] {
            let error = FileContexts::parse(&format!("/a b\n{text}")).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains("expected a pattern"), "{error}");
        }
        let bad = FileContexts::parse("/x(.* c").unwrap();
        assert!(bad.label(b"/xy", &FILE).unwrap_err().to_string().contains("line 1"));
    }
}
