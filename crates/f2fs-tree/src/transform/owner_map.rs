//! Owners that differ from the source's: `--owner-map FILE`.
//!
//! A line is one of
//! ```text
//! uid 1000 0                # owner 1000 becomes 0
//! gid 100000-165535 0       # groups 100000 to 165535 become 0 to 65535
//! user alice 1000           # archives: files of the user alice, whatever their number
//! group staff 50
//! dev=fd01,ino=1234,mode=100755,uid=0,gid=0,nlink=1,rdev=0     # as `fakeroot -s` saves them
//! ```
//! The first line that matches an entry counts. Names take precedence over numbers. A line of fakeroot gives
//! the whole mode of a host file. A tree built by an ordinary user under fakeroot therefore comes out as root
//! would have built it, including device nodes.

use std::collections::HashMap;

use f2fs::{
    Error, Result,
    format::{FileType, inode::DeviceNumber},
};

use crate::{Entry, HostId, Kind};

/// A parsed map of owners. See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerMap {
    uids: Vec<Ids>,
    gids: Vec<Ids>,
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
    fake: HashMap<HostId, Fake>,
}

/// A range of numbers and the number that its first becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ids {
    first: u32,
    last: u32,
    to: u32,
}

/// Metadata that fakeroot simulated for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fake {
    mode: u16,
    uid: u32,
    gid: u32,
    device: DeviceNumber,
}

impl OwnerMap {
    /// Parses a map. An error names the malformed line.
    pub fn parse(text: &str) -> Result<OwnerMap> {
        let mut map = OwnerMap::default();
        for (line, text) in text.lines().enumerate() {
            let text = text.split('#').next().unwrap_or_default().trim();
            if !text.is_empty() {
                map.line(text).ok_or_else(|| {
                    let wanted = "expected uid, gid, user or group with two values, or a line of fakeroot -s";
                    Error::Invalid(format!("owner map, line {}: {text:?}: {wanted}", line + 1).into())
                })?;
            }
        }
        Ok(map)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        if line.starts_with("dev=") {
            let (id, fake) = fake_of(line)?;
            self.fake.insert(id, fake);
            return Some(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [what, from, to] = words[..] else { return None };
        let to: u32 = to.parse().ok()?;
        match what {
            "uid" => self.uids.push(Ids::parse(from, to)?),
            "gid" => self.gids.push(Ids::parse(from, to)?),
            "user" => drop(self.users.entry(from.into()).or_insert(to)),
            "group" => drop(self.groups.entry(from.into()).or_insert(to)),
            _ => return None,
        }
        Some(())
    }

    /// Sets an entry's owner and group, or all the metadata that fakeroot simulated for it.
    pub fn apply(&self, entry: &mut Entry) {
        if let Some(fake) = entry.meta.host.and_then(|id| self.fake.get(&id)) {
            fake.apply(entry);
            return;
        }
        let meta = &mut entry.meta;
        let named = |name: &Option<String>, ids: &HashMap<String, u32>| {
            name.as_ref().and_then(|name| ids.get(name).copied())
        };
        meta.uid = named(&meta.names.user, &self.users).unwrap_or_else(|| mapped(&self.uids, meta.uid));
        meta.gid = named(&meta.names.group, &self.groups).unwrap_or_else(|| mapped(&self.gids, meta.gid));
    }
}

impl Ids {
    fn parse(range: &str, to: u32) -> Option<Ids> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let count = last.checked_sub(first)?;
        to.checked_add(count).map(|_| Ids { first, last, to })
    }
}

fn mapped(ranges: &[Ids], id: u32) -> u32 {
    let range = ranges.iter().find(|range| (range.first..=range.last).contains(&id));
    range.map_or(id, |range| range.to + (id - range.first))
}

/// Parses a line of fakeroot: device in hexadecimal, mode in octal, all else decimal.
fn fake_of(line: &str) -> Option<(HostId, Fake)> {
    let fields: HashMap<&str, &str> = line.split(',').filter_map(|field| field.split_once('=')).collect();
    let decimal = |name| fields.get(name)?.parse::<u64>().ok();
    let id = HostId { device: u64::from_str_radix(fields.get("dev")?, 16).ok()?, ino: decimal("ino")? };
    let fake = Fake {
        mode: u16::from_str_radix(fields.get("mode")?, 8).ok()?,
        uid: u32::try_from(decimal("uid")?).ok()?,
        gid: u32::try_from(decimal("gid")?).ok()?,
        device: device_number(decimal("rdev").unwrap_or(0)),
    };
    // A larger number cannot be stored.
    (fake.device.major < 1 << 12 && fake.device.minor < 1 << 20).then_some((id, fake))
}

impl Fake {
    fn apply(&self, entry: &mut Entry) {
        (entry.meta.uid, entry.meta.gid) = (self.uid, self.gid);
        entry.meta.permissions = self.mode & 0o7777;
        // fakeroot stores an empty file where an ordinary user cannot create the real one.
        let number = self.device;
        if let Kind::File { size: 0, .. } = entry.kind {
            match FileType::from_mode(self.mode) {
                Some(FileType::CharDevice) => entry.kind = Kind::CharDevice(number),
                Some(FileType::BlockDevice) => entry.kind = Kind::BlockDevice(number),
                Some(FileType::Fifo) => entry.kind = Kind::Fifo,
                Some(FileType::Socket) => entry.kind = Kind::Socket,
                _ => {}
            }
        }
    }
}

/// Splits a number as the C library packs it, which is how fakeroot saves it (glibc and musl, `major` and `minor`).
fn device_number(packed: u64) -> DeviceNumber {
    let (high, low) = ((packed >> 32) as u32, packed as u32);
    DeviceNumber {
        major: high & !0xFFF | low >> 8 & 0xFFF,
        minor: (packed >> 12) as u32 & !0xFF | low & 0xFF,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metadata;

    fn entry(uid: u32, gid: u32) -> Entry {
        let host = Some(HostId { device: 0xFD01, ino: 77 });
        let meta = Metadata { uid, gid, host, permissions: 0o644, ..Metadata::default() };
        Entry { path: b"x".to_vec(), kind: Kind::File { size: 0, data: None }, meta }
    }

    #[test]
    fn the_first_range_that_matches_counts() {
        let map =
            OwnerMap::parse("# me\nuid 1000 0\nuid 1000-1999 5000 # others\n\ngid 100-199 0\n").unwrap();
        for (from, to) in [((1000, 100), (0, 0)), ((1001, 142), (5001, 42)), ((999, 200), (999, 200))] {
            let mut entry = entry(from.0, from.1);
            map.apply(&mut entry);
            assert_eq!((entry.meta.uid, entry.meta.gid), to);
        }
    }

    #[test]
    fn names_take_precedence_over_numbers() {
        let map = OwnerMap::parse("uid 7 8\nuser alice 1\ngroup staff 2").unwrap();
        let mut entry = entry(7, 7);
        entry.meta.names.user = Some("alice".into());
        entry.meta.names.group = Some("wheel".into());
        map.apply(&mut entry);
        assert_eq!((entry.meta.uid, entry.meta.gid), (1, 7));
    }

    #[test]
    fn lines_of_fakeroot_give_owner_mode_and_devices() {
        let map =
            OwnerMap::parse("dev=fd01,ino=77,mode=20660,uid=0,gid=5,nlink=1,rdev=1025\nuid 1000 9").unwrap();
        let mut entry = entry(1000, 1000);
        map.apply(&mut entry);
        assert_eq!((entry.meta.uid, entry.meta.gid, entry.meta.permissions), (0, 5, 0o660));
        assert_eq!(entry.kind, Kind::CharDevice(DeviceNumber { major: 4, minor: 1 }));
        let mut other = super::tests::entry(1000, 1);
        other.meta.host = Some(HostId { device: 0xFD01, ino: 78 });
        map.apply(&mut other);
        assert_eq!(other.meta.uid, 9);
    }

    #[test]
    fn a_malformed_line_is_reported_with_its_number() {
        let device = "dev=fd01,ino=77,mode=20644,uid=0,gid=0,nlink=1,rdev=18446744073709551615";
        let others =
            ["uid 1", "uid x 1", "uid 9-1 0", "uid 0-4294967295 1", "owner 1 2", "dev=zz,ino=1", "uid 1 2 3"];
        for text in others.into_iter().chain([device]) {
            let error = OwnerMap::parse(&format!("uid 1 1\n{text}")).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{error}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn device_numbers_are_unpacked_like_the_hosts() {
        for packed in [0, 0x103, 0x0800_0000_0401, 0x1234_5678_9ABC_DEF0, u64::MAX] {
            let expected =
                DeviceNumber { major: rustix::fs::major(packed), minor: rustix::fs::minor(packed) };
            assert_eq!(device_number(packed), expected, "{packed:#x}");
        }
    }
}
