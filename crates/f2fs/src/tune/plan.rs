//! The plan of a change of properties: the new superblock, and the work that it needs elsewhere.

use zerocopy::IntoBytes;

use super::{Changes, ExtensionChange};
use crate::{
    Error, Result,
    disk::{read_raw_superblock, read_superblock},
    engine::{Census, Engine},
    format::{
        node::NodeFormat,
        quota::QuotaKind,
        superblock::{self, Features, Superblock, raw},
    },
    mkfs::{Encoding, extensions},
    units::Ino,
};

/// All decisions about a change of properties before the first block is written.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The superblock as it is.
    pub(super) old: raw::Superblock,
    /// The new one. Quota files that are to be made have no number yet.
    pub(super) new: raw::Superblock,
    /// The quotas that the volume has afterwards, if they change.
    pub(super) quotas: Option<Vec<QuotaKind>>,
    /// Work on the checksums of all inodes.
    pub(super) checksums: Checksums,
    /// Work on the directory lost+found.
    pub(super) lost_found: LostFound,
    /// The properties that change.
    pub changes: Vec<Change>,
    /// Damaged inodes of quota files, which no change touches: they stay as they are, for fsck.
    pub damaged_quotas: Vec<(QuotaKind, Ino)>,
}

/// A property that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Name of the property.
    pub what: &'static str,
    /// Its value before.
    pub old: String,
    /// Its value afterwards.
    pub new: String,
}

/// Work on the checksums of all inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    /// They stay as they are.
    Stay,
    /// They are computed anew, while the feature is off.
    Renewed,
}

/// Work on the directory lost+found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LostFound {
    /// The root directory stays as it is.
    Stays,
    /// It is made if the root directory has none.
    Made,
}

/// Features that can be switched on an existing volume.
#[must_use]
pub fn switchable() -> Features {
    [
        Features::ENCRYPT,
        Features::PROJECT_QUOTA,
        Features::INODE_CHECKSUM,
        Features::INODE_CRTIME,
        Features::LOST_FOUND,
        Features::VERITY,
        Features::SB_CHECKSUM,
        Features::CASEFOLD,
        Features::COMPRESSION,
    ]
    .into_iter()
    .fold(Features::default(), Features::with)
}

fn invalid<T>(what: String) -> Result<T> {
    Err(Error::Invalid(what.into()))
}

impl Plan {
    /// Plans the changes. Reads the inodes if the changes depend on them, and writes nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Unsupported`] if a change is refused, with the reason; those of
    /// [reading](crate::engine::Engine#errors).
    pub fn new(volume: &Engine, changes: &Changes) -> Result<Plan> {
        volume.require_writable()?;
        let device = &**volume.device();
        // The copy that the volume was opened from.
        let (_, copy) = read_superblock(device, device.geometry().size_bytes)?;
        let old = read_raw_superblock(device, copy)?;
        let sb = volume.superblock().clone();
        let mut new = old.clone();
        let quotas = quotas(&sb, &old, changes);
        let features = features(&sb, changes, quotas.as_deref())?;
        new.feature.set(features.0);
        if features.has(Features::CASEFOLD) && !sb.features.has(Features::CASEFOLD) {
            new.s_encoding.set(Encoding::UTF8_12_1);
            new.s_encoding_flags.set(changes.encoding.unwrap_or_default().flags());
        } else {
            require_same_encoding(&sb, changes.encoding)?;
        }
        new.uuid = changes.uuid.unwrap_or(sb.uuid);
        set_extensions(&mut new, &sb, changes)?;
        superblock::seal(&mut new);
        let is_on = |feature: Features| features.has(feature) && !sb.features.has(feature);
        let has_sums = features.has(Features::INODE_CHECKSUM);
        let checksums = match is_on(Features::INODE_CHECKSUM) || has_sums && new.uuid != sb.uuid {
            true => Checksums::Renewed,
            false => Checksums::Stay,
        };
        let lost_found = if is_on(Features::LOST_FOUND) { LostFound::Made } else { LostFound::Stays };
        let changes = differences(&sb, &new, quotas.as_deref());
        let damaged_quotas = damaged_quotas(volume)?;
        if let (Some(_), Some((kind, ino))) = (&quotas, damaged_quotas.first()) {
            let kind = kind.name();
            return invalid(format!(
                "the {kind} quota file, inode {ino}, is damaged; repair it first, by fsck -y"
            ));
        }
        let plan = Plan { old, new, quotas, checksums, lost_found, changes, damaged_quotas };
        plan.require_inodes_fit(volume)?;
        Ok(plan)
    }

    /// The features that the volume has afterwards.
    pub(super) fn features(&self) -> Features {
        Features(self.new.feature.get())
    }

    /// The properties that nodes share afterwards.
    pub(super) fn node_format(&self, volume: &Engine) -> NodeFormat {
        NodeFormat::new(volume.geometry().block_size, self.features(), &self.new.uuid)
    }

    /// The inodes that no change reads or writes.
    pub(super) fn left_out(&self) -> Vec<Ino> {
        self.damaged_quotas.iter().map(|(_, ino)| *ino).collect()
    }

    /// Refuses what the present inodes do not permit.
    fn require_inodes_fit(&self, volume: &Engine) -> Result<()> {
        let old = volume.superblock().features;
        let is_off = |feature: Features| old.has(feature) && !self.features().has(feature);
        let is_on = |feature: Features| !old.has(feature) && self.features().has(feature);
        let uses = [Features::ENCRYPT, Features::VERITY, Features::CASEFOLD, Features::COMPRESSION];
        let new_uuid = old.has(Features::ENCRYPT) && self.new.uuid != self.old.uuid;
        let asks = uses.into_iter().any(is_off) || is_on(Features::COMPRESSION) || new_uuid;
        // The census reads inodes by their old checksums, so that no damaged one gets a new checksum.
        if !asks && self.quotas.is_none() && self.checksums == Checksums::Stay {
            return Ok(());
        }
        let (format, left_out) = (self.node_format(volume), self.left_out());
        let census = Census::of(volume, format, volume.superblock().quota_inos, &left_out)?;
        for (feature, count, what) in [
            (Features::ENCRYPT, census.encrypted, "are encrypted"),
            (Features::VERITY, census.sealed, "are sealed with fs-verity"),
            (Features::CASEFOLD, census.casefolded, "fold case"),
            (Features::COMPRESSION, census.compressed, "are marked as compressed"),
        ] {
            if is_off(feature) && count > 0 {
                let name = feature.names().next().unwrap_or_default();
                return invalid(format!("feature {name} cannot be switched off: {count} inodes {what}"));
            }
        }
        if is_on(Features::COMPRESSION) && census.compressed > 0 {
            // Their attributes of compression mean nothing yet, and would count from then on.
            let count = census.compressed;
            return invalid(format!(
                "feature compression cannot be switched on: {count} files are marked as compressed without it; replace \
                 them by copies first"
            ));
        }
        if is_on(Features::COMPRESSION) && census.without_compression > 0 {
            let count = census.without_compression;
            return invalid(format!(
                "feature compression cannot be switched on: {count} files have no room for its attributes"
            ));
        }
        if new_uuid && census.keyed_by_uuid > 0 {
            let count = census.keyed_by_uuid;
            return invalid(format!("the UUID is part of the keys of {count} encrypted inodes"));
        }
        Ok(())
    }
}

/// The quota files whose inodes are damaged.
fn damaged_quotas(volume: &Engine) -> Result<Vec<(QuotaKind, Ino)>> {
    let mut damaged = Vec::new();
    for kind in QuotaKind::ALL {
        let Some(ino) = volume.quota_ino(kind) else { continue };
        match volume.inode(ino).map(drop) {
            Err(Error::Corrupt { .. }) => damaged.push((kind, ino)),
            done => done?,
        }
    }
    Ok(damaged)
}

/// The quotas that the volume has afterwards, if they change. Where quotas are wanted, numbers that an interrupted change
/// has left are a reason to change them as well. Otherwise the files of these numbers stay, with their limits.
fn quotas(sb: &Superblock, raw: &raw::Superblock, changes: &Changes) -> Option<Vec<QuotaKind>> {
    let now = kinds_of(sb);
    let mut wanted = changes.quotas.clone()?;
    wanted.sort_by_key(|kind| kind.index());
    wanted.dedup();
    let is_left = now.is_empty() && raw.qf_ino.iter().any(|ino| ino.get() != 0);
    (wanted != now || is_left).then_some(wanted)
}

fn kinds_of(sb: &Superblock) -> Vec<QuotaKind> {
    QuotaKind::ALL.into_iter().filter(|kind| sb.quota_ino(*kind).is_some()).collect()
}

/// The new features. Refuses those that cannot be switched, and those that need others.
fn features(sb: &Superblock, changes: &Changes, quotas: Option<&[QuotaKind]>) -> Result<Features> {
    let wanted = changes.features;
    let switched = Features(wanted.on.0 & !sb.features.0).with(Features(wanted.off.0 & sb.features.0));
    if let Some(refused) = switched.without(switchable()).names().next() {
        return Err(Error::Unsupported(reason(refused).into()));
    }
    let mut features = sb.features.with(wanted.on).without(wanted.off);
    let kinds = quotas.map_or_else(|| kinds_of(sb), <[QuotaKind]>::to_vec);
    if let Some(kinds) = quotas {
        features = match kinds.is_empty() {
            true => features.without(Features::QUOTA),
            false => features.with(Features::QUOTA),
        };
        if kinds.contains(&QuotaKind::Project) {
            features = features.with(Features::PROJECT_QUOTA);
        }
    }
    if kinds.contains(&QuotaKind::Project) && wanted.off.has(Features::PROJECT_QUOTA) {
        return invalid(
            "feature project_quota cannot be switched off: the volume has quota of projects".into(),
        );
    }
    features.require_extra_attr()?;
    Ok(features)
}

/// Refuses another encoding than that of the volume: the hashes of its names follow from it.
fn require_same_encoding(sb: &Superblock, wanted: Option<Encoding>) -> Result<()> {
    match (wanted, Encoding::of(sb)) {
        (None, _) => Ok(()),
        (Some(wanted), Some(present)) if wanted == present => Ok(()),
        (Some(_), Some(present)) => invalid(format!("the encoding of the volume's names stays {present}")),
        (Some(_), None) => invalid("an encoding needs the feature casefold; switch it on as well".into()),
    }
}

/// The reason why a feature cannot be switched.
fn reason(name: &str) -> String {
    match name {
        "quota" => "feature quota is switched by the quotas that the volume is to have".into(),
        "extra_attr" | "flexible_inline_xattr" => {
            format!("feature {name} changes the layout of every inode: only a new volume can have another")
        }
        name => {
            format!("feature {name} is part of the layout of the volume: only a new volume can have another")
        }
    }
}

/// Stores the extension lists with their changes.
fn set_extensions(new: &mut raw::Superblock, sb: &Superblock, changes: &Changes) -> Result<()> {
    if changes.cold.is_empty() && changes.hot.is_empty() {
        return Ok(());
    }
    // Names that are not UTF-8 were read with replacements, which must not be written.
    let is_readable = |name: &String| {
        name.len() <= extensions::EXTENSION_BYTES && !name.contains(char::REPLACEMENT_CHARACTER)
    };
    if !sb.cold_extensions.iter().chain(&sb.hot_extensions).all(is_readable) {
        return invalid(
            "the volume has extensions that are not UTF-8, so the lists cannot be changed".into(),
        );
    }
    let cold = changed(&sb.cold_extensions, &changes.cold)?;
    let hot = changed(&sb.hot_extensions, &changes.hot)?;
    extensions::store(new, &cold, &hot)
}

fn changed(list: &[String], changes: &[ExtensionChange]) -> Result<Vec<String>> {
    let mut list = list.to_vec();
    for change in changes {
        match change {
            ExtensionChange::Add(extension) => extensions::add(&mut list, std::slice::from_ref(extension))?,
            ExtensionChange::Remove(extension) => match list.iter().position(|known| known == extension) {
                Some(at) => _ = list.remove(at),
                None => return invalid(format!("extension {extension:?} is not in the list")),
            },
        }
    }
    Ok(list)
}

/// Lists the properties that differ.
fn differences(sb: &Superblock, new: &raw::Superblock, quotas: Option<&[QuotaKind]>) -> Vec<Change> {
    let bytes = new.as_bytes().try_into().expect("the struct has the array's size");
    // Nothing here changes a number that the rules are about.
    let new = Superblock::check(bytes, 0, u64::MAX).expect("the old superblock was valid");
    let names = |features: Features| features.names().collect::<Vec<_>>().join(",");
    let uuid = |sb: &Superblock| hyphenated(&sb.uuid);
    let kinds = |kinds: &[QuotaKind]| kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(",");
    let old_kinds = kinds_of(sb);
    let new_kinds = quotas.unwrap_or(&old_kinds);
    let all = [
        ("uuid", uuid(sb), uuid(&new)),
        ("features", names(sb.features), names(new.features)),
        ("cold_extensions", sb.cold_extensions.join(","), new.cold_extensions.join(",")),
        ("hot_extensions", sb.hot_extensions.join(","), new.hot_extensions.join(",")),
        ("quota", kinds(&old_kinds), kinds(new_kinds)),
    ];
    let differs = all.into_iter().filter(|(_, old, new)| old != new);
    differs.map(|(what, old, new)| Change { what, old, new }).collect()
}

/// Formats a UUID as RFC 9562 does.
fn hyphenated(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (n, byte) in uuid.iter().enumerate() {
        text += if matches!(n, 4 | 6 | 8 | 10) { "-" } else { "" };
        text += &format!("{byte:02x}");
    }
    text
}
