//! The options that leave entries out of a tree.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, bail};
use f2fs_tree::Exclusion;

/// Patterns of entries to leave out.
#[derive(clap::Args)]
pub struct Exclude {
    /// Leave out what matches a pattern, with everything below it: *.o and .git match names at any depth, /tmp and
    /// var/cache/* paths from the root of the source, cache/ directories only; can be repeated.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// File of such patterns, one a line; empty lines and lines that start with # are skipped. Can be repeated.
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
}

impl Exclude {
    /// Reads the patterns.
    pub fn read(&self) -> Result<Arc<Exclusion>> {
        let mut patterns = self.exclude.clone();
        for path in &self.exclude_from {
            let name = || path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(name)?;
            // Each list on its own, so that an error names its file.
            Exclusion::new(Exclusion::lines(&text)).with_context(name)?;
            patterns.extend(Exclusion::lines(&text).map(str::to_owned));
        }
        Ok(Arc::new(Exclusion::new(patterns)?))
    }

    /// Refuses the options if there is no source.
    pub fn refuse_without_source(&self) -> Result<()> {
        if !self.exclude.is_empty() || !self.exclude_from.is_empty() {
            bail!("--exclude leaves entries out of a source; name the source with --from");
        }
        Ok(())
    }
}
