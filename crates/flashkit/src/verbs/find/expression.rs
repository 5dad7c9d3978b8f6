//! The expressions of `find`.

use std::{cmp::Ordering, ffi::OsString};

use f2fs::{
    engine::{Engine, FinalSymlink},
    format::FileType,
    units::Time,
};
use globset::{Candidate, GlobBuilder, GlobMatcher};
use jiff::{
    Timestamp,
    civil::{Date, DateTime},
    tz::TimeZone,
};

use crate::{descent::Node, verbs::ls::children};

/// A result whose error is the reason why a command line is invalid.
type Result<T> = std::result::Result<T, String>;

/// A parsed command line.
pub struct Search<'v> {
    volume: &'v Engine,
    /// The tests.
    pub expression: Expression,
    /// Names fewer levels below the start are not printed.
    pub depth_min: usize,
    /// Names more levels below the start are not visited.
    pub depth_max: usize,
    /// The end of each printed path.
    pub ending: Ending,
}

/// The end of a printed path.
#[derive(Clone, Copy)]
pub enum Ending {
    /// A line end. Bytes that a terminal would obey are escaped.
    Line,
    /// A NUL, after the path as it is: `-print0`.
    Nul,
}

/// Tests and their combination.
#[derive(Debug)]
pub enum Expression {
    /// All must hold.
    All(Vec<Expression>),
    /// One must hold.
    Any(Vec<Expression>),
    /// It must not hold.
    Not(Box<Expression>),
    /// A test.
    Test(Test),
}

/// A test of an entry.
#[derive(Debug)]
pub enum Test {
    Name(GlobMatcher),
    Path(GlobMatcher),
    Kinds(Vec<FileType>),
    /// The size in units of so many bytes.
    Size(u64, Count),
    Empty,
    Newer(Time),
    Owner(Count),
    Group(Count),
    Permissions(Permissions),
    Links(Count),
    Inode(Count),
}

/// A number, or all numbers on one side of it.
#[derive(Debug)]
pub struct Count(Ordering, u64);

/// Permission bits to compare with.
#[derive(Debug)]
pub enum Permissions {
    Exactly(u16),
    AllOf(u16),
    AnyOf(u16),
}

impl<'v> Search<'v> {
    /// Parses the words after the path. Files of `-newer` are those of the volume.
    pub fn parse(words: &[OsString], volume: &'v Engine) -> Result<Search<'v>> {
        let text = |word: &OsString| word.to_str().map(str::to_owned).ok_or(format!("{word:?} is not UTF-8"));
        let mut words = words.iter().map(text).collect::<Result<Vec<_>>>()?;
        words.reverse();
        let expression = Expression::All(Vec::new());
        let (depth_min, depth_max, ending) = (0, usize::MAX, Ending::Line);
        let mut search = Search { volume, expression, depth_min, depth_max, ending };
        search.expression = search.any(&mut words)?;
        match words.pop() {
            None => Ok(search),
            Some(word) => Err(format!("{word:?} without an opening parenthesis")),
        }
    }

    /// Parses alternatives up to the end or a closing parenthesis. The next word is the last of `words`.
    fn any(&mut self, words: &mut Vec<String>) -> Result<Expression> {
        let mut parts = vec![self.all(words)?];
        while words.last().is_some_and(|word| matches!(word.as_str(), "-o" | "-or")) {
            words.pop();
            if words.last().is_none_or(|word| word == ")") {
                return Err("nothing stands after -o".into());
            }
            parts.push(self.all(words)?);
        }
        Ok(Expression::Any(parts))
    }

    fn all(&mut self, words: &mut Vec<String>) -> Result<Expression> {
        let (mut parts, mut is_empty) = (Vec::new(), true);
        while let Some(word) = words.last() {
            match word.as_str() {
                "-o" | "-or" | ")" if is_empty => return Err(format!("nothing stands before {word:?}")),
                "-o" | "-or" | ")" => break,
                "-a" | "-and" if is_empty => return Err(format!("nothing stands before {word:?}")),
                "-a" | "-and" => {
                    words.pop();
                    words.last().ok_or("nothing stands after -a")?;
                }
                _ => parts.extend(self.one(words)?),
            }
            is_empty = false;
        }
        Ok(Expression::All(parts))
    }

    /// Parses a test, or an option, which is no part of the expression.
    fn one(&mut self, words: &mut Vec<String>) -> Result<Option<Expression>> {
        let word = words.pop().ok_or("the expression ends where a test is expected")?;
        match word.as_str() {
            "!" | "-not" => {
                let tree = self.one(words)?.ok_or_else(|| format!("{word} needs a test after it"))?;
                return Ok(Some(Expression::Not(Box::new(tree))));
            }
            "(" => {
                let tree = self.any(words)?;
                words.pop().ok_or("a parenthesis is not closed")?;
                return Ok(Some(tree));
            }
            "-print" => return Ok(None),
            "-print0" => {
                self.ending = Ending::Nul;
                return Ok(None);
            }
            "-empty" => return Ok(Some(Expression::Test(Test::Empty))),
            _ => {}
        }
        let valued = VALUED.iter().find(|(name, _)| *name == word);
        let (_, parse) =
            valued.ok_or_else(|| format!("{word:?} is not a test; flashkit find --help lists them"))?;
        let value = words.pop().ok_or_else(|| format!("{word} needs a value"))?;
        let test = parse(self, &value).map_err(|why| format!("{word} {value}: {why}"))?;
        Ok(test.map(Expression::Test))
    }

    /// Returns the time of the last change of a file's content.
    fn time_of(&self, path: &str) -> Result<Time> {
        let ino = self.volume.resolve(path.as_bytes(), FinalSymlink::NoFollow);
        let stat = ino.and_then(|ino| self.volume.stat(ino)).map_err(|error| error.to_string())?;
        Ok(stat.mtime)
    }
}

/// Parses the value of a test, or of an option, which is no part of the expression.
type ParseValue = fn(&mut Search<'_>, &str) -> Result<Option<Test>>;

/// Tests and options with a value.
const VALUED: [(&str, ParseValue); 17] = [
    ("-name", |_, value| Ok(Some(Test::Name(glob(value, Case::Counts)?)))),
    ("-iname", |_, value| Ok(Some(Test::Name(glob(value, Case::Ignored)?)))),
    ("-path", |_, value| Ok(Some(Test::Path(glob(value, Case::Counts)?)))),
    ("-ipath", |_, value| Ok(Some(Test::Path(glob(value, Case::Ignored)?)))),
    ("-type", |_, value| Ok(Some(Test::Kinds(kinds(value)?)))),
    ("-size", |_, value| size(value).map(|(unit, count)| Some(Test::Size(unit, count)))),
    ("-newer", |search, value| Ok(Some(Test::Newer(search.time_of(value)?)))),
    ("-newermt", |_, value| Ok(Some(Test::Newer(time(value).ok_or("not a time")?)))),
    ("-user", |_, value| Ok(Some(Test::Owner(Count::parse(value)?)))),
    ("-uid", |_, value| Ok(Some(Test::Owner(Count::parse(value)?)))),
    ("-group", |_, value| Ok(Some(Test::Group(Count::parse(value)?)))),
    ("-gid", |_, value| Ok(Some(Test::Group(Count::parse(value)?)))),
    ("-perm", |_, value| Ok(Some(Test::Permissions(Permissions::parse(value)?)))),
    ("-links", |_, value| Ok(Some(Test::Links(Count::parse(value)?)))),
    ("-inum", |_, value| Ok(Some(Test::Inode(Count::parse(value)?)))),
    ("-mindepth", |search, value| {
        search.depth_min = levels(value)?;
        Ok(None)
    }),
    ("-maxdepth", |search, value| {
        search.depth_max = levels(value)?;
        Ok(None)
    }),
];

fn levels(value: &str) -> Result<usize> {
    value.parse().map_err(|_| "not a number of levels".into())
}

impl Expression {
    /// Returns true if the expression selects an entry.
    pub fn holds(&self, node: &Node, volume: &Engine) -> f2fs::Result<bool> {
        match self {
            Expression::All(trees) => {
                for tree in trees {
                    if !tree.holds(node, volume)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Expression::Any(trees) => {
                for tree in trees {
                    if tree.holds(node, volume)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Expression::Not(tree) => tree.holds(node, volume).map(|holds| !holds),
            Expression::Test(test) => test.holds(node, volume),
        }
    }
}

impl Test {
    fn holds(&self, node: &Node, volume: &Engine) -> f2fs::Result<bool> {
        let stat = &node.stat;
        Ok(match self {
            Test::Name(glob) => {
                let name = node.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                // The name of the root is a slash.
                let name = if name.is_empty() { b"/" } else { name };
                glob.is_match_candidate(&Candidate::from_bytes(name))
            }
            Test::Path(glob) => glob.is_match_candidate(&Candidate::from_bytes(&node.path)),
            Test::Kinds(kinds) => kinds.contains(&stat.kind),
            Test::Size(unit, count) => count.has(stat.size.div_ceil(*unit)),
            Test::Empty => match stat.kind {
                FileType::Regular => stat.size == 0,
                FileType::Directory => children(volume, node.ino)?.is_empty(),
                _ => false,
            },
            Test::Newer(time) => stat.mtime > *time,
            Test::Owner(count) => count.has(stat.uid.into()),
            Test::Group(count) => count.has(stat.gid.into()),
            Test::Permissions(permissions) => permissions.has(stat.mode & 0o7777),
            Test::Links(count) => count.has(stat.links.into()),
            Test::Inode(count) => count.has(node.ino.0.into()),
        })
    }
}

impl Count {
    fn parse(text: &str) -> Result<Count> {
        let (side, digits) = match text.split_at_checked(1) {
            Some(("+", digits)) => (Ordering::Greater, digits),
            Some(("-", digits)) => (Ordering::Less, digits),
            _ => (Ordering::Equal, text),
        };
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| is_number).ok_or("not a number, +NUMBER or -NUMBER")?;
        Ok(Count(side, number))
    }

    fn has(&self, number: u64) -> bool {
        number.cmp(&self.1) == self.0
    }
}

impl Permissions {
    fn parse(text: &str) -> Result<Permissions> {
        let bits = |octal: &str| {
            let bits = u16::from_str_radix(octal, 8).ok().filter(|bits| *bits <= 0o7777);
            bits.filter(|_| !octal.starts_with('+')).ok_or("not permissions in octal".to_owned())
        };
        match text.split_at_checked(1) {
            Some(("-", octal)) => bits(octal).map(Permissions::AllOf),
            Some(("/", octal)) => bits(octal).map(Permissions::AnyOf),
            _ => bits(text).map(Permissions::Exactly),
        }
    }

    fn has(&self, mode: u16) -> bool {
        match *self {
            Permissions::Exactly(bits) => mode == bits,
            Permissions::AllOf(bits) => mode & bits == bits,
            // As in find(1), no bits at all select everything.
            Permissions::AnyOf(bits) => bits == 0 || mode & bits != 0,
        }
    }
}

/// The case of letters in a pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Counts,
    Ignored,
}

/// Parses a pattern of fnmatch(3): a star matches slashes and leading dots, and braces stand for themselves.
fn glob(text: &str, case: Case) -> Result<GlobMatcher> {
    let (mut pattern, mut is_class, mut letters) = (String::new(), false, text.chars().peekable());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if !is_class => {
                pattern.push(letter);
                pattern.extend(letters.next());
                continue;
            }
            '{' | '}' if !is_class => pattern.push('\\'),
            '[' if !is_class => {
                is_class = true;
                pattern.push(letter);
                // A bracket at the start of a class belongs to it.
                pattern.extend(letters.next_if(|next| matches!(next, '!' | '^')));
                pattern.extend(letters.next_if_eq(&']'));
                continue;
            }
            ']' => is_class = false,
            // Two stars are no more than one.
            '*' if !is_class && letters.peek() == Some(&'*') => continue,
            _ => {}
        }
        pattern.push(letter);
    }
    let mut builder = GlobBuilder::new(&pattern);
    builder.literal_separator(false).backslash_escape(true).case_insensitive(case == Case::Ignored);
    builder.build().map(|glob| glob.compile_matcher()).map_err(|error| error.kind().to_string())
}

fn kinds(text: &str) -> Result<Vec<FileType>> {
    let kind = |letter| match letter {
        "f" => Ok(FileType::Regular),
        "d" => Ok(FileType::Directory),
        "l" => Ok(FileType::Symlink),
        "c" => Ok(FileType::CharDevice),
        "b" => Ok(FileType::BlockDevice),
        "p" => Ok(FileType::Fifo),
        "s" => Ok(FileType::Socket),
        _ => Err("a kind is f, d, l, c, b, p or s; several are separated by commas".to_owned()),
    };
    text.split(',').map(kind).collect()
}

/// Parses a size. Returns the bytes of its unit, too.
fn size(text: &str) -> Result<(u64, Count)> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'c')) => (&text[..at], 1),
        Some((at, 'w')) => (&text[..at], 2),
        Some((at, 'b')) => (&text[..at], 512),
        Some((at, 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M')) => (&text[..at], 1 << 20),
        Some((at, 'G')) => (&text[..at], 1 << 30),
        _ => (text, 512),
    };
    Ok((unit, Count::parse(digits)?))
}

/// Parses a time: seconds since 1970 after an `@`, or a date with or without a time, in UTC unless it has an offset.
fn time(text: &str) -> Option<Time> {
    let timestamp = match text.strip_prefix('@') {
        Some(seconds) => return Some(Time { seconds: seconds.parse().ok()?, nanoseconds: 0 }),
        None => match text.parse::<Timestamp>() {
            Ok(timestamp) => timestamp,
            Err(_) => {
                let local =
                    text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(Into::into)).ok()?;
                local.to_zoned(TimeZone::UTC).ok()?.timestamp()
            }
        },
    };
    let nanoseconds = timestamp.as_nanosecond();
    Some(Time {
        seconds: i64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?,
        nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_fnmatch() {
        for (pattern, text, expected) in [
            ("*.c", "a.c", true),
            ("*.c", ".c", true),
            ("*", ".hidden", true),
            ("/a/*", "/a/b/c", true),
            ("/a**c", "/a/b/c", true),
            ("**/x", "x", false),
            ("{a,b}", "a", false),
            ("{a,b}", "{a,b}", true),
            ("[]a]", "]", true),
            ("[!a]", "b", true),
            ("[{]", "{", true),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("a?", "a.", true),
            ("*.", "a.", true),
        ] {
            let found = glob(pattern, Case::Counts).unwrap().is_match(text);
            assert_eq!(found, expected, "{pattern} {text}");
        }
        assert!(glob("README*", Case::Ignored).unwrap().is_match("readme.txt"));
        assert!(glob("[a", Case::Counts).is_err());
    }

    #[test]
    fn times_are_utc_unless_they_say_otherwise() {
        for (text, seconds) in [
            ("1970-01-02", Some(86400)),
            ("1970-01-01 00:01", Some(60)),
            ("1970-01-01T01:00:01+01:00", Some(1)),
            ("@-5", Some(-5)),
            ("yesterday", None),
        ] {
            assert_eq!(time(text).map(|time| time.seconds), seconds, "{text}");
        }
    }
}
