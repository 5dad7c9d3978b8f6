//! Comparison of plans with volumes made by mkfs.f2fs, field by field.
//!
//! Runs the installed mkfs.f2fs (or `$MKFS_F2FS`) on sparse files. The whole superblock must be equal, except
//! the fields that name the maker. The checkpoint's counters and logs must be equal, except for the
//! differences listed in `f2fs::mkfs`. Values that depend on the tool's version are computed here by that
//! version's formulas, so that they are also compared.

use std::{fs::File, os::unix::fs::FileExt, path::Path, process::Command};

use f2fs::{
    format::{
        BlockSize,
        superblock::{self, Features, raw},
    },
    mkfs::{DeviceSize, Encoding, Options, Overprovision, Plan, parse_features},
};
use zerocopy::{FromBytes, IntoBytes};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// Versions of mkfs.f2fs with different formulas for the space set aside.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Tool {
    V1_15,
    V1_16,
    /// After 1.16.0; supports 16K blocks.
    Later,
}

fn mkfs() -> Command {
    Command::new(std::env::var_os("MKFS_F2FS").unwrap_or_else(|| "mkfs.f2fs".into()))
}

fn tool() -> Tool {
    let said = |arg: &str| {
        let output = mkfs().arg(arg).output().expect("mkfs.f2fs runs; scripts/setup installs it");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    match said("-V") {
        _ if said("-h").contains("-b ") => Tool::Later,
        version if version.contains(" 1.15.") => Tool::V1_15,
        version if version.contains(" 1.16.") => Tool::V1_16,
        version => panic!("mkfs.f2fs of unknown version {version:?}"),
    }
}

/// A volume to make in both ways.
struct Case {
    bytes: u64,
    args: &'static str,
    options: Options,
    more_devices: Vec<u64>,
}

fn case(bytes: u64, args: &'static str, choose: fn(&mut Options)) -> Case {
    let uuid = (0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128).to_be_bytes();
    let mut options = Options::new(uuid);
    choose(&mut options);
    Case { bytes, args, options, more_devices: vec![] }
}

/// The volume made by mkfs.f2fs.
struct Made {
    superblock: raw::Superblock,
    backup: raw::Superblock,
    checkpoint: Vec<u8>,
}

impl Made {
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.checkpoint[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.checkpoint[at..at + 8].try_into().unwrap())
    }
}

/// Makes the volume with mkfs.f2fs. None if it refuses.
fn make(case: &Case, dir: &Path) -> Option<Made> {
    let mut command = mkfs();
    command.args(["-f", "-U", UUID]).args(case.args.split_whitespace());
    for (n, bytes) in case.more_devices.iter().enumerate() {
        let path = dir.join(format!("more{n}"));
        File::create(&path).unwrap().set_len(*bytes).unwrap();
        command.arg("-c").arg(path);
    }
    let path = dir.join("image");
    let image = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    image.set_len(case.bytes).unwrap();
    let output = command.arg(&path).output().unwrap();
    if !output.status.success() {
        return None;
    }
    let block_bytes = case.options.block_size.bytes() as u64;
    let read = |offset: u64, bytes: usize| {
        let mut buf = vec![0; bytes];
        image.read_exact_at(&mut buf, offset).unwrap();
        buf
    };
    let superblock = |copy: u64| {
        let bytes = read(copy * block_bytes + superblock::OFFSET as u64, superblock::BYTES);
        raw::Superblock::read_from_bytes(&bytes).unwrap()
    };
    let made = superblock(0);
    let checkpoint = read(u64::from(made.cp_blkaddr.get()) * block_bytes, block_bytes as usize);
    Some(Made { superblock: made, backup: superblock(1), checkpoint })
}

fn plan(case: &Case, dir: &Path) -> f2fs::Result<Plan> {
    let sizes = [case.bytes].into_iter().chain(case.more_devices.iter().copied());
    let devices: Vec<DeviceSize> = sizes
        .enumerate()
        .map(|(n, bytes)| {
            let name = if n == 0 { "image".to_string() } else { format!("more{}", n - 1) };
            DeviceSize { path: dir.join(name).to_str().unwrap().into(), bytes }
        })
        .collect();
    Plan::new(&case.options, &devices)
}

/// Computes reserved and overprovision segments by the formulas of the tool.
fn set_aside(tool: Tool, plan: &Plan, wanted: Overprovision) -> (u32, u32) {
    let (main, section) = (plan.superblock.main.segments, plan.superblock.segments_per_section);
    let read_only = plan.superblock.features.has(Features::RO);
    let (main_f, section_f) = (f64::from(main), f64::from(section));
    let reserve = |percent: f64| match tool {
        Tool::V1_15 => (2.0 * (100.0 / percent + 1.0) + 6.0) * section_f,
        Tool::V1_16 | Tool::Later => (100.0 / percent + 1.0 + 6.0) * section_f,
    };
    if tool == Tool::Later && !read_only {
        return (plan.set_aside.reserved_segments, plan.set_aside.overprovision_segments);
    }
    if read_only {
        return match tool {
            Tool::V1_15 => (0, 0),
            Tool::V1_16 => (0, 2 * section),
            Tool::Later => (0, 6 * section),
        };
    }
    let percent = match wanted {
        Overprovision::Percent(percent) => percent,
        Overprovision::Automatic => {
            let (first, last, step) = if main < 256 { (10.0, 95.0, 5.0) } else { (0.01, 10.0, 0.01) };
            let (mut best, mut most) = (0.0, 0.0);
            let mut candidate: f64 = first;
            while candidate <= last {
                let reserved = reserve(candidate);
                let share = (main_f - reserved) * candidate / 100.0;
                let space = match tool {
                    Tool::V1_15 => main_f - reserved - share,
                    _ if share < 0.0 => 0.0,
                    _ => main_f - reserved.max(share) - 2.0 * section_f,
                };
                if space > most {
                    (best, most) = (candidate, space);
                }
                candidate += step;
            }
            best
        }
    };
    let reserved = reserve(percent) as u32;
    let share = (f64::from(main - reserved) * percent / 100.0) as u32;
    match tool {
        Tool::V1_15 => (reserved, share + reserved),
        Tool::V1_16 | Tool::Later => (reserved, share.max(reserved) + 2 * section),
    }
}

/// Clears the fields that name the maker, and the checksum over them.
fn anonymous(superblock: &raw::Superblock) -> raw::Superblock {
    let mut superblock = superblock.clone();
    superblock.minor_version.set(0);
    superblock.version = [0; 256];
    superblock.init_version = [0; 256];
    superblock.crc.set(0);
    for device in &mut superblock.devs {
        // mkfs.f2fs 1.15 copies stray bytes after the path.
        let end = device.path.iter().position(|byte| *byte == 0).unwrap_or(device.path.len());
        device.path[end..].fill(0);
    }
    superblock
}

/// Returns the lines in which two values' debug prints differ.
fn differences(ours: &impl std::fmt::Debug, theirs: &impl std::fmt::Debug) -> Vec<String> {
    let (ours, theirs) = (format!("{ours:#?}"), format!("{theirs:#?}"));
    assert_eq!(ours.lines().count(), theirs.lines().count());
    let pairs = ours.lines().zip(theirs.lines());
    pairs.filter(|(a, b)| a != b).map(|(a, b)| format!("ours {} theirs {}", a.trim(), b.trim())).collect()
}

fn compare(case: &Case) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (tool, name) = (tool(), format!("{} bytes, {:?}", case.bytes, case.args));
    let made = make(case, dir.path()).unwrap_or_else(|| panic!("mkfs.f2fs refuses {name}"));
    let plan = plan(case, dir.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let differ = differences(&anonymous(plan.raw_superblock()), &anonymous(&made.superblock));
    assert!(differ.is_empty(), "{name}: {differ:#?}");
    assert_eq!(differences(&made.superblock, &made.backup), [""; 0], "{name}: their copies");

    let (reserved, overprovision) = set_aside(tool, &plan, case.options.overprovision);
    let user_blocks = u64::from(plan.superblock.main.segments - overprovision) * 512;
    assert_eq!((made.u32(24), made.u32(28), made.u64(8)), (reserved, overprovision, user_blocks), "{name}");
    assert_eq!(
        plan.user_blocks,
        u64::from(plan.superblock.main.segments - plan.set_aside.overprovision_segments) * 512
    );
    let read_only = plan.superblock.features.has(Features::RO);
    let logs = [84, 88, 92, 36, 40, 44].map(|at| made.u32(at));
    if !(read_only && tool == Tool::V1_15) {
        let mut ours = plan.logs.in_order().map(|segment| segment.0);
        if !read_only && plan.superblock.sections_per_zone > 1 {
            // Our data logs start beside their node logs, in the same zone: those of directories, and those
            // of files.
            for (data, nodes) in [(0, 3), (1, 4)] {
                assert_eq!(ours[data], ours[nodes] + plan.superblock.segments_per_section, "{name}");
                ours[data] = logs[data];
            }
        }
        assert_eq!(ours, logs, "{name}");
    }
    let heads = if read_only { 2 } else { 6 };
    assert_eq!(made.u32(32), plan.superblock.main.segments - heads, "{name}: free segments");
    assert_eq!(made.u32(140), 1 + plan.superblock.cp_payload, "{name}: start of the summaries");
    assert_eq!(made.u32(152), plan.next_free_nid.0, "{name}: next nid");
    assert_eq!((made.u32(156), made.u32(160)), (plan.sit_bitmap_bytes, plan.nat_bitmap_bytes), "{name}");
    let (checksum_at, flags) = (made.u32(164), made.u32(132));
    assert_eq!(checksum_at == 192 && flags & 0x400 != 0, plan.large_nat_bitmap, "{name}");
}

#[test]
fn volumes_of_many_sizes_equal_those_of_mkfs() {
    // mkfs.f2fs 1.15 starts at 52 MiB, 1.16 at 44, and later ones at 46, as here.
    let (small, large) = ((52..=70).step_by(2), [99, 128, 255, 512, 513, 700, 1023, 1024, 2049, 5000]);
    for mib in small.chain(large) {
        compare(&case(mib * MIB, "", |_| {}));
    }
    for bytes in [100 * MIB + 4096, 64 * MIB + 511, 3 * GIB - 1, 64 * GIB, 931 * GIB, TIB] {
        compare(&case(bytes, "", |_| {}));
    }
}

/// Past 2.2 TiB the SIT's bitmap no longer fits the first block of a checkpoint.
#[test]
fn large_volumes_up_to_16_tib_equal_those_of_mkfs() {
    for bytes in [2200 * GIB, 4 * TIB, 16 * TIB - 4096] {
        compare(&case(bytes, "", |_| {}));
    }
}

/// Up to 1.16.0, a tail smaller than a zone counts as usable although it is in no section. So the sizes here
/// are whole zones, and others are left to later tools.
#[test]
fn sections_and_zones_equal_those_of_mkfs() {
    let set = |section, zone, mut case: Case| {
        (case.options.segments_per_section, case.options.sections_per_zone) = (section, zone);
        compare(&case);
    };
    set(2, 1, case(GIB, "-s 2", |_| {}));
    set(4, 2, case(GIB, "-s 4 -z 2", |_| {}));
    set(1, 3, case(513 * 2 * MIB, "-z 3", |_| {}));
    set(16, 1, case(8 * GIB, "-s 16", |_| {}));
    set(64, 1, case(64 * GIB, "-s 64 -z 1", |_| {}));
    set(7, 5, case(935 * 70 * MIB, "-s 7 -z 5", |_| {}));
    if tool() == Tool::Later {
        set(1, 3, case(GIB, "-z 3", |_| {}));
        set(3, 1, case(3 * GIB + 5 * MIB, "-s 3", |_| {}));
        set(7, 5, case(64 * GIB, "-s 7 -z 5", |_| {}));
    }
}

#[test]
fn overprovision_equals_that_of_mkfs() {
    for (percent, arg) in [(0.5, "-o 0.5"), (1.0, "-o 1"), (5.0, "-o 5"), (12.3, "-o 12.3"), (50.0, "-o 50")]
    {
        let mut case = case(20 * GIB, arg, |_| {});
        case.options.overprovision = Overprovision::Percent(percent);
        compare(&case);
        (case.options.segments_per_section, case.args) = (8, Box::leak(format!("{arg} -s 8").into()));
        compare(&case);
    }
}

#[test]
fn large_nat_bitmaps_equal_those_of_mkfs() {
    for bytes in [100 * MIB, 3 * GIB, 120 * GIB, 2 * TIB, 5 * TIB] {
        compare(&case(bytes, "-i", |o| o.large_nat_bitmap = true));
    }
}

#[test]
fn features_equal_those_of_mkfs() {
    for list in [
        "encrypt",
        "extra_attr",
        "extra_attr,inode_checksum,sb_checksum",
        "extra_attr,flexible_inline_xattr,inode_crtime",
        "extra_attr,compression",
        "extra_attr,project_quota",
        "quota",
        "quota,lost_found",
        "lost_found,verity",
        "ro",
        "ro,extra_attr,compression",
    ] {
        let mut case = case(512 * MIB, Box::leak(format!("-O {list}").into()), |_| {});
        case.options.features = parse_features(list).unwrap();
        compare(&case);
    }
    compare(&case(GIB, "-g android", |o| *o = o.clone().android()));
    compare(&case(GIB, "-O casefold -C utf8:strict", |o| {
        o.features = Features::CASEFOLD;
        o.encoding = Encoding::parse("utf8:strict").unwrap();
    }));
}

#[test]
fn labels_extensions_and_sector_sizes_equal_those_of_mkfs() {
    compare(&case(100 * MIB, "-l Straße-\u{1F4BE} -e log,tmp,so -E sqlite,db,mp", |o| {
        o.label = "Straße-\u{1F4BE}".into();
        o.cold_extensions = ["log", "tmp", "so"].map(String::from).into();
        o.hot_extensions = ["sqlite", "db", "mp"].map(String::from).into();
    }));
    // -w only sets the unit of a number of sectors on the command line.
    compare(&case(100 * MIB, "-w 4096", |_| {}));
}

#[test]
fn volumes_on_several_devices_equal_those_of_mkfs() {
    for (args, zone) in [("", 1), ("-s 3 -z 2", 6)] {
        let mut case = case(300 * MIB, args, |_| {});
        if zone > 1 {
            (case.options.segments_per_section, case.options.sections_per_zone) = (3, 2);
        }
        // mkfs.f2fs up to 1.16 rounded only the sum of the devices to zones. The sum of its devices then
        // differed from the number of segments, which Linux refuses. These devices are whole zones.
        case.more_devices = vec![zone * 60 * MIB, zone * 40 * MIB];
        if zone > 1 {
            case.bytes = 12 * 25 * MIB;
        }
        compare(&case);
    }
}

/// The smallest valid size is also mkfs.f2fs's, if both set aside the same space.
#[test]
fn the_smallest_size_is_valid_and_one_zone_less_is_not() {
    let tool = tool();
    for (args, section, percent) in [("", 1, None), ("-s 4", 4, None), ("-o 20", 1, Some(20.0))] {
        let mut case = case(0, args, |_| {});
        case.options.segments_per_section = section;
        case.options.overprovision = percent.map_or(Overprovision::Automatic, Overprovision::Percent);
        case.bytes = Plan::smallest_bytes(&case.options).unwrap();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        assert!(plan(&case, dir.path()).is_ok());
        if tool == Tool::Later {
            compare(&case);
        }
        let smallest = case.bytes;
        for bytes in [smallest - 1, smallest - 4096, MIB, 4096, 1, 0] {
            case.bytes = bytes;
            let error = plan(&case, dir.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("at least {smallest} ")), "{error}");
            if tool == Tool::Later {
                assert!(make(&case, dir.path()).is_none(), "mkfs.f2fs takes {bytes} bytes");
            }
        }
    }
}

/// mkfs.f2fs gives a volume of exactly 16 TiB two blocks that no map can address. Reading it is safe.
#[test]
fn a_superblock_of_mkfs_for_16_tib_is_accepted() {
    let case = case(16 * TIB - 2 * MIB, "", |_| {});
    let plan = plan(&case, Path::new("")).unwrap();
    let mut raw = plan.raw_superblock().clone();
    raw.block_count.set(1 << 32);
    for count in [&mut raw.segment_count, &mut raw.segment_count_main, &mut raw.section_count] {
        count.set(count.get() + 1);
    }
    superblock::seal(&mut raw);
    let bytes: &[u8; superblock::BYTES] = raw.as_bytes().try_into().unwrap();
    let checked = superblock::Superblock::check(bytes, 0, 16 * TIB).unwrap();
    assert_eq!(checked.main.end(), 1 << 32);
    for count in [&mut raw.segment_count, &mut raw.segment_count_main, &mut raw.section_count] {
        count.set(count.get() + 1);
    }
    raw.block_count.set(2 << 32);
    let bytes: &[u8; superblock::BYTES] = raw.as_bytes().try_into().unwrap();
    assert!(superblock::Superblock::check(bytes, 0, 32 * TIB).is_err());
}

#[test]
fn sizes_that_linux_cannot_address_are_refused() {
    let one = |bytes| [DeviceSize { path: String::new(), bytes }];
    let options = Options::new([7; 16]);
    let full = Plan::new(&options, &one(16 * TIB)).unwrap();
    assert_eq!(full.superblock.segments, 8_388_606);
    let error = Plan::new(&options, &one(16 * TIB + 1)).unwrap_err().to_string();
    assert!(error.contains("at most 17592186044416"), "{error}");
    assert!(Plan::new(&options, &one(u64::MAX)).is_err());
    let mut large_blocks = options.clone();
    large_blocks.block_size = BlockSize::B16K;
    assert_eq!(Plan::new(&large_blocks, &one(64 * TIB)).unwrap().superblock.segments, 8_388_606);
    let mut large_zones = options;
    (large_zones.segments_per_section, large_zones.sections_per_zone) = (1 << 12, 1 << 11);
    let error = Plan::new(&large_zones, &one(16 * TIB)).unwrap_err().to_string();
    assert!(error.contains("no size is large enough"), "{error}");
}

/// Only tools after 1.16.0 support 16K blocks. If such a tool is installed, this compares with it; otherwise
/// it checks the numbers that such a tool gave.
#[test]
fn volumes_with_blocks_of_16k_equal_those_of_mkfs() {
    let set = |o: &mut Options| o.block_size = BlockSize::B16K;
    let fixed = plan(&case(GIB, "", set), Path::new("")).unwrap();
    let sb = &fixed.superblock;
    assert_eq!(
        (
            sb.checkpoint.start.0,
            sb.segments,
            sb.sit.segments,
            sb.nat.segments,
            sb.ssa.segments,
            sb.main.segments
        ),
        (512, 127, 2, 2, 1, 120)
    );
    if tool() == Tool::Later {
        for bytes in [300 * MIB, GIB, 40 * GIB, 3 * TIB, 12 * TIB] {
            compare(&case(bytes, "-b 16384", set));
            compare(&case(bytes, "-b 16384 -O packed_ssa", |o| {
                (o.block_size, o.features) = (BlockSize::B16K, Features::PACKED_SSA);
            }));
            compare(&case(bytes, "-b 16384 -i", |o| {
                (o.block_size, o.large_nat_bitmap) = (BlockSize::B16K, true);
            }));
        }
    }
}

/// Segment 0 is aligned on the disk. mkfs.f2fs asks the kernel where a partition starts, which needs a
/// partition; the arithmetic is pinned here.
#[test]
fn zones_are_aligned_on_the_disk() {
    for (start, section, segment0) in [(0, 1, 512), (MIB, 1, 256), (63 * 512, 1, 504), (5 * MIB, 4, 768)] {
        let case = case(GIB, "", |_| {});
        let options = Options { start_offset_bytes: start, segments_per_section: section, ..case.options };
        let plan = Plan::new(&options, &[DeviceSize { path: String::new(), bytes: case.bytes }]).unwrap();
        assert_eq!(plan.superblock.checkpoint.start.0, segment0, "start {start}");
    }
}
