//! Patterns of entries that are left out of a tree.
//!
//! A pattern without a slash is compared with the name of each entry, at any depth. A pattern with a slash at its
//! start or in its middle is compared with the path from the root of the tree. A slash at the end restricts a pattern
//! to directories. A directory is left out with everything in it. The root itself always stays.

use f2fs::{Error, Result};
use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use regex::bytes::RegexSet;

use crate::{Kind, path::split};

/// Kinds of entries that patterns distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A directory, which can have entries of its own.
    Directory,
    /// Any other entry.
    Leaf,
}

impl From<&Kind> for Role {
    fn from(kind: &Kind) -> Role {
        if *kind == Kind::Directory { Role::Directory } else { Role::Leaf }
    }
}

/// A set of patterns. See the module.
#[derive(Debug, Clone, Default)]
pub struct Exclusion {
    /// Patterns for entries of any kind.
    any: Patterns,
    /// Patterns for directories only.
    directories: Patterns,
}

#[derive(Debug, Clone, Default)]
struct Patterns {
    names: GlobSet,
    paths: GlobSet,
    /// Patterns of paths with classes, which `GlobSet` compares with slashes, too.
    paths_with_classes: RegexSet,
}

impl Patterns {
    fn new(names: Vec<Glob>, paths: Vec<Glob>) -> Result<Patterns> {
        let failed = |error: &dyn std::fmt::Display| Error::Invalid(format!("the patterns: {error}").into());
        let set = |globs: Vec<Glob>| {
            let mut set = GlobSetBuilder::new();
            for glob in globs {
                set.add(glob);
            }
            set.build().map_err(|error| failed(&error))
        };
        let (with_classes, others): (Vec<_>, Vec<_>) =
            paths.into_iter().partition(|glob| glob.glob().contains('['));
        let with_classes = with_classes.iter().map(|glob| without_slashes_in_classes(glob.regex()));
        let paths_with_classes = RegexSet::new(with_classes).map_err(|error| failed(&error))?;
        Ok(Patterns { names: set(names)?, paths: set(others)?, paths_with_classes })
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.paths.is_empty() && self.paths_with_classes.is_empty()
    }

    fn has(&self, path: &[u8]) -> bool {
        self.names.is_match_candidate(&Candidate::from_bytes(split(path).1))
            || self.paths.is_match_candidate(&Candidate::from_bytes(path))
            || self.paths_with_classes.is_match(path)
    }
}

/// Keeps slashes out of the classes of the regular expression that a pattern became: there, as in a shell, `[!a]` matches
/// no slash.
fn without_slashes_in_classes(regex: &str) -> String {
    let (mut kept, mut is_class, mut letters) = (String::new(), false, regex.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => {
                kept.push(letter);
                kept.extend(letters.next());
            }
            '[' if !is_class => {
                is_class = true;
                kept.push_str("[[");
            }
            ']' if is_class => {
                is_class = false;
                kept.push_str("]&&[^/]]");
            }
            _ => kept.push(letter),
        }
    }
    kept
}

impl Exclusion {
    /// Makes a set of these patterns.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a pattern that is malformed or can match nothing.
    pub fn new(patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Exclusion> {
        // Names and paths, of any kind and of directories.
        let mut sets = [const { [const { Vec::new() }; 2] }; 2];
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let bare = pattern.strip_prefix("./").unwrap_or(pattern);
            let of_directories = bare.len() > 1 && bare.ends_with('/');
            let bare = if of_directories { &bare[..bare.len() - 1] } else { bare };
            let is_path = bare.contains('/');
            let bare = bare.strip_prefix('/').unwrap_or(bare);
            if bare.split('/').any(|name| matches!(name, "" | "." | "..")) {
                return Err(invalid(pattern, "it matches no entry of a tree"));
            }
            let glob = GlobBuilder::new(bare).literal_separator(true).backslash_escape(true).build();
            let glob = glob.map_err(|error| invalid(pattern, &error.kind().to_string()))?;
            sets[usize::from(of_directories)][usize::from(is_path)].push(glob);
        }
        let [any, directories] = sets.map(|[names, paths]| Patterns::new(names, paths));
        Ok(Exclusion { any: any?, directories: directories? })
    }

    /// Returns the patterns in a text, one per line, without empty lines and lines that begin with `#`.
    pub fn lines(text: &str) -> impl Iterator<Item = &str> {
        let lines = text.lines().map(|line| line.strip_suffix('\r').unwrap_or(line));
        lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
    }

    /// Returns true if there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.directories.is_empty()
    }

    /// Returns true if a pattern matches an entry itself, not a directory above it.
    pub(crate) fn matches(&self, path: &[u8], role: Role) -> bool {
        !path.is_empty() && (self.any.has(path) || role == Role::Directory && self.directories.has(path))
    }

    /// Returns true if a pattern matches an entry or a directory above it.
    pub(crate) fn covers(&self, path: &[u8], role: Role) -> bool {
        if self.is_empty() {
            return false;
        }
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        self.matches(path, role)
            || slashes.into_iter().any(|(slash, _)| self.matches(&path[..slash], Role::Directory))
    }
}

fn invalid(pattern: &str, why: &str) -> Error {
    Error::Invalid(format!("pattern {pattern:?}: {why}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(patterns: &[&str], path: &[u8]) -> bool {
        let (path, role) = match path.strip_suffix(b"/") {
            Some(path) => (path, Role::Directory),
            None => (path, Role::Leaf),
        };
        Exclusion::new(patterns).unwrap().covers(path, role)
    }

    #[test]
    fn patterns_match_names_or_anchored_paths() {
        for (pattern, inside, outside) in [
            ("*.o", &["a.o", "src/a.o", "x.o/file"][..], &["a.oo", "o", ".o/"][..0]),
            (".git", &[".git/", "a/.git/config", "sub/.git"], &["x.git", ".gitignore"]),
            ("/tmp", &["tmp/", "tmp", "tmp/x"], &["a/tmp"]),
            ("var/cache/*", &["var/cache/apt/", "var/cache/apt/x"], &["var/cache/", "usr/var/cache/x"]),
            ("./boot", &["boot", "boot/x"], &["boots", "xboot"]),
            ("cache/", &["cache/", "a/cache/x"], &["cache", "a/cache"]),
            ("/usr/share/doc/", &["usr/share/doc/", "usr/share/doc/a"], &["usr/share/doc"]),
            ("usr/*/doc", &["usr/share/doc"], &["usr/a/b/doc", "usr/doc"]),
            ("**/doc/*.txt", &["doc/a.txt", "a/b/doc/c.txt"], &["doc/a/b.txt"]),
            ("etc/**", &["etc/a", "etc/a/b"], &["etc/"]),
            ("[a-c]?", &["b1", "x/c."], &["d1", "abc"]),
            ("[!a]", &["b"], &["a"]),
            ("x[!a]y", &["x"; 0], &["x/y"]),
            ("a/x[!a]y", &["a/xby", "a/x-y/z"], &["a/x/y", "a/xay"]),
            ("a/[^b]/c*", &["a/x/cc"], &["a///cc", "a/b/cc"]),
            ("a/x[+-9]y", &["a/x5y", "a/x.y"], &["a/x/y", "a/x:y"]),
            ("a/x[]-a[&!^]y", &["a/x]y", "a/x_y", "a/x[y", "a/x&y"], &["a/x/y", "a/x-y"]),
            (r"a/\[!a]", &["a/[!a]"], &["a/b"]),
            ("**/x[!a]y/", &["b/c/x.y/"], &["b/x/y/"]),
            ("*.", &["end."], &["end"]),
            ("*", &[".hidden", "a"], &[]),
            (r"\*", &["*"], &["a"]),
            ("{a,b}.c", &["a.c", "x/b.c"], &["{a,b}.c"]),
        ] {
            for path in inside {
                assert!(left_out(&[pattern], path.as_bytes()), "{pattern} leaves out {path}");
            }
            for path in outside {
                assert!(!left_out(&[pattern], path.as_bytes()), "{pattern} keeps {path}");
            }
        }
    }

    #[test]
    fn names_need_not_be_utf_8() {
        assert!(left_out(&["*.o"], b"\xff\xfe.o") && left_out(&["a*b"], b"a\xffb"));
        assert!(!left_out(&["*.o"], b"\xff\xfe"));
    }

    #[test]
    fn the_root_stays_whatever_matches() {
        assert!(!Exclusion::new(["*"]).unwrap().covers(b"", Role::Directory));
    }

    #[test]
    fn several_patterns_add_up_and_none_leave_out_nothing() {
        assert!(left_out(&["a", "b"], b"b") && !left_out(&[], b"b"));
        assert!(Exclusion::new([""; 0]).unwrap().is_empty());
    }

    #[test]
    fn patterns_that_can_match_nothing_are_refused() {
        for pattern in ["", "/", "//", "a//b", "../x", "a/./b", "[a", "a/..", "{a"] {
            let error = Exclusion::new([pattern]).unwrap_err().to_string();
            assert!(error.contains(&format!("pattern {pattern:?}")), "{error}");
        }
    }

    #[test]
    fn lists_have_comments_and_empty_lines() {
        let lines: Vec<_> = Exclusion::lines("# note\r\n*.o\r\n\n\\#x\n a \n").collect();
        assert_eq!(lines, ["*.o", "\\#x", " a "]);
    }
}
