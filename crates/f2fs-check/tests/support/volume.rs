//! A volume with every kind of structure, and the tools to damage it.

#![allow(dead_code)] // each test file uses its own part

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use block::{Device, MemoryDevice};
use f2fs::{
    engine::{Caller, Engine, FinalSymlink, NewNode, Options, SetAttr, XattrMode},
    format::{
        BlockSize, TableCopy,
        checkpoint::{Checkpoint, Flags},
        crc::{crc, f2fs_crc},
        inode::flag,
        nat,
        sit::{self, SegmentType},
        summary::Summary,
        superblock::Features,
    },
    mkfs::{self, DeviceContent, DeviceSize, NewVolume, Plan},
    units::{BlockAddr, Ino, Nid, SegNo, Time},
};

/// A time that stands still.
pub const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 0 };
/// Bytes of a block.
pub const BLOCK: usize = 4096;
const UUID: [u8; 16] = [0x5A; 16];
const DIR: u16 = 0o040_755;
const FILE: u16 = 0o100_644;
/// Features of the volume.
const FEATURES: &str =
    "extra_attr,inode_checksum,flexible_inline_xattr,quota,project_quota,compression,sb_checksum,lost_found";

/// All paths with kind, size and content.
pub fn contents(device: &Arc<MemoryDevice>) -> BTreeMap<String, String> {
    let volume = Engine::open(device.clone(), Options::read_only()).expect("a volume");
    let entries = model::manifest::manifest_of(&volume).entries.into_iter();
    let line = |entry: &guest::Entry| {
        format!("{:?} {} {:?} {:?}", entry.kind, entry.size, entry.sha256, entry.errors)
    };
    entries.map(|entry| (format!("{:?}", entry.path), line(&entry))).collect()
}

/// A damaged volume.
pub struct Damaged {
    /// Its device.
    pub device: Arc<MemoryDevice>,
    volume: Engine,
}

impl Damaged {
    /// Makes a sound volume, to be damaged.
    pub fn new() -> Damaged {
        static SOUND: OnceLock<MemoryDevice> = OnceLock::new();
        Damaged::copy_of(SOUND.get_or_init(|| sound(1)))
    }

    /// Makes a sound volume with sections of several segments, to be damaged.
    pub fn with_sections(segments_per_section: u32) -> Damaged {
        Damaged::copy_of(&sound(segments_per_section))
    }

    /// Makes a sound volume with these features and this content, to be damaged.
    pub fn filled(
        size_bytes: u64,
        features: &str,
        fill: impl FnOnce(&mut Engine) -> f2fs::Result<()>,
    ) -> Damaged {
        Damaged::copy_of(&made(size_bytes, 1, features, fill))
    }

    /// Copies a sound volume, to be damaged.
    pub fn copy_of(sound: &MemoryDevice) -> Damaged {
        let device = Arc::new(model::setup::copy(sound).expect("memory"));
        let volume = Engine::open(device.clone(), Options::read_only()).expect("a sound volume");
        Damaged { device, volume }
    }

    /// Takes the newest checkpoint of the device for the sound state, without the fsyncs after it.
    pub fn at_last_checkpoint(self) -> Damaged {
        let options = Options { roll_forward: false, ..Options::read_only() };
        let volume = Engine::open(self.device.clone(), options).expect("a sound volume");
        Damaged { volume, ..self }
    }

    /// The volume as it was.
    pub fn volume(&self) -> &Engine {
        &self.volume
    }

    /// Inode of a path.
    pub fn ino(&self, path: &str) -> Ino {
        self.volume.resolve(path.as_bytes(), FinalSymlink::NoFollow).expect("a path of the volume")
    }

    /// Address of a node.
    pub fn addr(&self, nid: Nid) -> BlockAddr {
        self.volume.nat_entry(nid).expect("a sound NAT").addr
    }

    /// Address of a file's block.
    pub fn data(&self, ino: Ino, block: u64) -> BlockAddr {
        let inode = self.volume.inode(ino).expect("a sound inode");
        self.volume.address(&inode, block).expect("sound nodes")
    }

    /// Nid `child` of an inode.
    pub fn child(&self, ino: Ino, child: usize) -> Nid {
        self.volume.inode(ino).expect("a sound inode").child(child)
    }

    /// A block.
    pub fn block(&self, addr: BlockAddr) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        self.device.read(u64::from(addr.0) * BLOCK as u64, &mut bytes).expect("in memory");
        bytes
    }

    /// Writes bytes into a block.
    pub fn put(&self, addr: BlockAddr, at: usize, bytes: &[u8]) {
        self.device.write(u64::from(addr.0) * BLOCK as u64 + at as u64, bytes).expect("in memory");
    }

    /// Writes bytes into a node.
    pub fn put_node(&self, nid: Nid, at: usize, bytes: &[u8]) {
        self.put(self.addr(nid), at, bytes);
    }

    /// Writes bytes into an inode and sets its checksum.
    pub fn put_inode(&self, ino: Ino, at: usize, bytes: &[u8]) {
        self.put_node(ino.into(), at, bytes);
        self.seal(ino);
    }

    /// Sets the checksum of an inode.
    pub fn seal(&self, ino: Ino) {
        self.seal_at(ino, self.addr(ino.into()));
    }

    /// Sets the checksum of an inode at another address than that of the sound volume.
    pub fn seal_at(&self, ino: Ino, addr: BlockAddr) {
        let block = self.block(addr);
        let seed = crc(crc(crc(u32::MAX, &UUID), &ino.0.to_le_bytes()), &block[68..72]);
        let sum = crc(crc(crc(seed, &block[..368]), &[0; 4]), &block[372..]);
        self.put(addr, 368, &sum.to_le_bytes());
    }

    /// Sets the checksum of an inode on another device.
    pub fn seal_on(&self, device: &dyn Device, ino: Ino, addr: BlockAddr) {
        let mut block = vec![0; BLOCK];
        device.read(u64::from(addr.0) * BLOCK as u64, &mut block).expect("in memory");
        let seed = crc(crc(crc(u32::MAX, &UUID), &ino.0.to_le_bytes()), &block[68..72]);
        let sum = crc(crc(crc(seed, &block[..368]), &[0; 4]), &block[372..]);
        let at = u64::from(addr.0) * BLOCK as u64 + 368;
        device.write(at, &sum.to_le_bytes()).expect("in memory");
    }

    /// Sets features in both superblocks.
    pub fn add_features(&self, features: Features) {
        let features = self.volume().superblock().features.0 | features.0;
        (0..2).for_each(|copy| self.put_features(copy, features));
    }

    /// Puts the features and the checksum into a superblock.
    pub fn put_features(&self, copy: u32, features: u32) {
        self.put(BlockAddr(copy), 1024 + 2180, &features.to_le_bytes());
        let sum = f2fs_crc(&self.block(BlockAddr(copy))[1024..1024 + 3068]);
        self.put(BlockAddr(copy), 1024 + 3068, &sum.to_le_bytes());
    }

    /// Number of the pack that counts, and its head.
    pub fn checkpoint(&self) -> (u8, &Checkpoint) {
        (self.volume.last_pack(), self.volume.last_checkpoint())
    }

    /// First block of a pack.
    pub fn pack(&self, pack: u8) -> BlockAddr {
        self.volume.geometry().pack(pack)
    }

    /// Changes head and copy of the pack that counts, with a checksum.
    pub fn put_checkpoint(&self, at: usize, bytes: &[u8]) {
        let (pack, checkpoint) = self.checkpoint();
        self.put_head(pack, at, bytes);
        let start = self.pack(pack);
        self.put(BlockAddr(start.0 + checkpoint.pack_blocks - 1), 0, &self.block(start));
    }

    /// Changes the head of a pack, with a checksum.
    pub fn put_head(&self, pack: u8, at: usize, bytes: &[u8]) {
        let mut head = self.block(self.pack(pack));
        head[at..at + bytes.len()].copy_from_slice(bytes);
        let sum_at = self.checkpoint().1.checksum_offset as usize;
        let sum = f2fs_crc(&head[..sum_at]);
        let sum = if sum_at + 4 < BLOCK { crc(sum, &head[sum_at + 4..]) } else { sum };
        head[sum_at..sum_at + 4].copy_from_slice(&sum.to_le_bytes());
        self.put(self.pack(pack), 0, &head);
    }

    /// Start of the NAT journal and of the SIT journal: block and offset.
    pub fn journals(&self) -> [(BlockAddr, usize); 2] {
        let (pack, checkpoint) = self.checkpoint();
        let first = BlockAddr(self.pack(pack).0 + checkpoint.summaries_start);
        let journal = self.volume.geometry().summary.journal_bytes();
        match checkpoint.flags.has(Flags::COMPACT_SUM) {
            true => [(first, 0), (first, journal)],
            false => [(first, BLOCK - 5 - journal), (BlockAddr(first.0 + 2), BLOCK - 5 - journal)],
        }
    }

    /// Place of an entry that a journal overrides, or else of the table's.
    fn entry_place(
        &self,
        journal: usize,
        key: u32,
        width: usize,
        table: (BlockAddr, usize),
    ) -> (BlockAddr, usize) {
        let (block, at) = self.journals()[journal];
        let bytes = self.block(block);
        let count = usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let entries = (0..count).map(|n| at + 2 + n * (4 + width));
        let mut found = entries.filter(|at| bytes[*at..at + 4] == key.to_le_bytes());
        found.next().map_or(table, |at| (block, at + 4))
    }

    /// Place of a NAT entry.
    pub fn nat_place(&self, nid: Nid) -> (BlockAddr, usize) {
        let (index, slot) = nat::position(nid, BlockSize::B4K);
        let copy = TableCopy::current(&self.checkpoint().1.nat_bitmap, index);
        let addr = self.volume.geometry().nat_block(index, copy);
        self.entry_place(0, nid.0, nat::ENTRY_BYTES, (addr, slot * nat::ENTRY_BYTES))
    }

    /// Place of a SIT entry.
    pub fn sit_place(&self, segment: SegNo) -> (BlockAddr, usize) {
        let (index, slot) = sit::position(segment, BlockSize::B4K);
        let copy = TableCopy::current(&self.checkpoint().1.sit_bitmap, index);
        let addr = self.volume.geometry().sit_block(index, copy);
        self.entry_place(1, segment.0, sit::ENTRY_BYTES, (addr, slot * sit::ENTRY_BYTES))
    }

    /// Writes bytes into a NAT entry: version, inode (at 1), address (at 5).
    pub fn put_nat(&self, nid: Nid, at: usize, bytes: &[u8]) {
        let (addr, start) = self.nat_place(nid);
        self.put(addr, start + at, bytes);
    }

    /// Writes bytes into a SIT entry: type and count, map (at 2).
    pub fn put_sit(&self, segment: SegNo, at: usize, bytes: &[u8]) {
        let (addr, start) = self.sit_place(segment);
        self.put(addr, start + at, bytes);
    }

    /// Marks a block, or takes its mark back.
    pub fn flip_mark(&self, addr: BlockAddr) {
        let (segment, offset) = self.position(addr);
        let (block, at) = self.sit_place(segment);
        let bytes = self.block(block);
        let (byte, bit) = (at + 2 + usize::from(offset) / 8, 0x80 >> (offset % 8));
        let word = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = if bytes[byte] & bit == 0 { word + 1 } else { word - 1 };
        self.put(block, at, &word.to_le_bytes());
        self.put(block, byte, &[bytes[byte] ^ bit]);
    }

    /// The SIT entry of a segment.
    pub fn sit(&self, segment: SegNo) -> sit::SitEntry {
        self.volume.sit_entry(segment).expect("a sound SIT")
    }

    /// Position of a block in the main area.
    pub fn position(&self, addr: BlockAddr) -> (SegNo, u16) {
        self.volume.geometry().position(addr)
    }

    /// Returns true if a log is in the segment, so that its summary is in the pack.
    pub fn is_log(&self, segment: SegNo) -> bool {
        self.checkpoint().1.logs.iter().any(|log| log.segment == segment)
    }

    /// Moves a block with its marks in the SIT to a free place, whose summary gets an entry.
    pub fn move_block(&self, from: BlockAddr, to: BlockAddr, owner: &[u8]) {
        for (addr, is_used) in [(from, false), (to, true)] {
            let (segment, offset) = self.position(addr);
            let (block, at) = self.sit_place(segment);
            let bytes = self.block(block);
            let word = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let (byte, bit) = (2 + usize::from(offset) / 8, 0x80 >> (offset % 8));
            self.put_sit(segment, 0, &(if is_used { word + 1 } else { word - 1 }).to_le_bytes());
            self.put_sit(segment, byte, &[bytes[at + byte] ^ bit]);
        }
        self.put(to, 0, &self.block(from));
        let (segment, offset) = self.position(to);
        self.put(self.ssa(segment), 7 * usize::from(offset), owner);
    }

    /// Moves the first block of "/plain" to a free segment, which gets the type of warm data.
    pub fn move_data(&self, segment: SegNo) {
        let ino = self.ino("/plain");
        self.put_sit(segment, 0, &(1u16 << 10).to_le_bytes());
        self.put_sit(segment, 2, &[0; 64]);
        self.put_checkpoint(32, &(self.checkpoint().1.free_segments - 1).to_le_bytes());
        self.put(self.ssa(segment), BLOCK - 5, &[0]);
        let to = self.volume.geometry().block(segment, 0);
        let version = self.volume.nat_entry(ino.into()).expect("a sound NAT").version;
        let owner = [&ino.0.to_le_bytes()[..], &[version, 0, 0]].concat();
        self.move_block(self.data(ino, 0), to, &owner);
        self.put_inode(ino, 348, &[0; 12]);
        self.put_inode(ino, 396, &to.0.to_le_bytes());
    }

    /// A free segment in the section of a log of nodes.
    pub fn free_beside_nodes(&self) -> SegNo {
        let geometry = self.volume.geometry();
        let logs = SegmentType::ALL.into_iter().filter(|kind| kind.is_node());
        let logs = logs.map(|kind| self.checkpoint().1.logs[kind.index()].segment);
        let mut segments = logs.flat_map(|log| geometry.segments_of(geometry.section_of(log)));
        let is_free = |segment: &SegNo| self.sit(*segment).valid_blocks == 0 && !self.is_log(*segment);
        segments.find(is_free).expect("a free segment")
    }

    /// A full block of the SSA, with the summary of a segment.
    pub fn ssa(&self, segment: SegNo) -> BlockAddr {
        assert!(!self.is_log(segment), "the summary of {segment} is in the pack");
        let (addr, offset) = self.volume.geometry().summary_block(segment);
        assert_eq!(offset, 0);
        let _ = Summary::empty(f2fs::format::sit::SegmentType::HotData);
        addr
    }

    /// Byte offset of the dentry `slot` in an inline directory or a directory block.
    pub fn dentry_at(&self, dir: Ino, slot: usize) -> (BlockAddr, usize) {
        let inode = self.volume.inode(dir).expect("a sound inode");
        if inode.has_inline(f2fs::format::inode::inline::DENTRY) {
            let range = inode.layout().inline_range();
            let slots = 8 * range.len() / (19 * 8 + 1);
            (self.addr(dir.into()), range.end - slots * 19 + slot * 11)
        } else {
            (self.data(dir, 0), BLOCK - 214 * 19 + slot * 11)
        }
    }

    /// Byte offset of the name slot in an inline directory or a directory block.
    pub fn name_at(&self, dir: Ino, slot: usize) -> (BlockAddr, usize) {
        let (addr, at) = self.dentry_at(dir, 0);
        let slots = if addr == self.addr(dir.into()) {
            8 * self.volume.inode(dir).expect("sound").layout().inline_bytes() / (19 * 8 + 1)
        } else {
            214
        };
        (addr, at + slots * 11 + slot * 8)
    }

    /// Slot of a name.
    pub fn slot(&self, dir: Ino, name: &str) -> usize {
        self.volume.find_entry(dir, name.as_bytes()).expect("sound").expect("it is there").slot
    }

    /// Writes into the dentry of a name of an inline directory: hash, inode (at 4), length (at 8), kind (at 10).
    pub fn put_dentry(&self, dir: Ino, slot: usize, at: usize, bytes: &[u8]) {
        let (addr, start) = self.dentry_at(dir, slot);
        self.put(addr, start + at, bytes);
        if addr == self.addr(dir.into()) {
            self.seal(dir);
        }
    }
}

/// Makes a volume with every kind of structure.
fn sound(segments_per_section: u32) -> MemoryDevice {
    made(if segments_per_section == 1 { 128 << 20 } else { 256 << 20 }, segments_per_section, FEATURES, fill)
}

/// Makes a volume with these features and this content.
pub fn made(
    size_bytes: u64,
    segments_per_section: u32,
    features: &str,
    fill: impl FnOnce(&mut Engine) -> f2fs::Result<()>,
) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(size_bytes));
    let options = mkfs::Options {
        segments_per_section,
        features: mkfs::parse_features(features).expect("known features"),
        ..mkfs::Options::new(UUID)
    };
    let size = DeviceSize { path: String::new(), bytes: device.geometry().size_bytes };
    let plan = Plan::new(&options, &[size]).expect("the size fits");
    NewVolume::begin(device.clone(), &plan, DeviceContent::Zeroes, Options::new(|| NOW))
        .expect("a root")
        .finish()
        .expect("written");
    let mut volume = Engine::open(device.clone(), Options::new(|| NOW)).expect("a volume");
    fill(&mut volume).expect("there is space");
    volume.unmount().expect("written");
    drop(volume);
    model::setup::copy(&device).expect("memory")
}

fn fill(volume: &mut Engine) -> f2fs::Result<()> {
    let root = volume.superblock().root_ino;
    let file = NewNode::new(FILE);
    // A first part, so that segments are closed before the checkpoint.
    let big = volume.begin(Caller::ADMIN).create(root, b"big", &file)?;
    for n in 0..2000u64 {
        volume.begin(Caller::ADMIN).write(big, n * BLOCK as u64, &[(n % 255) as u8; BLOCK])?;
    }
    let far = volume.begin(Caller::ADMIN).create(root, b"far", &file)?;
    for block in [0, 3000, 3_000_000] {
        volume.begin(Caller::ADMIN).write(far, block * BLOCK as u64, &[7; BLOCK])?;
    }
    let many = volume.begin(Caller::ADMIN).create(root, b"many", &NewNode::new(DIR))?;
    for n in 0..700 {
        let ino = volume.begin(Caller::ADMIN).create(many, format!("entry {n}").as_bytes(), &file)?;
        if n == 0 {
            volume.begin(Caller::ADMIN).write(ino, 0, b"content")?;
        }
    }
    let few = volume.begin(Caller::ADMIN).create(root, b"few", &NewNode::new(DIR))?;
    volume.begin(Caller::ADMIN).create(few, b"below", &NewNode::new(DIR))?;
    let small = volume.begin(Caller::ADMIN).create(few, b"small", &file)?;
    volume.begin(Caller::ADMIN).write(small, 0, b"small content")?;
    volume.begin(Caller::ADMIN).link(small, root, b"small too")?;
    volume.begin(Caller::ADMIN).create(few, b"other", &file)?;
    let plain = volume.begin(Caller::ADMIN).create(root, b"plain", &file)?;
    volume.begin(Caller::ADMIN).write(plain, 0, &[3; 5 * BLOCK])?;
    let attributes = volume.begin(Caller::ADMIN).create(root, b"attributes", &file)?;
    volume.begin(Caller::ADMIN).set_xattr(attributes, b"user.large", &[5; 3000], XattrMode::Set)?;
    volume.begin(Caller::ADMIN).set_xattr(small, b"user.small", b"value", XattrMode::Set)?;
    volume.begin(Caller::ADMIN).symlink(root, b"link", b"target", &NewNode::new(0o120_777))?;
    let compressed = volume.begin(Caller::ADMIN).create(root, b"compressed", &file)?;
    volume
        .begin(Caller::ADMIN)
        .set_attr(compressed, &SetAttr { flags: Some(flag::COMPRESS), ..SetAttr::default() })?;
    volume.begin(Caller::ADMIN).write(compressed, 0, &[9; 16 * BLOCK])?;
    Ok(())
}
