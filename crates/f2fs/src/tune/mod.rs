//! Changes of a volume's properties: UUID, features, extension lists, quota files.
//!
//! The [`Plan`] is pure: it follows from the superblock and a census of the inodes. Most properties lie in the superblock
//! alone; one write of its first copy changes them. Quota files and the checksums of all inodes lie elsewhere, too: they
//! change between two superblocks, while the features that give them a meaning are off ([`commit`]). docs/DESIGN.md has
//! the order of the writes, and the state after a power cut at each of them.
//!
//! *Invariant*: at any time, the first readable superblock fits the newest checkpoint and all inodes.

mod commit;
mod plan;

pub use plan::{Change, Plan, switchable};

use crate::{
    Error, Result,
    engine::Engine,
    format::{quota::QuotaKind, superblock::Features},
    mkfs::Encoding,
    resize::refuse_read_only,
};

/// The wanted changes. Properties that they do not mention stay as they are.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// The new UUID.
    pub uuid: Option<[u8; 16]>,
    /// Features to switch on and off.
    pub features: FeatureChanges,
    /// Encoding of names. It comes with the feature casefold, and another one than that of the volume is refused without it.
    pub encoding: Option<Encoding>,
    /// Changes of the list of cold extensions.
    pub cold: Vec<ExtensionChange>,
    /// Changes of the list of hot extensions.
    pub hot: Vec<ExtensionChange>,
    /// All quotas that the volume has afterwards.
    pub quotas: Option<Vec<QuotaKind>>,
}

/// Features to switch on and off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeatureChanges {
    /// Features to switch on.
    pub on: Features,
    /// Features to switch off.
    pub off: Features,
}

impl FeatureChanges {
    /// Parses a list of features, separated by commas or blanks. One with a caret before it is switched off; the last
    /// mention of a feature counts.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name.
    pub fn parse(list: &str) -> Result<FeatureChanges> {
        let words = list.split([',', ' ']).filter(|word| !word.is_empty());
        words.into_iter().try_fold(FeatureChanges::default(), |FeatureChanges { on, off }, word| {
            let name = word.trim_start_matches('^');
            let Some((feature, _)) = Features::NAMED.iter().find(|(_, known)| *known == name) else {
                let names: Vec<&str> = plan::switchable().names().collect();
                return Err(Error::Invalid(
                    format!("unknown feature {name:?}; supported: {}", names.join(", ")).into(),
                ));
            };
            Ok(match name.len() == word.len() {
                true => FeatureChanges { on: on.with(*feature), off: off.without(*feature) },
                false => FeatureChanges { on: on.without(*feature), off: off.with(*feature) },
            })
        })
    }
}

/// A change of a list of file name extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtensionChange {
    /// Adds an extension; one that is listed stays.
    Add(String),
    /// Removes an extension that is listed.
    Remove(String),
}

impl ExtensionChange {
    /// Parses an extension to be added, or one to be removed with a caret before it.
    #[must_use]
    pub fn parse(text: &str) -> ExtensionChange {
        match text.strip_prefix('^') {
            Some(extension) => ExtensionChange::Remove(extension.into()),
            None => ExtensionChange::Add(text.into()),
        }
    }
}

/// Changes the properties of a volume. `open` opens it for changes; it is called again after each stage. Returns the plan
/// that was carried out.
///
/// After an error or a power cut, the volume has its old or its new properties, and all its files. There is one exception:
/// if quota files change, or the checksums of all inodes, these features can remain off, with all other properties old or
/// new. Another call with the same changes completes them.
///
/// # Errors
/// [`Error::Invalid`] and [`Error::Unsupported`] if a change is refused, with the reason; [`Error::ReadOnly`] if the volume
/// cannot be changed; [`Error::NoSpace`] if there is no space for quota files or lost+found.
pub fn tune(open: &mut dyn FnMut() -> Result<Engine>, changes: &Changes) -> Result<Plan> {
    let volume = open_writable(open)?;
    let plan = Plan::new(&volume, changes)?;
    commit::carry_out(open, volume, &plan)?;
    Ok(plan)
}

fn open_writable(open: &mut dyn FnMut() -> Result<Engine>) -> Result<Engine> {
    let volume = open()?;
    refuse_read_only(&volume)?;
    Ok(volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caret_switches_a_feature_off_and_the_last_mention_counts() {
        let parsed = FeatureChanges::parse("verity,^sb_checksum casefold,^verity").unwrap();
        assert_eq!(parsed.on, Features::CASEFOLD);
        assert_eq!(parsed.off, Features::SB_CHECKSUM.with(Features::VERITY));
        let error = FeatureChanges::parse("^sb_chksum").unwrap_err().to_string();
        assert!(error.contains("\"sb_chksum\"") && error.contains("inode_checksum"), "{error}");
    }
}
