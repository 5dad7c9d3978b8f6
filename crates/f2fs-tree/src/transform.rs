//! Changes to entries between a source and a volume.

pub(crate) mod capability;
mod file_contexts;
mod fs_config;
mod owner_map;

pub use file_contexts::FileContexts;
pub use fs_config::FsConfig;
pub use owner_map::OwnerMap;

use f2fs::{Result, units::Time};

use crate::{Entry, path::components};

/// Changes to apply, in the order of the fields. An unset field changes nothing.
#[derive(Debug, Default)]
pub struct Transform {
    /// Owners by number, by name, or as simulated by fakeroot.
    pub owners: Option<OwnerMap>,
    /// Owner and group of all entries.
    pub all_owned_by: Option<(u32, u32)>,
    /// Owner and group of the root directory.
    pub root_owner: Option<(u32, u32)>,
    /// Prefix of the paths in `fs_config` and `file_contexts`, for example `system`.
    pub mount_point: Vec<u8>,
    /// Android's owners, modes and capabilities.
    pub fs_config: Option<FsConfig>,
    /// SELinux's labels.
    pub file_contexts: Option<FileContexts>,
    /// Time of all entries.
    pub all_times: Option<Time>,
    /// Latest time (SOURCE_DATE_EPOCH). Later times become this one. Then an entry's times depend on its
    /// content alone: the times of access and of change, which every copy of a tree alters, become the time
    /// of the content's last change.
    pub latest: Option<Time>,
}

impl Transform {
    /// Applies the changes to an entry.
    pub fn apply(&self, entry: &mut Entry) -> Result<()> {
        if let Some(owners) = &self.owners {
            owners.apply(entry);
        }
        if let Some(owner) = self.all_owned_by {
            (entry.meta.uid, entry.meta.gid) = owner;
        }
        if let Some(owner) = self.root_owner.filter(|_| entry.path.is_empty()) {
            (entry.meta.uid, entry.meta.gid) = owner;
        }
        if self.fs_config.is_some() || self.file_contexts.is_some() {
            let path = self.known_path(&entry.path);
            if let Some(config) = &self.fs_config {
                config.apply(&path[1..], entry);
            }
            if let Some(contexts) = &self.file_contexts {
                contexts.apply(&path, entry)?;
            }
        }
        if let Some(time) = self.all_times {
            entry.meta.mtime = time;
            (entry.meta.atime, entry.meta.ctime) = (Some(time), Some(time));
        }
        if let Some(latest) = self.latest {
            let meta = &mut entry.meta;
            meta.mtime = meta.mtime.min(latest);
            (meta.atime, meta.ctime) = (Some(meta.mtime), Some(meta.mtime));
        }
        Ok(())
    }

    /// Returns the path with the mount point, from the root, with a leading slash.
    fn known_path(&self, path: &[u8]) -> Vec<u8> {
        let parts = components(&self.mount_point).chain([path]);
        let mut known = Vec::new();
        for part in parts.filter(|part| !part.is_empty()) {
            known.push(b'/');
            known.extend_from_slice(part);
        }
        if known.is_empty() { b"/".to_vec() } else { known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Metadata};

    fn entry(path: &str) -> Entry {
        let time = |seconds| Time { seconds, nanoseconds: 5 };
        let meta = Metadata {
            uid: 1000,
            gid: 1000,
            permissions: 0o644,
            mtime: time(100),
            atime: Some(time(300)),
            ctime: Some(time(400)),
            ..Metadata::default()
        };
        Entry { path: path.into(), kind: Kind::Directory, meta }
    }

    #[test]
    fn later_changes_override_earlier_ones() {
        let transform = Transform {
            owners: Some(OwnerMap::parse("uid 1000 7\ngid 1000 7").unwrap()),
            root_owner: Some((0, 0)),
            mount_point: b"system".to_vec(),
            fs_config: Some(FsConfig::parse("system/bin 0 2000 0751\n").unwrap()),
            file_contexts: Some(FileContexts::parse("/system(/.*)? u:system\n").unwrap()),
            ..Transform::default()
        };
        for (path, owner, permissions) in
            [("", (0, 0), 0o644), ("bin", (0, 2000), 0o751), ("lib", (7, 7), 0o644)]
        {
            let mut entry = entry(path);
            transform.apply(&mut entry).unwrap();
            assert_eq!(
                ((entry.meta.uid, entry.meta.gid), entry.meta.permissions),
                (owner, permissions),
                "{path}"
            );
            assert_eq!(entry.meta.xattrs[0].value, b"u:system\0", "{path}");
        }
    }

    #[test]
    fn a_latest_time_sets_all_times_from_the_modification_time() {
        for (latest, expected) in [(50, Time { seconds: 50, nanoseconds: 0 }), (200, entry("").meta.mtime)] {
            let latest = Some(Time { seconds: latest, nanoseconds: 0 });
            let mut entry = entry("x");
            Transform { latest, ..Transform::default() }.apply(&mut entry).unwrap();
            let meta = entry.meta;
            assert_eq!((meta.mtime, meta.atime, meta.ctime), (expected, Some(expected), Some(expected)));
        }
    }

    #[test]
    fn one_time_for_all_entries_replaces_all_times() {
        let time = Time { seconds: 7, nanoseconds: 0 };
        let mut entry = entry("x");
        Transform { all_times: Some(time), ..Transform::default() }.apply(&mut entry).unwrap();
        assert_eq!((entry.meta.mtime, entry.meta.atime, entry.meta.ctime), (time, Some(time), Some(time)));
    }

    #[test]
    fn without_changes_nothing_changes() {
        let mut changed = entry("x");
        Transform::default().apply(&mut changed).unwrap();
        assert_eq!(changed, entry("x"));
    }
}
