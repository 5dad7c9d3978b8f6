//! The built-in profiles beside the figures that were published for the devices they model.
//!
//! The tables of docs/DEVICE-MODEL.md are made here and compared with the file; with `BLESS=1` they are
//! written to it.

use std::{fmt::Write as _, fs, path::PathBuf};

use block::{Device, Rng};
use flash::{
    Card, Clock, Model, Op, Profile,
    flashbench::{self, OpenUnits},
};

const K: u64 = 1024;
const M: u64 = 1024 * K;

/// One row: what is published, what the model gives, and whether the model was fitted to it.
struct Row {
    what: String,
    published: f64,
    model: f64,
    calibrated: bool,
}

impl Row {
    fn error(&self) -> f64 {
        self.model / self.published - 1.0
    }
}

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn reference(name: &str) -> toml::Table {
    let path = repository("testdata/reference").join(name);
    toml::from_str(&fs::read_to_string(&path).expect("the figures are in the repository")).expect("TOML")
}

/// A published figure of jeong-2012.
fn published(table: &toml::Table, experiment: &str, host: &str, fs: &str, order: &str) -> f64 {
    let value = &table["experiment"][experiment][host][fs][order];
    value.as_float().or(value.as_integer().map(|n| n as f64)).expect("a number")
}

/// Time of requests one after the other, in seconds.
fn seconds(profile: &Profile, ops: impl IntoIterator<Item = Op>) -> f64 {
    let mut model = Model::new(profile.clone(), false);
    let mut now = 0;
    for op in ops {
        now = model.submit(now, op).expect("within the card").done_ns;
    }
    now as f64 / 1e9
}

/// Offsets of the records of a file, each once, in shuffled order (iozone -i 2).
fn shuffled(file_bytes: u64) -> Vec<u64> {
    let mut places: Vec<u64> = (0..file_bytes / (4 * K)).map(|n| n * 4 * K).collect();
    Rng::new(1).shuffle(&mut places);
    places
}

/// What each file system sends for a 4 KiB record and its fsync, once it runs steadily. The counts and sizes
/// of the commands are those seen on Linux (DEVICE-MODEL.md); places are those of a fresh volume.
fn fsync_ops(fs: &str, offsets: &[u64], extends: bool) -> Vec<Op> {
    let file = 1024 * M;
    let mut ops = Vec::new();
    for (n, &at) in offsets.iter().enumerate() {
        let n = n as u64;
        match fs {
            // Data and the node that points to it, each appended to its log.
            "f2fs" => {
                ops.extend([Op::write(file + n * 4 * K, 4 * K), Op::write(file + 512 * M + n * 4 * K, 4 * K)])
            }
            // Data in place; the transaction and its commit block in the journal, which comes round at 128 MiB.
            "ext4" => {
                let journal = 8192 * M + (n * 12 * K) % (128 * M);
                ops.extend([
                    Op::write(file + at, 4 * K),
                    Op::write(journal, 8 * K),
                    Op::write(journal + 8 * K, 4 * K),
                ]);
            }
            // One segment of data, B-tree and checkpoint.
            "nilfs2" => ops.push(Op::write(file + n * 66 * K, 66 * K)),
            // A file that grows: data, FAT, directory entry. In place: data alone, because the time in the
            // entry has steps of two seconds.
            "vfat" => {
                ops.push(Op::write(file + at, 4 * K));
                if extends {
                    ops.extend([Op::write(16 * K, 4 * K), Op::write(8 * M, 4 * K)]);
                }
            }
            _ => unreachable!("one of the four"),
        }
    }
    ops
}

fn jeong(host: &str, profile: &Profile) -> Vec<Row> {
    let table = reference("jeong-2012.toml");
    let mut rows = Vec::new();
    let sequential = |bytes: u64, piece: u64| (0..bytes / piece).map(move |n| n * piece);
    let read_piece = u64::from(profile.host.max_request_bytes).min(128 * K);
    let write_piece = u64::from(profile.host.max_request_bytes);
    for fs in ["ext4", "nilfs2", "f2fs", "vfat"] {
        // The phone's figures were read off rows of all four file systems.
        let all = host == "galaxy_s3";
        let calibrated = fs == "ext4" || all;
        let mut row = |experiment: &str, order: &str, unit: &str, model: f64, calibrated: bool| {
            let published = published(&table, experiment, host, fs, order);
            let what = format!("{experiment}, {order}, {fs}, {unit}");
            rows.push(Row { what, published, model, calibrated });
        };
        let bytes = 256 * M;
        let read_s = seconds(profile, sequential(bytes, read_piece).map(|at| Op::read(at, read_piece)));
        row("buffered_read", "sequential", "MB/s", bytes as f64 / 1e6 / read_s, calibrated);
        let places = shuffled(bytes);
        let read_s = seconds(profile, places.iter().map(|at| Op::read(*at, 4 * K)));
        row("buffered_read", "random", "IOPS", places.len() as f64 / read_s, calibrated);
        if fs == "f2fs" {
            // Only F2FS writes its buffers as one stream whatever their order.
            let count = bytes / write_piece;
            let write_s = seconds(profile, (0..count).map(|n| Op::write(n * write_piece, write_piece)));
            let written = (count * write_piece) as f64;
            row("buffered_write", "sequential", "MB/s", written / 1e6 / write_s, all);
            row("buffered_write", "random", "IOPS", written / 4096.0 / write_s, all);
        }
        let in_order: Vec<u64> = sequential(100 * M, 4 * K).collect();
        let write_s = seconds(profile, fsync_ops(fs, &in_order, true));
        row("write_fsync", "sequential", "KB/s", 100.0 * 1024.0 / write_s, all);
        let places = shuffled(100 * M);
        let write_s = seconds(profile, fsync_ops(fs, &places, false));
        row("write_fsync", "random", "IOPS", places.len() as f64 / write_s, calibrated);
    }
    rows
}

/// flashbench's tables of bergmann-2012 on the modelled stick, in MB/s.
fn bergmann() -> Vec<Row> {
    let table = reference("bergmann-2012.toml");
    let profile = Profile::named("bergmann-stick").expect("built in");
    let mut rows = Vec::new();
    let mut sweep = |what: &str, how: OpenUnits, sizes: &toml::Value, figures: &toml::Value| {
        let card = Card::new(profile.clone(), true);
        for (size, figure) in
            sizes.as_array().expect("a list").iter().zip(figures.as_array().expect("a list"))
        {
            let bytes = parse_size(size.as_str().expect("a size"));
            let model = flashbench::open_units(&card, &card, how, bytes).expect("within the stick") / 1e6;
            let published = figure.as_float().expect("a rate");
            rows.push(Row {
                what: format!("{what}, {}", size.as_str().expect("a size")),
                published,
                model,
                calibrated: true,
            });
        }
    };
    for units in [2, 3] {
        let how = OpenUnits { unit_bytes: 16 * M, units, offset_bytes: 64 * M, stride: 1, random: false };
        let open = &table["open_au"];
        sweep(&format!("open-au, {units} units"), how, &open["sizes"], &open[format!("nr{units}")]);
    }
    let how = OpenUnits { unit_bytes: 4 * M, units: 1, offset_bytes: M, stride: 1, random: false };
    let offset = &table["open_au_offset"];
    sweep("open-au at 1 MiB, 1 unit", how, &offset["sizes"], &offset["offset_1m_erase_4m"]);
    rows
}

fn parse_size(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    number.parse::<u64>().expect("digits") * if unit == "M" { M } else { K }
}

/// lavinen-2003: a 4 KiB write on NOR is 4164 bytes of program and its share of an erase, in ms.
fn lavinen() -> Vec<Row> {
    let table = reference("lavinen-2003.toml");
    let published = table["rows"]["nov27_sequential"][2].as_integer().expect("milliseconds") as f64;
    let profile = Profile::named("nor-2003").expect("built in");
    // JFFS2 writes a node of 4164 bytes; the chip is priced in pieces of 256, so 16.27 of them on average.
    let chip = Card::new(profile.clone(), false);
    let (block, piece) = (u64::from(profile.flash.block_bytes), 256);
    let writes = 4096u64;
    let (mut at, mut owed) = (0, 0);
    for _ in 0..writes {
        owed += 4164;
        while owed >= piece {
            let place = at % (32 * M);
            if place % block == 0 {
                chip.discard(place, block).expect("whole blocks");
            }
            chip.write(place, &[0; 256]).expect("erased before");
            (at, owed) = (at + piece, owed - piece);
        }
    }
    let model = chip.now_ns() as f64 / 1e6 / writes as f64;
    vec![Row { what: "a write of 4 KiB by JFFS2, sequential, ms".into(), published, model, calibrated: true }]
}

fn render(rows: &[Row]) -> String {
    let mut text = String::from("| row | published | model | error | |\n|---|---:|---:|---:|---|\n");
    for row in rows {
        let kind = if row.calibrated { "calibrated" } else { "perhaps fitted" };
        let digits = if row.published < 10.0 { 2 } else { usize::from(row.published < 100.0) };
        writeln!(
            text,
            "| {} | {:.digits$} | {:.digits$} | {:+.0} % | {kind} |",
            row.what,
            row.published,
            row.model,
            row.error() * 100.0
        )
        .expect("a string takes everything");
    }
    text
}

/// Compares the part of the document between two marks with what was computed.
fn check_document(mark: &str, rows: &[Row]) {
    let path = repository("docs/DEVICE-MODEL.md");
    let document = fs::read_to_string(&path).expect("the document is there");
    let (start, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let from = document.find(&start).unwrap_or_else(|| panic!("no mark {mark}")) + start.len();
    let to = from + document[from..].find(&end).unwrap_or_else(|| panic!("no end of {mark}"));
    let table = render(rows);
    if std::env::var_os("BLESS").is_some() {
        let changed = format!("{}{table}{}", &document[..from], &document[to..]);
        fs::write(&path, changed).expect("the document can be written");
    } else {
        assert_eq!(&document[from..to], table, "run with BLESS=1 to take the new table over");
    }
}

fn error_of(rows: &[Row], what: &str) -> f64 {
    rows.iter().find(|row| row.what.starts_with(what)).unwrap_or_else(|| panic!("no row {what}")).error()
}

// One test for all tables: they are parts of one file.
#[test]
fn the_tables_of_the_document_are_what_the_model_gives() {
    let desktop = jeong("desktop", &Profile::named("transcend-16g-desktop").expect("built in"));
    let phone = jeong("galaxy_s3", &Profile::named("transcend-16g-phone").expect("built in"));
    let stick = bergmann();
    let nor = lavinen();
    check_document("jeong-2012 desktop", &desktop);
    check_document("jeong-2012 phone", &phone);
    check_document("bergmann-2012", &stick);
    check_document("lavinen-2003", &nor);
    for rows in [&desktop, &phone] {
        for what in ["buffered_read, sequential", "buffered_read, random", "buffered_write, random, f2fs"] {
            assert!(error_of(rows, what).abs() < 0.15, "{what}: {:+.2}", error_of(rows, what));
        }
        // Who wins, and by how much within a third, is what the study stands on.
        let fsync = |fs: &str, of: fn(&Row) -> f64| {
            let what = format!("write_fsync, random, {fs}");
            of(rows.iter().find(|row| row.what.starts_with(&what)).expect("a row"))
        };
        for (one, two) in [("f2fs", "ext4"), ("vfat", "ext4")] {
            let published = fsync(one, |row| row.published) / fsync(two, |row| row.published);
            let model = fsync(one, |row| row.model) / fsync(two, |row| row.model);
            assert!(
                (model / published - 1.0).abs() < 0.34,
                "{one}/{two}: {model:.2}, published {published:.2}"
            );
        }
    }
    assert!(nor[0].error().abs() < 0.05, "{}", nor[0].error());
    // The shape of flashbench's tables.
    let rate = |what: &str| stick.iter().find(|row| row.what == what).expect("a row").model;
    for size in ["16K", "8K", "4K"] {
        let (two, three) =
            (rate(&format!("open-au, 2 units, {size}")), rate(&format!("open-au, 3 units, {size}")));
        assert!(two > 2.0 * three, "{size}: {two} with 2 units, {three} with 3");
    }
    for size in ["4M", "2M", "1M"] {
        let (two, three) =
            (rate(&format!("open-au, 2 units, {size}")), rate(&format!("open-au, 3 units, {size}")));
        assert!((two / three - 1.0).abs() < 0.1, "{size}: {two} with 2 units, {three} with 3");
    }
    assert!(rate("open-au at 1 MiB, 1 unit, 64K") > 2.0 * rate("open-au, 2 units, 32K"));
}

#[test]
fn reads_of_the_stick_show_no_boundary() {
    let card = Card::new(Profile::named("bergmann-stick").expect("built in"), true);
    let rows = flashbench::align(&card, &card, 1024, 100).expect("within the stick");
    let boundary =
        |bytes| rows.iter().find(|row| row.boundary_bytes == bytes).expect("measured").difference_ns();
    // As published: the boundaries of units (4 MiB) are no different from those of 1 MiB or 64 KiB.
    assert!((boundary(4 * M) - boundary(64 * K)).abs() < 1000.0);
}

#[test]
fn the_front_of_the_stick_takes_any_order() {
    let card = Card::new(Profile::named("bergmann-stick").expect("built in"), true);
    let rate = |offset_bytes| {
        let how = OpenUnits { unit_bytes: 4 * M, units: 1, offset_bytes, stride: 1, random: true };
        flashbench::open_units(&card, &card, how, 16 * K).expect("within the stick")
    };
    assert!(rate(0) > 2.0 * rate(64 * M), "{} at the front, {} behind it", rate(0), rate(64 * M));
}
