//! `report`: the results of a study as text, CSV, JSON or a page, or a comparison of two.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use lab::{
    record::{Record, Records},
    report,
};

use crate::{notice::notice, render};

/// Arguments of `report`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit report study
  flashkit report study --csv > figures.csv
  flashkit report study --html page.html
  flashkit report before after")]
pub struct Args {
    /// Directory of a study.
    study: PathBuf,
    /// Another study to compare: prints the changes from the first to this one.
    other: Option<PathBuf>,
    /// Print all figures as comma-separated values.
    #[arg(long, conflicts_with_all = ["json", "other"])]
    csv: bool,
    /// Write a self-contained page with tables and charts.
    #[arg(long, value_name = "FILE", conflicts_with = "other")]
    html: Option<PathBuf>,
    /// Print all records as JSON.
    #[arg(long, conflicts_with = "other")]
    json: bool,
}

/// Prints the report.
pub fn run(args: &Args) -> Result<()> {
    let records = read(&args.study)?;
    if let Some(other) = &args.other {
        let changes = report::compare(&records, &read(other)?);
        return render::text(|out| match changes.is_empty() {
            true => writeln!(out, "no change"),
            false => changes.iter().try_for_each(|change| writeln!(out, "{change}")),
        });
    }
    if let Some(file) = &args.html {
        return write_page(&records, &args.study, file);
    }
    if args.csv {
        return render::text(|out| write!(out, "{}", report::csv(&records)));
    }
    render::print(&records, args.json, |records, out| {
        write!(out, "{}", report::text(&report::sheets(records)))
    })
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
