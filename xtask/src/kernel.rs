//! The judge's kernel: the distribution's stock one, unpacked but not installed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::workspace::{run, system, var};

/// Packages that depend on the newest kernel: Debian's and Ubuntu's.
const META_PACKAGES: [&str; 2] = ["linux-image-amd64", "linux-image-generic"];
/// File of the cache that holds the name of the kernel's directory.
const CURRENT: &str = "current";

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

impl Kernel {
    /// The kernel of the cache; downloaded by apt where there is none yet.
    pub fn find() -> Result<Kernel> {
        let cache = var("kernel")?;
        if let Ok(name) = fs::read_to_string(cache.join(CURRENT)) {
            return Kernel::at(&cache.join(name.trim()));
        }
        let name = download(&cache)?;
        let kernel = Kernel::at(&cache.join(&name))?;
        fs::write(cache.join(CURRENT), name)?;
        Ok(kernel)
    }

    /// The kernel below an unpacked package.
    fn at(dir: &Path) -> Result<Kernel> {
        let boot = dir.join("boot");
        let prefix = "vmlinuz-";
        for file in fs::read_dir(&boot).with_context(|| boot.display().to_string())? {
            let name = file?.file_name().to_string_lossy().into_owned();
            if let Some(release) = name.strip_prefix(prefix) {
                let modules = ["lib/modules", "usr/lib/modules"]
                    .map(|below| dir.join(below).join(release))
                    .into_iter()
                    .find(|modules| modules.is_dir());
                let modules = modules.with_context(|| format!("no modules of {release}"))?;
                return Ok(Kernel { release: release.to_owned(), image: boot.join(&name), modules });
            }
        }
        bail!("no kernel in {}", boot.display())
    }
}

/// Downloads and unpacks the packages of the newest kernel; returns the name of their directory.
fn download(cache: &Path) -> Result<String> {
    let image = META_PACKAGES
        .iter()
        .find_map(|meta| newest(meta).transpose())
        .context("apt knows none of linux-image-amd64 and linux-image-generic; run apt-get update")??;
    // Ubuntu keeps the modules in packages of their own.
    let extra = ["linux-modules-", "linux-modules-extra-"]
        .map(|prefix| image.replacen("linux-image-", prefix, 1))
        .into_iter()
        .filter(|package| matches!(version(package), Ok(Some(_))));
    let packages: Vec<String> = [image.clone()].into_iter().chain(extra).collect();
    let version = version(&image)?.with_context(|| format!("no version of {image}"))?;
    let name = format!("{image}_{version}");

    let work = tempfile::tempdir_in(cache)?;
    // apt drops its rights for the download and warns where it cannot write as that user; that does no harm.
    run(system("apt-get").arg("download").args(&packages).current_dir(work.path()))?;
    let unpacked = work.path().join("unpacked");
    for file in fs::read_dir(work.path())? {
        let file = file?.path();
        if file.extension().is_some_and(|ext| ext == "deb") {
            run(system("dpkg").arg("-x").arg(&file).arg(&unpacked))?;
        }
    }
    let target = cache.join(&name);
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    fs::rename(&unpacked, &target)?;
    Ok(name)
}

/// The image package that a package depends on, itself or through another one.
fn newest(meta: &str) -> Result<Option<String>> {
    let Ok(text) = run(system("apt-cache").args(["depends", "--important", meta])) else {
        return Ok(None);
    };
    let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let image = |name: &&str| {
        name.strip_prefix("linux-image-").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    Ok(depends.map(str::trim).find(image).map(str::to_owned))
}

/// The version that apt would install.
fn version(package: &str) -> Result<Option<String>> {
    let text = run(system("apt-cache").args(["policy", package]))?;
    let candidate = text.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    Ok(candidate.filter(|version| *version != "(none)").map(str::to_owned))
}
