//! Compression settings of a file, from its inode.

use super::{COMPRESSION_END, FileType, NodeBlock, flag};
use crate::format::superblock::Features;

/// Compression algorithm of a file's clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// LZO1X.
    Lzo,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
    /// LZO1X with runs of zeroes.
    LzoRle,
}

impl Algorithm {
    /// The algorithm with this code, if it is one.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Algorithm> {
        match code {
            0 => Some(Algorithm::Lzo),
            1 => Some(Algorithm::Lz4),
            2 => Some(Algorithm::Zstd),
            3 => Some(Algorithm::LzoRle),
            _ => None,
        }
    }

    /// The code in an inode.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Algorithm::Lzo => 0,
            Algorithm::Lz4 => 1,
            Algorithm::Zstd => 2,
            Algorithm::LzoRle => 3,
        }
    }

    /// Returns the algorithm's name in the mount option `compress_algorithm`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Lzo => "lzo",
            Algorithm::Lz4 => "lz4",
            Algorithm::Zstd => "zstd",
            Algorithm::LzoRle => "lzo-rle",
        }
    }

    /// Parses an algorithm with an optional level after a colon: `lz4`, `zstd:19`. Without a level it is 0, the
    /// algorithm's own. The levels are those of Linux: none for LZO, those of LZ4HC, those of zstd
    /// (`f2fs_is_compress_level_valid`).
    #[must_use]
    pub fn parse_with_level(text: &str) -> Option<(Algorithm, u8)> {
        let (name, level) = text.split_once(':').unwrap_or((text, "0"));
        let algorithm = (0..=3).filter_map(Algorithm::from_code).find(|one| one.name() == name)?;
        let most = match algorithm {
            Algorithm::Lzo | Algorithm::LzoRle => 0,
            Algorithm::Lz4 => 12,
            Algorithm::Zstd => 22,
        };
        let level = level.parse().ok().filter(|level| *level <= most)?;
        Some((algorithm, level))
    }
}

/// Range of the log2 of a cluster's blocks (Linux, `MIN_COMPRESS_LOG_SIZE` and `MAX_COMPRESS_LOG_SIZE`).
pub const LOG_CLUSTER_BLOCKS: std::ops::RangeInclusive<u8> = 2..=8;

/// The settings of a compressed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Compression {
    /// Algorithm of the clusters.
    pub algorithm: Algorithm,
    /// log2 of the blocks in a cluster, one of [`LOG_CLUSTER_BLOCKS`].
    pub log_cluster_blocks: u8,
    /// True if clusters carry a checksum.
    pub checksum: bool,
    /// Level of compression; 0 is the algorithm's usual one.
    pub level: u8,
}

impl Default for Compression {
    /// The defaults of Linux without mount options.
    fn default() -> Compression {
        Compression { algorithm: Algorithm::Lz4, log_cluster_blocks: 2, checksum: false, level: 0 }
    }
}

impl NodeBlock {
    /// The settings of a compressed file; `None` for every other inode.
    #[must_use]
    pub fn compression(&self) -> Option<Compression> {
        self.find_compression().ok().flatten()
    }

    /// Sets the compression of an inode that has the fields for it. `None` ends compression. On a directory,
    /// the settings apply to new entries; Linux wants valid settings there, too. Settings change how
    /// addresses are counted, so a file must not have blocks.
    pub fn set_compression(&mut self, to: Option<Compression>) {
        let flags = self.head().flags.get();
        if let Some(to) = to {
            self.head_mut().flags.set(flags | flag::COMPRESS);
            let extra = self.extra_mut();
            extra.compress_algorithm = to.algorithm.code();
            extra.log_cluster_size = to.log_cluster_blocks;
            extra.compress_flag.set(u16::from(to.checksum) | u16::from(to.level) << 8);
            debug_assert!(
                self.is_directory() || self.compression() == Some(to),
                "an inode that cannot be compressed"
            );
        } else {
            self.head_mut().flags.set(flags & !flag::COMPRESS);
        }
    }

    /// Blocks saved by compression, if the inode counts them.
    #[must_use]
    pub fn saved_blocks(&self) -> Option<u64> {
        self.extra_if(Features::COMPRESSION, COMPRESSION_END).map(|extra| extra.compr_blocks.get())
    }

    /// Sets the blocks saved by compression, if the inode counts them.
    pub fn set_saved_blocks(&mut self, blocks: u64) {
        if self.saved_blocks().is_some() {
            self.extra_mut().compr_blocks.set(blocks);
        }
    }

    /// The settings, or a description of the error in them.
    pub(super) fn find_compression(&self) -> Result<Option<Compression>, String> {
        if !self.has_flag(flag::COMPRESS) || self.file_type_bits() != FileType::Regular.mode_bits() {
            return Ok(None);
        }
        let Some(extra) = self.extra_if(Features::COMPRESSION, COMPRESSION_END) else { return Ok(None) };
        let (code, log_cluster_blocks) = (extra.compress_algorithm, extra.log_cluster_size);
        let algorithm = Algorithm::from_code(code)
            .ok_or_else(|| format!("compression algorithm {code}, must be 0 to 3"))?;
        if !LOG_CLUSTER_BLOCKS.contains(&log_cluster_blocks) {
            return Err(format!("i_log_cluster_size {log_cluster_blocks}, must be 2 to 8"));
        }
        let [flags, level] = extra.compress_flag.get().to_le_bytes();
        Ok(Some(Compression { algorithm, log_cluster_blocks, checksum: flags & 1 != 0, level }))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            inline,
            tests::{FULL, file},
        },
        *,
    };

    #[test]
    fn compressed_files_count_whole_clusters() {
        let mut node = file(FULL, inline::XATTR);
        let settings =
            Compression { algorithm: Algorithm::Zstd, log_cluster_blocks: 3, checksum: true, level: 7 };
        node.set_compression(Some(settings));
        assert_eq!(node.compression(), Some(settings));
        assert_eq!((node.layout().addrs(), node.layout().direct_addrs()), (864, 1016));
        node.set_compression(Some(Compression { log_cluster_blocks: 8, ..settings }));
        assert_eq!((node.layout().addrs(), node.layout().direct_addrs()), (768, 768));
        node.head_mut().mode.set(0o040_755);
        assert_eq!(node.compression(), None, "a directory only hands the flag on");
        assert_eq!(node.layout().direct_addrs(), 1018);
    }
}
