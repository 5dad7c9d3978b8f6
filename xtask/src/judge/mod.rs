//! Does Linux accept an image, and what does it see there?

pub mod apt;
pub mod initramfs;
pub mod kernel;
pub mod kernel_log;
pub mod modules;
pub mod stock_guest;
pub mod vm;

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use guest::{Bytes, Manifest, Op, op::Message};

use crate::{
    judge::kernel::Machine,
    judge::vm::{Disk, Vm, show},
};

/// Images that one boot judges; more take another boot.
const IMAGES_A_BOOT: usize = 48;

/// An image to be judged. It stays as it is: what the kernel writes while it is mounted is forgotten.
#[derive(Debug, Clone)]
pub struct Image {
    /// The file.
    pub path: PathBuf,
    /// Further devices of an F2FS volume on several.
    pub more: Vec<PathBuf>,
    /// File system type.
    pub fs: String,
    /// Mount options.
    pub options: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
    /// Logical sector of the disk.
    pub sector_bytes: u32,
    /// The machine that mounts it.
    pub machine: Machine,
}

impl Image {
    /// An F2FS volume in one file, to be mounted read-only without options.
    pub fn f2fs(path: impl Into<PathBuf>) -> Image {
        Image {
            path: path.into(),
            more: Vec::new(),
            fs: "f2fs".into(),
            options: String::new(),
            read_only: true,
            sector_bytes: 512,
            machine: Machine::Amd64,
        }
    }
}

/// What the kernel thinks of an image.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// What it sees.
    pub manifest: Manifest,
    /// All that it logged.
    pub log: Vec<Message>,
}

impl Verdict {
    /// The kernel's warnings and errors about the volume; a volume that earns one is not a good volume.
    pub fn complaints(&self) -> Vec<&str> {
        kernel_log::complaints(&self.log)
    }
}

/// The judge.
#[derive(Debug)]
pub struct Judge;

impl Judge {
    /// What the kernel sees in each image, in as few boots as possible.
    ///
    /// # Errors
    /// An image cannot be mounted, or the kernel complains about it.
    pub fn manifests(images: &[Image]) -> Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        for (image, verdict) in images.iter().zip(Judge::verdicts(images)?) {
            let verdict = verdict.with_context(|| image.path.display().to_string())?;
            let complaints = verdict.complaints();
            if !complaints.is_empty() {
                bail!("{}: the kernel complains:\n{}", image.path.display(), complaints.join("\n"));
            }
            manifests.push(verdict.manifest);
        }
        Ok(manifests)
    }

    /// The same, where an image that cannot be mounted or walked is a value.
    pub fn verdicts(images: &[Image]) -> Result<Vec<Result<Verdict>>> {
        let mut verdicts = Vec::new();
        for batch in images.chunk_by(|a, b| a.machine == b.machine).flat_map(|run| run.chunks(IMAGES_A_BOOT))
        {
            let mut disks = Vec::new();
            for image in batch {
                let files = [&image.path].into_iter().chain(&image.more);
                disks.extend(
                    files.map(|file| Disk { sector_bytes: image.sector_bytes, ..Disk::scratch(file) }),
                );
            }
            let mut vm = Vm::boot(batch[0].machine, &disks)?;
            let mut disk = 0;
            for image in batch {
                verdicts.push(judge(&mut vm, image, disk)?);
                disk += 1 + image.more.len();
            }
        }
        Ok(verdicts)
    }
}

/// Mounts disk `disk` (and those after it, if the image has several), walks it and unmounts it. The outer
/// error is the machine's, the inner one the image's.
fn judge(vm: &mut Vm, image: &Image, disk: usize) -> Result<Result<Verdict>> {
    let names = if image.more.is_empty() { Vec::new() } else { device_paths(&image.path)? };
    vm.run_all(link_devices(&names, disk))?;
    let dir = Bytes::from(format!("/mnt/{disk}"));
    let mount = Op::Mount {
        source: format!("/disk/{disk}").into(),
        dir: dir.clone(),
        fs: image.fs.clone(),
        options: image.options.clone(),
        read_only: image.read_only,
    };
    let mut log = match vm.attempt(mount)? {
        Ok(outcome) => outcome.log,
        Err(refusal) => {
            return Ok(Err(anyhow::anyhow!("mount: {}\n{}", refusal.error, show(&refusal.log))));
        }
    };
    let walked = vm.attempt(Op::Manifest { dir: dir.clone() })?;
    let unmounted = vm.attempt(Op::Unmount { dir })?;
    vm.run_all(names.into_iter().map(|path| Op::Unlink { path }))?;
    let (walked, unmounted) = match (walked, unmounted) {
        (Ok(walked), Ok(unmounted)) => (walked, unmounted),
        (Err(refusal), _) | (_, Err(refusal)) => {
            return Ok(Err(anyhow::anyhow!("{}\n{}", refusal.error, show(&refusal.log))));
        }
    };
    log.extend(walked.log);
    log.extend(unmounted.log);
    let manifest = walked.manifest.context("a manifest was asked for and none came")?;
    Ok(Ok(Verdict { manifest, log }))
}

/// Makes disks `disk` and following known in the guest by the paths that a superblock has for them.
pub fn link_devices(names: &[Bytes], disk: usize) -> impl Iterator<Item = Op> {
    names.iter().enumerate().map(move |(n, name)| {
        let target = format!("/disk/{}", disk + n).into();
        Op::Symlink { target, path: name.clone() }
    })
}

/// The paths of all devices in the superblock of an F2FS volume on several.
pub fn device_paths(image: &Path) -> Result<Vec<Bytes>> {
    const TABLE: u64 = 1024 + 2201;
    const ENTRY: usize = 68;
    let mut table = [0; 8 * ENTRY];
    File::open(image)?.read_exact_at(&mut table, TABLE)?;
    let path = |entry: &[u8]| entry[..64].split(|&byte| byte == 0).next().map(Bytes::from);
    Ok(table.chunks_exact(ENTRY).filter_map(path).filter(|path| !path.0.is_empty()).collect())
}
