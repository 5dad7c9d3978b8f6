//! Golden images: small volumes made by the real kernel, with the manifest that the same kernel reads there.
//!
//! `testdata/golden/NAME.img.zst` (`NAME.1.img.zst` and so on for further devices) and `NAME.json`; the
//! format is described in `testdata/README.md`.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use f2fs::{format::BlockSize, mkfs};
use guest::{Manifest, Runner};
use lab::programs;
use model::fsck::fsck_image;
use serde::{Deserialize, Serialize};

use crate::{
    judge::kernel::Machine,
    judge::vm::{Disk, Vm},
    judge::{Image, Judge, Verdict, device_paths, link_devices},
    trial::engine,
    workspace::{root, run},
};

pub mod recipes;
pub mod sixteen;
pub mod stage;
pub mod tree;
pub mod unclean;

use stage::{At, Stage};

/// UUID of all images.
const UUID: u128 = 0xF1A5_F1A5_0000_4000_8000_0000_0000_F2F5;

/// Recipe of an image.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// Its purpose.
    pub about: &'static str,
    /// Flags of mkfs.f2fs; with blocks of 16K only `-O` and features.
    pub mkfs: &'static [&'static str],
    /// Size in MiB.
    pub mib: u64,
    /// Sizes of further devices in MiB.
    pub more_mib: &'static [u64],
    /// Logical sector of its disks.
    pub sector_bytes: u32,
    /// True for blocks of 16K. flashkit formats such a volume, because no other tool does, and the 16K
    /// machine mounts it.
    pub blocks_16k: bool,
    /// Its content.
    pub fill: Fill,
}

impl Recipe {
    fn machine(&self) -> Machine {
        if self.blocks_16k { Machine::Arm64With16K } else { Machine::Amd64 }
    }
}

/// Content of an image.
#[derive(Debug, Clone, Copy)]
pub enum Fill {
    /// Empty.
    Nothing,
    /// Operations in the guest.
    Kernel(fn(&mut Stage) -> Result<()>),
    /// sload.f2fs with [`recipes::source`].
    Sload,
}

/// End of a volume's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Unmount,
    PowerCut,
}

/// Facts of a golden image, stored in `NAME.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Golden {
    /// Its purpose.
    pub about: String,
    /// Flags of mkfs.f2fs.
    pub mkfs: Vec<String>,
    /// True if the image was unmounted. Otherwise the manifest is that of the recovered volume.
    pub clean: bool,
    /// Further devices, by their paths in the superblock.
    pub devices: Vec<String>,
    /// Manifest read by the kernel.
    pub manifest: Manifest,
}

/// Returns the folder of the images.
pub fn folder() -> PathBuf {
    root().join("testdata/golden")
}

/// All recipes.
pub fn recipes() -> impl Iterator<Item = Recipe> {
    recipes::RECIPES.iter().chain(unclean::RECIPES).chain(sixteen::RECIPES).copied()
}

/// Unpacks golden image `name` into `dir` and returns its facts and the files of its devices.
pub fn unpack(name: &str, dir: &Path) -> Result<(Golden, Vec<PathBuf>)> {
    let json = folder().join(format!("{name}.json"));
    let text = fs::read_to_string(&json).with_context(|| json.display().to_string())?;
    let golden: Golden = serde_json::from_str(&text).with_context(|| json.display().to_string())?;
    let mut files = Vec::new();
    for file in file_names(name, golden.devices.len()) {
        let packed = fs::File::open(folder().join(format!("{file}.zst")))?;
        let path = dir.join(&file);
        unpack_sparse(packed, &path).with_context(|| file.clone())?;
        files.push(path);
    }
    Ok((golden, files))
}

/// Makes the images of `recipes` on each machine in one boot, and their manifests in another. A failing
/// recipe does not prevent the others.
pub fn make(recipes: &[Recipe]) -> Result<()> {
    for machine in [Machine::Amd64, Machine::Arm64With16K] {
        let those: Vec<Recipe> = recipes.iter().copied().filter(|it| it.machine() == machine).collect();
        if !those.is_empty() {
            make_on(machine, &those)?;
        }
    }
    Ok(())
}

fn make_on(machine: Machine, recipes: &[Recipe]) -> Result<()> {
    let work = tempfile::tempdir()?;
    let mut disks = Vec::new();
    for recipe in recipes {
        format(recipe, work.path()).with_context(|| recipe.name)?;
        for file in file_names(recipe.name, recipe.more_mib.len()) {
            let disk = Disk::writable(work.path().join(file));
            disks.push(Disk { sector_bytes: recipe.sector_bytes, ..disk });
        }
    }
    let filled = fill(machine, recipes, &disks, work.path())?;

    // A volume after a power cut is recovered by a writable mount, which one with checkpoints disabled
    // requires.
    let read_only = |filled: &Result<End>| !matches!(filled, Ok(End::PowerCut));
    let images: Vec<Image> = recipes
        .iter()
        .zip(&filled)
        .map(|(recipe, filled)| Image { read_only: read_only(filled), ..image(recipe, work.path()) })
        .collect();
    let verdicts = Judge::verdicts(&images)?;
    fs::create_dir_all(folder())?;
    let mut failures = Vec::new();
    for ((recipe, verdict), filled) in recipes.iter().zip(verdicts).zip(filled) {
        let kept = filled.and_then(|end| keep(recipe, work.path(), verdict?, end));
        failures.extend(kept.err().map(|error| format!("{}: {error:#}", recipe.name)));
    }
    if !failures.is_empty() {
        bail!("{} of {} images:\n{}", failures.len(), recipes.len(), failures.join("\n"));
    }
    Ok(())
}

/// Reads the images of `recipes` with the kernel again, without changing them.
pub fn judge_again(recipes: &[Recipe]) -> Result<()> {
    let work = tempfile::tempdir()?;
    let mut images = Vec::new();
    for recipe in recipes {
        let (golden, _) = unpack(recipe.name, work.path())?;
        images.push(Image { read_only: golden.clean, ..image(recipe, work.path()) });
    }
    let verdicts = Judge::verdicts(&images)?;
    for ((recipe, image), verdict) in recipes.iter().zip(&images).zip(verdicts) {
        let end = if image.read_only { End::Unmount } else { End::PowerCut };
        describe(recipe, end, verdict.with_context(|| recipe.name)?.manifest)?;
    }
    Ok(())
}

/// Fills all volumes in one boot. Returns the end of each volume's use.
fn fill(machine: Machine, recipes: &[Recipe], disks: &[Disk], work: &Path) -> Result<Vec<Result<End>>> {
    let mut vm = Vm::boot(machine, disks)?;
    let mut filled = Vec::new();
    let mut disk = 0;
    for recipe in recipes {
        if !recipe.more_mib.is_empty() {
            vm.run_all(link_devices(&device_paths(&disks[disk].source)?, disk))?;
        }
        let after_cut = work.join("after-cut");
        let mut stage = Stage::new(&mut vm, disk, after_cut.clone());
        let done = match recipe.fill {
            Fill::Kernel(steps) => steps(&mut stage),
            Fill::Nothing | Fill::Sload => Ok(()),
        };
        let end = if stage.was_cut() { End::PowerCut } else { End::Unmount };
        if end == End::PowerCut {
            // The machine continues to write to the file that it has open. The name is the cut image's from
            // now on.
            fs::rename(after_cut, &disks[disk].source)?;
        }
        filled.push(done.map(|()| end));
        disk += 1 + recipe.more_mib.len();
    }
    Ok(filled)
}

/// Checks the result and stores it in the folder.
fn keep(recipe: &Recipe, work: &Path, verdict: Verdict, end: End) -> Result<()> {
    let complaints = verdict.complaints();
    if !complaints.is_empty() {
        bail!("the kernel logged errors:\n{}", complaints.join("\n"));
    }
    // No tool of Debian's checks several devices without their paths, or blocks of 16K.
    if end == End::Unmount && recipe.more_mib.is_empty() && !recipe.blocks_16k {
        fsck_image(&image(recipe, work).path)?;
    }
    store(recipe, work, end, verdict.manifest)
}

fn image(recipe: &Recipe, work: &Path) -> Image {
    let mut files = file_names(recipe.name, recipe.more_mib.len()).map(|name| work.join(name));
    let first = files.next().expect("every volume has a first device");
    let (machine, sector_bytes) = (recipe.machine(), recipe.sector_bytes);
    Image { more: files.collect(), machine, sector_bytes, ..Image::f2fs(first) }
}

fn file_names(name: &str, more: usize) -> impl Iterator<Item = String> {
    let first = format!("{name}.img");
    let others = (1..=more).map(move |n| format!("{name}.{n}.img")).collect::<Vec<_>>();
    [first].into_iter().chain(others)
}

/// Makes the files and the volume on them.
fn format(recipe: &Recipe, work: &Path) -> Result<()> {
    let names: Vec<String> = file_names(recipe.name, recipe.more_mib.len()).collect();
    if recipe.blocks_16k {
        let options = mkfs::Options {
            block_size: BlockSize::B16K,
            features: mkfs::parse_features(recipe.mkfs.get(1).unwrap_or(&""))?,
            ..mkfs::Options::new(UUID.to_be_bytes())
        };
        engine::begin(&work.join(&names[0]), recipe.mib, &options)?.finish()?;
        return Ok(());
    }
    for (name, mib) in names.iter().zip([recipe.mib].iter().chain(recipe.more_mib)) {
        fs::File::create(work.join(name))?.set_len(mib << 20)?;
    }
    let mut mkfs = programs::command("mkfs.f2fs");
    // The superblock has the paths of further devices, which must be short and always the same.
    mkfs.current_dir(work).args(["-q", "-f", "-r", "-T", "1700000000"]);
    let uuid = format!("{UUID:032x}");
    let groups = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-");
    mkfs.args(["-U", &groups]).args(recipe.mkfs);
    for name in &names[1..] {
        mkfs.args(["-c", name]);
    }
    run(mkfs.arg(&names[0]))?;
    if let Fill::Sload = recipe.fill {
        let source = tempfile::tempdir_in(work)?;
        let mut runner = Runner::new(source.path());
        for op in recipes::source(&At::root()) {
            runner.run(&op, &mut |_| Ok(())).with_context(|| format!("{op:?}"))?;
        }
        run(programs::command("sload.f2fs")
            .arg("-P")
            .arg("-f")
            .arg(source.path())
            .arg(work.join(&names[0])))?;
    }
    Ok(())
}

fn store(recipe: &Recipe, work: &Path, end: End, manifest: Manifest) -> Result<()> {
    let names: Vec<String> = file_names(recipe.name, recipe.more_mib.len()).collect();
    for name in &names {
        let packed = fs::File::create(folder().join(format!("{name}.zst")))?;
        let mut encoder = zstd::Encoder::new(packed, 15)?;
        encoder.include_checksum(true)?;
        std::io::copy(&mut fs::File::open(work.join(name))?, &mut encoder)?;
        encoder.finish()?;
    }
    describe(recipe, end, manifest)
}

/// Writes the facts of an image.
fn describe(recipe: &Recipe, end: End, manifest: Manifest) -> Result<()> {
    let names: Vec<String> = file_names(recipe.name, recipe.more_mib.len()).collect();
    let mut json = fs::File::create(folder().join(format!("{}.json", recipe.name)))?;
    writeln!(json, "{{\"about\":{},", serde_json::to_string(recipe.about)?)?;
    writeln!(json, "\"mkfs\":{},", serde_json::to_string(recipe.mkfs)?)?;
    writeln!(json, "\"clean\":{},", end == End::Unmount)?;
    writeln!(json, "\"devices\":{},", serde_json::to_string(&names[1..])?)?;
    write!(json, "\"manifest\":")?;
    manifest.write_json(&mut json)?;
    writeln!(json, "}}")?;
    Ok(())
}

/// Decompresses to a file, leaving out zeroes.
fn unpack_sparse(packed: fs::File, to: &Path) -> Result<()> {
    use std::{io::Read, os::unix::fs::FileExt};
    let mut decoder = zstd::Decoder::new(packed)?;
    let file = fs::File::create(to)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let n = decoder.read(&mut buffer)?;
        if n == 0 {
            file.set_len(at)?;
            return Ok(());
        }
        if buffer[..n].iter().any(|&byte| byte != 0) {
            file.write_all_at(&buffer[..n], at)?;
        }
        at += n as u64;
    }
}
