//! dm-verity: images whose blocks are compared with a tree of hashes while they are read (Linux,
//! Documentation/admin-guide/device-mapper/verity.rst).
//!
//! *Invariants*: no byte is given out before the path from its block to the root hash has been checked. The parameters and
//! the tree are bytes of an image: wrong ones give errors, and memory is bounded.

mod avb;
mod parameters;
mod superblock;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt, io,
    ops::Range,
    path::PathBuf,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

use block::{Device, FileDevice, Geometry, OpenOptions};
pub use parameters::{Algorithm, HashForm, Level, Parameters};

use crate::bytes::{invalid, never_written};

/// Memory for checked blocks of the tree in bytes.
const CHECKED_BYTES_MAX: usize = 4 << 20;
/// Bytes of data read at once.
const STEP_BYTES: u64 = 1 << 20;
/// Maximum number of damaged ranges that are reported one by one.
const RANGES_MAX: usize = 1000;

/// The root hash that the caller trusts, or the place of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// This root hash.
    Root(Vec<u8>),
    /// The root hash in the AVB descriptor of the image itself. That shows damage, and no forgery.
    Stored,
    /// The root hash and the parameters of a table.
    Table(Parameters, Vec<u8>),
}

impl FromStr for Trust {
    type Err = String;

    /// Parses hexadecimal digits, the word `stored`, or a table of dm-verity.
    fn from_str(text: &str) -> Result<Trust, String> {
        if text.trim() == "stored" {
            return Ok(Trust::Stored);
        }
        if text.trim().contains(char::is_whitespace) {
            let (parameters, root) = table::parse(text).map_err(|error| error.to_string())?;
            return Ok(Trust::Table(parameters, root));
        }
        let root = from_hex(text.trim()).filter(|root| !root.is_empty());
        root.map(Trust::Root).ok_or_else(|| {
            format!("{text:?}: expected a root hash in hexadecimal digits, the word stored, or a table of dm-verity")
        })
    }
}

impl fmt::Display for Trust {
    /// Writes text that [`from_str`](FromStr::from_str) understands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trust::Root(root) => f.write_str(&to_hex(root)),
            Trust::Stored => f.write_str("stored"),
            Trust::Table(parameters, root) => f.write_str(&table::of(parameters, root)),
        }
    }
}

/// The hash tree by which an image is to be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The root hash.
    pub trust: Trust,
    /// The file or device with the tree, if that is not the image itself.
    pub device: Option<PathBuf>,
    /// First byte of the superblock of veritysetup in the file or device with the tree. Without it, a tree in the image is
    /// that of its AVB footer, and a tree in another file follows a superblock at its start.
    pub offset: Option<u64>,
}

/// Returns the bytes that hexadecimal digits stand for.
fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    digits.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tree with its root hash.
struct Tree {
    parameters: Parameters,
    levels: Vec<Level>,
    root: Vec<u8>,
    /// The file or device with the tree, if that is not the image itself.
    device: Option<Arc<dyn Device>>,
}

/// Checked blocks of the tree by level and number.
type CheckedBlocks = HashMap<(usize, u64), Arc<Vec<u8>>>;

/// The data of an image, checked while it is read. It cannot be written.
pub struct Verified {
    tree: Arc<Tree>,
    data: Arc<dyn Device>,
    checked: Mutex<CheckedBlocks>,
}

/// The blocks of an image that do not match their hashes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Damage {
    /// Number of blocks of data.
    pub blocks: u64,
    /// Their bytes, ascending and with gaps in between, as far as the list has room.
    pub ranges: Vec<Range<u64>>,
    /// True if further ranges are not in the list.
    pub is_cut: bool,
}

impl Verified {
    /// Finds the tree of an image, and checks its root.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if there is no tree, its parameters are impossible, or its root hash is another one;
    /// [`io::ErrorKind::Unsupported`] for a hash algorithm that is not supported; errors of the devices.
    pub fn open(data: Arc<dyn Device>, request: &Request) -> io::Result<Verified> {
        let device: Option<Arc<dyn Device>> = match &request.device {
            Some(path) => {
                let opened = FileDevice::open(path, OpenOptions::default());
                let opened = opened.map_err(|error| {
                    io::Error::new(error.kind(), format!("hash tree {}: {error}", path.display()))
                })?;
                Some(Arc::new(opened))
            }
            None => None,
        };
        let on = device.as_ref().unwrap_or(&data);
        let (parameters, root) = match (&request.trust, request.offset) {
            (Trust::Table(parameters, root), None) => (parameters.clone(), root.clone()),
            (Trust::Table(..), Some(_)) => {
                return Err(invalid("dm-verity: a table says where the tree is; leave the offset out"));
            }
            (Trust::Root(root), None) if device.is_none() => (with_footer(on)?.0, root.clone()),
            (Trust::Stored, None) if device.is_none() => with_footer(on)?,
            (Trust::Root(root), at) => (superblock::read(&**on, at.unwrap_or(0))?, root.clone()),
            (Trust::Stored, _) => {
                let what =
                    "dm-verity: a superblock of veritysetup has no root hash; give the one that it printed";
                return Err(invalid(what));
            }
        };
        let levels = parameters.levels(data.geometry().size_bytes, on.geometry().size_bytes)?;
        if root.len() != parameters.algorithm.digest_bytes() {
            let (bytes, name) = (root.len(), parameters.algorithm.name());
            return Err(invalid(format!("dm-verity: a root hash of {bytes} bytes for {name}")));
        }
        let verified = Verified::over(data, Arc::new(Tree { parameters, levels, root, device }));
        verified.check_root()?;
        Ok(verified)
    }

    fn over(data: Arc<dyn Device>, tree: Arc<Tree>) -> Verified {
        Verified { tree, data, checked: Mutex::default() }
    }

    /// Returns the same tree over another view of the same data.
    pub(crate) fn again_over(&self, data: Arc<dyn Device>) -> Verified {
        Verified::over(data, self.tree.clone())
    }

    /// Returns the parameters of the tree.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.tree.parameters
    }

    /// Returns the root hash.
    #[must_use]
    pub fn root(&self) -> &[u8] {
        &self.tree.root
    }

    /// Compares all blocks with their hashes. `tell` gets the bytes done so far.
    ///
    /// # Errors
    /// Those of the devices. Damage is no error.
    pub fn damage(&self, tell: &mut dyn FnMut(u64)) -> io::Result<Damage> {
        let (block_bytes, bytes) = (self.block_bytes(), self.geometry().size_bytes);
        let (mut damage, mut buf) = (Damage::default(), vec![0; STEP_BYTES.min(bytes) as usize]);
        for at in (0..bytes).step_by(STEP_BYTES as usize) {
            let step = &mut buf[..(bytes - at).min(STEP_BYTES) as usize];
            self.data.read(at, step)?;
            for (block, content) in (at / block_bytes..).zip(step.chunks_exact(block_bytes as usize)) {
                match self.check(0, block, content) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        damage.add(block * block_bytes..(block + 1) * block_bytes);
                    }
                    Err(error) => return Err(error),
                }
            }
            tell(at + step.len() as u64);
        }
        Ok(damage)
    }

    fn block_bytes(&self) -> u64 {
        self.tree.parameters.data_block_bytes.into()
    }

    /// The device with the tree.
    fn tree_device(&self) -> &Arc<dyn Device> {
        self.tree.device.as_ref().unwrap_or(&self.data)
    }

    /// Checks the highest block.
    fn check_root(&self) -> io::Result<()> {
        let checked = match self.tree.levels.len() {
            0 => self.read(0, &mut [0]),
            levels => self.tree_block(levels - 1, 0).map(drop),
        };
        checked.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => invalid(
                "dm-verity: the image does not have this root hash: it is another image, or the root of its hash tree is \
                 damaged",
            ),
            _ => error,
        })
    }

    /// Compares a block with its hash in the level above. `level` counts from the data, which is level 0, upwards.
    fn check(&self, level: usize, block: u64, bytes: &[u8]) -> io::Result<()> {
        let Tree { parameters, levels, root, .. } = &*self.tree;
        let hash = parameters.hash(bytes);
        let is_right = if level == levels.len() {
            hash == *root
        } else {
            let above = self.tree_block(level, block / parameters.fan_out())?;
            above[parameters.place(block)] == hash
        };
        if is_right {
            return Ok(());
        }
        Err(invalid(match level.checked_sub(1) {
            None => {
                let at = block * self.block_bytes();
                format!("dm-verity: the block at byte {at} does not match its hash")
            }
            Some(own) => {
                let at = levels[own].at + block * u64::from(parameters.hash_block_bytes);
                format!("dm-verity: the block at byte {at} of the hash tree does not match its hash")
            }
        }))
    }

    /// Returns a checked block of the tree. Level 0 is the one above the data.
    fn tree_block(&self, level: usize, block: u64) -> io::Result<Arc<Vec<u8>>> {
        let known = || self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = known().get(&(level, block)) {
            return Ok(bytes.clone());
        }
        let block_bytes = self.tree.parameters.hash_block_bytes;
        let mut bytes = vec![0; block_bytes as usize];
        self.tree_device().read(self.tree.levels[level].at + block * u64::from(block_bytes), &mut bytes)?;
        self.check(level + 1, block, &bytes)?;
        let (bytes, mut known) = (Arc::new(bytes), known());
        if (known.len() + 1) * block_bytes as usize > CHECKED_BYTES_MAX {
            known.clear();
        }
        known.insert((level, block), bytes.clone());
        Ok(bytes)
    }
}

/// Returns the parameters and the root hash of an image with an AVB footer.
fn with_footer(data: &Arc<dyn Device>) -> io::Result<(Parameters, Vec<u8>)> {
    avb::read(&**data)?.ok_or_else(|| {
        invalid(
            "dm-verity: the image has no AVB footer, which would say where its hash tree is; --hash-offset gives the place of \
             a superblock of veritysetup, --hash-device another file with the tree",
        )
    })
}

impl Damage {
    /// Adds a block that follows all others.
    fn add(&mut self, bytes: Range<u64>) {
        self.blocks += 1;
        let has_room = self.ranges.len() < RANGES_MAX;
        match self.ranges.last_mut() {
            Some(last) if last.end == bytes.start && !self.is_cut => last.end = bytes.end,
            _ if has_room => self.ranges.push(bytes),
            _ => self.is_cut = true,
        }
    }
}

impl Device for Verified {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.tree.parameters.data_blocks * self.block_bytes();
        Geometry { size_bytes, ..self.data.geometry() }
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check_read(offset_bytes, buf.len())?;
        let block_bytes = self.block_bytes();
        let (mut at, mut rest, mut blocks) = (offset_bytes, buf, Vec::new());
        while !rest.is_empty() {
            let first = at / block_bytes;
            let end = (at + rest.len() as u64).div_ceil(block_bytes).min(first + STEP_BYTES / block_bytes);
            blocks.resize(((end - first) * block_bytes) as usize, 0);
            self.data.read(first * block_bytes, &mut blocks)?;
            for (block, content) in (first..end).zip(blocks.chunks_exact(block_bytes as usize)) {
                self.check(0, block, content)?;
            }
            let within = (at - first * block_bytes) as usize;
            let length = rest.len().min(blocks.len() - within);
            let (part, later) = rest.split_at_mut(length);
            part.copy_from_slice(&blocks[within..within + length]);
            (at, rest) = (at + length as u64, later);
        }
        Ok(())
    }

    never_written!();
}
