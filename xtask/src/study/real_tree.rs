//! A volume from a real tree, judged by other programs, with a comparison of costs with other tools.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use guest::{Manifest, Scope, differences};
use model::fsck::fsck_image;
use serde::Serialize;

use crate::{
    Image, Judge,
    step::Step,
    study::filling::{self, Row},
    study::linux_source::LinuxSource,
    workspace::var,
};

/// Maximum number of reported differences.
const DIFFERENCES: usize = 20;

/// All results.
#[derive(Debug, Serialize)]
struct Record {
    tree: String,
    entries: usize,
    host_kernel: String,
    judge_kernel: String,
    rows: Vec<Row>,
    differences: Vec<String>,
}

/// Fills a volume from `tree`, or from the sources of the distribution's kernel, has it judged, prints the
/// table, and leaves the record in `var/study`.
///
/// # Errors
/// A program fails, fsck.f2fs has a finding, or the kernel's manifest differs from the source's.
pub fn run(tree: Option<PathBuf>) -> Result<()> {
    let kept = var("study")?;
    // The images are as large as the tree, so only the record is kept.
    let dir = tempfile::tempdir_in(&kept)?;
    let tree = tree.map_or_else(LinuxSource::tree, Ok)?;
    filling::build()?;
    let step = Step::begin(&format!("read {} with everything in it", tree.display()));
    let source = Manifest::of_tree(&tree)?;
    step.end();

    let rows = filling::rows(&tree, dir.path())?;
    let image = filling::our_image(dir.path());
    let step = Step::begin("fsck.f2fs checks our volume");
    fsck_image(&image)?;
    step.end();
    let step = Step::begin("Linux mounts ours and reads everything (about a minute)");
    let seen = Judge::manifests(&[Image::f2fs(&image)])?.remove(0);
    step.end();
    let record = Record {
        tree: tree.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        entries: source.entries.len(),
        host_kernel: source.kernel.clone(),
        judge_kernel: seen.kernel.clone(),
        differences: differences(&source, &seen, Scope::Copy, DIFFERENCES),
        rows,
    };
    record.print();
    let path = kept.join("study.json");
    fs::write(&path, serde_json::to_vec_pretty(&record)?).with_context(|| path.display().to_string())?;
    if !record.differences.is_empty() {
        bail!("Linux sees a different tree than the source:\n{}", record.differences.join("\n"));
    }
    Ok(())
}

impl Record {
    fn print(&self) {
        println!("\n{}: {} entries; images of {} MiB", self.tree, self.entries, filling::IMAGE_MIB);
        println!("host: Linux {}, judge: Linux {}\n", self.host_kernel, self.judge_kernel);
        filling::print(&self.rows);
        let verdict = match self.differences.len() {
            0 => format!("Linux sees all {} entries as the source has them", self.entries),
            n => format!("Linux sees {n} or more differences"),
        };
        println!("\nfsck.f2fs: clean. {verdict}.");
    }
}
