//! Tests of the formats of rows.

use super::*;

fn one(text: &str) -> Measured {
    let mut cards = parse(text, "it", None).unwrap_or_else(|(line, what)| panic!("{line}: {what}\n{text}"));
    assert_eq!(cards.len(), 1, "{text}");
    cards.remove(0)
}

fn error(text: &str) -> (usize, String) {
    parse(text, "it", None).map(|cards| panic!("{cards:?}")).unwrap_err()
}

fn shown(measured: &Measured) -> Vec<String> {
    measured.rows.iter().map(|row| format!("{}: {:.0}", row.key, row.bytes_per_s / 1024.0)).collect()
}

#[test]
fn flashbench_is_read_with_its_command_lines() {
    let text = "\
# ./flashbench -a /dev/mmcblk0 --blocksize=1024
align 8388608\tpre 735µs\ton 1.04ms\tpost 763µs\tdiff 287µs
align 4194304\tpre 1.5ms\ton 1.04ms\tpost 763µs\tdiff -12ns
$ sudo flashbench -O --erasesize=$[8 * 1024 * 1024] --blocksize=4096 --open-au-nr=3 /dev/sdb
8MiB    8.79M/s
64KiB   612K/s
$ sudo flashbench --open-au --random /dev/sdb
16KiB   1.5M/s
not a rate
";
    let found = one(text);
    assert_eq!(found.unit_bytes, 8 << 20);
    assert_eq!(found.crossings, [(8 << 20, 287_000.0), (4 << 20, -12.0)]);
    assert_eq!(
        shown(&found),
        [
            "read at random, 1 KiB, a large area: 1361",
            "read at random, 1 KiB, a large area: 667",
            "write in order, 8 MiB, 3 units: 9001",
            "write in order, 64 KiB, 3 units: 612",
            "write at random, 16 KiB, 2 units: 1536",
        ]
    );
    assert_eq!(found.rows[3].line, 6);
    let (line, what) = error(&text.replace("612K/s", "61x2K/s"));
    assert!(line == 6 && what.contains("61x2K/s"), "{line} {what}");
    assert!(error(&text.replace("=3 /dev", "=x /dev")).1.contains("--open-au-nr=x"));
}

#[test]
fn hdparm_and_dd_are_read() {
    let text = "\
/dev/mmcblk0:
 Timing cached reads:   1280 MB in  2.00 seconds = 640.06 MB/sec
 Timing buffered disk reads: 132 MB in  3.02 seconds =  43.70 MB/sec
pi@pi:~ $ dd if=/dev/zero of=test bs=4M count=100 oflag=direct
100+0 records out
419430400 bytes (419 MB, 400 MiB) copied, 20 s, 21.0 MB/s
$ dd if=test of=/dev/null bs=8k
52428800 bytes (52 MB) copied, 2 s, 26 MB/s
";
    assert_eq!(
        shown(&one(text)),
        [
            "read in order, 512 KiB, 1 unit: 44749",
            "write in order, 4 MiB, 1 unit: 20480",
            "read in order, 512 KiB, 1 unit: 25600",
        ]
    );
    let (line, what) = error("52428800 bytes (52 MB) copied, 2 s, 26 MB/s\n");
    assert!(line == 1 && what.contains("must precede"), "{what}");
}

#[test]
fn fio_is_read() {
    let text = r#"{
 "fio version": "fio-3.33", "global options": {"iodepth": "8", "bs": "4k"},
 "jobs": [
  {"jobname": "a", "job options": {"rw": "randwrite"},
   "read": {"bw_bytes": 0}, "write": {"bw_bytes": 2048000}},
  {"jobname": "b", "job options": {"rw": "read", "bs": "1M", "iodepth": "1"},
   "read": {"bw": 20480}, "write": {"bw": 0}}
 ]}"#;
    let found = one(text);
    assert_eq!(
        shown(&found),
        ["write at random, 4 KiB, a large area, 8 at once: 2000", "read in order, 1 MiB, 1 unit: 20480"]
    );
    assert_eq!(found.rows[1].line, 6);
    assert!(error(&text.replace("1M", "x")).1.contains("bs=x"));
    assert_eq!(error("{\n \"jobs\": [\n").0, 3);
    assert!(error("{}").1.contains("jobs"));
}

#[test]
fn iozone_is_read() {
    let text = "\
        Command line used: iozone -e -I -a -s 100M -r 4k -r 1024k -i 0 -i 1 -i 2
                                                              random    random     bkwd
              kB  reclen    write  rewrite    read    reread    read     write     read
          102400       4     1440     1516     7716     7827     7714      1230
          102400    1024    18000    18100    22900    22910    22820     15900

iozone test complete.
";
    let found = one(text);
    assert_eq!(found.rows.len(), 12);
    assert_eq!(
        shown(&found)[4..7],
        [
            "read at random, 4 KiB, a large area: 7714",
            "write at random, 4 KiB, a large area: 1230",
            "write in order, 1 MiB, 1 unit: 18000",
        ]
    );
    let partly =
        text.replace("     7716     7827     7714      1230", "                           7714      1230");
    assert!(shown(&one(&partly)).contains(&"read at random, 4 KiB, a large area: 7714".to_string()));
    assert_eq!(error(&text.replace("1516", "15x6")).0, 4);
}

#[test]
fn csv_is_read_with_units_in_cells_or_names() {
    let text = "\
op,order,size,units,depth,rate
write,linear,64K,3,1,2.5MB/s
# a remark
read,random,4096,,32,3000 iops
write,random,4K,2,,1024000
";
    assert_eq!(
        shown(&one(text)),
        [
            "write in order, 64 KiB, 3 units: 2441",
            "read at random, 4 KiB, a large area, 32 at once: 12000",
            "write at random, 4 KiB, 2 units: 1000",
        ]
    );
    let kb = text.replace("depth,rate", "depth,rate_kb_s").replace("1024000", "1000");
    assert_eq!(shown(&one(&kb))[2], "write at random, 4 KiB, 2 units: 1000");
    for (from, to, line, what) in [
        ("2.5MB/s", "fast", 2, "is no rate"),
        ("write,linear", "erase,linear", 2, "read or write"),
        ("64K,3", "64K,0", 2, "units in turn"),
        ("4096,,32", "4097,,32", 4, "whole sectors"),
        ("4K,2,,1024000", "4K,2,,", 5, "is no rate"),
        ("4K,2,,1024000", "4K,2", 5, "cells"),
        ("2.5MB/s", "-1", 2, "is no rate"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text);
        let (at, found) = error(&changed);
        assert!(at == line && found.contains(what), "{changed}: {at} {found}");
    }
}

#[test]
fn logs_of_several_cards_are_told_apart() {
    let text = "\
result_1.txt ('0x000003', '0x5344', 'SU04G', '11/2013') ['3965190144']
   align diff us: 8M:154 4M:-4  pre 696
    linear 64KiB 1:10445 2:10138
result_2.txt None []
    random 4KiB 1:1147
";
    let cards = parse(text, "it", None).expect("valid");
    assert_eq!(cards.iter().map(|card| card.name.as_str()).collect::<Vec<_>>(), ["result_1", "result_2"]);
    assert_eq!(cards[0].size_bytes, Some(3_965_190_144));
    assert_eq!(cards[0].crossings, [(8 << 20, 154_000.0), (4 << 20, -4000.0)]);
    assert_eq!(shown(&cards[1]), ["write at random, 4 KiB, 1 unit: 1147"]);
    assert_eq!(error(&text.replace("2:10138", "2=10138")).0, 3);
    let path = Path::new("cards.txt");
    let names = choose(path, cards.clone(), None).expect_err("two cards").to_string();
    assert!(names.contains("--only") && names.contains("result_1, result_2"), "{names}");
    assert_eq!(choose(path, cards.clone(), Some("result_2")).expect("there").name, "result_2");
    assert!(choose(path, cards, Some("result_3")).is_err());
}

#[test]
fn a_file_without_rates_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("nothing");
    std::fs::write(&path, "hello\n\u{0}world").expect("writable");
    assert!(read(&[path], None, None).expect_err("no rates").to_string().contains("no rate"));
}

#[test]
fn files_are_bounded_alone_and_together() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("rows.csv");
    let rows = |count| "op,order,size,rate\n".to_owned() + &"read,random,4K,1MB/s\n".repeat(count);
    std::fs::write(&path, rows(ROWS_MAX / 2)).expect("writable");
    let twice = [path.clone(), path.clone()];
    assert_eq!(read(&twice, None, None).expect("as many as are allowed").rows.len(), ROWS_MAX);
    std::fs::write(&path, rows(ROWS_MAX / 2 + 1)).expect("writable");
    let told = read(&twice, None, None).expect_err("too many in both").to_string();
    assert!(told.contains("more than 1000 rows in all files"), "{told}");
    File::options().write(true).open(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
    let told = read(&[path], None, None).expect_err("too long").to_string();
    assert!(told.ends_with("more than 64 MiB, which no measurement has"), "{told}");
}

#[test]
fn a_given_unit_replaces_that_of_the_text_before_rows_are_checked() {
    let text = "op,order,size,units,depth,rate\nwrite,seq,8M,2,1,5MB/s\n";
    assert!(parse(text, "it", None).is_err(), "requests of more than the usual unit");
    assert_eq!(parse(text, "it", Some(16 << 20)).expect("it fits")[0].unit_bytes, 16 << 20);
    for wrong in [0, 1000, 1 << 60] {
        assert!(parse(text, "it", Some(wrong)).is_err(), "{wrong}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(
        head in 0usize..6,
        tail in "[a-z0-9 :,./\\n\\[\\]{}\"-]{0,200}",
    ) {
        let heads = [
            "", "op,order,size,rate\n", "result_1\n linear 4KiB 1:2\n", "kB reclen write\n",
            "flashbench -O\n", "{\"jobs\":[{",
        ];
        let _ = parse(&format!("{}{tail}", heads[head]), "it", None);
    }
}

#[test]
fn a_row_of_too_many_requests_for_the_model_is_refused() {
    let row = |unit: &str| {
        let text = format!("op,order,size,rate,units,unit\nwrite,random,512,1MB/s,32,{unit}\n");
        parse(&text, "it", None)
    };
    row("64M").unwrap();
    let (line, what) = row("1G").unwrap_err();
    assert!(line == 2 && what.contains("67108864 of them, at most 4194304"), "{line} {what}");
}
