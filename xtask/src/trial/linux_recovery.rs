//! Linux and the engine on the same images: both must read and recover the same state.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use block::Survivors;
use f2fs::format::BlockSize;
use guest::{Manifest, Scope, differences};
use model::{
    Case, Record,
    fsck::fsck_image,
    manifest::{excuse_recovered_directories, manifest_of},
    setup::{Maker, store},
};

use crate::{Image, Judge, Machine, trial::engine};

/// Maximum number of differences reported for a volume.
const DIFFERENCES: usize = 8;
/// Volumes of at least this many blocks are not checked: fsck.f2fs would take minutes and gigabytes.
const LARGE_BLOCKS: u64 = 1 << 28;

/// A volume with our manifest of it.
pub struct Ours {
    /// Its name.
    pub name: String,
    /// Image for Linux. A volume to be recovered is mounted writable.
    pub image: Image,
    /// Our manifest.
    pub manifest: Manifest,
}

/// Reads the volumes with Linux, and judges the clean ones with fsck.f2fs.
///
/// # Errors
/// Linux reads a different state in one of them.
pub fn agree(volumes: &[Ours]) -> Result<()> {
    let images: Vec<Image> = volumes.iter().map(|ours| ours.image.clone()).collect();
    let verdicts = Judge::verdicts(&images).context("the judge")?;
    let mut failures = Vec::new();
    for (ours, verdict) in volumes.iter().zip(verdicts) {
        let name = &ours.name;
        // fsck.f2fs does not judge a volume before its recovery.
        let small = ours.manifest.volume.blocks < LARGE_BLOCKS;
        if ours.image.machine == Machine::Amd64 && ours.image.read_only && small {
            failures.extend(fsck_image(&ours.image.path).err().map(|error| format!("{name}: {error}")));
        }
        match verdict {
            Err(error) => failures.push(format!("{name}: {error:#}")),
            Ok(verdict) => {
                // Linux reads both packs, and reports one that a cut has left unfinished.
                let excused = |text: &&str| !ours.image.read_only && text.contains("invalid crc");
                let complaints = verdict.complaints().into_iter().filter(|text| !excused(text));
                failures.extend(complaints.map(|complaint| format!("{name}: {complaint}")));
                let mut own = ours.manifest.clone();
                if !ours.image.read_only {
                    excuse_recovered_directories(&verdict.manifest, &mut own);
                }
                let found = differences(&verdict.manifest, &own, Scope::Volume, DIFFERENCES);
                failures.extend(found.iter().map(|line| format!("{name} (Linux != ours): {line}")));
            }
        }
    }
    match failures.is_empty() {
        true => Ok(()),
        false => bail!("{}", failures.join("\n")),
    }
}

/// Makes Linux read clean volumes of one file each, and compares with what the engine reads.
///
/// # Errors
/// Linux reads a different state in one of them, or complains; or fsck.f2fs finds something.
pub fn compare(images: &[PathBuf]) -> Result<()> {
    let ours = |path: &PathBuf| {
        let volume = engine::open_read_only(path)?;
        let machine = match volume.superblock().block_size {
            BlockSize::B4K => Machine::Amd64,
            BlockSize::B16K => Machine::Arm64With16K,
        };
        let image = Image { machine, ..Image::f2fs(path) };
        Ok(Ours { name: path.display().to_string(), image, manifest: manifest_of(&volume) })
    };
    agree(&images.iter().map(ours).collect::<Result<Vec<_>>>()?)
}

/// Cuts the power at `cuts` requests of a sequence of each case, and makes Linux recover the volumes. Returns
/// their number.
///
/// # Errors
/// Linux recovers one of them to a different state than the engine.
pub fn recover(cases: &[Case], seed: u64, cuts: usize) -> Result<usize> {
    let dir = tempfile::tempdir()?;
    let mut volumes = Vec::new();
    for Case { name, setup, steps, .. } in cases {
        let (record, _) = Record::new(setup, seed, *steps)?;
        let requests = record.requests();
        let machine = match setup.maker {
            Maker::Own16K(_) => Machine::Arm64With16K,
            Maker::Tool(_) | Maker::OwnOn(_) | Maker::Encrypted(..) => Machine::Amd64,
        };
        for n in 0..cuts {
            let at = requests * (n + 1) / cuts;
            let survivors = match n % 4 {
                0 => Survivors::All,
                1 => Survivors::None,
                _ => Survivors::Torn { seed: n as u64 },
            };
            let name = format!("{name}, seed {seed}, {survivors:?} of {at} of {requests} requests");
            let path = dir.path().join(format!("{}.img", volumes.len()));
            store(&record.cut_at(at, &survivors)?, &path)?;
            let image = Image { read_only: false, options: "noatime".into(), machine, ..Image::f2fs(&path) };
            volumes.push(Ours { name, manifest: manifest_of(&engine::open_read_only(&path)?), image });
        }
    }
    agree(&volumes)?;
    Ok(volumes.len())
}
