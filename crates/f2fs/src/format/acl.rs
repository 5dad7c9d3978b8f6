//! POSIX access control lists: F2FS's form, and the `system.posix_acl_*` attributes that programs see.
//!
//! On disk (version 1), only entries for a named user or group carry an id. In the attribute (version 2),
//! every entry does. (Linux, `f2fs_acl_from_disk`, `posix_acl_from_xattr`.)

use crate::{Error, Place, Result};

const DISK_VERSION: u32 = 1;
const SYSTEM_VERSION: u32 = 2;
/// Id in the attribute of an entry that has none.
const NO_ID: u32 = u32::MAX;

/// Subject of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// The owner of the file.
    Owner,
    /// A user.
    User(u32),
    /// The group of the file.
    OwningGroup,
    /// A group.
    Group(u32),
    /// Upper limit of the rights of named users, named groups and the owning group.
    Mask,
    /// All other users.
    Other,
}

impl Who {
    const fn tag(self) -> u16 {
        match self {
            Who::Owner => 0x01,
            Who::User(_) => 0x02,
            Who::OwningGroup => 0x04,
            Who::Group(_) => 0x08,
            Who::Mask => 0x10,
            Who::Other => 0x20,
        }
    }

    /// Returns the id, if the subject has one.
    #[must_use]
    pub const fn id(self) -> Option<u32> {
        match self {
            Who::User(id) | Who::Group(id) => Some(id),
            Who::Owner | Who::OwningGroup | Who::Mask | Who::Other => None,
        }
    }

    fn from_tag(tag: u16, id: u32) -> Option<Who> {
        let named = if id == NO_ID { None } else { Some(id) };
        match tag {
            0x01 => Some(Who::Owner),
            0x02 => named.map(Who::User),
            0x04 => Some(Who::OwningGroup),
            0x08 => named.map(Who::Group),
            0x10 => Some(Who::Mask),
            0x20 => Some(Who::Other),
            _ => None,
        }
    }
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// Its subject.
    pub who: Who,
    /// Its permissions: 4 read, 2 write, 1 execute or search.
    pub permissions: u16,
}

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Acl {
    /// The entries: owner, users, owning group, groups, mask, other.
    pub entries: Vec<AclEntry>,
}

impl Acl {
    /// Parses F2FS's form.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at `at` if the bytes are no valid list.
    pub fn from_disk(bytes: &[u8], at: Place) -> Result<Acl> {
        let bad = |what: String| Error::corrupt(at, what);
        let Some((version, mut rest)) = bytes.split_first_chunk() else {
            return Err(bad(format!("an access control list of {} bytes", bytes.len())));
        };
        let version = u32::from_le_bytes(*version);
        if version != DISK_VERSION {
            return Err(bad(format!("access control list of version {version}")));
        }
        let mut entries = Vec::with_capacity(rest.len() / 4);
        while let Some(([tag0, tag1, permissions0, permissions1], after)) = rest.split_first_chunk() {
            rest = after;
            let tag = u16::from_le_bytes([*tag0, *tag1]);
            let mut id = 0;
            if matches!(Who::from_tag(tag, 0), Some(Who::User(_) | Who::Group(_))) {
                let (word, after) = rest
                    .split_first_chunk()
                    .ok_or_else(|| bad("an access control list that ends within an entry".into()))?;
                id = u32::from_le_bytes(*word);
                rest = after;
            }
            let who = Who::from_tag(tag, id)
                .ok_or_else(|| bad(format!("access control entry with tag {tag:#x} and id {id}")))?;
            entries.push(AclEntry { who, permissions: u16::from_le_bytes([*permissions0, *permissions1]) });
        }
        if !rest.is_empty() {
            return Err(bad("an access control list that ends within an entry".into()));
        }
        Ok(Acl { entries })
    }

    /// Encodes F2FS's form.
    #[must_use]
    pub fn to_disk(&self) -> Vec<u8> {
        let mut bytes = DISK_VERSION.to_le_bytes().to_vec();
        for AclEntry { who, permissions } in &self.entries {
            bytes.extend_from_slice(&who.tag().to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            if let Some(id) = who.id() {
                bytes.extend_from_slice(&id.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads the attribute as programs set it. Fails if the list is invalid.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are no valid list.
    pub fn from_system(bytes: &[u8]) -> Result<Acl> {
        let bad = || Error::Invalid("not a valid access control list".into());
        let (version, rest) = bytes.split_first_chunk().ok_or_else(bad)?;
        if u32::from_le_bytes(*version) != SYSTEM_VERSION || rest.len() % 8 != 0 {
            return Err(bad());
        }
        let entry = |entry: &[u8]| {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let permissions = u16::from_le_bytes([entry[2], entry[3]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            Some(AclEntry { who: Who::from_tag(tag, id)?, permissions })
        };
        let entries = rest.chunks_exact(8).map(entry).collect::<Option<_>>().ok_or_else(bad)?;
        let acl = Acl { entries };
        if acl.is_valid() { Ok(acl) } else { Err(bad()) }
    }

    /// Encodes the attribute as programs see it.
    #[must_use]
    pub fn to_system(&self) -> Vec<u8> {
        let mut bytes = SYSTEM_VERSION.to_le_bytes().to_vec();
        for AclEntry { who, permissions } in &self.entries {
            bytes.extend_from_slice(&who.tag().to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&who.id().unwrap_or(NO_ID).to_le_bytes());
        }
        bytes
    }

    /// Formats the list as a line of text with numeric ids:
    /// `user::rw-,user:1000:r--,group::r--,mask::r--,other::r--`.
    #[must_use]
    pub fn to_text(&self) -> String {
        let entry = |AclEntry { who, permissions }: &AclEntry| {
            let tag = match who {
                Who::Owner | Who::User(_) => "user",
                Who::OwningGroup | Who::Group(_) => "group",
                Who::Mask => "mask",
                Who::Other => "other",
            };
            let id = who.id().map(|id| id.to_string()).unwrap_or_default();
            let may = |bit, letter| if permissions & bit != 0 { letter } else { '-' };
            format!("{tag}:{id}:{}{}{}", may(4, 'r'), may(2, 'w'), may(1, 'x'))
        };
        self.entries.iter().map(entry).collect::<Vec<_>>().join(",")
    }

    /// Parses the text form of archives: entries separated by commas or lines, in any order, as
    /// acl_to_text(3) prints them. star and libarchive add the id of a name as a fourth part. An entry with a
    /// name but no id is left out, because names have no meaning here. `None` if the text is not a valid
    /// list.
    pub fn from_text(text: &str) -> Option<Acl> {
        let mut entries = Vec::new();
        for line in text.split([',', '\n']) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let parts: Vec<&str> = line.split(':').map(str::trim).collect();
            let (tag, name, letters, id) = match parts[..] {
                // star leaves out the empty name of mask and other.
                [tag, letters] => (tag, "", letters, None),
                [tag, name, letters] => (tag, name, letters, None),
                [tag, name, letters, id] => (tag, name, letters, Some(id)),
                _ => return None,
            };
            let permissions = letters.chars().try_fold(0, |bits, letter| match letter {
                'r' => Some(bits | 4),
                'w' => Some(bits | 2),
                'x' => Some(bits | 1),
                '-' => Some(bits),
                _ => None,
            })?;
            let named = |who: fn(u32) -> Who| id.unwrap_or(name).parse().ok().map(who);
            let who = match tag {
                "user" | "u" if name.is_empty() => Some(Who::Owner),
                "user" | "u" => named(Who::User),
                "group" | "g" if name.is_empty() => Some(Who::OwningGroup),
                "group" | "g" => named(Who::Group),
                "mask" | "m" => Some(Who::Mask),
                "other" | "o" => Some(Who::Other),
                _ => return None,
            };
            entries.extend(who.map(|who| AclEntry { who, permissions }));
        }
        entries.sort_by_key(|entry| (entry.who.tag(), entry.who.id()));
        let acl = Acl { entries };
        acl.is_valid().then_some(acl)
    }

    /// Returns true if the list is valid: entries are in order; owner, owning group and other occur once
    /// each; permissions are within rwx; there is at most one mask, and exactly one if a user or group is
    /// named (Linux, `posix_acl_valid`). An empty list is valid and means that there is none.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let count = |wanted: Who| self.entries.iter().filter(|entry| entry.who == wanted).count();
        let named = self.entries.iter().any(|entry| entry.who.id().is_some());
        let masks = count(Who::Mask);
        self.entries.is_empty()
            || (self.entries.iter().all(|entry| entry.permissions <= 7)
                && self.entries.is_sorted_by_key(|entry| entry.who.tag())
                && [Who::Owner, Who::OwningGroup, Who::Other].into_iter().all(|who| count(who) == 1)
                && masks <= 1
                && (masks == 1 || !named))
    }

    /// Returns the nine permission bits of a mode that the list stands for. If there is a mask, it takes the
    /// group's place.
    #[must_use]
    pub fn mode_bits(&self) -> u16 {
        let of = |who: Who| self.entries.iter().find(|entry| entry.who == who).map(|entry| entry.permissions);
        let group = of(Who::Mask).or(of(Who::OwningGroup)).unwrap_or(0);
        (of(Who::Owner).unwrap_or(0) & 7) << 6 | (group & 7) << 3 | of(Who::Other).unwrap_or(0) & 7
    }

    /// Sets owner, group (or the mask, if there is one) and others to the permissions of a mode.
    pub fn set_mode_bits(&mut self, mode: u16) {
        self.for_each_class(|permissions, shift| *permissions = mode >> shift & 7);
    }

    /// Treats the list as a directory's default list. Returns the access list and the mode of a new inode
    /// requested with `mode`. List and mode limit each other (Linux, `posix_acl_create_masq`).
    #[must_use]
    pub fn for_new(&self, mode: u16) -> (Acl, u16) {
        let mut acl = self.clone();
        acl.for_each_class(|permissions, shift| *permissions &= mode >> shift & 7);
        let bits = mode & !0o777 | acl.mode_bits();
        (acl, bits)
    }

    /// Returns the entries of the three classes of a mode, each with the shift of its bits in the mode.
    fn for_each_class(&mut self, mut change: impl FnMut(&mut u16, u16)) {
        let has_mask = self.entries.iter().any(|entry| entry.who == Who::Mask);
        for AclEntry { who, permissions } in &mut self.entries {
            match who {
                Who::Owner => change(permissions, 6),
                Who::Mask => change(permissions, 3),
                Who::OwningGroup if !has_mask => change(permissions, 3),
                Who::Other => change(permissions, 0),
                _ => {}
            }
        }
    }

    /// Returns true if [`mode_bits`](Self::mode_bits) is equivalent to the list, so that the list need not be
    /// stored.
    #[must_use]
    pub fn is_mode_only(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry.who, Who::Owner | Who::OwningGroup | Who::Other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ino;

    const AT: Place = Place::Xattr(Ino(9));

    fn acl(entries: &[(Who, u16)]) -> Acl {
        Acl {
            entries: entries
                .iter()
                .map(|(who, permissions)| AclEntry { who: *who, permissions: *permissions })
                .collect(),
        }
    }

    fn sample() -> Acl {
        acl(&[
            (Who::Owner, 7),
            (Who::User(1000), 6),
            (Who::OwningGroup, 5),
            (Who::Group(70000), 4),
            (Who::Mask, 6),
            (Who::Other, 0),
        ])
    }

    #[test]
    fn both_forms_survive_a_round_trip() {
        let acl = sample();
        let disk = acl.to_disk();
        assert_eq!(disk.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(disk[..16], [1, 0, 0, 0, 1, 0, 7, 0, 2, 0, 6, 0, 0xE8, 3, 0, 0]);
        let system = acl.to_system();
        assert_eq!(system.len(), 4 + 6 * 8);
        assert_eq!(system[..12], [2, 0, 0, 0, 1, 0, 7, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert_eq!(Acl::from_disk(&disk, AT).unwrap(), acl);
        assert_eq!(Acl::from_system(&system).unwrap(), acl);
        assert_eq!((acl.mode_bits(), acl.is_mode_only()), (0o760, false));
    }

    #[test]
    fn texts_survive_a_round_trip() {
        let text = "user::rwx,user:1000:rw-,group::r-x,group:70000:r--,mask::rw-,other::---";
        assert_eq!(sample().to_text(), text);
        assert_eq!(Acl::from_text(text).unwrap(), sample());
        // The form of star, libarchive and getfacl.
        let other = "mask:rw-\nother:---\nuser::rwx\ngroup::r-x\t#effective:r--\ngroup:staff:r--:70000\nuser:ann:rw-:1000";
        assert_eq!(Acl::from_text(other).unwrap(), sample());
        let unknown = Acl::from_text("user::rwx,user:ann:rw-,group::r-x,mask::rw-,other::---").unwrap();
        assert_eq!(unknown.to_text(), "user::rwx,group::r-x,mask::rw-,other::---");
        for text in
            ["user::rwx", "user::rwx,group::r-x,other::a", "x::r,group::r,other::r", "a:b:c:d:e", "rwx"]
        {
            assert!(Acl::from_text(text).is_none(), "{text}");
        }
    }

    #[test]
    fn lists_and_modes_limit_each_other() {
        let mut list = sample();
        list.set_mode_bits(0o4640);
        assert_eq!(list.mode_bits(), 0o640);
        assert_eq!(list.entries[2].permissions, 5, "the mask limits, the owning group stays");
        let (access, mode) = sample().for_new(0o100_666);
        assert_eq!((access.mode_bits(), mode), (0o660, 0o100_660));
        let plain = acl(&[(Who::Owner, 7), (Who::OwningGroup, 5), (Who::Other, 0)]);
        let (access, mode) = plain.for_new(0o42_777);
        assert_eq!((access.is_mode_only(), mode), (true, 0o42_750));
    }

    #[test]
    fn invalid_lists_are_refused() {
        let invalid = [
            acl(&[(Who::Owner, 7), (Who::OwningGroup, 5)]),
            acl(&[(Who::OwningGroup, 5), (Who::Owner, 7), (Who::Other, 0)]),
            acl(&[(Who::Owner, 7), (Who::User(1), 7), (Who::OwningGroup, 5), (Who::Other, 0)]),
            acl(&[(Who::Owner, 8), (Who::OwningGroup, 5), (Who::Other, 0)]),
            acl(&[(Who::Owner, 7), (Who::OwningGroup, 5), (Who::Mask, 5), (Who::Mask, 5), (Who::Other, 0)]),
        ];
        for acl in invalid {
            assert!(Acl::from_system(&acl.to_system()).is_err(), "{acl:?}");
        }
        let minimal = acl(&[(Who::Owner, 7), (Who::OwningGroup, 5), (Who::Other, 0)]);
        assert_eq!(Acl::from_system(&minimal.to_system()).unwrap(), minimal);
        assert!(minimal.is_mode_only());
        assert!(Acl::from_system(&sample().to_disk()).is_err());
        assert!(Acl::from_system(b"").is_err());
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let disk = sample().to_disk();
        for end in 0..disk.len() {
            let got = Acl::from_disk(&disk[..end], AT);
            assert!(got.is_err() || got.unwrap().entries.len() < 6);
        }
        let mut tag = disk.clone();
        tag[4] = 3;
        assert!(Acl::from_disk(&tag, AT).unwrap_err().to_string().contains("tag 0x3"));
        let mut version = disk;
        version[0] = 2;
        assert!(Acl::from_disk(&version, AT).is_err());
    }
}
