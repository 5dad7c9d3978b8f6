//! The guest's kernel log as evidence: finds the lines about a volume.
//!
//! *Invariant*: a line counts because of its source, never because its source is unknown. A slow host makes a
//! guest's kernel warn about its clock, its scheduler and its log, and none of that concerns the volume.
//! [`lab::patience`] detects a guest that hangs, so reports of late tasks and processors do not count either.

use guest::op::Message;

/// Level of warnings (Linux, `include/linux/kern_levels.h`). More severe messages have a smaller one.
const WARNING: u8 = 4;

/// First words of lines about a volume: the file systems, the parts of the kernel that work for them, and
/// block drivers.
const SOURCES: [&str; 26] = [
    "f2fs-fs",
    "f2fs",
    "ext4-fs",
    "ext4",
    "jbd2",
    "fat-fs",
    "exfat-fs",
    "nilfs",
    "nilfs2",
    "btrfs",
    "xfs",
    "ubifs",
    "jffs2",
    "fuse",
    "fscrypt",
    "fs-verity",
    "vfs",
    "quota",
    "dquot",
    "virtio_blk",
    "block",
    "blk-mq",
    "nbd",
    "loop",
    "blk_update_request",
    "print_req_error",
];

/// Words in lines of the block layer that start with the name of a program or a disk (Linux,
/// `block/blk-core.c`, `block/blk-mq.c`, `fs/buffer.c`).
const BLOCK_ERRORS: [&str; 3] = ["I/O error", " error, dev ", "attempt to access beyond end of device"];

/// Starts of the first line of a kernel fault report. The lines below it repeat it.
const FAULTS: [&str; 9] = [
    "BUG",
    "kernel BUG at",
    "WARNING:",
    "Oops:",
    "general protection fault",
    "KASAN:",
    "UBSAN:",
    "refcount_t:",
    "Kernel panic",
];

/// Fault reports that a processor without enough time also causes.
const LATE: [&str; 3] = ["soft lockup", "hard LOCKUP", "workqueue lockup"];

/// Returns the warnings and errors about a volume in a kernel log.
pub fn complaints(log: &[Message]) -> Vec<&str> {
    let bad = log.iter().filter(|message| message.level <= WARNING);
    bad.map(|message| message.text.as_str()).filter(|text| is_about_volume(text) || is_fault(text)).collect()
}

fn is_about_volume(text: &str) -> bool {
    let ends_word = |c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c);
    let source = text.split(ends_word).next().unwrap_or_default().to_ascii_lowercase();
    SOURCES.contains(&source.as_str()) || BLOCK_ERRORS.iter().any(|words| text.contains(words))
}

fn is_fault(text: &str) -> bool {
    FAULTS.iter().any(|start| text.starts_with(start)) && !LATE.iter().any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as kernels 6.1 to 6.18 log them, with their levels.
    const ABOUT_THE_VOLUME: [(u8, &str); 22] = [
        (4, "F2FS-fs (vda): invalid crc value: 0"),
        (3, "F2FS-fs (vdb): Can't find valid F2FS filesystem in 1th superblock"),
        (4, "f2fs: unknown parameter"),
        (2, "EXT4-fs error (device vda): ext4_lookup:1855: inode #2: comm init: iget: bad extra_isize 39578"),
        (4, "EXT4-fs (vda): warning: mounting fs with errors, running e2fsck is recommended"),
        (3, "JBD2: recovery failed"),
        (3, "Aborting journal on device vda-8: I/O error"),
        (3, "FAT-fs (vda): error, fat_free_clusters: deleting FAT entry beyond EOF"),
        (2, "NILFS error (device vda): nilfs_bmap_lookup_contig: broken bmap (inode number=12)"),
        (3, "BTRFS error (device vda): bad tree block start, want 30408704 have 0"),
        (
            1,
            "XFS (vda): Metadata CRC error detected at xfs_agf_read_verify+0x6c/0xb0 [xfs], xfs_agf block 0x1",
        ),
        (3, "Quota error (device vda): v2_read_file_info: Can't read info structure"),
        (3, "VFS: Busy inodes after unmount of vda. Self-destruct in 5 seconds.  Have a nice day..."),
        (
            3,
            "blk_update_request: I/O error, dev vda, sector 2048 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 0",
        ),
        (3, "I/O error, dev vda, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2"),
        (3, "critical target error, dev vda, sector 0 op 0x3:(DISCARD) flags 0x0 phys_seg 1 prio class 2"),
        (3, "Buffer I/O error on dev vda, logical block 16, async page read"),
        (4, "init: attempt to access beyond end of device"),
        (3, "virtio_blk virtio2: virtio_blk: unsupported feature"),
        (4, "WARNING: CPU: 0 PID: 1 at fs/f2fs/segment.c:3125 f2fs_allocate_data_block+0x4b1/0x560 [f2fs]"),
        (2, "kernel BUG at fs/f2fs/node.c:1421!"),
        (1, "BUG: kernel NULL pointer dereference, address: 0000000000000008"),
    ];

    const ABOUT_THE_MACHINE: [(u8, &str); 24] = [
        (4, "printk: init: 1 output lines suppressed due to ratelimiting"),
        (4, "agent: 61 s in {\"Manifest\":{\"dir\":\"/mnt/0\"}}"),
        (4, "agent: [<0>] f2fs_issue_checkpoint+0x1d3/0x1f0 [f2fs]"),
        (0, "watchdog: BUG: soft lockup - CPU#0 stuck for 23s! [init:1]"),
        (0, "BUG: soft lockup - CPU#0 stuck for 23s! [init:1]"),
        (3, "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 43s!"),
        (3, "INFO: task f2fs_ckpt-254:0:201 blocked for more than 120 seconds."),
        (3, "      Not tainted 6.1.0-41-amd64 #1 Debian 6.1.158-1"),
        (3, "\"echo 0 > /proc/sys/kernel/hung_task_timeout_secs\" disables this message."),
        (3, "rcu: INFO: rcu_preempt self-detected stall on CPU"),
        (3, "rcu: \t0-...!: (1 GPs behind) idle=5c4c/0/0x1 softirq=4042/4043 fqs=0 (false positive?)"),
        (
            3,
            "rcu: rcu_preempt kthread timer wakeup didn't happen for 5252 jiffies! g1 f0x0 RCU_GP_WAIT_FQS(5)",
        ),
        (4, "CPU: 0 PID: 1 Comm: init Not tainted 6.1.0-41-amd64 #1  Debian 6.1.158-1"),
        (4, "RIP: 0010:f2fs_get_node_info+0x12a/0x3b0 [f2fs]"),
        (4, "Call Trace:"),
        (4, " f2fs_write_checkpoint+0x3a1/0x1b40 [f2fs]"),
        (4, "clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable"),
        (4, "TSC found unstable after boot, most likely due to broken BIOS. Use 'tsc=unstable'."),
        (4, "hrtimer: interrupt took 4012345 ns"),
        (
            4,
            "perf: interrupt took too long (2514 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
        ),
        (
            4,
            "workqueue: f2fs_post_read_work hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
        ),
        (3, "sched: RT throttling activated"),
        (4, "process '/host/usr/sbin/mkfs.ext4' started with executable stack"),
        (4, "systemd-1: a name that holds I/O and an error"),
    ];

    fn log(lines: &[(u8, &str)]) -> Vec<Message> {
        lines.iter().map(|(level, text)| Message { level: *level, text: (*text).to_owned() }).collect()
    }

    #[test]
    fn lines_of_file_systems_block_layer_and_faults_are_complaints() {
        let log = log(&ABOUT_THE_VOLUME);
        let all: Vec<&str> = ABOUT_THE_VOLUME.iter().map(|(_, text)| *text).collect();
        assert_eq!(complaints(&log), all);
    }

    #[test]
    fn lines_about_a_starved_machine_and_its_log_are_not_complaints() {
        assert_eq!(complaints(&log(&ABOUT_THE_MACHINE)), Vec::<&str>::new());
    }

    #[test]
    fn a_notice_of_a_file_system_is_not_a_complaint() {
        let notice = [(5, "F2FS-fs (vda): Mounted with checkpoint version = 3f1bba5a")];
        assert_eq!(complaints(&log(&notice)), Vec::<&str>::new());
    }
}
