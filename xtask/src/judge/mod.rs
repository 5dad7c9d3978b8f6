//! Linux's verdict on an image: acceptance, and the manifest that Linux reads.

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

/// Maximum number of images judged in one boot.
const IMAGES_A_BOOT: usize = 48;

/// An image to be judged. It stays unchanged: the kernel's writes during the mount are discarded.
#[derive(Debug, Clone)]
pub struct Image {
    /// The file.
    pub path: PathBuf,
    /// Further devices of a multi-device F2FS volume.
    pub more: Vec<PathBuf>,
    /// File system type.
    pub fs: String,
    /// Mount options.
    pub options: String,
    /// True if it is mounted read-only.
    pub read_only: bool,
    /// Logical sector of the disk.
    pub sector_bytes: u32,
    /// The machine that mounts it.
    pub machine: Machine,
}

impl Image {
    /// Describes an F2FS volume in one file, to be mounted read-only without options.
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

/// The kernel's verdict on an image.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Manifest read by the kernel.
    pub manifest: Manifest,
    /// All log messages of the kernel.
    pub log: Vec<Message>,
}

impl Verdict {
    /// Returns the kernel's warnings and errors about the volume. A volume that causes one is not a good
    /// volume.
    pub fn complaints(&self) -> Vec<&str> {
        kernel_log::complaints(&self.log)
    }
}

/// The judge.
#[derive(Debug)]
pub struct Judge;

impl Judge {
    /// Reads the manifest of each image with the kernel, in as few boots as possible.
    ///
    /// # Errors
    /// An image cannot be mounted, or the kernel complains about it.
    pub fn manifests(images: &[Image]) -> Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        for (image, verdict) in images.iter().zip(Judge::verdicts(images)?) {
            let verdict = verdict.with_context(|| image.path.display().to_string())?;
            let complaints = verdict.complaints();
            if !complaints.is_empty() {
                bail!("{}: the kernel logged errors:\n{}", image.path.display(), complaints.join("\n"));
            }
            manifests.push(verdict.manifest);
        }
        Ok(manifests)
    }

    /// Returns a verdict for each image. An image that cannot be mounted or walked is a value.
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
    let manifest = walked.manifest.context("the guest returned no manifest")?;
    Ok(Ok(Verdict { manifest, log }))
}

/// Makes links in the guest to disks `disk` and following, with their paths in the superblock.
pub fn link_devices(names: &[Bytes], disk: usize) -> impl Iterator<Item = Op> {
    names.iter().enumerate().map(move |(n, name)| {
        let target = format!("/disk/{}", disk + n).into();
        Op::Symlink { target, path: name.clone() }
    })
}

/// Returns the paths of all devices in the superblock of a multi-device F2FS volume.
pub fn device_paths(image: &Path) -> Result<Vec<Bytes>> {
    const TABLE: u64 = 1024 + 2201;
    const ENTRY: usize = 68;
    let mut table = [0; 8 * ENTRY];
    File::open(image)?.read_exact_at(&mut table, TABLE)?;
    let path = |entry: &[u8]| entry[..64].split(|&byte| byte == 0).next().map(Bytes::from);
    Ok(table.chunks_exact(ENTRY).filter_map(path).filter(|path| !path.0.is_empty()).collect())
}
