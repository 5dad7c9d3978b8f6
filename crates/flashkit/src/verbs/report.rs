//! `report`: the results of a study as text, CSV, JSON or a page, or a comparison of two.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use lab::{
    bundle::Bundle,
    circumstances::Circumstances,
    live::Server,
    matrix::{Matrix, Reach},
    record::{Record, Records},
    report,
};

use super::lab_run;
use crate::{notice::notice, render};

/// Arguments of `report`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit report study
  flashkit report node1 node2 node3 --html page.html
  flashkit report study --csv > figures.csv
  flashkit report study --cells page.html
  flashkit report study --serve
  flashkit report study --bundle study.tar.zst --matrix matrix.toml
  flashkit report before --compare after
  flashkit report study --since 6.1")]
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
    /// Print the figures with this kernel of the matrix beside those with every other one.
    #[arg(long, value_name = "KERNEL", conflicts_with_all = ["compare", "csv", "html", "cells", "bundle"])]
    since: Option<String>,
    /// Show one study in the browser while it runs: its progress, the remaining time, each cell within a second of its
    /// record, failed cells and their logs. By default only this machine can open the page. Ctrl-C ends it.
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_ADDRESS,
        conflicts_with_all = ["compare", "since", "csv", "html", "cells", "bundle", "json"])]
    serve: Option<SocketAddr>,
    /// Print all records as JSON.
    #[arg(long, conflicts_with = "compare")]
    json: bool,
}

/// Default address of the page: this machine alone.
const DEFAULT_ADDRESS: &str = "127.0.0.1:8470";

/// Shows a study in the browser until Ctrl-C.
fn serve(study: &Path, address: SocketAddr) -> Result<()> {
    let server = Server::bind(address, study)?;
    let address = server.address()?;
    if !address.ip().is_loopback() {
        notice!("{address}: everyone who reaches this address can read the study");
    }
    let stop = lab_run::stop_on_interrupt()?;
    render::text(|out| writeln!(out, "http://{address}/"))?;
    Ok(server.run(&stop)?)
}

/// Prints the report.
pub fn run(args: &Args) -> Result<()> {
    if let Some(address) = args.serve {
        let [study] = &args.studies[..] else { bail!("--serve shows one study; name only one") };
        return serve(study, address);
    }
    let (records, places) = gathered(&args.studies)?;
    if let Some(other) = &args.compare {
        let changes = report::compare(&records, &read(other)?);
        return render::text(|out| match changes.is_empty() {
            true => writeln!(out, "no change"),
            false => changes.iter().try_for_each(|change| writeln!(out, "{change}")),
        });
    }
    if let Some(kernel) = &args.since {
        let pairs = report::since(&records, kernel);
        if pairs.is_empty() {
            bail!(
                "--since {kernel}: no cell was measured with this kernel and with another; {}",
                kernels(&records)
            );
        }
        return render::print(&pairs, args.json, |pairs, out| {
            write!(out, "{}", report::since_text(pairs, kernel))
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

/// Describes the kernels of the records.
fn kernels(records: &[Record]) -> String {
    let kernels = records.iter().filter_map(|record| record.cell.point.kernel.as_deref());
    let kernels: BTreeSet<&str> = kernels.collect();
    match kernels.is_empty() {
        true => "the records are of no matrix with `kernels`".into(),
        false => format!("the kernels are {}", Vec::from_iter(kernels).join(", ")),
    }
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
pub(super) fn bare(record: &Record) -> Record {
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
