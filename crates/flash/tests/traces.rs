//! Traces from other programs, and other programs that read ours.

use std::{fs, path::Path, process::Command as Program};

use flashkit_flash::{Command, Condition, Model, Op, Profile, ReplayTiming, Trace, TraceFormat, replay};
use serde_json::Value;

/// Returns a model of this profile after the requests of a trace.
fn after(profile: &str, trace: &Trace) -> Model {
    let mut model = Model::new(Profile::named(profile).expect("built in"), Condition::Preconditioned);
    replay(trace, &mut model, ReplayTiming::BackToBack).expect("the card takes them");
    model
}

/// Number of requests of a command, and their bytes.
fn sum(trace: &Trace, command: Command) -> (u64, u64) {
    let ops = trace.entries.iter().map(|entry| entry.op).filter(|op| op.command == command);
    ops.fold((0, 0), |(count, bytes), op| (count + 1, bytes + op.length_bytes))
}

/// blktrace recorded `testdata/traces/ext4.blkparse` in the judge's machine while mkfs.ext4 ran. To record it
/// anew: `BLESS=1 cargo test -p xtask --test card blktrace`. At its end, blkparse prints its own counts.
#[test]
fn a_recording_of_blktraces_is_replayed() {
    let text = include_str!("../../../testdata/traces/ext4.blkparse");
    let trace = Trace::parse(text).expect("blkparse's text");
    let own_count = |what: &str| {
        let (_, rest) = text.rsplit_once(what).expect("blkparse counts");
        let (count, kib) = rest.split_once(',').expect("requests, bytes");
        let kib = kib.trim_start().split_once("KiB").expect("whole KiB").0;
        let number = |text: &str| text.trim().parse::<u64>().expect("a number");
        (number(count), number(kib) * 1024)
    };
    let [reads, writes, discards, flushes] =
        [Command::Read, Command::Write, Command::Discard, Command::Flush].map(|command| sum(&trace, command));
    // blkparse counts discards as writes, and flushes, which are not, as reads.
    assert_eq!((reads.0 + flushes.0, reads.1), own_count("Read Dispatches:"));
    assert_eq!((writes.0 + discards.0, writes.1 + discards.1), own_count("Write Dispatches:"));
    assert!(flushes.0 > 1 && discards.0 > 0);
    assert!(trace.entries.iter().all(|entry| entry.done_ns > entry.at_ns));
    for profile in ["transcend-16g-desktop", "survey-emmc45", "survey-ssd"] {
        let model = after(profile, &trace);
        let host = &model.counters().host;
        assert_eq!((host.read_bytes, host.written_bytes), (reads.1, writes.1));
    }
}

/// Runs fio with the null engine, with these arguments.
fn fio(dir: &Path, arguments: &[&str]) -> Value {
    let output = Program::new("fio")
        .current_dir(dir)
        .args(["--name=it", "--ioengine=null", "--output-format=json"])
        .args(arguments)
        .output()
        .expect("scripts/setup installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let told: Value = serde_json::from_str(&text[text.find('{').expect("JSON")..]).expect("JSON");
    told["jobs"][0].clone()
}

#[test]
fn fio_replays_the_recorded_requests_of_a_card() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut trace = Trace::default();
    let mut rng = block::Rng::new(1);
    for n in 0..400u64 {
        let (at, length) = (rng.below(10_000) * 4096, 4096 << rng.below(5));
        let op = match n % 8 {
            0 => Op::flush(),
            1 => Op::discard(at, length),
            2..4 => Op::read(at, length),
            _ => Op::write(at, length),
        };
        trace.entries.push(flashkit_flash::Entry { at_ns: n * 50_000, done_ns: n * 50_000, op });
    }
    fs::write(dir.path().join("log"), trace.to_text(TraceFormat::FioIolog)).expect("writable");
    let job = fio(dir.path(), &["--read_iolog=log", "--replay_no_stall=1"]);
    // fio 3.33 reports an invalid direction for trims, and does not include syncs in its totals.
    for (name, command) in [("read", Command::Read), ("write", Command::Write)] {
        let told = |what: &str| job[name][what].as_u64().expect("a number");
        assert_eq!((told("total_ios"), told("io_bytes")), sum(&trace, command), "{name}");
    }
}

#[test]
fn logs_of_fio_are_replayed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let shape = ["--rw=randrw", "--bsrange=4k-64k", "--size=8M", "--fsync=16", "--write_iolog=log"];
    let job = fio(
        dir.path(),
        &[&shape[..], &["--filename=card", "--thinktime=10", "--thinktime_blocks=50"]].concat(),
    );
    let text = fs::read_to_string(dir.path().join("log")).expect("fio's log");
    let trace = Trace::parse(&text).expect("fio's log");
    for (name, command) in [("read", Command::Read), ("write", Command::Write)] {
        let told = |what: &str| job[name][what].as_u64().expect("a number");
        assert_eq!((told("total_ios"), told("io_bytes")), sum(&trace, command), "{name}");
    }
    assert!(sum(&trace, Command::Flush).0 > 0, "{text}");
    let counters = after("survey-emmc51", &trace).counters().clone();
    assert_eq!(counters.host.written_bytes, sum(&trace, Command::Write).1);
}
