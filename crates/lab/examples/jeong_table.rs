//! Prints the tables of docs/DEVICE-MODEL.md from a study of both hosts: `DIR`, made by `flashkit study -o
//! DIR -p desktop -p phone --size 256M --fsync-size 100M`.
use std::path::Path;

use anyhow::{Context, Result};
use flashkit_lab::{
    experiment::Experiment,
    preset::Preset,
    published::published,
    record::{Record, Records},
};

fn main() -> Result<()> {
    let dir = std::env::args().nth(1).context("jeong_table DIR")?;
    let records =
        Records::of(Path::new(&dir)).all(&mut |path, error| eprintln!("{}: {error}", path.display()))?;
    for preset in [Preset::Desktop, Preset::Phone] {
        println!("<!-- jeong-2012 {} -->", preset.name());
        println!("| row | published | model | error | |\n|---|---:|---:|---:|---|");
        records.iter().filter(|record| record.cell.preset == preset).for_each(rows);
        println!("<!-- end of jeong-2012 {} -->", preset.name());
    }
    Ok(())
}

fn rows(record: &Record) {
    let (cell, kind) = (&record.cell, &record.cell.file_system.kind);
    for phase in &record.phases {
        let Some(was) = published(cell.experiment, &phase.part, cell.preset, kind) else { continue };
        let error = (phase.value / was.value - 1.0) * 100.0;
        let digits = if phase.value.max(was.value) < 100.0 { 1 } else { 0 };
        println!(
            "| {}: {} {}, {} | {} | {:.digits$} | {error:+.0} % | {} |",
            cell.file_system.name(),
            cell.experiment.name().replace('_', " "),
            phase.part.replace('_', " "),
            phase.unit.sign(),
            was.value,
            phase.value,
            origin(cell.preset, cell.experiment, &phase.part, kind),
        );
    }
}

/// Returns the origin of a figure, according to the fit in crates/flash/tests/ext4_fit.rs.
fn origin(preset: Preset, experiment: Experiment, part: &str, kind: &str) -> &'static str {
    match (experiment, part) {
        _ if kind != "ext4" => "predicted",
        (Experiment::Mount, _) => "predicted",
        (Experiment::BufferedWrite, "sequential") if preset == Preset::Desktop => "out of reach",
        _ => "calibrated",
    }
}
