//! The distribution's package of kernel sources: the source of the lab's kernel, and the tree that volumes
//! are filled from.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    judge::apt::Apt,
    lock::Lock,
    step::Step,
    workspace::{run, var},
};

/// The package that depends on the newest `linux-source-X.Y`, in Debian and Ubuntu.
const META_PACKAGE: &str = "linux-source";

/// The package.
#[derive(Debug, Clone)]
pub struct LinuxSource {
    /// Its name: `linux-source-X.Y`.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl LinuxSource {
    /// Finds the newest version in the machine's sources.
    pub fn find() -> Result<LinuxSource> {
        let apt = Apt::of_machine(Path::new("."));
        let depends = apt.depends(META_PACKAGE)?;
        let name = depends.into_iter().find(|name| name.starts_with("linux-source-"));
        let name = name.context("apt has no linux-source; run apt-get update")?;
        LinuxSource::named(&name)
    }

    /// Finds a package by its name, such as `linux-source-6.12`.
    pub fn named(name: &str) -> Result<LinuxSource> {
        let version = Apt::of_machine(Path::new(".")).version(name)?;
        let version =
            version.with_context(|| format!("apt has no {name}; apt-cache search ^linux-source-"))?;
        Ok(LinuxSource { name: name.to_owned(), version })
    }

    /// Downloads the package and unpacks the tree of sources into `work`, which must exist. Returns the path
    /// of the tree.
    pub fn unpack(&self, work: &Path) -> Result<PathBuf> {
        let LinuxSource { name, version } = self;
        let step = Step::begin(&format!("download {name} {version} (about 140 MB)"));
        let package = work.join("package");
        fs::create_dir(&package)?;
        Apt::of_machine(work).unpack(std::slice::from_ref(name), &package)?;
        step.end();
        let step = Step::begin("unpack it (about 20 s)");
        let archive = archive(&package.join("usr/src"), name)?;
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(work))?;
        fs::remove_dir_all(&package)?;
        step.end();
        Ok(work.join(name))
    }

    /// Returns the tree of sources, kept below `var` for the next time.
    pub fn tree() -> Result<PathBuf> {
        let kept = var("linux-source")?;
        let _lock = Lock::take(&kept)?;
        let has_tree = |entry: &fs::DirEntry| entry.path().join("Kbuild").exists();
        if let Some(tree) = fs::read_dir(&kept)?.filter_map(Result::ok).find(has_tree) {
            return Ok(tree.path());
        }
        // Unpacked in another place and moved, so that an existing tree is complete.
        let work = tempfile::tempdir_in(&kept)?;
        let tree = LinuxSource::find()?.unpack(work.path())?;
        let name = tree.file_name().context("the tree has a name")?;
        let place = kept.join(name);
        fs::rename(&tree, &place)?;
        Ok(place)
    }
}

/// Returns the folder of a package's kernel below `var`: `uml-6.12` for `linux-source-6.12`.
pub fn folder(package: Option<&str>) -> String {
    match package {
        None => "uml".into(),
        Some(package) => format!("uml-{}", package.strip_prefix("linux-source-").unwrap_or(package)),
    }
}

/// Returns the archive of the tree: Debian packs it with xz, Ubuntu with bzip2 behind a link.
fn archive(dir: &Path, name: &str) -> Result<PathBuf> {
    let prefix = format!("{name}.tar.");
    let is_archive = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
    let found = fs::read_dir(dir)?.filter_map(Result::ok).find(is_archive);
    Ok(found.with_context(|| format!("the package has no {prefix}*"))?.path())
}

#[cfg(test)]
mod tests {
    use super::folder;

    #[test]
    fn each_package_has_a_folder_for_its_kernel() {
        let folders = [None, Some("linux-source-6.12"), Some("other")].map(folder);
        assert_eq!(folders, ["uml", "uml-6.12", "uml-other"]);
    }
}
