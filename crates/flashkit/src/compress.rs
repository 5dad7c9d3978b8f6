//! Compression of files on their way into a volume.

use anyhow::{Result, bail};
use f2fs::{
    engine,
    format::{
        inode::{Algorithm, Compression, LOG_CLUSTER_BLOCKS},
        superblock::Features,
    },
};
use f2fs_tree::SavedSpace;

/// Extension that matches every file.
const EVERY: &str = "*";

/// Options of compression. Their names are those of the mount options.
#[derive(clap::Args)]
#[command(next_help_heading = "Compression on import")]
pub struct Compress {
    /// Compress files: lzo, lzo-rle, lz4 (default) or zstd, with a level after a colon. The volume needs the feature
    /// compression, which mkfs adds.
    #[arg(long, value_name = "ALGORITHM", num_args = 0..=1, require_equals = true, default_missing_value = "lz4", value_parser = algorithm)]
    compress: Option<Compression>,
    /// Blocks in a cluster, which is compressed as a whole, as a power of 2.
    #[arg(long, value_name = "2..8", default_value_t = 2, requires = "compress", value_parser = log_size())]
    compress_log_size: u8,
    /// Compress only files with these extensions, separated by commas.
    #[arg(long, value_name = "EXTENSIONS", value_delimiter = ',', requires = "compress")]
    compress_extension: Vec<String>,
    /// Compress no files with these extensions, separated by commas.
    #[arg(long, value_name = "EXTENSIONS", value_delimiter = ',', requires = "compress")]
    nocompress_extension: Vec<String>,
    /// Release the space that compression saves. The files then cannot be written.
    #[arg(long, requires = "compress")]
    compress_release: bool,
}

fn log_size() -> clap::builder::RangedI64ValueParser<u8> {
    let sizes = LOG_CLUSTER_BLOCKS;
    clap::value_parser!(u8).range(i64::from(*sizes.start())..=i64::from(*sizes.end()))
}

/// Parses an algorithm with an optional level, like the mount option.
fn algorithm(text: &str) -> Result<Compression, String> {
    let (algorithm, level) = Algorithm::parse_with_level(text)
        .ok_or_else(|| format!("{text:?} is not lzo, lzo-rle, lz4[:0..12] or zstd[:0..22]"))?;
    Ok(Compression { algorithm, level, ..Compression::default() })
}

impl Compress {
    /// Sets the engine's options, so that new files become compressed.
    pub fn apply(&self, options: &mut engine::Options) {
        let Some(compression) = self.compress else { return };
        options.compression = Compression { log_cluster_blocks: self.compress_log_size, ..compression };
        options.compressed_extensions = match self.compress_extension.is_empty() {
            true => vec![EVERY.into()],
            false => self.compress_extension.clone(),
        };
        options.plain_extensions = self.nocompress_extension.clone();
    }

    /// Returns the features that a volume needs for compressed files.
    pub fn features(&self) -> Features {
        match self.compress {
            Some(_) => Features::COMPRESSION.with(Features::EXTRA_ATTR),
            None => Features::default(),
        }
    }

    /// Refuses a volume without these features.
    pub fn require(&self, of_volume: Features) -> Result<()> {
        if self.compress.is_some() && !of_volume.has(Features::COMPRESSION) {
            bail!(
                "the volume lacks the feature compression; mkfs -O extra_attr,compression makes one with it"
            );
        }
        Ok(())
    }

    /// Refuses to compress without a source.
    pub fn refuse_without_source(&self) -> Result<()> {
        if self.compress.is_some() {
            bail!("--compress concerns the imported source; name the source with --from");
        }
        Ok(())
    }

    /// Returns the use of the space that compression saves.
    pub fn saved_space(&self) -> SavedSpace {
        match self.compress_release {
            true => SavedSpace::Released,
            false => SavedSpace::Reserved,
        }
    }
}
