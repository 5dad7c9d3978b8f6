//! Android's fs_config files: owner, mode and capabilities by path.
//!
//! A line is `PATH UID GID MODE [capabilities=MASK] [selabel=CONTEXT]`. The mode is octal; the mask is
//! decimal or hexadecimal. Paths have no leading slash. In an image of a partition they start with the
//! partition's name (`system/bin/sh`). The root is an empty path or `/`.

use std::collections::HashMap;

use f2fs::{Error, Result};

use super::capability;
use crate::Entry;

/// A parsed fs_config file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FsConfig {
    lines: HashMap<Vec<u8>, Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    uid: u32,
    gid: u32,
    permissions: u16,
    capabilities: Option<u64>,
    label: Option<String>,
}

impl FsConfig {
    /// Parses a file. An error names the malformed line.
    pub fn parse(text: &str) -> Result<FsConfig> {
        let mut config = FsConfig::default();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (path, parsed) = parse_line(line).map_err(|wanted| {
                Error::Invalid(format!("fs_config, line {}: {line:?}: {wanted}", number + 1).into())
            })?;
            config.lines.insert(path, parsed);
        }
        Ok(config)
    }

    /// Applies the file's line for `path`, an entry's path with the name of the partition. The root's line
    /// may also have an empty path. An entry without a line stays unchanged.
    pub fn apply(&self, path: &[u8], entry: &mut Entry) {
        let root = || self.lines.get(&b""[..]).filter(|_| entry.path.is_empty());
        let Some(line) = self.lines.get(path).or_else(root) else { return };
        let meta = &mut entry.meta;
        (meta.uid, meta.gid, meta.permissions) = (line.uid, line.gid, line.permissions);
        if let Some(permitted) = line.capabilities.filter(|mask| *mask != 0) {
            meta.set_xattr(capability::NAME, capability::value(permitted));
        }
        if let Some(label) = &line.label {
            meta.set_xattr(b"security.selinux", [label.as_bytes(), b"\0"].concat());
        }
    }
}

fn parse_line(line: &str) -> Result<(Vec<u8>, Line), String> {
    let fields = || {
        "expected a path, a user, a group, an octal mode, and capabilities=MASK or selabel=LABEL".to_string()
    };
    let (path, rest) = line.split_once([' ', '\t']).ok_or_else(fields)?;
    let mut words = rest.split_whitespace();
    let mut word = || words.next().ok_or_else(fields);
    let id = |text: &str, of: &str| {
        text.parse().map_err(|_| format!("expected the number of a {of} instead of {text:?}"))
    };
    let (uid, gid, mode) = (id(word()?, "user")?, id(word()?, "group")?, word()?);
    let wanted = |_| format!("expected an octal mode instead of {mode:?}");
    let permissions = u16::from_str_radix(mode, 8).map_err(wanted)? & 0o7777;
    let mut parsed = Line { uid, gid, permissions, capabilities: None, label: None };
    for word in words {
        match word.split_once('=') {
            Some(("capabilities", mask)) => {
                let bits = match mask.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16),
                    None => mask.parse(),
                };
                let wanted =
                    |_| format!("expected a number or 0x and hexadecimal digits instead of {mask:?}");
                parsed.capabilities = Some(bits.map_err(wanted)?);
            }
            Some(("selabel", label)) => parsed.label = Some(label.into()),
            _ => return Err(format!("expected capabilities=MASK or selabel=LABEL instead of {word:?}")),
        }
    }
    Ok((path.trim_matches('/').as_bytes().to_vec(), parsed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Metadata};

    fn applied(config: &str, path: &str) -> Metadata {
        let meta = Metadata { uid: 1, gid: 2, permissions: 0o600, ..Metadata::default() };
        let inside = path.strip_prefix("system").unwrap_or(path).trim_start_matches('/');
        let mut entry = Entry { path: inside.into(), kind: Kind::Fifo, meta };
        FsConfig::parse(config).unwrap().apply(path.as_bytes(), &mut entry);
        entry.meta
    }

    #[test]
    fn owners_modes_and_capabilities_follow_the_path() {
        let config = " 0 0 755\nsystem/bin/run 0 2000 0750 capabilities=0x0000000c00000400\nsystem/x 1 1 644 capabilities=0\n";
        let run = applied(config, "system/bin/run");
        assert_eq!((run.uid, run.gid, run.permissions), (0, 2000, 0o750));
        assert_eq!(run.xattrs[0].name, b"security.capability");
        assert_eq!(run.xattrs[0].value, b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0");
        assert_eq!(applied(config, "").permissions, 0o755);
        assert_eq!(applied(config, "system").permissions, 0o755);
        assert!(applied(config, "system/x").xattrs.is_empty());
        assert_eq!(applied(config, "system/none").uid, 1);
    }

    #[test]
    fn a_malformed_line_is_reported_with_its_number() {
        for text in ["x", "x 1", "x 1 2", "x 1 2 9", "x a 2 644", "x 1 2 644 capabilities=q", "x 1 2 644 y=1"]
        {
            let error = FsConfig::parse(&format!("ok 1 2 644\n{text}")).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains("expected"), "{error}");
        }
    }
}
