//! apt with package lists of its own: packages of another release or another architecture, unpacked but not
//! installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};
use lab::programs;

use crate::workspace::run;

/// One source of packages.
#[derive(Debug)]
pub struct Apt {
    dir: PathBuf,
    architecture: Option<&'static str>,
}

impl Apt {
    /// Uses the machine's own sources.
    pub fn of_machine(dir: &Path) -> Apt {
        Apt { dir: dir.to_owned(), architecture: None }
    }

    /// Reads the lists of Debian's `release` for `architecture` into `dir`.
    pub fn of_debian(dir: &Path, release: &str, architecture: &'static str) -> Result<Apt> {
        const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
        const SERVER: &str = "http://deb.debian.org/debian";
        if !Path::new(KEYS).exists() {
            bail!("{KEYS} is missing: install debian-archive-keyring");
        }
        let apt = Apt { dir: dir.to_owned(), architecture: Some(architecture) };
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        let source = format!("deb [arch={architecture} signed-by={KEYS}] {SERVER} {release} main\n");
        fs::write(dir.join("sources.list"), source)?;
        run(apt.command("apt-get").args(["-q", "update"]))?;
        Ok(apt)
    }

    /// Returns the version of a package that apt would install.
    pub fn version(&self, package: &str) -> Result<Option<String>> {
        let text = run(self.command("apt-cache").args(["policy", package]))?;
        let candidate = text.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
        Ok(candidate.filter(|version| *version != "(none)").map(str::to_owned))
    }

    /// Returns the dependencies of a package.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = run(self.command("apt-cache").args(["depends", "--important", package]))?;
        let depends = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(depends.map(|name| name.trim().to_owned()).collect())
    }

    /// Downloads packages and unpacks them into `to`.
    pub fn unpack(&self, packages: &[String], to: &Path) -> Result<()> {
        run(self.command("apt-get").args(["-q", "download"]).args(packages).current_dir(&self.dir))?;
        let mut unpacked = 0;
        for file in fs::read_dir(&self.dir)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                run(programs::command("dpkg").arg("-x").arg(&file).arg(to))?;
                fs::remove_file(file)?;
                unpacked += 1;
            }
        }
        if unpacked != packages.len() {
            bail!("{unpacked} packages of {}", packages.len());
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = programs::command(program);
        if let Some(architecture) = self.architecture {
            for (option, path) in [
                ("Dir::Etc::sourcelist", "sources.list"),
                ("Dir::State::lists", "lists"),
                ("Dir::Cache", "cache"),
            ] {
                command.arg("-o").arg(format!("{option}={}", self.dir.join(path).display()));
            }
            // Ignores the packages installed here.
            command.args(["-o", "Dir::Etc::sourceparts=-", "-o", "Dir::State::status=/dev/null"]);
            command.arg("-o").arg(format!("APT::Architecture={architecture}"));
            command.arg("-o").arg(format!("APT::Architectures={architecture}"));
        }
        command
    }
}
