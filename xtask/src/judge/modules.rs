//! Kernel modules and their dependencies.
//!
//! A package that is unpacked but not installed has no `modules.dep`. The modules themselves list their
//! dependencies, in their section `.modinfo`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// Modules by feature. Modules that load by themselves on an installed system (through modprobe) are named
/// here. Their set differs from kernel to kernel.
pub const WANTED: [(&str, &[&str]); 10] = [
    ("boot", &["virtio_pci", "virtio_blk", "virtio_console"]),
    ("f2fs", &["crc32_generic", "quota_v2", "f2fs"]),
    ("ext4", &["crc32c_generic", "ext4"]),
    ("vfat", &["nls_cp437", "nls_ascii", "nls_utf8", "vfat"]),
    ("nilfs2", &["nilfs2"]),
    ("btrfs", &["crc32c_generic", "xxhash_generic", "blake2b_generic", "btrfs"]),
    ("fuse", &["fuse"]),
    ("nbd", &["virtio_net", "nbd"]),
    ("9p", &["9pnet_virtio", "9p"]),
    // fs-verity needs hashes of these.
    (
        "encryption",
        &[
            "sha512_generic",
            "sha256_generic",
            "ecb",
            "cbc",
            "xts",
            "cts",
            "essiv",
            "chacha_generic",
            "nhpoly1305",
            "adiantum",
        ],
    ),
];

/// The modules of one kernel.
#[derive(Debug)]
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

impl Modules {
    /// Finds the modules below `dir`.
    pub fn find(dir: &Path) -> Result<Modules> {
        let mut files = BTreeMap::new();
        collect(&dir.join("kernel"), &mut files)?;
        let list = fs::read_to_string(dir.join("modules.builtin")).context("modules.builtin")?;
        let builtin = list.lines().filter_map(|line| module_name(Path::new(line))).collect();
        Ok(Modules { files, builtin })
    }

    /// Returns the modules in `names` that the kernel has, and all their dependencies, each after its own
    /// dependencies, without built-in modules.
    pub fn in_order(&self, names: &[&str]) -> Result<Vec<String>> {
        let mut order = Vec::new();
        for name in names.iter().filter(|name| self.files.contains_key(**name)) {
            self.visit(name, &mut order, 0)?;
        }
        Ok(order)
    }

    /// Returns the module itself, decompressed.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.files.get(name).with_context(|| format!("no module {name}"))?;
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        Ok(match path.extension().and_then(|extension| extension.to_str()) {
            Some("xz") => {
                let mut out = Vec::new();
                lzma_rs::xz_decompress(&mut &bytes[..], &mut out)
                    .map_err(|error| anyhow::anyhow!("{}: {error:?}", path.display()))?;
                out
            }
            Some("zst") => zstd::decode_all(&bytes[..])?,
            _ => bytes,
        })
    }

    fn visit(&self, name: &str, order: &mut Vec<String>, depth: usize) -> Result<()> {
        if self.builtin.contains(name) || order.iter().any(|known| known == name) {
            return Ok(());
        }
        if depth > 16 {
            bail!("module {name} depends on itself");
        }
        for needed in depends(&self.read(name)?) {
            self.visit(&needed, order, depth + 1)?;
        }
        order.push(name.to_owned());
        Ok(())
    }
}

fn collect(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// Returns a module's name: `kernel/fs/f2fs/f2fs.ko.xz` is `f2fs`. A hyphen counts as an underscore.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let (stem, _) = name.split_once(".ko")?;
    Some(stem.replace('-', "_"))
}

/// Returns the names after `depends=` in a module.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_dependencies_are_parsed() {
        assert_eq!(module_name(Path::new("kernel/fs/a-b.ko.xz")).as_deref(), Some("a_b"));
        assert_eq!(module_name(Path::new("modules.order")), None);
        assert_eq!(depends(b"x\0depends=jbd2,crc-16\0y"), ["jbd2", "crc_16"]);
        assert_eq!(depends(b"x\0depends=\0y"), [""; 0]);
        assert_eq!(depends(b"nothing"), [""; 0]);
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let modules = dir.path().join("kernel");
        fs::create_dir(&modules).expect("mkdir");
        let needs = [("a", "b,c"), ("b", "c,built"), ("c", ""), ("loop", "loop"), ("broken", "missing")];
        for (name, needs) in needs {
            fs::write(modules.join(format!("{name}.ko")), format!("\0depends={needs}\0")).expect("write");
        }
        fs::write(dir.path().join("modules.builtin"), "kernel/built.ko\n").expect("write");
        let modules = Modules::find(dir.path()).expect("modules");
        assert_eq!(modules.in_order(&["a", "b", "built"]).expect("an order"), ["c", "b", "a"]);
        assert!(modules.in_order(&["loop"]).is_err());
        assert!(modules.in_order(&["broken"]).is_err());
        assert_eq!(modules.in_order(&["missing"]).expect("nothing"), [""; 0]);
    }
}
