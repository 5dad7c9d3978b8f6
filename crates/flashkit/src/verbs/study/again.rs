//! A study repeated from a bundle, and compared with its records.

use std::{fs::File, path::Path};

use anyhow::{Context, Result, anyhow, bail};
use lab::{
    bundle::Bundle,
    matrix::{Matrix, Reach},
    plan::Plan,
    record::{Record, Records},
    report,
};

use crate::{notice::notice, render, verbs};

/// The right of a bundle to have the commands run that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// They run.
    Granted,
    /// A bundle with commands is refused.
    Refused,
}

/// Unpacks a bundle below `dir`, and reads its matrix.
pub fn unpack(file: &Path, dir: &Path, trust: Trust) -> Result<Matrix> {
    let name = || file.display().to_string();
    let bundle = Bundle::read(File::open(file).with_context(name)?).with_context(name)?;
    let matrix = bundle.unpack(dir).with_context(|| dir.display().to_string())?;
    let matrix = matrix.ok_or_else(|| {
        anyhow!("{}: contains no matrix, so it can only be read; its README.md has the commands", name())
    })?;
    let matrix = Matrix::read(&matrix, Reach::Below)?;
    if trust == Trust::Refused && matrix.runs_commands() {
        bail!(
            "{}: its matrix names commands (make, check), options of mkfs, fio jobs or kernels, which would run with your \
             rights; read them in the bundle (tar --zstd -xf), and repeat with --trust",
            name()
        );
    }
    Ok(matrix)
}

/// Compares the records of a plan with those of the bundle that was unpacked to `bundle`, and prints the differences.
pub fn compare(plan: &Plan, bundle: &Path, records: &Records) -> Result<()> {
    let before = Records::of(bundle);
    let (mut same, mut differing, mut missing) = (0, 0, 0);
    for cell in &plan.cells {
        let age = plan.age_of(cell);
        let (old, new) = match (before.get(cell, age), records.get(cell, age)) {
            (Some(old), Some(new)) => (old, new),
            (None, _) => continue,
            (Some(_), None) => {
                notice!("{}: is in the bundle, and was not measured", cell.id());
                missing += 1;
                continue;
            }
        };
        if bare(&old) == bare(&new) {
            same += 1;
            continue;
        }
        differing += 1;
        let settings = old.differences(&new).join(", ");
        let settings = if settings.is_empty() { String::new() } else { format!(" ({settings})") };
        let changes = report::compare(&[old], &[new]);
        render::text(|out| {
            writeln!(out, "{}: differs{settings}", cell.id())?;
            changes.iter().try_for_each(|change| writeln!(out, "  {change}"))
        })?;
    }
    render::text(|out| writeln!(out, "{} equal, {differing} different", render::count(same, "cell")))?;
    match differing + missing {
        0 => Ok(()),
        _ => bail!("{differing} cells differ from the bundle, and {missing} are missing"),
    }
}

/// Returns a record without circumstances and without the program, which may be another one.
fn bare(record: &Record) -> Record {
    let mut bare = verbs::report::bare(record);
    bare.versions.flashkit.clear();
    bare.versions.build.clear();
    bare
}
