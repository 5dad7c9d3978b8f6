//! Volumes of every kind for random operations.

use std::{
    ffi::OsStr,
    io::Write as _,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, ensure};
use block::{Device, MemoryDevice};
use f2fs::{
    CipherMode, EncryptionPolicy, IvScheme, KeyName, NONCE_SEED_BYTES, Nonces,
    engine::{ActiveLogs, Caller, Engine, InPlace, Mode, Options, device_bytes, read_superblock},
    format::BlockSize,
    mkfs::{self, DeviceContent, DeviceSize, Plan},
};

use crate::{
    difference::Facts,
    generator::Mix,
    subject::{self, Encryption, Settings},
};

/// A kind of volume and its use.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its name.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// The formatter of the volume.
    pub maker: Maker,
    /// Options for opening it.
    pub settings: Settings,
    /// The mix of operations.
    pub mix: Mix,
    /// The compared facts.
    pub facts: Facts,
    /// Mount options for Linux in turns with the engine.
    pub linux: &'static str,
}

/// The program that makes the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// mkfs.f2fs with these arguments.
    Tool(&'static [&'static str]),
    /// Our own code, with these features, 16K blocks.
    Own16K(&'static str),
    /// Our own code, on devices with these paths and sizes in MiB.
    OwnOn(&'static [(&'static str, u64)]),
    /// Our own code, with these features, and a root directory that is encrypted with these modes.
    Encrypted(&'static str, CipherMode, CipherMode, IvScheme),
}

impl Setup {
    fn new(name: &'static str, mib: u64, maker: Maker) -> Setup {
        Setup {
            name,
            bytes: mib << 20,
            maker,
            settings: Settings::default(),
            mix: Mix { blocks_max: mib * 256 / 8, ..Mix::default() },
            facts: Facts { creation: false },
            linux: "",
        }
    }

    fn with_settings(self, settings: Settings) -> Setup {
        Setup { settings, ..self }
    }

    fn with_linux(self, linux: &'static str) -> Setup {
        Setup { linux, ..self }
    }

    /// Returns all kinds.
    pub fn all() -> Vec<Setup> {
        use Maker::{Own16K, OwnOn, Tool};
        let usual = Settings::default();
        let mut setups = vec![
            Setup::new("base", 96, Tool(&[])),
            Setup::new(
                "features",
                96,
                Tool(&["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum"]),
            ),
            Setup::new("quota", 96, Tool(&["-O", "extra_attr,project_quota,quota,lost_found"])),
            Setup::new("casefold", 96, Tool(&["-O", "extra_attr,casefold", "-C", "utf8"])),
            Setup::new("compressed", 96, Tool(&["-O", "extra_attr,compression,inode_checksum"])),
            Setup::new("lost+found", 96, Tool(&["-O", "lost_found", "-i"])),
            Setup::new("sections", 160, Tool(&["-s", "2", "-z", "2"])),
            Setup::new("large sections", 256, Tool(&["-s", "4"])),
            Setup::new("16K blocks", 512, Own16K("extra_attr,inode_checksum")),
            Setup::new("four logs", 96, Tool(&[]))
                .with_settings(Settings { active_logs: ActiveLogs::Four, ..usual })
                .with_linux("active_logs=4"),
            Setup::new("two logs", 96, Tool(&[]))
                .with_settings(Settings { active_logs: ActiveLogs::Two, ..usual })
                .with_linux("active_logs=2"),
            Setup::new("in place", 96, Tool(&[]))
                .with_settings(Settings { in_place: InPlace::Always, ..usual }),
            Setup::new("append only", 128, Tool(&["-O", "extra_attr,inode_checksum"]))
                .with_settings(Settings { mode: Mode::Lfs, ..usual })
                .with_linux("mode=lfs"),
            Setup::new("not inline", 96, Tool(&[]))
                .with_settings(Settings { inline: false, ..usual })
                .with_linux("noinline_xattr,noinline_data,noinline_dentry"),
            Setup::new("write through", 96, Tool(&["-O", "extra_attr,inode_checksum"]))
                .with_settings(Settings { write_through: true, ..usual }),
            Setup::new("two devices", 128, OwnOn(&[("first", 64), ("second", 64)])),
            Setup::new("small cache", 96, Tool(&[]))
                .with_settings(Settings { cache_bytes: 64 << 10, ..usual }),
            Setup::new("full", 56, Tool(&[])),
            Setup::new("append only, full", 64, Tool(&["-O", "extra_attr,inode_checksum"]))
                .with_settings(Settings { mode: Mode::Lfs, ..usual })
                .with_linux("mode=lfs"),
        ];
        for setup in &mut setups {
            let Tool(arguments) = setup.maker else { continue };
            let has = |feature: &str| arguments.iter().any(|list| list.contains(feature));
            setup.facts.creation = has("inode_crtime");
            setup.mix.casefold = has("casefold");
            setup.mix.compress = has("compression");
            // fsck.f2fs takes a hole below an indirect node of a compressed file for a longer one (it asks
            // the indirect node, not the inode, for the number of addresses per node), and reports the
            // addresses after it as damage.
            setup.mix.far = !setup.mix.compress;
            setup.mix.fill = ["full", "append only, full"].contains(&setup.name);
            setup.mix.fsync = true;
        }
        setups
    }

    /// Returns the kinds whose files and names are all encrypted. Linux would need their key.
    pub fn encrypted() -> Vec<Setup> {
        use CipherMode::{Adiantum, Aes256Cts, Aes256Hctr2, Aes256Xts};
        const FEATURES: &str = "encrypt,extra_attr,inode_checksum";
        let encrypted = Settings { encryption: Encryption::Root, ..Settings::default() };
        let of = |name, maker| {
            let mut setup = Setup::new(name, 96, maker).with_settings(encrypted);
            setup.mix.fsync = true;
            setup
        };
        let whole = of("encrypted", Maker::Encrypted(FEATURES, Aes256Xts, Aes256Cts, IvScheme::PerFileKey));
        let not_inline = Setup {
            settings: Settings { inline: false, write_through: true, ..encrypted },
            ..of("encrypted, not inline", Maker::Encrypted(FEATURES, Adiantum, Adiantum, IvScheme::DirectKey))
        };
        let features = "encrypt,extra_attr,casefold,compression";
        let mut folded = of(
            "encrypted, casefold, compressed",
            Maker::Encrypted(features, Aes256Xts, Aes256Hctr2, IvScheme::InoLblk64),
        );
        folded.mix.casefold = true;
        folded.mix.compress = true;
        folded.mix.far = false;
        vec![whole, not_inline, folded]
    }

    /// Returns the kind of this name.
    pub fn named(name: &str) -> Option<Setup> {
        Setup::all().into_iter().chain(Setup::encrypted()).find(|setup| setup.name == name)
    }

    /// Returns a seed that differs for each kind, so that the same number does not mean the same operations.
    pub fn mixed(&self, seed: u64) -> u64 {
        self.name.bytes().fold(seed, |mixed, byte| mixed.rotate_left(7) ^ u64::from(byte) << 32)
    }

    /// Makes a new volume. The output of mkfs.f2fs is cached.
    pub fn make(&self) -> Result<MemoryDevice> {
        static MADE: Mutex<Vec<(u64, Maker, Pages)>> = Mutex::new(Vec::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let known = made.iter().position(|(bytes, maker, _)| (*bytes, *maker) == (self.bytes, self.maker));
        let at = match known {
            Some(at) => at,
            None => {
                made.push((self.bytes, self.maker, self.pages()?));
                made.len() - 1
            }
        };
        let (bytes, pages) = &made[at].2;
        let device = MemoryDevice::new(*bytes);
        for (offset, page) in pages.iter() {
            device.write(*offset, page)?;
        }
        Ok(device)
    }

    fn pages(&self) -> Result<Pages> {
        let device = match self.maker {
            Maker::Tool(arguments) => tool_volume(self.bytes, arguments)?,
            Maker::Own16K(features) => {
                let options = mkfs::Options {
                    features: mkfs::parse_features(features)?,
                    block_size: BlockSize::B16K,
                    ..mkfs::Options::new(UUID)
                };
                own_volume(&options, &self.settings, &[(String::new(), self.bytes)])?
            }
            Maker::Encrypted(features, contents, names, scheme) => {
                let options =
                    mkfs::Options { features: mkfs::parse_features(features)?, ..mkfs::Options::new(UUID) };
                encrypt_root(
                    own_volume(&options, &self.settings, &[(String::new(), self.bytes)])?,
                    (contents, names),
                    scheme,
                )?
            }
            Maker::OwnOn(devices) => {
                let devices = devices.iter().map(|(path, mib)| (String::from(*path), mib << 20));
                own_volume(&mkfs::Options::new(UUID), &self.settings, &devices.collect::<Vec<_>>())?
            }
        };
        let read = |offset: u64| {
            let mut page = vec![0; PAGE_BYTES];
            device.read(offset, &mut page)?;
            Ok((offset, page))
        };
        let pages: Result<Vec<_>> = device.allocated_pages().into_iter().map(read).collect();
        Ok((device.geometry().size_bytes, Arc::new(pages?)))
    }
}

/// The size of a device, and the offsets and contents of its pages that are not all zeroes.
type Pages = (u64, Arc<Vec<(u64, Vec<u8>)>>);

const PAGE_BYTES: usize = 4096;
/// UUID of our own volumes.
const UUID: [u8; 16] = [0x5A; 16];
/// Name of a volume on one device.
const SINGLE: &str = "volume";

fn tool_volume(bytes: u64, arguments: &[&str]) -> Result<MemoryDevice> {
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(bytes)?;
    let run = system("mkfs.f2fs").arg("-q").args(arguments).arg(file.path()).output()?;
    ensure!(run.status.success(), "mkfs.f2fs {arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
    load(file.path())
}

/// Reads an image into memory. Holes of the file are skipped.
pub fn load(image: &Path) -> Result<MemoryDevice> {
    const CHUNK: usize = 1 << 20;
    let file = std::fs::File::open(image)?;
    let bytes = file.metadata()?.len();
    let device = MemoryDevice::new(bytes);
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while let Some(start) = next_data(&file, at)? {
        let start = start - start % PAGE_BYTES as u64;
        let length = (bytes - start).min(CHUNK as u64) as usize;
        file.read_exact_at(&mut buffer[..length], start)?;
        for (n, page) in buffer[..length].chunks(PAGE_BYTES).enumerate() {
            if *page != [0; PAGE_BYTES][..page.len()] {
                device.write(start + (n * PAGE_BYTES) as u64, page)?;
            }
        }
        at = start + length as u64;
    }
    Ok(device)
}

/// Returns the offset of the first data of a file at or after `at`, or `None` if no data follows.
fn next_data(file: &std::fs::File, at: u64) -> Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes a device with the same content.
pub fn copy(device: &MemoryDevice) -> Result<MemoryDevice> {
    let copy = MemoryDevice::with_geometry(device.geometry());
    let mut page = vec![0; PAGE_BYTES];
    for offset in device.allocated_pages() {
        device.read(offset, &mut page)?;
        copy.write(offset, &page)?;
    }
    Ok(copy)
}

/// Writes a device into a sparse file.
pub fn store(device: &MemoryDevice, image: &Path) -> Result<()> {
    let file = std::fs::File::create(image)?;
    file.set_len(device.geometry().size_bytes)?;
    let mut page = vec![0; PAGE_BYTES];
    for offset in device.allocated_pages() {
        device.read(offset, &mut page)?;
        file.write_all_at(&page, offset)?;
    }
    (&file).flush()?;
    Ok(())
}

/// Returns the volume's devices with their paths and sizes in bytes. Their concatenation is the volume's
/// address space.
pub fn parts(device: &MemoryDevice) -> Result<Vec<(String, u64)>> {
    let (superblock, _) = read_superblock(device, u64::MAX)?;
    if superblock.devices.is_empty() {
        return Ok(vec![(SINGLE.into(), device.geometry().size_bytes)]);
    }
    let paths = superblock.devices.iter().map(|part| part.path.clone());
    Ok(paths.zip(device_bytes(&superblock)).collect())
}

/// Writes a volume into sparse files in `dir`, one for each of its devices. Returns their names.
pub fn store_parts(device: &MemoryDevice, dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut end = 0;
    for (name, bytes) in parts(device)? {
        let path = dir.join(&name);
        let file = std::fs::File::create(&path)?;
        file.set_len(bytes)?;
        files.push((file, end, path));
        end += bytes;
    }
    let mut page = vec![0; PAGE_BYTES];
    for offset in device.allocated_pages().into_iter().filter(|offset| *offset < end) {
        device.read(offset, &mut page)?;
        let at = files.partition_point(|(_, start, _)| *start <= offset) - 1;
        files[at].0.write_all_at(&page, offset - files[at].1)?;
    }
    Ok(files.into_iter().map(|(_, _, path)| path).collect())
}

/// Reads the parts written by [`store_parts`], or later states of them.
pub fn load_parts(paths: &[PathBuf]) -> Result<MemoryDevice> {
    let parts: Vec<MemoryDevice> = paths.iter().map(|path| load(path)).collect::<Result<_>>()?;
    let whole = MemoryDevice::new(parts.iter().map(|part| part.geometry().size_bytes).sum());
    let (mut start, mut page) = (0, vec![0; PAGE_BYTES]);
    for part in parts {
        for offset in part.allocated_pages() {
            part.read(offset, &mut page)?;
            whole.write(start + offset, &page)?;
        }
        start += part.geometry().size_bytes;
    }
    Ok(whole)
}

/// Makes a volume whose root directory has the layout that the settings give to every inode.
fn own_volume(
    options: &mkfs::Options,
    settings: &Settings,
    devices: &[(String, u64)],
) -> Result<MemoryDevice> {
    let sizes = devices.iter().map(|(path, bytes)| DeviceSize { path: path.clone(), bytes: *bytes });
    let plan = Plan::new(options, &sizes.collect::<Vec<_>>())?;
    let bytes = match plan.superblock.devices.is_empty() {
        true => devices[0].1,
        false => device_bytes(&plan.superblock).sum(),
    };
    let device = Arc::new(MemoryDevice::new(bytes));
    let options = Options { inline_xattr: settings.inline, ..Options::new(f2fs::units::Time::default) };
    mkfs::NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, options)?.finish()?;
    Arc::into_inner(device).context("the volume has released its device")
}

fn encrypt_root(
    device: MemoryDevice,
    modes: (CipherMode, CipherMode),
    scheme: IvScheme,
) -> Result<MemoryDevice> {
    let device = Arc::new(device);
    let keys = subject::keys();
    let key = keys.iter().next().context("a key")?.identifier();
    let options = Options {
        keys,
        nonces: Some(Nonces::new([0xE; NONCE_SEED_BYTES])),
        ..Options::new(f2fs::units::Time::default)
    };
    let mut volume = Engine::open(device.clone(), options)?;
    let root = volume.superblock().root_ino;
    let policy = EncryptionPolicy::new(KeyName::Identifier(key), modes, scheme, 16)?;
    volume.begin(Caller::ADMIN).set_encryption_policy(root, &policy)?;
    volume.unmount()?;
    drop(volume);
    Arc::into_inner(device).context("the volume has released its device")
}

/// Makes a command that searches the directories of system programs as well, and speaks English.
pub fn system(program: impl AsRef<OsStr>) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command
}
