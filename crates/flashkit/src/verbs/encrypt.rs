//! `encrypt`: makes an empty directory encrypted.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use f2fs::{
    CipherMode, EncryptionPolicy, IvScheme, Key, KeyName,
    engine::{Caller, FinalSymlink, NewNode},
    format::FileType,
};

use crate::{
    keys,
    notice::notice,
    target::{Further, Target},
};

/// Arguments of `encrypt`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit encrypt card.img:/private --key master.key
  flashkit encrypt card.img:/private --key master.key --modes adiantum
  flashkit import secrets/ card.img:/private --key master.key

Everything that is put into the directory from then on is encrypted, as Linux does it (fscrypt). The key is the first \
one of --key. The volume needs the feature encrypt: flashkit mkfs -O encrypt, or flashkit tune -O encrypt.")]
pub struct Args {
    /// The image, and the path of an empty directory; it is made if it is missing.
    #[arg(value_name = "IMAGE:PATH")]
    target: Target,
    /// Ciphers of contents and names.
    #[arg(long, value_enum, default_value_t = Modes::Aes256)]
    modes: Modes,
    /// Way in which the keys of files are made.
    #[arg(long, value_enum, default_value_t = Scheme::PerFile)]
    scheme: Scheme,
    /// Names are padded to a multiple of so many bytes: 4, 8, 16 or 32. More hides more of their length.
    #[arg(long, value_name = "BYTES", default_value_t = 32)]
    padding: u8,
    /// Version of the policy. In version 1, nothing ties the key to the policy: a wrong key is not recognized.
    #[arg(long, value_name = "VERSION", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    policy: u8,
    #[command(flatten)]
    further: Further,
}

/// Ciphers of contents and names that a policy combines.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Modes {
    /// AES-256-XTS and AES-256-CTS.
    #[value(name = "aes-256")]
    Aes256,
    /// AES-256-XTS and AES-256-HCTR2, with --policy 2.
    #[value(name = "aes-256-hctr2")]
    Aes256Hctr2,
    /// AES-128-CBC-ESSIV and AES-128-CTS.
    #[value(name = "aes-128")]
    Aes128,
    /// Adiantum, for processors without instructions for AES.
    Adiantum,
}

impl Modes {
    fn pair(self) -> (CipherMode, CipherMode) {
        match self {
            Modes::Aes256 => (CipherMode::Aes256Xts, CipherMode::Aes256Cts),
            Modes::Aes256Hctr2 => (CipherMode::Aes256Xts, CipherMode::Aes256Hctr2),
            Modes::Aes128 => (CipherMode::Aes128Cbc, CipherMode::Aes128Cts),
            Modes::Adiantum => (CipherMode::Adiantum, CipherMode::Adiantum),
        }
    }
}

/// Ways in which the keys of files are made.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scheme {
    /// A key for each file.
    PerFile,
    /// One key for all files (DIRECT_KEY), with Adiantum.
    Direct,
    /// One key for all files of the volume, with 64-bit vectors (IV_INO_LBLK_64), with AES-256 and --policy 2.
    InoLblk64,
    /// One key for all files of the volume, with 32-bit vectors (IV_INO_LBLK_32), with AES-256 and --policy 2.
    InoLblk32,
}

impl Scheme {
    fn iv(self) -> IvScheme {
        match self {
            Scheme::PerFile => IvScheme::PerFileKey,
            Scheme::Direct => IvScheme::DirectKey,
            Scheme::InoLblk64 => IvScheme::InoLblk64,
            Scheme::InoLblk32 => IvScheme::InoLblk32,
        }
    }
}

/// Makes the directory encrypted, and reports the name of the key.
pub fn run(args: &Args) -> Result<()> {
    let keys = keys::keyring(&args.further.keys)?;
    let Some(key) = keys.iter().next() else { bail!("{}: --key is missing", args.target) };
    let policy =
        EncryptionPolicy::new(name_of(key, args.policy), args.modes.pair(), args.scheme.iv(), args.padding)
            .context("this policy is impossible")?;
    // A key from a pipe can be read only once.
    let further = Further { keys: Vec::new(), ..args.further.clone() };
    args.target.change(&further, |volume| {
        keys.iter().for_each(|key| volume.add_key(key.clone()));
        let dir = match volume.resolve(&args.target.path, FinalSymlink::Follow) {
            Err(f2fs::Error::NotFound) => {
                let (parent, name) = args.target.parent(volume)?;
                let new = NewNode::new(FileType::Directory.mode_bits() | 0o755);
                volume.begin(Caller::ADMIN).create(parent, name, &new)?
            }
            found => found?,
        };
        Ok(volume.begin(Caller::ADMIN).set_encryption_policy(dir, &policy)?)
    })?;
    notice!("flashkit: {}: encrypted with the key {}", args.target, policy.key());
    Ok(())
}

fn name_of(key: &Key, version: u8) -> KeyName {
    match version {
        1 => KeyName::Descriptor(key.descriptor()),
        _ => KeyName::Identifier(key.identifier()),
    }
}
