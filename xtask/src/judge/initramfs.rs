//! The guest's initial file system: our init, the modules and the index of modules by feature.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::{
    judge::kernel::{Kernel, Machine},
    judge::modules::{Modules, WANTED},
    workspace::{root, run, var},
};

/// Compilation target of the guest's init, and its options: statically linked, so that it needs no other
/// file. For the foreign machine, the compiler's own linker and C library are used.
fn target(machine: Machine) -> (&'static str, &'static str) {
    match machine {
        Machine::Amd64 => ("x86_64-unknown-linux-gnu", "-C target-feature=+crt-static"),
        Machine::Arm64With16K => {
            ("aarch64-unknown-linux-musl", "-C linker=rust-lld -C link-self-contained=yes")
        }
    }
}

/// Returns true if this machine's compiler can build the guest's init for `machine`. Otherwise prints the
/// reason.
pub fn can_build(machine: Machine) -> bool {
    let (target, _) = target(machine);
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"])).unwrap_or_default();
    let there = Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").exists();
    if !there {
        eprintln!("skipped: rustc has no target {target}, so {machine:?} cannot be tested");
    }
    there
}

/// Returns the initial file system for `kernel`, and makes it if it is not in the cache.
pub fn build(machine: Machine, kernel: &Kernel) -> Result<PathBuf> {
    let agent = fs::read(agent(machine)?)?;
    let cache = var("guest")?;
    let digest = Sha256::new().chain_update(&agent).chain_update(format!("{WANTED:?}")).finalize();
    let key: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let path = cache.join(format!("initramfs-{}-{key}.cpio", kernel.release));
    if path.exists() {
        return Ok(path);
    }
    let mut file = tempfile::NamedTempFile::new_in(&cache)?;
    file.write_all(&archive(&agent, &Modules::find(&kernel.modules)?)?)?;
    file.persist(&path)?;
    Ok(path)
}

fn archive(agent: &[u8], modules: &Modules) -> Result<Vec<u8>> {
    let mut index = BTreeMap::new();
    for (what, names) in WANTED {
        index.insert(what, modules.in_order(names)?);
    }
    let mut cpio = Cpio::default();
    cpio.add("dev", 0o040_755, &[]);
    // The kernel opens a console for init before devtmpfs is mounted.
    cpio.add_device("dev/console", 0o020_600, 5, 1);
    cpio.add("modules", 0o040_755, &[]);
    cpio.add("modules/index.json", 0o100_644, &serde_json::to_vec(&index)?);
    for name in index.values().flatten().collect::<BTreeSet<_>>() {
        cpio.add(&format!("modules/{name}"), 0o100_644, &modules.read(name)?);
    }
    cpio.add("init", 0o100_755, agent);
    Ok(cpio.finish())
}

/// Compiles the guest's init, in a target directory of its own because its flags differ from all else.
pub fn agent(machine: Machine) -> Result<PathBuf> {
    let (target, flags) = target(machine);
    let target_dir = var("guest")?.join("target");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root())
        .args(["build", "--quiet", "--release", "--package", "flashkit-guest", "--bin", "guest-agent"])
        .args(["--target", target, "--target-dir"])
        .arg(&target_dir)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", flags);
    run(&mut command).context("cannot build the guest's init")?;
    Ok(target_dir.join(target).join("release/guest-agent"))
}

/// A cpio archive in the "newc" format (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`).
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

impl Cpio {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, mode, content, (0, 0));
    }

    fn add_device(&mut self, name: &str, mode: u32, major: u32, minor: u32) {
        self.entry(name, mode, &[], (major, minor));
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8], device: (u32, u32)) {
        self.entries += 1;
        let size = u32::try_from(content.len()).expect("files of an initial file system are small");
        let name_bytes = name.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, size, device, device number, length of the name, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_bytes, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_format_that_the_kernel_expects() {
        let mut cpio = Cpio::default();
        cpio.add("init", 0o100_755, b"abc");
        let bytes = cpio.finish();
        let text = String::from_utf8_lossy(&bytes);
        // 110 bytes of head, the name and its zero, content padded to 4
        assert!(text.starts_with("07070100000001000081ED"));
        assert_eq!(&bytes[110..115], b"init\0");
        assert_eq!(&bytes[116..120], b"abc\0");
        assert!(text.contains("TRAILER!!!\0") && bytes.len() % 4 == 0);
    }
}
