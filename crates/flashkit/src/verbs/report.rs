//! `report`: the results of a study as text, CSV, JSON or a page, or a comparison of two.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use lab::{
    bundle::Bundle,
    circumstances::Circumstances,
    matrix::{Matrix, Reach},
    record::{Record, Records},
    report,
};

use crate::{notice::notice, render};

/// Arguments of `report`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit report study
  flashkit report node1 node2 node3 --html page.html
  flashkit report study --csv > figures.csv
  flashkit report study --cells page.html
  flashkit report study --bundle study.tar.zst --matrix matrix.toml
  flashkit report before --compare after")]
pub struct Args {
    /// Directories of studies, whose records are gathered.
    #[arg(required = true, value_name = "STUDY")]
    studies: Vec<PathBuf>,
    /// Another study to compare: prints the changes from the others to this one.
    #[arg(long, value_name = "STUDY")]
    compare: Option<PathBuf>,
    /// Print all figures as comma-separated values.
    #[arg(long, conflicts_with_all = ["json", "compare"])]
    csv: bool,
    /// Write a self-contained page with tables and charts.
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    html: Option<PathBuf>,
    /// Write a self-contained page for many cells, with filters, sorting, small charts, and two file systems side by
    /// side.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["html", "compare"])]
    cells: Option<PathBuf>,
    /// Write all records in one file, with the cards' profiles, checksums and the command that repeats the study.
    #[arg(long, value_name = "FILE.tar.zst", conflicts_with_all = ["html", "cells", "csv", "json", "compare"])]
    bundle: Option<PathBuf>,
    /// The matrix of the records, for the bundle; without it, `study --from` cannot repeat the study.
    #[arg(long, value_name = "FILE", requires = "bundle")]
    matrix: Option<PathBuf>,
    /// Print all records as JSON.
    #[arg(long, conflicts_with = "compare")]
    json: bool,
}

/// Prints the report.
pub fn run(args: &Args) -> Result<()> {
    let (records, places) = gathered(&args.studies)?;
    if let Some(other) = &args.compare {
        let changes = report::compare(&records, &read(other)?);
        return render::text(|out| match changes.is_empty() {
            true => writeln!(out, "no change"),
            false => changes.iter().try_for_each(|change| writeln!(out, "{change}")),
        });
    }
    if let Some(file) = &args.bundle {
        let matrix = args.matrix.as_ref().map(|file| Matrix::read(file, Reach::Anywhere)).transpose()?;
        let bundle = Bundle::of(&args.studies, &records, matrix.as_ref())?;
        let name = || file.display().to_string();
        return bundle.write(std::fs::File::create(file).with_context(name)?).with_context(name);
    }
    if let Some(file) = &args.cells {
        return write_gathered(&records, &places, file, &|records, address| {
            Ok(report::board(records, address))
        });
    }
    if let Some(file) = &args.html {
        return write_gathered(&records, &places, file, &|records, address| {
            report::html_at(records, address).map_err(|error| anyhow!("cannot make the page: {error}"))
        });
    }
    if args.csv {
        return render::text(|out| write!(out, "{}", report::csv(&records)));
    }
    render::print(&records, args.json, |records, out| {
        write!(out, "{}", report::text(&report::sheets(records)))
    })
}

/// Studies by the names of their records.
type Places<'a> = BTreeMap<String, (usize, &'a PathBuf)>;

/// Reads the records of all studies. A cell that several studies have must be the same in all of them.
fn gathered(studies: &[PathBuf]) -> Result<(Vec<Record>, Places<'_>)> {
    let mut all: Vec<Record> = Vec::new();
    let mut places = Places::new();
    for study in studies {
        for record in read(study)? {
            let name = Records::name(&record.cell, record.age);
            match places.get(&name) {
                None => {
                    places.insert(name, (all.len(), study));
                    all.push(record);
                }
                Some((at, _)) if bare(&all[*at]) == bare(&record) => {}
                Some((_, other)) => bail!(
                    "{name}: differs between {} and {}; `report {0} --compare {1}` prints the changes",
                    other.display(),
                    study.display()
                ),
            }
        }
    }
    all.sort_by_key(|record| record.cell.rank());
    Ok((all, places))
}

/// Function that renders a page.
type Page<'a> = &'a dyn Fn(&[Record], report::Address<'_>) -> Result<String>;

/// Writes a page of records of several studies.
fn write_gathered(records: &[Record], places: &Places<'_>, file: &Path, page: Page<'_>) -> Result<()> {
    let bases: BTreeMap<&String, String> =
        places.iter().map(|(name, (_, study))| Ok((name, base(study, file)?))).collect::<Result<_>>()?;
    let address = |name: &str| format!("{}{name}", bases.get(&name.to_owned()).map_or("", String::as_str));
    std::fs::write(file, page(records, &address)?).with_context(|| file.display().to_string())
}

/// Returns a record without its circumstances.
fn bare(record: &Record) -> Record {
    let mut bare = record.clone();
    Circumstances::take_from(&mut bare);
    bare
}

/// Writes the page of these records of a study's directory.
pub fn write_page(records: &[Record], study: &Path, file: &Path) -> Result<()> {
    let page = report::html(records, &base(study, file)?);
    let page = page.map_err(|error| anyhow!("cannot make the page: {error}"))?;
    std::fs::write(file, page).with_context(|| file.display().to_string())
}

/// Returns the address of a study's directory for a page: relative if the page is in it.
fn base(study: &Path, file: &Path) -> Result<String> {
    let real = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let (study, folder) = (real(study)?, real(folder.unwrap_or(Path::new(".")))?);
    Ok(if study == folder { String::new() } else { format!("{}/", study.display()) })
}

/// Reads all records of a study. Reports files that are not records.
pub fn read(dir: &Path) -> Result<Vec<Record>> {
    let told = &mut |path: &Path, error: &_| notice!("{}: skipped: {error}", path.display());
    Records::of(dir).all(told).with_context(|| format!("{}: contains no readable study", dir.display()))
}
