//! Changes a hostile volume in every way, and writes checkpoints in between.
//!
//! The resulting content of a damaged volume is not checked. The checks are that no call panics, hangs or
//! takes unbounded memory.

use f2fs::{
    Result,
    engine::{
        Caller, Engine, FileSize, FinalSymlink, NewNode, Policy, QuotaLimits, RenameMode, SetAttr, SyncScope,
        XattrMode,
    },
    format::{FileType, inode::flag, quota::QuotaKind},
    units::{Ino, Time},
};

/// Maximum number of changed entries of the root, and of each directory there.
const ENTRIES_MAX: usize = 24;

/// Counts of the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Disturbed {
    /// Successful changes.
    pub done: usize,
    /// Refused changes.
    pub refused: usize,
}

impl Disturbed {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.done += 1;
                Some(value)
            }
            Err(error) => {
                self.refused += 1;
                assert!(!error.to_string().is_empty());
                None
            }
        }
    }
}

/// Returns the time of all changes.
pub fn now() -> Time {
    Time { seconds: 1_700_000_000, nanoseconds: 5 }
}

/// Changes a volume that is open for writing.
pub fn disturb(volume: &mut Engine) -> Disturbed {
    let mut disturbed = Disturbed::default();
    let root = volume.superblock().root_ino;
    let mut children = names(volume, root);
    for (name, ino) in children.clone() {
        let within =
            names(volume, ino).into_iter().map(|(inner, child)| ([&name[..], b"/", &inner].concat(), child));
        children.extend(within.take(4));
    }
    grow(volume, root, &mut disturbed);
    disturbed.note(volume.checkpoint());
    let limits = QuotaLimits { space_hard_kib: 9000, inodes_soft: 20, ..QuotaLimits::default() };
    for kind in QuotaKind::ALL {
        disturbed.note(volume.begin(Caller::ADMIN).set_quota_limits(kind, 0, limits));
    }
    let compress = SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() };
    disturbed.note(volume.begin(Caller::USER).set_attr(root, &compress));
    for (n, (path, ino)) in children.iter().enumerate() {
        let at = path.iter().rposition(|byte| *byte == b'/');
        let dir = at.map_or(Some(root), |at| volume.resolve(&path[..at], FinalSymlink::NoFollow).ok());
        let name = &path[at.map_or(0, |at| at + 1)..];
        if let Some(dir) = dir {
            change(volume, n, dir, name, *ino, root, &mut disturbed);
        }
        if n % 8 == 7 {
            disturbed.note(volume.checkpoint());
        }
    }
    grow(volume, root, &mut disturbed);
    disturbed.note(volume.checkpoint());
    for policy in [Policy::Greedy, Policy::CostBenefit, Policy::AgeThreshold] {
        disturbed.note(volume.clean(1, policy));
    }
    disturbed
}

fn names(volume: &Engine, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
    let Ok(entries) = volume.entries(dir, 0) else { return Vec::new() };
    let entries = entries.map_while(Result::ok).filter(|entry| entry.name != b"." && entry.name != b"..");
    entries.map(|entry| (entry.name, entry.ino)).take(ENTRIES_MAX).collect()
}

/// Creates new entries.
fn grow(volume: &mut Engine, root: Ino, disturbed: &mut Disturbed) {
    let salt = disturbed.done;
    let directory = NewNode::new(0o040_755);
    let Some(dir) =
        disturbed.note(volume.begin(Caller::USER).create(root, format!("new {salt}").as_bytes(), &directory))
    else {
        return;
    };
    for n in 0..12u32 {
        let name = [b'n'; 40].iter().copied().chain(n.to_string().into_bytes()).collect::<Vec<u8>>();
        let Some(ino) =
            disturbed.note(volume.begin(Caller::USER).create(dir, &name, &NewNode::new(0o100_644)))
        else {
            continue;
        };
        let data = vec![n as u8; 1 << (3 + n)];
        disturbed.note(volume.begin(Caller::USER).write(ino, u64::from(n) * 1000, &data));
        disturbed.note(volume.begin(Caller::USER).set_xattr(
            ino,
            b"user.n",
            &data[..data.len().min(2000)],
            XattrMode::Set,
        ));
    }
    disturbed.note(volume.begin(Caller::USER).symlink(dir, b"link", b"target", &NewNode::new(0o120_777)));
}

/// Changes one existing entry.
fn change(
    volume: &mut Engine,
    n: usize,
    dir: Ino,
    name: &[u8],
    ino: Ino,
    root: Ino,
    disturbed: &mut Disturbed,
) {
    let is_dir = volume.stat(ino).is_ok_and(|stat| stat.kind == FileType::Directory);
    if !is_dir {
        disturbed.note(volume.begin(Caller::USER).write(ino, (n as u64 * 7001) % 100_000, &[7; 9000]));
        disturbed.note(volume.begin(Caller::USER).truncate(ino, (n as u64 * 3001) % 50_000));
        disturbed.note(volume.begin(Caller::USER).punch_hole(ino, 100, 9000));
        disturbed.note(volume.begin(Caller::USER).zero_range(
            ino,
            5000,
            20_000,
            [FileSize::Stays, FileSize::Grows][n % 2],
        ));
        disturbed.note(volume.begin(Caller::USER).insert_range(ino, 1 << 14, 1 << 15));
        disturbed.note(volume.begin(Caller::USER).collapse_range(ino, 0, 1 << 14));
        disturbed.note(volume.begin(Caller::USER).release_saved(ino));
        disturbed.note(volume.begin(Caller::USER).reserve_saved(ino));
        disturbed.note(volume.fsync(ino, [SyncScope::Data, SyncScope::Everything][n % 2]));
    }
    disturbed.note(volume.begin(Caller::USER).set_xattr(ino, b"user.fuzz", &[n as u8; 300], XattrMode::Set));
    match n % 4 {
        0 => {
            let to = format!("moved {n}");
            disturbed.note(volume.begin(Caller::USER).rename(
                dir,
                name,
                root,
                to.as_bytes(),
                RenameMode::Replace,
            ));
        }
        1 if is_dir => {
            disturbed.note(volume.begin(Caller::USER).remove_dir(dir, name));
        }
        1 => {
            disturbed.note(volume.begin(Caller::USER).unlink(dir, name));
        }
        2 => {
            disturbed.note(volume.begin(Caller::USER).link(ino, dir, format!("linked {n}").as_bytes()));
        }
        _ => {
            disturbed.note(volume.begin(Caller::USER).create(
                dir,
                format!("beside {n}").as_bytes(),
                &NewNode::new(0o100_600),
            ));
        }
    }
}
