//! The judge's kernels: stock kernels of distributions, unpacked but not installed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{judge::apt::Apt, lock::Lock, step::Step, workspace::var};

/// Kinds of virtual machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Machine {
    /// x86-64 with pages, and so F2FS blocks, of 4096 bytes: the kernel of the machine's own distribution.
    Amd64,
    /// 64-bit ARM with pages, and so F2FS blocks, of 16384 bytes: the kernel of Debian's stable release.
    Arm64With16K,
}

/// A kernel that can be booted.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Release, such as `6.1.0-56-amd64`.
    pub release: String,
    /// The compressed image.
    pub image: PathBuf,
    /// Directory of its modules.
    pub modules: PathBuf,
}

impl Machine {
    /// Returns the bytes of a page, and so of a block of the F2FS volumes that it mounts.
    pub fn block_bytes(self) -> u64 {
        match self {
            Machine::Amd64 => 4096,
            Machine::Arm64With16K => 16_384,
        }
    }

    /// Returns packages that depend on the newest kernel. The first that apt knows is used.
    fn meta_packages(self) -> &'static [&'static str] {
        match self {
            Machine::Amd64 => &["linux-image-amd64", "linux-image-generic"], // of Debian and Ubuntu
            Machine::Arm64With16K => &["linux-image-arm64-16k"],
        }
    }

    /// Returns the file of the cache that holds the name of the kernel's directory.
    fn current(self) -> &'static str {
        match self {
            Machine::Amd64 => "current",
            Machine::Arm64With16K => "current-arm64-16k",
        }
    }
}

impl Kernel {
    /// Returns the kernel in the cache. Downloads one with apt if there is none yet.
    pub fn find(machine: Machine) -> Result<Kernel> {
        let cache = var("kernel")?;
        let known = || fs::read_to_string(cache.join(machine.current())).ok();
        if let Some(name) = known() {
            return Kernel::at(&cache.join(name.trim()));
        }
        let _lock = Lock::take(&cache)?;
        if let Some(name) = known() {
            return Kernel::at(&cache.join(name.trim()));
        }
        let step = Step::begin("download the judge's kernel (about 70 MB)");
        let name = download(machine, &cache)?;
        step.end();
        let kernel = Kernel::at(&cache.join(&name))?;
        fs::write(cache.join(machine.current()), name)?;
        Ok(kernel)
    }

    /// Returns the kernel in an unpacked package.
    fn at(dir: &Path) -> Result<Kernel> {
        let boot = dir.join("boot");
        for file in fs::read_dir(&boot).with_context(|| boot.display().to_string())? {
            let name = file?.file_name().to_string_lossy().into_owned();
            if let Some(release) = name.strip_prefix("vmlinuz-") {
                let modules = ["lib/modules", "usr/lib/modules"]
                    .map(|below| dir.join(below).join(release))
                    .into_iter()
                    .find(|modules| modules.is_dir());
                let modules = modules.with_context(|| format!("no modules of kernel {release} found"))?;
                return Ok(Kernel { release: release.to_owned(), image: boot.join(&name), modules });
            }
        }
        bail!("no kernel in {}", boot.display())
    }
}

/// Downloads and unpacks the packages of the newest kernel. Returns the name of their directory.
fn download(machine: Machine, cache: &Path) -> Result<String> {
    let work = tempfile::tempdir_in(cache)?;
    let apt = match machine {
        Machine::Amd64 => Apt::of_machine(work.path()),
        Machine::Arm64With16K => Apt::of_debian(work.path(), "stable", "arm64")?,
    };
    let image = machine.meta_packages().iter().find_map(|meta| newest(&apt, meta));
    let image = image.with_context(|| {
        format!("apt has none of {}; run apt-get update", machine.meta_packages().join(", "))
    })?;
    // Ubuntu keeps the modules in packages of their own.
    let extra = ["linux-modules-", "linux-modules-extra-"]
        .map(|prefix| image.replacen("linux-image-", prefix, 1))
        .into_iter()
        .filter(|package| matches!(apt.version(package), Ok(Some(_))));
    let packages: Vec<String> = [image.clone()].into_iter().chain(extra).collect();
    let version = apt.version(&image)?.with_context(|| format!("no version of {image}"))?;
    let name = format!("{image}_{version}");

    let unpacked = work.path().join("unpacked");
    apt.unpack(&packages, &unpacked)?;
    let target = cache.join(&name);
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    fs::rename(&unpacked, &target)?;
    Ok(name)
}

/// Returns the image package that a package depends on.
fn newest(apt: &Apt, meta: &str) -> Option<String> {
    // apt fails for an unknown package.
    let depends = apt.depends(meta).unwrap_or_default();
    depends.into_iter().find(|name| {
        name.strip_prefix("linux-image-").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}
