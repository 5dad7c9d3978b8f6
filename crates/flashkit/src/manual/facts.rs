//! Facts about a verb beyond its help: section, exit status, environment, files, related pages.

/// A term and its meaning.
pub type Row = (&'static str, &'static str);

/// Verbs for system administration, like mkfs(8) and mount(8).
const ADMINISTRATION: [&str; 13] = [
    "flashkit-defrag",
    "flashkit-fsck",
    "flashkit-gc",
    "flashkit-label",
    "flashkit-mkfs",
    "flashkit-mount",
    "flashkit-probe",
    "flashkit-quota",
    "flashkit-quota-set",
    "flashkit-rescue",
    "flashkit-resize",
    "flashkit-trim",
    "flashkit-tune",
];

/// Returns the manual section of a verb.
pub fn section(name: &str) -> &'static str {
    if ADMINISTRATION.contains(&name) { "8" } else { "1" }
}

/// Exit codes of every verb.
pub const EXIT_STATUS: [Row; 4] = [
    ("0", "Success, even if the reader of standard output closes it early."),
    ("1", "Failure; a line on standard error gives the reason."),
    ("2", "The arguments are invalid; nothing was done."),
    ("130", "Interrupted by Ctrl-C, or terminated by a signal that the verb handles."),
];

/// Returns an additional sentence on the exit code of some verbs.
pub fn exit_note(name: &str) -> Option<&'static str> {
    Some(match name {
        "flashkit-cat" => "A file that cannot be read gives 1; the others are printed.",
        "flashkit-export" => "With -k, entries that could not be exported give 1; all others were exported.",
        "flashkit-rescue" => "Parts that could not be rescued give 1; all others were rescued.",
        "flashkit-study" => "A cell that failed, or whose volume has faults, gives 1.",
        "flashkit-bench" => "An experiment that failed gives 1.",
        "flashkit-fsck" => {
            "Instead of these it has the exit codes of fsck(8): 0 without findings, 1 where all were repaired, 4 with \
             findings that are left, 8 where the check failed, 16 for invalid arguments."
        }
        "flashkit-verity-measure" => "A file that is not sealed gives 1; the others are printed.",
        "flashkit-verity-check" => {
            "Instead of these it has exit codes of fsck(8): 0 without damage, 4 with damage, 8 where something could not \
             be checked, 12 for both, 16 for invalid arguments."
        }
        "flashkit-mount" => "In the foreground, a volume that could not be unmounted cleanly gives 1.",
        _ => return None,
    })
}

/// Returns the environment variables that a verb reads.
pub fn environment(name: &str) -> &'static [Row] {
    match name {
        "flashkit-mkfs" | "flashkit-import" => &[(
            "SOURCE_DATE_EPOCH",
            "The latest time stamp in the volume, in seconds since 1970, for reproducible images; see \
             flashkit-filling(7).",
        )],
        "flashkit-man" => &[(
            "SOURCE_DATE_EPOCH",
            "The date of the pages, in seconds since 1970; by default the date of this version.",
        )],
        "flashkit-study" => &[(
            "TMPDIR",
            "The directory for the data of the cards, unless --work names one; by default /tmp.",
        )],
        _ => &[],
    }
}

/// Returns the files that a verb reads or makes.
pub fn files(name: &str) -> &'static [Row] {
    match name {
        "flashkit-mount" => &[
            ("/dev/fuse", "The device that every mount needs."),
            ("/etc/fstab", "Volumes of the type fuse.flashkit that mount(8) mounts."),
            ("/sbin/mount.fuse.flashkit", "The program under this name is the helper that mount(8) calls."),
            ("/sbin/mount.fuseblk.flashkit", "The same helper, for remounting mounts of root."),
        ],
        "flashkit-card" | "flashkit-card-new" | "flashkit-card-serve" | "flashkit-card-stats" => &[
            ("FILE", "The data of a card, as large as the card, sparse."),
            ("FILE.card", "The profile, mapping and counters of the card, as JSON."),
        ],
        "flashkit-study" => &[
            ("study/report.html", "Tables and charts; -o names another directory."),
            ("study/figures.csv", "All figures."),
            ("study/power-cuts.html", "Tables and evidence of experiment 9; records in study/power-cuts."),
            ("study/wear.csv", "Erase counts of the blocks of the flash."),
            (
                "var/uml/linux, var/uml/guest-agent",
                "The lab's kernel and its init; --guest names another directory.",
            ),
        ],
        _ => &[],
    }
}

/// Returns related pages, beyond the main page and the verb's subcommands.
pub fn see_also(name: &str) -> &'static [(&'static str, &'static str)] {
    match name {
        "flashkit" => {
            &[("flashkit-filling", "7"), ("flashkit-json", "7"), ("flashkit-names", "7"), ("mkfs.f2fs", "8")]
        }
        "flashkit-mkfs" => &[
            ("flashkit-filling", "7"),
            ("flashkit-import", "1"),
            ("flashkit-probe", "8"),
            ("mkfs.f2fs", "8"),
        ],
        "flashkit-import" => &[("flashkit-filling", "7"), ("flashkit-export", "1"), ("flashkit-mkfs", "8")],
        "flashkit-export" => &[("flashkit-import", "1"), ("tar", "1")],
        "flashkit-mount" => &[("fusermount3", "1"), ("fstab", "5"), ("mount", "8"), ("umount", "8")],
        "flashkit-info" | "flashkit-ls" | "flashkit-tree" | "flashkit-stat" | "flashkit-getfattr" => {
            &[("flashkit-dump", "1"), ("flashkit-json", "7")]
        }
        "flashkit-partitions" => &[("flashkit-info", "1"), ("flashkit-json", "7"), ("sfdisk", "8")],
        "flashkit-dmverity" => &[("flashkit-json", "7"), ("veritysetup", "8")],
        "flashkit-dump" => &[("flashkit-info", "1"), ("flashkit-json", "7"), ("dump.f2fs", "8")],
        "flashkit-fsck" => {
            &[("flashkit-export", "1"), ("flashkit-json", "7"), ("fsck", "8"), ("fsck.f2fs", "8")]
        }
        "flashkit-rescue" => {
            &[("ddrescue", "1"), ("flashkit-export", "1"), ("flashkit-json", "7"), ("flashkit-fsck", "8")]
        }
        "flashkit-defrag" => &[("filefrag", "8"), ("flashkit-gc", "8"), ("flashkit-json", "7")],
        "flashkit-label" => &[("flashkit-info", "1"), ("f2fslabel", "8")],
        "flashkit-quota" | "flashkit-quota-set" => &[("repquota", "8"), ("setquota", "8")],
        "flashkit-resize" => &[("flashkit-fsck", "8"), ("resize.f2fs", "8")],
        "flashkit-verity" | "flashkit-verity-enable" | "flashkit-verity-measure" => {
            &[("fsverity", "1"), ("flashkit-json", "7"), ("flashkit-tune", "8")]
        }
        "flashkit-verity-check" => &[("fsverity", "1"), ("flashkit-json", "7"), ("flashkit-fsck", "8")],
        "flashkit-trim" => &[("fstrim", "8")],
        "flashkit-tune" => &[("flashkit-info", "1"), ("flashkit-label", "8"), ("flashkit-quota", "8")],
        "flashkit-card" | "flashkit-card-serve" => &[("flashkit-probe", "8"), ("nbdcopy", "1")],
        "flashkit-probe" => &[("flashkit-card", "1"), ("flashkit-mkfs", "8")],
        "flashkit-study" | "flashkit-bench" => &[("flashkit-report", "1"), ("fio", "1")],
        "flashkit-report" => &[("flashkit-bench", "1"), ("flashkit-study", "1")],
        _ => &[],
    }
}
