//! A modelled card under real kernels: Linux's NBD driver in the judge's guest, and as a disk of QEMU.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use block::nbd::Address;
use flash::{
    Command, Condition, Profile, Trace,
    verbs::{self, NewCard, Serve},
};
use guest::{Content, Manifest, Op, Scope, differences, op::Answer};
use xtask::{Disk, Machine, Vm, judge::vm};

const DEVICE: &str = "/dev/nbd0";
const MIB: u64 = 1 << 20;

/// Makes a card of 192 MiB in `path`, and serves it at `address`.
fn serve(path: &Path, profile: &str, address: &str) -> verbs::Serving {
    let profile = Profile::named(profile).expect("built in");
    let how = NewCard { size_bytes: Some(192 * MIB), condition: Condition::Preconditioned };
    verbs::new(path, profile, how).expect("a new card");
    let address: Address = address.parse().expect("an address");
    verbs::serve(path, &address, Serve { trace: true, ..Serve::default() }).expect("listens")
}

/// Makes some hundred files of all sizes, and changes them.
fn fill(dir: &str) -> Vec<Op> {
    let path = |name: String| format!("{dir}/{name}").as_str().into();
    let mut ops = vec![Op::Mkdir { path: path("many".into()), mode: 0o755 }];
    for n in 0..200u64 {
        let content = Content::Noise { seed: n, length: 1 + (n * 2713) % 60_000 };
        ops.push(Op::Write { path: path(format!("many/{n}")), offset: 0, content });
    }
    ops.push(Op::Write {
        path: path("large".into()),
        offset: 0,
        content: Content::Noise { seed: 1000, length: 24 * MIB },
    });
    ops.push(Op::Fsync { path: path("large".into()), data_only: false });
    for n in (0..200u64).step_by(3) {
        ops.push(Op::Unlink { path: path(format!("many/{n}")) });
    }
    for n in 0..40u64 {
        let content = Content::Noise { seed: 2000 + n, length: 4096 };
        ops.push(Op::Write { path: path("large".into()), offset: n * 524_288, content });
        ops.push(Op::Fsync { path: path("large".into()), data_only: true });
    }
    ops
}

fn mount(fs: &str, device: &str) -> Op {
    Op::Mount {
        source: device.into(),
        dir: "/mnt".into(),
        fs: fs.into(),
        options: String::new(),
        read_only: false,
    }
}

/// Runs one of the host's programs in the guest, which must succeed.
fn run(vm: &mut Vm, program: &str, arguments: &[&str]) -> Result<()> {
    let outcome = vm.run(guest::host::program(program, arguments)?)?;
    match outcome.answer {
        Some(Answer::Output { code: 0, .. }) => Ok(()),
        other => anyhow::bail!("{program} {arguments:?}: {other:?}\n{}", vm::show(&outcome.log)),
    }
}

/// Formats, fills, checks and remounts the device.
fn round(vm: &mut Vm, fs: &str, device: &str) -> Result<Manifest> {
    match fs {
        "ext4" => run(vm, "/usr/sbin/mkfs.ext4", &["-q", "-F", device])?,
        _ => run(vm, "/usr/sbin/mkfs.f2fs", &["-q", "-f", device])?,
    }
    vm.run(mount(fs, device))?;
    vm.run_all(fill("/mnt"))?;
    let manifest = |vm: &mut Vm| {
        let outcome = vm.run(Op::Manifest { dir: "/mnt".into() })?;
        outcome.manifest.context("a manifest was asked for")
    };
    let before = manifest(vm)?;
    vm.run(Op::Unmount { dir: "/mnt".into() })?;
    match fs {
        "ext4" => run(vm, "/usr/sbin/fsck.ext4", &["-f", "-n", device])?,
        _ => run(vm, "/usr/sbin/fsck.f2fs", &["--dry-run", device])?,
    }
    vm.run(Op::DropCaches)?;
    vm.run(mount(fs, device))?;
    let after = manifest(vm)?;
    vm.run(Op::Unmount { dir: "/mnt".into() })?;
    let found = differences(&before, &after, Scope::Copy, 8);
    ensure!(found.is_empty(), "{fs}: {}", found.join("\n"));
    ensure!(after.entries.len() > 130, "{fs}: {} entries", after.entries.len());
    Ok(after)
}

#[test]
fn the_kernels_nbd_driver_keeps_file_systems_on_a_card() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("emmc");
    let serving = serve(&path, "survey-emmc51", "127.0.0.1:0");
    let port = serving.uri().rsplit(':').next().context("a port")?.to_string();
    let mut vm = Vm::boot_in_host(Machine::Amd64, &[])?;
    vm.run(Vm::host_files())?;
    let attached =
        vm.run(Op::NbdAttach { server: format!("10.0.2.2:{port}"), device: DEVICE.into() })?.answer;
    assert_eq!(attached, Some(Answer::Blocks(192 * MIB / 512)));
    for fs in ["ext4", "f2fs"] {
        round(&mut vm, fs, DEVICE)?;
    }
    vm.run(Op::NbdDetach { device: DEVICE.into() })?;
    drop(vm);
    let counters = serving.card().with_model(|model| model.counters().clone());
    assert!(counters.host.flushes >= 40 && counters.host.discards > 0, "{counters:?}");
    serving.stop()?;
    // The kernel's data is on the card after a clean shutdown.
    model::fsck::fsck_image(&path)?;
    Ok(())
}

#[test]
fn a_card_serves_as_a_disk_of_qemu() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (path, socket) = (dir.path().join("card"), dir.path().join("socket"));
    let serving = serve(&path, "transcend-16g-desktop", &format!("unix:{}", socket.display()));
    let mut vm = Vm::boot_in_host(Machine::Amd64, &[Disk::writable(serving.uri())])?;
    vm.run(Vm::host_files())?;
    for fs in ["ext4", "f2fs"] {
        round(&mut vm, fs, "/disk/0")?;
    }
    drop(vm);
    serving.stop()?;
    model::fsck::fsck_image(&path)?;
    Ok(())
}

/// Returns a line for a shell of the guest that runs one of the host's programs.
fn line(program: &str, arguments: &[&str]) -> Result<String> {
    let Op::Execute { program, arguments } = guest::host::program(program, arguments)? else {
        unreachable!("a program is executed");
    };
    let words = [program].into_iter().chain(arguments);
    Ok(words.map(|word| format!("'{}' ", String::from_utf8_lossy(&word.0))).collect())
}

/// Returns the number of writes of each sector.
fn written(trace: &Trace) -> BTreeMap<u64, u32> {
    let mut sectors = BTreeMap::new();
    for op in trace.entries.iter().map(|entry| entry.op).filter(|op| op.command == Command::Write) {
        for sector in op.offset_bytes / 512..op.end_bytes() / 512 {
            *sectors.entry(sector).or_insert(0) += 1;
        }
    }
    sectors
}

/// Traces the disk of a card with Linux's own tracer. With `BLESS=1`, the output of blkparse becomes the
/// recording that crates/flash/tests/traces.rs reads.
#[test]
fn blktrace_sees_the_requests_of_the_card() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (path, socket) = (dir.path().join("card"), dir.path().join("socket"));
    let serving = serve(&path, "survey-emmc45", &format!("unix:{}", socket.display()));
    let mut vm = Vm::boot_in_host(Machine::Amd64, &[Disk::writable(serving.uri())])?;
    vm.run(Vm::host_files())?;
    let debug = "/sys/kernel/debug";
    vm.run(Op::Mount {
        source: "debugfs".into(),
        dir: debug.into(),
        fs: "debugfs".into(),
        options: String::new(),
        read_only: false,
    })?;
    let dd = |more: &[&str]| {
        line("/usr/bin/dd", &[&["if=/dev/zero", "of=/disk/0", "oflag=direct", "status=none"], more].concat())
    };
    let script = [
        format!("{} > /recording & tracer=$!", line("/usr/sbin/blktrace", &["-d", "/disk/0", "-o", "-"])?),
        // The tracer is ready when its files exist.
        format!("while [ ! -e {debug}/block/vd*/trace0 ]; do :; done"),
        dd(&["bs=128k", "count=4", "seek=8"])?,
        dd(&["bs=4k", "count=6", "seek=5000", "conv=fsync"])?,
        line(
            "/usr/bin/dd",
            &["if=/disk/0", "of=/dev/null", "iflag=direct", "bs=64k", "count=3", "status=none"],
        )?,
        line("/usr/sbin/mkfs.ext4", &["-q", "-F", "/disk/0"])?,
        "kill -TERM $tracer; wait $tracer".into(),
        format!("{} < /recording", line("/usr/bin/blkparse", &["-i", "-"])?),
    ];
    let outcome = vm.run(guest::host::program("/bin/dash", &["-e", "-c", &script.join("\n")])?)?;
    let Some(Answer::Output { code: 0, stdout, .. }) = outcome.answer else {
        anyhow::bail!("{:?}\n{}", outcome.answer, vm::show(&outcome.log));
    };
    drop(vm);
    let asked = serving.card().stop_trace();
    serving.stop()?;
    let text = String::from_utf8(stdout.0)?;
    if std::env::var_os("BLESS").is_some() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/traces/ext4.blkparse");
        std::fs::write(fixture, &text)?;
    }
    let seen = Trace::parse(&text)?;
    // QEMU merges neighbours, but the written ranges stay the same.
    ensure!(written(&seen) == written(&asked), "blkparse:\n{text}");
    ensure!(written(&seen).len() > 1000, "blkparse:\n{text}");
    ensure!(seen.entries.iter().any(|entry| entry.op.command == Command::Flush), "blkparse:\n{text}");
    ensure!(seen.entries.iter().all(|entry| entry.done_ns > entry.at_ns), "blkparse:\n{text}");
    Ok(())
}
