//! `verity`: sealed files (fs-verity).

mod check;

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use f2fs::{
    engine::{Caller, Engine, FinalSymlink},
    format::{
        FileType,
        verity::{Descriptor, HashAlgorithm, Parameters, SIGNATURE_BYTES_MAX},
    },
    units::Ino,
};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::{
    below::{Below, Depth},
    failure, progress,
    render::{self, Name, keyed},
    size,
    target::{self, Further, Target},
};

pub use check::usage_code;

/// Arguments of `verity`.
#[derive(clap::Args)]
#[command(
    after_help = "Sub-commands and options have the names of fsverity(1). A sealed file cannot be changed, and each \
block of it is checked when it is read.

Examples:
  flashkit verity enable card.img:/bin/app
  flashkit verity measure card.img:/bin/app
  flashkit verity check card.img"
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// Operations on sealed files.
#[derive(clap::Subcommand)]
enum What {
    /// Seal files: make their Merkle trees.
    Enable(Enable),
    /// Print the digests of sealed files.
    Measure(Measure),
    /// Check all content of sealed files against their Merkle trees.
    Check(check::Args),
}

/// Arguments of `verity enable`.
#[derive(clap::Args)]
#[command(
    after_help = "Either all of the files are sealed, or none. The volume needs the feature verity: flashkit mkfs \
-O verity, or flashkit tune -O verity. Linux reads files whose tree has blocks of 4096 bytes; since version 6.3 also \
smaller ones.

Examples:
  flashkit verity enable card.img:/bin/app
  flashkit verity enable card.img:/bin/app --hash-alg sha512 --salt 00112233
  flashkit verity enable -R card.img:/app --json | jq -r '.[] | .path + \" \" + .digest'
  flashkit verity enable card.img:/bin/app --signature app.sig"
)]
pub struct Enable {
    /// The image, and the path of a regular file; any number of them, in one image.
    #[arg(value_name = "IMAGE:PATH", required = true)]
    targets: Vec<Target>,
    /// Hash algorithm.
    #[arg(long, value_enum, default_value_t = Hash::Sha256)]
    hash_alg: Hash,
    /// Size of a block of the Merkle tree: a power of two from 1K to 64K.
    #[arg(long, value_name = "SIZE", default_value = "4096", value_parser = block_size)]
    block_size: u8,
    /// Salt of all hashes: hexadecimal digits, at most 32 bytes.
    #[arg(long, value_name = "HEX", default_value = "", hide_default_value = true, value_parser = salt)]
    salt: Salt,
    /// File with the signature of the digest, of a single file: PKCS#7 in DER, as fsverity sign makes it. It is stored, and
    /// not checked.
    #[arg(long, value_name = "FILE", conflicts_with = "recursive")]
    signature: Option<PathBuf>,
    /// Seal all regular files below directories. Sealed files stay as they are.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Print no progress.
    #[arg(short, long)]
    quiet: bool,
    /// Print the digests as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    further: Further,
}

/// Arguments of `verity measure`.
#[derive(clap::Args)]
#[command(
    after_help = "The digest is the hash of the descriptor, and the lines are those of fsverity(1), whose \
sub-command digest computes the digest of any file.

Examples:
  flashkit verity measure card.img:/bin/app
  flashkit verity measure card.img:/bin/app --json | jq -r '.[].digest'"
)]
pub struct Measure {
    /// The image, and the path of a sealed file; any number of them, in one image.
    #[arg(value_name = "IMAGE:PATH", required = true)]
    targets: Vec<Target>,
    /// Print JSON, with the parameters of the Merkle tree.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    further: Further,
}

/// Hash algorithms, by the names of fsverity(1).
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Hash {
    Sha256,
    Sha512,
}

impl Hash {
    fn algorithm(self) -> HashAlgorithm {
        match self {
            Hash::Sha256 => HashAlgorithm::Sha256,
            Hash::Sha512 => HashAlgorithm::Sha512,
        }
    }
}

/// The bytes of a salt.
#[derive(Debug, Clone)]
struct Salt(Vec<u8>);

fn salt(digits: &str) -> Result<Salt, String> {
    let bytes = render::from_hex(digits.as_bytes()).ok_or("not pairs of hexadecimal digits")?;
    let parameters = Parameters { algorithm: HashAlgorithm::Sha256, log_block_bytes: 12, salt: bytes };
    parameters.check().map(|()| Salt(parameters.salt))
}

/// Parses the size of a block. Returns its logarithm.
fn block_size(text: &str) -> Result<u8, String> {
    let bytes = size::parse(text)?;
    let log = if bytes.is_power_of_two() { bytes.ilog2() as u8 } else { u8::MAX };
    let parameters = Parameters { algorithm: HashAlgorithm::Sha256, log_block_bytes: log, salt: Vec::new() };
    parameters.check().map(|()| log).map_err(|_| format!("{bytes} bytes, must be a power of two, 1K to 64K"))
}

/// A sealed file in its printed form.
#[derive(Serialize)]
struct Measured {
    #[serde(flatten, serialize_with = "keyed::path")]
    path: Name,
    hash_algorithm: &'static str,
    digest: String,
    block_bytes: usize,
    salt: String,
    size_bytes: u64,
    signature_bytes: usize,
}

impl Measured {
    fn of(path: &[u8], descriptor: &Descriptor) -> Measured {
        let parameters = &descriptor.parameters;
        Measured {
            path: Name(path.to_vec()),
            hash_algorithm: parameters.algorithm.name(),
            digest: render::hex(&descriptor.digest()),
            block_bytes: parameters.block_bytes(),
            salt: render::hex(&parameters.salt),
            size_bytes: descriptor.data_bytes,
            signature_bytes: descriptor.signature.len(),
        }
    }
}

/// Runs the sub-command. Returns the program's exit code.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Enable(args) => enable(args).map(|()| ExitCode::SUCCESS),
        What::Measure(args) => measure(args),
        What::Check(args) => Ok(check::run(args)),
    }
}

/// Seals the files.
fn enable(args: &Enable) -> Result<()> {
    let signature = args.signature.as_deref().map_or(Ok(Vec::new()), read_signature)?;
    if !signature.is_empty() && args.targets.len() > 1 {
        bail!("--signature is that of one file, and {} are named", args.targets.len());
    }
    let parameters = Parameters {
        algorithm: args.hash_alg.algorithm(),
        log_block_bytes: args.block_size,
        salt: args.salt.0.clone(),
    };
    let bar = progress::bytes("sealing", None, args.quiet || args.json);
    let mut made = Vec::new();
    Target::change_all(&args.targets, &args.further, |volume, target| {
        let depth = Depth::from(args.recursive);
        let mut below = Below::new(volume, &target.path, FinalSymlink::Follow, depth)?;
        while let Some((ino, kind)) = below.next(volume)? {
            let is_left_out = kind != FileType::Regular || volume.stat(ino)?.sealed;
            if args.recursive && is_left_out {
                continue;
            }
            let sealed = seal(volume, ino, &parameters, &signature, &bar);
            let descriptor = match args.recursive {
                true => sealed.with_context(|| below.shown())?,
                false => sealed?,
            };
            made.push(Measured::of(&below.path(), &descriptor));
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    match args.json {
        true => render::print(&made, true, |_, _| Ok(())),
        false => Ok(()),
    }
}

/// Seals one file, and advances the bar by its bytes.
fn seal(
    volume: &mut Engine,
    ino: Ino,
    parameters: &Parameters,
    signature: &[u8],
    bar: &ProgressBar,
) -> Result<Descriptor> {
    if volume.stat(ino)?.kind != FileType::Regular {
        bail!("not a regular file");
    }
    let sealing = volume.begin_sealing(ino, parameters, signature);
    let mut sealing = sealing.map_err(|error| match error {
        f2fs::Error::Exists => anyhow!("sealed already"),
        other => other.into(),
    })?;
    let before = bar.position();
    loop {
        let done = volume.begin(Caller::ADMIN).seal_part(&mut sealing)?;
        bar.set_position(before + sealing.hashed_bytes());
        if let Some(descriptor) = done {
            return Ok(descriptor);
        }
    }
}

/// Reads the signature of a digest.
fn read_signature(path: &Path) -> Result<Vec<u8>> {
    let name = || path.display().to_string();
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(name)?;
    file.take(SIGNATURE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).with_context(name)?;
    match bytes.len() {
        0 => bail!("{}: not a signature: the file is empty", name()),
        1..=SIGNATURE_BYTES_MAX => Ok(bytes),
        _ => bail!("{}: not a signature: more than {SIGNATURE_BYTES_MAX} bytes", name()),
    }
}

/// Prints the digests. If one cannot be read, the others are still printed, and the exit code is not 0.
fn measure(args: &Measure) -> Result<ExitCode> {
    let [first, others @ ..] = &args.targets[..] else { return Ok(ExitCode::SUCCESS) };
    others.iter().try_for_each(|other| first.same_image(other))?;
    let volume = target::open_read_only(&first.image, &args.further)?;
    let (mut measured, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for target in &args.targets {
        match descriptor_of(&volume, target).with_context(|| target.to_string()) {
            Ok(descriptor) => measured.push((target, Measured::of(&target.path, &descriptor))),
            Err(error) => {
                failure::tell(&error);
                code = ExitCode::FAILURE;
            }
        }
    }
    let (targets, measured): (Vec<&Target>, Vec<Measured>) = measured.into_iter().unzip();
    render::print(&measured, args.json, |measured, out| {
        targets.iter().zip(measured).try_for_each(|(target, measured)| {
            writeln!(out, "{}:{} {target}", measured.hash_algorithm, measured.digest)
        })
    })?;
    Ok(code)
}

fn descriptor_of(volume: &Engine, target: &Target) -> Result<Descriptor> {
    let ino = volume.resolve(&target.path, FinalSymlink::Follow)?;
    volume.verity(ino)?.ok_or_else(|| anyhow!("not sealed with fs-verity"))
}
