//! Stress programs for file systems, several at once on one mount. `STRESS_SECONDS=60` runs each for a
//! minute.

mod support;

use support::Bench;

/// The file stressors of stress-ng. All run in parallel; those that the installed version lacks are skipped.
const STRESSORS: [&str; 36] = [
    "hdd",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "fallocate",
    "rename",
    "link",
    "symlink",
    "filename",
    "flock",
    "lockf",
    "lockofd",
    "locka",
    "seek",
    "sync-file",
    "xattr",
    "chmod",
    "chown",
    "utime",
    "open",
    "access",
    "fstat",
    "getdent",
    "iomix",
    "readahead",
    "revio",
    "sendfile",
    "splice",
    "chattr",
    "file-ioctl",
    "inode-flags",
    "mknod",
    "touch",
    "aiol",
    "lease",
];

fn seconds() -> u64 {
    std::env::var("STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// Runs all stressors on a volume of `mebibytes` MiB.
fn stress(mebibytes: u64, file_bytes: &str) {
    let mut bench = Bench::mounted(mebibytes);
    let seconds = seconds();
    let script = format!(
        "known=$(stress-ng --help)
         for name in {}; do
             case $known in *--$name\\ *) all=\"${{all-}} --$name 1\" ;; esac
         done
         stress-ng --temp-path . --timeout {seconds} --verify --oomable --hdd-bytes {file_bytes} \
             --fallocate-bytes {file_bytes} --iomix-bytes {file_bytes} --revio-bytes {file_bytes} \
             --readahead-bytes {file_bytes} --sync-file-bytes {file_bytes} $all 2>&1 || test $? = 3",
        STRESSORS.join(" "),
    );
    let said = bench.shell(&script);
    assert!(said.matches(", 1 ").count() > 20 && !said.contains("fail:"), "{said}");
    bench.unmount_clean();
    bench.mount("");
    bench.shell("chattr -R -f -ia . || true; rm -rf ./*; sync -f .");
    bench.unmount_clean();
}

#[test]
fn stressors_leave_the_volume_intact() {
    needs_fuse!("stress-ng");
    stress(2048, "20m");
}

#[test]
fn stressors_leave_a_full_volume_intact() {
    needs_fuse!("stress-ng");
    let mut bench = Bench::mounted(128);
    let seconds = seconds();
    bench.shell(&format!(
        "stress-ng --temp-path . --timeout {seconds} --oomable --hdd 2 --hdd-bytes 60m --dentry 1 --iomix 1 \
             --iomix-bytes 20m --aiol 1 --fallocate 1 --fallocate-bytes 20m 2>&1 || test $? = 3"
    ));
    // Writes may have failed, but the volume is consistent.
    bench.unmount_clean();
}

#[test]
fn clients_of_a_file_server_read_back_their_writes() {
    needs_fuse!("dbench");
    let load = "/usr/share/dbench/client.txt";
    if !std::path::Path::new(load).exists() {
        return;
    }
    let mut bench = Bench::mounted(1024);
    let said = bench.shell(&format!("dbench -D . -t {} -c {load} 4 2>&1", seconds()));
    assert!(said.contains("Throughput") && !said.contains("ERROR"), "{said}");
    bench.unmount_clean();
}
