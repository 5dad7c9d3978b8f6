//! Entries of directories: their names, their places and the inodes that they name.

use f2fs::{
    Place,
    format::{
        FileType,
        dentry::{Dentries, Dentry, SlotUse, slots_for},
        dir_hash,
        inode::advise,
        superblock::Features,
    },
    units::Ino,
};

use crate::{
    Certainty, Finding, Fix, Kind,
    blank_areas::Blank,
    checker::{Checker, ODD_MAX},
    directories::{HASHES_MAX, Walk},
    names::{ENCRYPTED_NAME_MIN, Naming, encrypted_hash, is_dot, is_plain},
    remake::Named,
    table::fact,
};

/// Maximum number of bits in which a hash that is damaged itself differs from the right one.
const HASH_BITS: u32 = 2;

impl Checker<'_> {
    /// Checks all entries of an area.
    pub fn check_area(&mut self, walk: &mut Walk, block: u64, bytes: &[u8]) {
        let area = Dentries::new(bytes, Place::Dir(walk.ino, block));
        if area.is_empty_from(0) {
            self.note_blank(Blank { held: walk.held, dir: walk.ino, block });
        }
        walk.owner = self.owner_of_area(walk, block, &area);
        let mut slot = 0;
        while slot < area.slots() {
            slot = match area.is_used(slot) {
                true => self.check_slot(walk, block, &area, slot, bytes),
                false => slot + 1,
            };
        }
    }

    /// Checks the entry that begins in a slot. Returns the slot behind it.
    fn check_slot(
        &mut self,
        walk: &mut Walk,
        block: u64,
        area: &Dentries<&[u8]>,
        slot: usize,
        bytes: &[u8],
    ) -> usize {
        let at = Place::Dir(walk.ino, block);
        let length = usize::from(area.raw(slot).name_len.get());
        let mut entry = area.entry_at(slot);
        let mut next = slot + entry.map_or(1, |entry| slots_for(entry.name.len()));
        let mut restored = None;
        if !entry.is_some_and(|entry| walk.is_confirmed(&entry) && !self.contradicts_inode(walk, &entry)) {
            self.doubt_area(walk.held, walk.ino);
            restored = self.restored_entry(walk, block, area, slot);
            // A name does not reach into the next one.
            let inner = (slot + 1..next)
                .find(|slot| area.entry_at(*slot).is_some_and(|inner| walk.is_confirmed(&inner)));
            if inner.is_some() {
                (entry, next) = (None, inner.unwrap_or(next));
            }
        }
        if let Some((kind, name)) = &restored {
            let raw = area.raw(slot);
            let shown = walk.naming.shown(name);
            let known = format!("slot {slot} has another name of {length} bytes, and the hash of {shown}");
            let finding = Finding::new(Kind::DentryName, at, known).repaired_by("restore the name");
            self.report.add(finding.with_certainty(Certainty::Certain));
            let (hash, ino) = (raw.hash.get(), Ino(raw.ino.get()));
            entry = Some(Dentry { slot, hash, ino, kind: Some(*kind), name });
            next = slot + slots_for(name.len());
            walk.edit(bytes, |area| {
                (slot..next).for_each(|slot| area.set_use(slot, SlotUse::Free));
                area.insert(slot, hash, ino, *kind, name);
            });
        }
        let Some(entry) = entry else {
            self.add(Kind::DentryName, at, format!("slot {slot} has a name of {length} bytes"));
            walk.is_broken = true;
            walk.edit(bytes, |area| (slot..next).for_each(|slot| area.set_use(slot, SlotUse::Free)));
            return next;
        };
        if let Some(free) = (slot..next).find(|slot| restored.is_none() && !area.is_used(*slot)) {
            let known = format!("the name in slot {slot} reaches into slot {free}, which is free");
            self.add(Kind::DentryName, at, known);
            walk.edit(bytes, |area| (slot..next).for_each(|slot| area.set_use(slot, SlotUse::Used)));
        }
        match entry.name {
            b"." => self.check_dot(walk, block, &entry, 0, bytes),
            b".." => self.check_dot(walk, block, &entry, 1, bytes),
            _ => self.check_entry(walk, block, &entry, bytes),
        }
        next
    }

    /// The kind and the name of a damaged entry whose hash confirms that it is a dot, or the name that its inode carries with
    /// another length.
    fn restored_entry(
        &mut self,
        walk: &Walk,
        block: u64,
        area: &Dentries<&[u8]>,
        slot: usize,
    ) -> Option<(FileType, Vec<u8>)> {
        let raw = *area.raw(slot);
        let (hash, ino) = (raw.hash.get(), Ino(raw.ino.get()));
        let is_directory = FileType::from_dentry_code(raw.file_type) == Some(FileType::Directory);
        if block == 0 && hash == 0 && is_directory {
            match (slot, raw.name_len.get()) {
                (0, _) if ino == walk.ino => return Some((FileType::Directory, b".".to_vec())),
                (1, 2) => return Some((FileType::Directory, b"..".to_vec())),
                _ => {}
            }
        }
        let inode = self.inode_of(ino)?;
        let name = inode.last_name();
        let has_other_length = name.len() != usize::from(raw.name_len.get());
        let is_own = (has_other_length || walk.naming == Naming::EncryptedFolded)
            && !name.is_empty()
            && (walk.naming.hash(name, !hash) == hash || encrypted_hash(walk.naming, &inode) == Some(hash))
            && slot + slots_for(name.len()) <= area.slots();
        is_own.then(|| (inode.file_type(), name.to_vec()))
    }

    /// Returns true if an entry has the hash that its inode carries with another name. Where only the key tells the hash of a
    /// name, nothing else shows damage of the name.
    fn contradicts_inode(&mut self, walk: &Walk, entry: &Dentry<'_>) -> bool {
        if walk.naming != Naming::EncryptedFolded || is_dot(entry.name) {
            return false;
        }
        self.inode_of(entry.ino).is_some_and(|inode| {
            !inode.has_advise(advise::LOST_PINO)
                && inode.head().pino.get() == walk.ino.0
                && inode.last_name() != entry.name
                && encrypted_hash(walk.naming, &inode) == Some(entry.hash)
        })
    }

    fn check_dot(&mut self, walk: &mut Walk, block: u64, entry: &Dentry<'_>, which: usize, bytes: &[u8]) {
        let at = Place::Dir(walk.ino, block);
        let name = if which == 0 { "." } else { ".." };
        if block != 0 {
            self.doubt_area(walk.held, walk.ino);
            let finding = Finding::new(Kind::DentryPlace, at, format!("{name:?} is not in block 0"));
            self.report.add(finding.repaired_by("remove the entry"));
            walk.edit(bytes, |area| area.set_use(entry.slot, SlotUse::Free));
            return;
        }
        walk.dots[which] += 1;
        if walk.dots[which] > 1 {
            self.add(Kind::DotsTwice, at, format!("a second entry {name:?} in slot {}", entry.slot));
            walk.edit(bytes, |area| area.set_use(entry.slot, SlotUse::Free));
            return;
        }
        if entry.hash != 0 {
            self.add(Kind::DentryHash, at, format!("{name:?} has hash {:#010x}, must be 0", entry.hash));
            walk.edit(bytes, |area| area.set_hash(entry.slot, 0));
        }
        if which == 0 && entry.ino != walk.ino {
            let known = format!("\".\" names {}, must be {}", entry.ino, walk.ino);
            let certainty = self.certainty_of_dot(walk, entry.ino, bytes);
            self.report.add(Finding::new(Kind::DotsWrong, at, known).with_certainty(certainty));
            self.doubt_area(walk.held, walk.ino);
            let own = walk.ino;
            walk.edit(bytes, |area| area.set_target(entry.slot, own, FileType::Directory));
        }
        if which == 1 {
            walk.parent = Some(entry.ino);
        }
        if entry.kind != Some(FileType::Directory) {
            self.add(Kind::DentryType, at, format!("the entry in slot {} is no directory", entry.slot));
            let target = if which == 0 { walk.ino } else { entry.ino };
            walk.edit(bytes, |area| area.set_target(entry.slot, target, FileType::Directory));
        }
    }

    /// Checks an entry that is not a dot.
    fn check_entry(&mut self, walk: &mut Walk, block: u64, entry: &Dentry<'_>, bytes: &[u8]) {
        let at = Place::Dir(walk.ino, block);
        if self.belongs_elsewhere(walk, entry) {
            self.send_home(walk, at, entry, bytes);
            return;
        }
        self.report.sums.entries += 1;
        let shown = walk.naming.shown(entry.name);
        let mut hash = walk.naming.hash(entry.name, entry.hash);
        let is_possible = walk.naming.is_possible(entry.name);
        walk.is_plain &= is_plain(entry.name);
        if let Some(known) = self.damaged_ciphertext(walk, block, entry) {
            let known = format!("the name {shown} in slot {} {known}", entry.slot);
            self.remove_entry(walk, entry, bytes, Finding::new(Kind::DentryName, at, known));
            return;
        }
        if !is_possible {
            let known = format!("the name {shown} in slot {} has a slash or a zero", entry.slot);
            self.add(Kind::DentryName, at, known);
        }
        let is_right = is_possible && hash == entry.hash;
        let name = if is_right { None } else { Some(self.mended_name(walk, at, entry, hash)) };
        if let Some(name) = name {
            hash = walk.naming.hash(&name, entry.hash);
            walk.edit(bytes, |area| {
                // If two blocks name the area, the visit for the first one may have restored a longer name.
                if usize::from(area.raw(entry.slot).name_len.get()) == name.len() {
                    area.set_name(entry.slot, &name);
                }
                area.set_hash(entry.slot, hash);
            });
        } else if !walk.is_inline {
            self.check_place(walk, block, hash, &shown, entry, bytes);
        }
        if walk.hashes.len() < HASHES_MAX {
            walk.hashes.push(hash);
        }
        self.check_target(walk, at, entry, &shown, bytes);
    }

    /// The damage of an encrypted name that nothing restores: nobody would know it, and its bytes may not even be a name.
    fn damaged_ciphertext(&mut self, walk: &Walk, block: u64, entry: &Dentry<'_>) -> Option<&'static str> {
        if !self.has_ciphertext(walk) {
            return None;
        }
        if entry.name.len() < ENCRYPTED_NAME_MIN {
            return Some("is too short for an encrypted one");
        }
        // Other bytes have a hash that differs in many bits.
        let differing_bits = (walk.naming.hash(entry.name, entry.hash) ^ entry.hash).count_ones();
        // The bucket confirms the hash, and the inode does not confirm the name.
        let is_lost = differing_bits > HASH_BITS
            && walk.has_bucket(block, entry.hash)
            && self.right_name(walk, entry) == entry.name
            && !self.is_own_name(entry);
        is_lost.then_some("has another hash, and nothing tells it")
    }

    /// The name that an entry with a wrong hash or an impossible name should have: the inode may have it, and
    /// the hash confirms it. Otherwise the stored name, with a replacement for impossible bytes.
    fn right_name(&mut self, walk: &Walk, entry: &Dentry<'_>) -> Vec<u8> {
        let inode = self.inode_of(entry.ino);
        let own = inode.as_ref().map(|inode| inode.last_name()).filter(|name| {
            name.len() == entry.name.len() && walk.naming.hash(name, !entry.hash) == entry.hash
        });
        if let Some(own) = own {
            return own.to_vec();
        }
        let possible = |byte: &u8| if matches!(byte, b'/' | 0) { b'_' } else { *byte };
        match walk.naming {
            Naming::Plain | Naming::Folded => entry.name.iter().map(possible).collect(),
            Naming::Encrypted | Naming::EncryptedFolded => entry.name.to_vec(),
        }
    }

    /// Returns the [right name](Self::right_name) of such an entry, reports that its hash is not `right`, and notes a name
    /// that nothing restores.
    fn mended_name(&mut self, walk: &Walk, at: Place, entry: &Dentry<'_>, right: u32) -> Vec<u8> {
        let name = self.right_name(walk, entry);
        let is_restored = name != entry.name && walk.naming.hash(&name, !entry.hash) == entry.hash;
        // Otherwise the name may be damaged, and not the hash.
        let is_known = is_restored || self.is_own_name(entry);
        if right != entry.hash {
            let shown = walk.naming.shown(entry.name);
            let known = format!("{shown} has hash {:#010x}, must be {right:#010x}", entry.hash);
            // The flag of the directory may be wrong, and not the hash.
            let is_refolded = self.format.features.has(Features::CASEFOLD)
                && !walk.naming.is_encrypted()
                && walk.naming.refolded().hash(entry.name, !entry.hash) == entry.hash;
            let is_certain = is_known && !is_refolded;
            let certainty = if is_certain { Certainty::Certain } else { Certainty::Unclear };
            self.report.add(Finding::new(Kind::DentryHash, at, known).with_certainty(certainty));
        }
        if !is_known {
            self.note_damaged_name(walk.ino, &name, entry.ino);
        }
        name
    }

    /// Returns true if the inode of an entry carries the name of the entry.
    fn is_own_name(&mut self, entry: &Dentry<'_>) -> bool {
        self.inode_of(entry.ino).is_some_and(|inode| inode.last_name() == entry.name)
    }

    fn check_place(
        &mut self,
        walk: &mut Walk,
        block: u64,
        hash: u32,
        shown: &str,
        entry: &Dentry<'_>,
        bytes: &[u8],
    ) {
        let at = Place::Dir(walk.ino, block);
        let findings = self.report.count(Kind::DentryPlace);
        match dir_hash::level_of(block, walk.dir_level) {
            Some((level, bucket)) => {
                let right = u64::from(hash) % dir_hash::buckets(level, walk.dir_level);
                if right != bucket {
                    let known = format!("{shown} is in bucket {bucket} of level {level}, must be in {right}");
                    self.add(Kind::DentryPlace, at, known);
                } else {
                    walk.last_level = walk.last_level.max(level);
                    if level >= walk.depth {
                        walk.too_deep = walk.too_deep.max(Some(level));
                    }
                }
            }
            None => self.add(Kind::DentryPlace, at, format!("{shown} is in a block of no level")),
        }
        if self.report.count(Kind::DentryPlace) > findings {
            self.doubt_area(walk.held, walk.ino);
            self.enter_again(walk, entry, bytes);
        }
    }

    /// Takes an entry out of its area, to be entered again.
    pub fn enter_again(&mut self, walk: &mut Walk, entry: &Dentry<'_>, bytes: &[u8]) {
        let inode = self.inode_of(entry.ino).filter(|inode| inode.last_name() == entry.name);
        let own = inode.and_then(|inode| encrypted_hash(walk.naming, &inode));
        self.take_out(walk, entry, bytes, entry.name, own.unwrap_or(entry.hash));
    }

    /// Takes an entry out of its area, to be entered again under a name with this hash.
    pub fn take_out(&mut self, walk: &mut Walk, entry: &Dentry<'_>, bytes: &[u8], name: &[u8], hash: u32) {
        if !self.is_enterable(entry.ino) {
            return;
        }
        let slots = entry.slot..entry.slot + slots_for(entry.name.len());
        walk.edit(bytes, |area| slots.for_each(|slot| area.set_use(slot, SlotUse::Free)));
        self.enter_later(walk.ino, name, hash, entry.ino);
    }

    /// Returns true if a name of an inode can be entered again; otherwise its entry is removed.
    pub fn is_enterable(&self, ino: Ino) -> bool {
        let found = self.table.find_inode(ino);
        let is_usable = found.is_some_and(|found| !self.table.has(found, fact::HIDDEN));
        is_usable && ino != self.superblock.root_ino
    }

    /// Checks the inode that an entry names, and counts the name.
    fn check_target(&mut self, walk: &mut Walk, at: Place, entry: &Dentry<'_>, shown: &str, bytes: &[u8]) {
        let slots = entry.slot..entry.slot + slots_for(entry.name.len());
        let remove =
            |area: &mut Dentries<&mut [u8]>| slots.for_each(|slot| area.set_use(slot, SlotUse::Free));
        let found = self.table.find_inode(entry.ino);
        let Some(found) = found else {
            self.add(Kind::DentryInode, at, format!("{shown} names {}, which is not in use", entry.ino));
            if walk.is_confirmed(entry) {
                self.note_lost_name(walk.held);
            }
            walk.edit(bytes, remove);
            return;
        };
        if self.table.has(found, fact::INVALID | fact::BROKEN) && self.named.len() < ODD_MAX {
            if let Some(kind) = entry.kind {
                let is_in_encrypted = walk.naming.is_encrypted();
                let name = (!is_in_encrypted).then(|| entry.name.into());
                let named = Named { kind, dir: Some(walk.ino), name, is_in_encrypted };
                self.named.insert(entry.ino, named);
            }
        }
        if entry.ino == walk.ino {
            self.add(Kind::DentryInode, at, format!("{shown} names the directory itself"));
            walk.edit(bytes, remove);
            return;
        }
        if entry.ino == self.superblock.root_ino || self.table.has(found, fact::HIDDEN) {
            self.add(Kind::DentryInode, at, format!("{shown} names {}, which has no name", entry.ino));
            walk.edit(bytes, remove);
            return;
        }
        if self.table.has(found, fact::ORPHAN) {
            self.add(Kind::OrphanNamed, at, format!("{shown} names {}, an orphan", entry.ino));
            self.fix(Fix::NoOrphan(entry.ino));
        }
        self.table.take_links(found, 1);
        let was_named = self.table.has(found, fact::REACHED);
        self.table.note(found, fact::REACHED);
        let kind = self.table.kind(found);
        if let Some(kind) = kind.filter(|kind| Some(*kind) != entry.kind) {
            if self.check_kind(at, entry, shown, (found, kind)) {
                walk.edit(bytes, |area| area.set_target(entry.slot, entry.ino, kind));
            }
        }
        // A directory that is lost, or whose mode hides it, is a link of this one.
        let is_hidden = kind != Some(FileType::Directory)
            && entry.kind == Some(FileType::Directory)
            && self.table.has(found, fact::INVALID | fact::BROKEN);
        if is_hidden {
            if let Some(own) = self.table.find(walk.ino.into()) {
                self.table.take_links(own, 1);
            }
        }
        if kind == Some(FileType::Directory) {
            if let Some(own) = self.table.find(walk.ino.into()) {
                self.table.take_links(own, 1);
            }
            if was_named {
                let known = format!("{shown} is another name of the directory {}", entry.ino);
                self.add(Kind::DirSecondName, at, known);
                self.drop_second_name(entry.ino, walk.number);
            } else {
                self.note_parent(entry.ino, walk.number);
            }
        }
    }
}
