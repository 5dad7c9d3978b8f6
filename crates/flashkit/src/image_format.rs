//! The format of an image, and the hash tree or key with which it is read.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use image::{
    Format, MetadataKey, Source,
    dm_verity::{self, Trust},
};

use crate::{keys, size};

/// The format of an image, where its first bytes should not decide.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct ImageFormat {
    /// Format of the image, whatever its first bytes are. With qcow2, the backing file that the image names is opened, too,
    /// if it lies beside the image.
    #[arg(long = "format", value_name = "FORMAT", value_parser = format_parser())]
    pub image_format: Option<Format>,
    /// Backing file of a qcow2 image, in place of the one that the image names.
    #[arg(long, value_name = "FILE")]
    pub backing: Option<PathBuf>,
    #[command(flatten)]
    pub hashes: Hashes,
    /// File with the key of Android's metadata encryption (dm-default-key): 64 bytes for AES-256-XTS or 32 for Adiantum, or
    /// their hexadecimal digits. The image is decrypted while it is read, and never written; --key is for its files.
    #[arg(long, value_name = "FILE", conflicts_with = "root_hash", value_parser = metadata_key())]
    pub metadata_key: Option<GivenMetadataKey>,
}

/// A key of metadata encryption, and the file that it was read from.
#[derive(Debug, Clone)]
pub struct GivenMetadataKey {
    /// The file.
    #[cfg_attr(windows, allow(dead_code))]
    pub file: PathBuf,
    key: MetadataKey,
}

fn metadata_key() -> impl TypedValueParser<Value = GivenMetadataKey> {
    PathBufValueParser::new().try_map(|file| {
        let key = keys::metadata_key(&file).map_err(|error| format!("{error:#}"))?;
        Ok::<_, String>(GivenMetadataKey { file, key })
    })
}

/// The hash tree of dm-verity by which an image is checked while it is read.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Hashes {
    /// Root hash of dm-verity, in hexadecimal digits: each block is compared with the hash tree while it is read, and the
    /// image is never written. `stored` is the one in the image's AVB descriptor, which shows damage and no forgery; a table
    /// of dm-verity has the place of the tree as well.
    #[arg(long, value_name = "HASH|stored|TABLE")]
    pub root_hash: Option<Trust>,
    /// File or device with the hash tree, if that is not the image itself.
    #[arg(long, value_name = "FILE", requires = "root_hash")]
    pub hash_device: Option<PathBuf>,
    /// First byte of veritysetup's superblock; without it, the AVB footer's tree, or the start of --hash-device.
    #[arg(long, value_name = "SIZE", requires = "root_hash", value_parser = size::parse)]
    pub hash_offset: Option<u64>,
}

fn format_parser() -> impl TypedValueParser<Value = Format> {
    let names = PossibleValuesParser::new(Format::ALL.map(Format::name));
    names.try_map(|name| name.parse::<Format>())
}

impl Hashes {
    /// Returns the words of a command line with the same meaning elsewhere. `absolute` makes a path absolute.
    #[cfg_attr(windows, allow(dead_code))]
    pub fn words(&self, absolute: impl Fn(&Path) -> Result<PathBuf>) -> Result<Vec<OsString>> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(trust) = &self.root_hash {
            words.extend(["--root-hash".into(), trust.to_string().into()]);
        }
        if let Some(device) = &self.hash_device {
            words.extend(["--hash-device".into(), absolute(device)?.into()]);
        }
        if let Some(offset) = self.hash_offset {
            words.extend(["--hash-offset".into(), offset.to_string().into()]);
        }
        Ok(words)
    }

    fn request(&self) -> Option<dm_verity::Request> {
        let trust = self.root_hash.clone()?;
        Some(dm_verity::Request { trust, device: self.hash_device.clone(), offset: self.hash_offset })
    }
}

impl ImageFormat {
    /// Adds the format to a source.
    pub fn of(&self, source: Source) -> Source {
        let source = match self.image_format {
            Some(format) => source.with_format(format),
            None => source,
        };
        let source = match &self.backing {
            Some(backing) => source.with_backing(backing.clone()),
            None => source,
        };
        let source = match self.hashes.request() {
            Some(hashes) => source.with_hashes(hashes),
            None => source,
        };
        match &self.metadata_key {
            Some(given) => source.with_metadata_key(given.key.clone()),
            None => source,
        }
    }
}
