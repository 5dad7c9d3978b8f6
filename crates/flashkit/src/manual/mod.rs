//! The manual: a page for each verb, from the same source as `--help`, and for each document that these pages
//! name.

mod document;
mod facts;
mod page;

use std::path::Path;

use anyhow::{Context, Result};
use clap_mangen::roff::{Inline, Roff, bold, roman};

/// Date of this version. It makes the pages reproducible.
const VERSION_DATE: &str = "2026-11-23";
/// Documents: name and text.
const DOCUMENTS: [(&str, &str); 3] = [
    ("flashkit-filling", include_str!("../../../../docs/FILLING.md")),
    ("flashkit-json", include_str!("../../../../docs/JSON.md")),
    ("flashkit-names", include_str!("../../../../docs/NAMES.md")),
];
/// Section of the documents.
const DOCUMENTS_SECTION: &str = "7";
/// The right part of each page's first line.
const MANUAL: &str = "flashkit manual";

/// Writes all pages into the directories of their sections: `man1`, `man7`, `man8`.
pub fn write(command: clap::Command, dir: &Path, date: &str) -> Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, dir, date)?;
    DOCUMENTS.iter().try_for_each(|(name, text)| {
        put(dir, name, DOCUMENTS_SECTION, &document::page(name, text, DOCUMENTS_SECTION, date))
    })
}

/// Returns the date of pages if `SOURCE_DATE_EPOCH` is not set.
pub fn version_date() -> &'static str {
    VERSION_DATE
}

fn write_pages(command: &clap::Command, dir: &Path, date: &str) -> Result<()> {
    let name = page::name(command);
    put(dir, name, facts::section(name), &page::page(command, date)?)?;
    command.get_subcommands().filter(|it| !it.is_hide_set()).try_for_each(|it| write_pages(it, dir, date))
}

fn put(dir: &Path, name: &str, section: &str, page: &[u8]) -> Result<()> {
    let dir = dir.join(format!("man{section}"));
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let path = dir.join(format!("{name}.{section}"));
    std::fs::write(&path, page).with_context(|| path.display().to_string())
}

/// Writes the title line of a page, which is also its footer.
fn title(roff: &mut Roff, name: &str, section: &str, date: &str) {
    let source = concat!("flashkit ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [name.to_uppercase().as_str(), section, date, source, MANUAL]);
}

/// A reference to a page.
fn reference(name: &str, section: &str) -> [Inline; 2] {
    [bold(name), roman(format!("({section})"))]
}
