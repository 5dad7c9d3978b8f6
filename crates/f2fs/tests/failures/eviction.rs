//! Inodes that cannot be evicted when their last user closes them.

use super::*;
use f2fs::engine::Caller;

/// An inode that could not be evicted when its last user closed it is removed with the next checkpoint. Its
/// space is not lost to the session.
#[test]
fn an_inode_that_could_not_be_evicted_is_evicted_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let before = volume.counters();
    for name in [&b"held"[..], b"gone"] {
        let ino = volume.lookup(ROOT, name).unwrap();
        let nid = volume.inode(ino).unwrap().child(0);
        let node = volume.nat_entry(nid).unwrap().addr;
        if name == b"held" {
            volume.hold(ino);
            volume.begin(Caller::ADMIN).unlink(ROOT, name).unwrap();
            forget(&volume);
            device.set(&[node]);
            assert!(matches!(volume.begin(Caller::ADMIN).release(ino), Err(Error::Io { .. })));
        } else {
            forget(&volume);
            device.set(&[node]);
            // The name is gone, as requested.
            volume.begin(Caller::ADMIN).unlink(ROOT, name).unwrap();
        }
        assert!(matches!(volume.lookup(ROOT, name), Err(Error::NotFound)));
        // Other changes do not wait for the failed eviction.
        volume.begin(Caller::ADMIN).create(ROOT, &[name, b"2"].concat(), &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        assert!(volume.orphans().contains(&ino));
        device.set(&[]);
        volume.begin(Caller::ADMIN).create(ROOT, &[name, b"3"].concat(), &NewNode::new(FILE)).unwrap();
        volume.checkpoint().unwrap();
        assert!(volume.orphans().is_empty());
    }
    let after = volume.counters();
    // Gone: two files of 1200 blocks, each with an inode, a node of addresses and one of attributes. New:
    // four inodes.
    assert_eq!(before.valid_blocks - after.valid_blocks, 2 * 1203 - 4);
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// An unused inode that stays only because it could not be removed gets no name again. A caller that opens it
/// keeps it.
#[test]
fn an_inode_that_could_not_be_evicted_gets_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = Scratched::new(crowded(&path));
    let mut volume = open_small(device.clone()).unwrap();
    let [held, gone] = [&b"held"[..], b"gone"].map(|name| volume.lookup(ROOT, name).unwrap());
    let nodes = [held, gone].map(|ino| {
        let nid = volume.inode(ino).unwrap().child(0);
        volume.nat_entry(nid).unwrap().addr
    });
    forget(&volume);
    device.set(&nodes);
    volume.begin(Caller::ADMIN).unlink(ROOT, b"held").unwrap();
    volume.begin(Caller::ADMIN).unlink(ROOT, b"gone").unwrap();
    device.set(&[]);
    assert!(matches!(volume.begin(Caller::ADMIN).link(gone, ROOT, b"back"), Err(Error::NotFound)));
    volume.hold(held);
    volume.checkpoint().unwrap();
    assert!(volume.is_inode(held).unwrap() && !volume.is_inode(gone).unwrap());
    volume.begin(Caller::ADMIN).release(held).unwrap();
    volume.checkpoint().unwrap();
    assert!(!volume.is_inode(held).unwrap());
    volume.unmount().unwrap();
    drop(volume);
    store(&device.inner, &path).unwrap();
    support::assert_clean(&path);
}

/// If a move that removes an inode fails, and later reads fail too, the removed inode is gone.
#[test]
fn a_failed_move_leaves_no_inode_without_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = crowded(&path);
    // Name 9 is in the first block of the directory, and name 250 in a later one.
    for (name, leaves) in [(&b"name9"[..], true), (b"name250", true), (b"name250", false)] {
        let mut failures = 0;
        for nth in 0.. {
            let device = Scratched::new(copy(&image).unwrap());
            let mut volume = open_small(device.clone()).unwrap();
            let from = volume.lookup(ROOT, b"dir").unwrap();
            forget(&volume);
            *device.until.lock().unwrap() = Some(nth);
            *device.goes_on.lock().unwrap() = true;
            let moved = if leaves {
                let new = NewNode::new(0o020_000);
                volume.begin(Caller::ADMIN).rename_leaving(
                    (from, name),
                    (ROOT, name),
                    RenameMode::Replace,
                    &new,
                )
            } else {
                volume.begin(Caller::ADMIN).rename(from, name, ROOT, name, RenameMode::Replace)
            };
            *device.until.lock().unwrap() = None;
            let moved = moved.is_ok();
            failures += u32::from(!moved);
            let is_left = volume.lookup(from, name).is_ok();
            assert_eq!((volume.lookup(ROOT, name).is_ok(), is_left), (moved, !moved || leaves), "read {nth}");
            volume.unmount().unwrap();
            drop(volume);
            store(&device.inner, &path).unwrap();
            support::assert_clean(&path);
            if moved {
                break;
            }
        }
        assert!(failures > 3);
    }
}
