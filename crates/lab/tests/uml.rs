//! The real guest: user-mode Linux. These tests need the kernel that `cargo xtask uml-kernel` builds; without
//! it they are skipped with a message.

mod support;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use block::{Device, FileDevice, MemoryDevice, OpenOptions};
use flash::{Condition, Model, Pace, Profile};
use flashkit_lab::{
    check::Check,
    experiment::{Experiment, Phase},
    fio,
    plan::{Plan, file_systems},
    preset::Preset,
    record::Record,
    rivals::FileSystem,
    scale::Scale,
    stop::Stop,
    study::run_cell,
    systems::{self, GuestTarget, Machine, Programs, Setting, THROUGH_FUSE, Target},
    vm::{Card, Failure, Limits, Setup, Uml},
};
use guest::{
    Op,
    op::Answer,
    pattern::{Access, Order, Pattern, Sync},
};

use support::{cargo, programs};

const MIB: u64 = 1 << 20;

/// A stock kernel in real time replaces a missing kernel with time travel, and its figures are called
/// indicative.
#[test]
fn a_stock_kernel_in_qemu_is_indicative() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("the workspace")?;
    if !root.join("var/kernel/current").exists() {
        eprintln!("skipped: no stock kernel; cargo xtask kernel downloads it");
        return Ok(());
    }
    let built = cargo(root, &["xtask", "stock-guest"])?;
    let mut lines = built.lines().map(PathBuf::from);
    let (Some(kernel), Some(agent)) = (lines.next(), lines.next()) else { bail!("it printed {built}") };
    let work = tempfile::tempdir()?;
    let ext4 = [FileSystem::new("ext4")];
    let programs = Programs { machine: Machine::Stock, kernel, agent, flashkit: None };
    let plan = Plan {
        card_bytes: Some(1 << 30),
        ..plan(programs, work.path(), &[Experiment::Mount], &ext4, Preset::Desktop)
    };
    let record = run_cell(&plan, &plan.cells[0], &Stop::default())?.context("the study was not stopped")?;
    assert!(record.is_complete() && record.is_indicative(), "{record:#?}");
    assert!(matches!(record.check, Check::Clean { .. }), "{:?}", record.check);
    assert!(record.versions.guest_kernel.is_some() && record.wear.is_some());
    // Real time is at least as long as virtual time.
    for phase in &record.phases {
        assert!(phase.totals.busy_ns > 0 && phase.totals.busy_ns <= phase.duration_ns, "{phase:#?}");
        assert_eq!(phase.cost, None);
    }
    let text = flashkit_lab::report::text(&flashkit_lab::report::sheets(&[record]));
    assert!(text.contains("ext4, indicative"), "{text}");
    Ok(())
}

fn card_profile(size_bytes: u64) -> Profile {
    Profile::named("transcend-16g-desktop")
        .and_then(|card| card.with_size(size_bytes))
        .expect("a built-in card")
}

fn boot(programs: &Programs, limits: Limits, data: Box<dyn Device>) -> Result<Uml<Model>, Failure> {
    let profile = card_profile(data.geometry().size_bytes);
    let setup = Setup {
        kernel: programs.kernel.clone(),
        agent: programs.agent.clone(),
        memory_mib: 256,
        queue_depth: 1,
        traits: systems::traits(&profile),
        pace: Pace::Virtual,
        seed: 1,
        limits,
    };
    Uml::boot(&setup, Card::new(Model::new(profile, Condition::Preconditioned), data))
}

fn mount(fs: &str, options: &str) -> Op {
    Op::Mount {
        source: "/disk/card".into(),
        dir: "/mnt".into(),
        fs: fs.into(),
        options: options.into(),
        read_only: false,
    }
}

fn write_and_sync(bytes: u64) -> Op {
    let pattern = Pattern {
        access: Access::Create,
        order: Order::Sequential,
        file_bytes: bytes,
        record_bytes: 4096,
        sync: Sync::End,
    };
    Op::Pattern { path: "/mnt/file".into(), pattern }
}

fn open(image: &Path) -> Result<Box<dyn Device>> {
    Ok(Box::new(FileDevice::open(image, OpenOptions { write: true, direct: false })?))
}

/// Returns the reproducible part of a record: all phases without the costs of the machine.
fn exact(record: &Record) -> Vec<Phase> {
    record.phases.iter().map(|phase| Phase { cost: None, ..phase.clone() }).collect()
}

/// The same kernel, card and seed give the same figures to the nanosecond, and volumes without errors.
#[test]
fn the_same_study_is_the_same_to_the_nanosecond() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    let work = tempfile::tempdir()?;
    let plan = plan(programs, work.path(), &Experiment::USUAL, &file_systems(), Preset::Desktop);
    // Runs each experiment on one file system, and each file system in one experiment, twice.
    let diagonal = plan.cells.iter().enumerate().filter(|(n, _)| n % 7 == n / 7 || *n % 7 == 6 - n / 7);
    for (_, cell) in diagonal {
        let run = || run_cell(&plan, cell, &Stop::default())?.context("the study was not stopped");
        let (first, second) = (run()?, run()?);
        assert!(first.is_complete(), "{first:#?}");
        assert!(!matches!(first.check, Check::Faults { .. }), "{:?}", first.check);
        assert!(
            first.phases.iter().all(|phase| phase.cost.is_some_and(|cost| cost.cpu_ns > 0)),
            "{first:#?}"
        );
        let is_through_fuse = cell.file_system.kind == THROUGH_FUSE;
        assert!(
            !is_through_fuse
                || first.phases.iter().all(|it| it.cost.is_some_and(|cost| cost.memory_bytes > Some(0))),
            "our program takes memory: {first:#?}"
        );
        assert_eq!((exact(&first), &first.wear), (exact(&second), &second.wear), "{}", cell.id());
    }
    Ok(())
}

/// The processor time of our program is part of an operation's cost, including the last operation, which ends
/// the program.
#[test]
fn processor_time_of_our_program_is_part_of_the_cost() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    let work = tempfile::tempdir()?;
    let setting = Setting {
        file_system: FileSystem::new(THROUGH_FUSE),
        preset: Preset::Desktop,
        profile: card_profile(1 << 30),
        scale: Scale::of_file(16 * MIB),
        programs: Some(programs),
        traced: false,
        cleaned: false,
        pace: Pace::RealTime,
        seed: 1,
        stop: Stop::default(),
    };
    let mut target = GuestTarget::start(&setting, &work.path().join("card"))?;
    target.run(&mount(THROUGH_FUSE, ""))?;
    let computed_ns = |target: &GuestTarget| target.computed_ns().context("the host reports it");
    let before_ns = computed_ns(&target)?;
    let cost_ns = target.run(&write_and_sync(64 * MIB))?.cpu_ns.context("in real time it is reported")?;
    let used_ns = computed_ns(&target)? - before_ns;
    assert!(used_ns > 0 && cost_ns > used_ns, "{used_ns} of {cost_ns} ns");
    target.run(&Op::Unmount { dir: "/mnt".into() })?;
    assert!(computed_ns(&target)? + 20_000_000 > before_ns + used_ns, "ended programs count, to two ticks");
    Ok(())
}

/// nilfs2's cleaner frees space, without which writing would end, and does so reproducibly.
#[test]
fn nilfs2_continues_after_its_cleaner_freed_space() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    if !Path::new("/sbin/nilfs_cleanerd").exists() {
        eprintln!("skipped: no nilfs-tools");
        return Ok(());
    }
    let work = tempfile::tempdir()?;
    // Segments of 1 MiB; otherwise a small card would have too few.
    let nilfs2 = [FileSystem::parse("nilfs2::-B 256")];
    let plan = Plan {
        timed_writes: Some(300),
        card_bytes: Some(64 * MIB),
        ..plan(programs, work.path(), &[Experiment::Latency], &nilfs2, Preset::Desktop)
    };
    twice(&plan)?;
    Ok(())
}

/// ext4 writes the tables that mkfs left out at random times, which are the same in each run.
#[test]
fn random_choices_of_the_guest_are_the_same_in_each_run() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    let work = tempfile::tempdir()?;
    let ext4 = [FileSystem::new("ext4")];
    let plan = Plan {
        scale: Scale::of_file(48 * MIB),
        ..plan(programs, work.path(), &[Experiment::BufferedWrite], &ext4, Preset::Desktop)
    };
    twice(&plan)?;
    Ok(())
}

/// Returns a plan of small cells, run one after the other.
fn plan(
    programs: Programs,
    work: &Path,
    experiments: &[Experiment],
    file_systems: &[FileSystem],
    preset: Preset,
) -> Plan {
    let cells = Plan::cells(experiments, file_systems, &[preset], &[]);
    let scale = Scale::of_file(4 * MIB);
    Plan { seed: 2012, programs: Some(programs), ..Plan::of(cells, scale, work.to_owned()) }
}

/// Runs the first cell of a plan twice, checks that the records are equal, and returns one.
fn twice(plan: &Plan) -> Result<Record> {
    let run = || run_cell(plan, &plan.cells[0], &Stop::default())?.context("the study was not stopped");
    let (first, second) = (run()?, run()?);
    assert!(first.is_complete(), "{first:#?}");
    assert_eq!((exact(&first), &first.wear), (exact(&second), &second.wear));
    Ok(first)
}

/// Times single writes to a small chip twice, checks that the records are equal, and returns one.
fn latencies_twice(programs: Programs, preset: Preset) -> Result<Record> {
    let work = tempfile::tempdir()?;
    let plan = Plan {
        timed_writes: Some(1000),
        card_bytes: Some(16 * MIB),
        seed: 2003,
        ..plan(programs, work.path(), &[Experiment::Latency], &file_systems(), preset)
    };
    twice(&plan)
}

/// UBIFS on raw NAND flash takes at least the time of the pages of a write, and the same time in each run.
#[test]
fn ubifs_wears_its_flash_the_same_each_time() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    let first = latencies_twice(programs, Preset::Nand)?;
    for phase in &first.phases {
        // Eight pages of 512 bytes, each with 10 us for the command, 200 us, and 50 ns per byte.
        assert!((1.8..10.0).contains(&phase.value), "{}: {} ms", phase.part, phase.value);
    }
    let wear = first.wear.context("bare flash reports it")?;
    assert_eq!(wear.blocks, 1024);
    assert!(wear.total() > 1024 && wear.most >= 2, "UBI erases all, and the writes some: {wear:?}");
    Ok(())
}

/// JFFS2 on raw NOR flash takes the times published in 2003, and the same time in each run.
#[test]
fn jffs2_needs_the_times_of_2003() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    let first = latencies_twice(programs, Preset::Nor)?;
    for phase in &first.phases {
        let latencies = phase.latencies.as_ref().context("times were measured")?;
        // 97 to 105 ms on average, of which 71.5 ms are the write itself; about one write in 31 waits for an
        // erase.
        assert!((97.0..110.0).contains(&phase.value), "{}: {} ms", phase.part, phase.value);
        assert_eq!(latencies.quantile_ns(0.5) / 1_000_000, 71, "{}", latencies.to_text());
        assert!((1_000_000_000..1_200_000_000).contains(&latencies.max_ns()), "{}", latencies.to_text());
    }
    Ok(())
}

/// fio takes as long as our own workloads for the four basic patterns, both by its own clock, which is the
/// guest's, and by the card's. The test runs only with LAB_FIO=1: each start of fio reads the guest's clock
/// 250,000 times, which takes minutes.
#[test]
fn fio_agrees_with_our_workloads() -> Result<()> {
    if std::env::var_os("LAB_FIO").is_none() {
        eprintln!("skipped: LAB_FIO=1 is not set, and it takes minutes");
        return Ok(());
    }
    let Some(programs) = programs()? else { return Ok(()) };
    if !Path::new("/usr/bin/fio").exists() {
        eprintln!("skipped: no fio");
        return Ok(());
    }
    let work = tempfile::tempdir()?;
    let mut setting = Setting {
        file_system: FileSystem::new("f2fs").mounted("mode=lfs"),
        preset: Preset::Desktop,
        profile: card_profile(1 << 30),
        scale: Scale::of_file(16 * MIB),
        programs: Some(programs),
        traced: false,
        cleaned: false,
        pace: Pace::Virtual,
        seed: 1,
        stop: Stop::default(),
    };
    for file_system in ["f2fs:mode=lfs", "vfat"] {
        setting.file_system = FileSystem::parse(file_system);
        let ours = basic_patterns(&setting, &work.path().join("ours"), |target, access, order| {
            let sync = if matches!(access, Access::Read { .. }) { Sync::Never } else { Sync::End };
            let pattern = Pattern { access, order, file_bytes: 16 * MIB, record_bytes: 4096, sync };
            let measured = target.run(&Op::Pattern { path: "/mnt/file".into(), pattern })?;
            Ok((measured.duration_ns(), measured.totals.busy_ns))
        })?;
        let fios = basic_patterns(&setting, &work.path().join("fios"), |target, access, order| {
            let rw = match (access, order) {
                (Access::Read { .. }, Order::Sequential) => "--rw=read",
                (Access::Read { .. }, Order::Random { .. }) => "--rw=randread",
                (_, Order::Sequential) => "--rw=write",
                (_, Order::Random { .. }) => "--rw=randwrite",
            };
            let job = ["--name=job", "--filename=file", rw, "--bs=4k", "--size=16m", "--ioengine=psync"];
            // With a random-access hint the kernel would read ahead less than for our workload. fio's default
            // random order, which takes the next block if one was read already, makes it read ahead more.
            let same = [
                "--end_fsync=1",
                "--fallocate=none",
                "--fadvise_hint=0",
                "--random_generator=lfsr",
                "--thread",
                "--output-format=json",
            ];
            let run = fio::on(target, &[&job[..], &same].concat())?;
            anyhow::ensure!(run.code == 0, "fio: {}", run.printed);
            Ok((fios_ns(&run.printed, access)?, run.measured.totals.busy_ns))
        })?;
        for (pattern, (ours, fios)) in ours.iter().zip(&fios).enumerate() {
            for (clock, ours, fios) in [("clock", ours.0, fios.0), ("card", ours.1, fios.1)] {
                let ratio = fios as f64 / ours as f64;
                let said = format!(
                    "{file_system}, pattern {pattern}, by the {clock}: {ours} ns, fio {fios} ns, {ratio:.3}"
                );
                eprintln!("{said}");
                assert!((0.95..1.05).contains(&ratio), "{said}");
            }
        }
    }
    Ok(())
}

/// Returns the run time that fio reports, which excludes its setup.
fn fios_ns(printed: &str, access: Access) -> Result<u64> {
    let json = printed.find('{').map_or("", |at| &printed[at..]);
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<serde_json::Value>();
    let result = values.next().context("fio has printed something")??;
    let side = if matches!(access, Access::Read { .. }) { "read" } else { "write" };
    let ms = result["jobs"][0][side]["runtime"].as_u64().context("a runtime")?;
    Ok(ms * 1_000_000)
}

/// Runs sequential and random writes and reads of one file, each with cold caches. Returns for each the
/// duration by the clock and the busy time of the card. The file is not read after the random overwrites: the
/// placement of its records then depends on which of them the kernel had written back early.
fn basic_patterns(
    setting: &Setting,
    image: &Path,
    mut run: impl FnMut(&mut GuestTarget, Access, Order) -> Result<(u64, u64)>,
) -> Result<Vec<(u64, u64)>> {
    let random = Order::Random { seed: 1 };
    let mut target = GuestTarget::start(setting, image)?;
    fio::see_host(&mut target)?;
    let mut times = Vec::new();
    for (access, order) in [
        (Access::Create, Order::Sequential),
        (Access::Read { overwritten: false }, Order::Sequential),
        (Access::Read { overwritten: false }, random),
        (Access::Overwrite, random),
    ] {
        target.run(&mount(&setting.file_system.kind, &setting.file_system.mount))?;
        times.push(run(&mut target, access, order)?);
        target.run(&Op::Unmount { dir: "/mnt".into() })?;
        target.run(&Op::DropCaches)?;
    }
    Ok(times)
}

/// The guest's writes are on the card: the checker on the host finds a clean volume.
#[test]
fn the_guest_leaves_a_clean_volume() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("card");
    FileSystem::new("ext4").format(&image, 256 * MIB)?;
    let mut uml = boot(&programs, Limits::default(), open(&image)?)?;
    uml.run(&mount("ext4", ""))?;
    let written = uml.run(&write_and_sync(8 * MIB))?;
    assert_eq!(written.answer, Some(Answer::Records(2048)));
    assert!(written.totals.written_bytes >= 8 * MIB);
    assert!(written.totals.busy_ns > 0 && written.totals.busy_ns <= written.duration_ns());
    uml.run(&Op::Unmount { dir: "/mnt".into() })?;
    drop(uml);
    let said = Check::of(&FileSystem::new("ext4"), &image);
    assert!(matches!(said, Check::Clean { .. }), "{said:?}");
    Ok(())
}

#[test]
fn a_guest_that_panics_or_spins_is_a_failure_with_a_reason() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("card");
    FileSystem::new("ext4").made(&["-b", "4096", "-O", "^metadata_csum"]).format(&image, 64 * MIB)?;
    let device = open(&image)?;
    // Block bitmaps that mark the group's own metadata as free: the kernel notices when it reads them.
    let mut block = [0; 4096];
    for n in 1..64 {
        device.read(n * 4096, &mut block)?;
        if block[..4] == [0xff; 4] {
            device.write(n * 4096, &[0; 4096])?;
        }
    }
    let mut uml = boot(&programs, Limits::default(), device)?;
    uml.run(&mount("ext4", "errors=panic"))?;
    match uml.run(&write_and_sync(32 * MIB)) {
        Err(Failure::Died { console, .. }) => {
            assert!(console.contains("EXT4-fs error") && console.contains("Kernel panic"), "{console}");
        }
        other => panic!("{other:?}"),
    }

    let limits = Limits { silence: Duration::from_secs(10), ..Limits::default() };
    let mut uml = boot(&programs, limits, Box::new(MemoryDevice::new(64 * MIB)))?;
    let refused = uml.run(&mount("ext4", ""));
    assert!(matches!(refused, Err(Failure::Refused { errno: 22, .. })), "{refused:?}");
    uml.run(&flashkit_lab::vm::host_files())?;
    let spins = flashkit_lab::vm::host_program("/bin/sh", &["-c", "while :; do :; done"])?;
    let spun = uml.run(&spins);
    assert!(matches!(spun, Err(Failure::Hung { silent_s: 10, .. })), "{spun:?}");
    Ok(())
}

/// A killed guest cannot report its end, and its child processes may live on for a moment.
#[test]
fn a_killed_guest_is_noticed_at_once() -> Result<()> {
    let Some(programs) = programs()? else { return Ok(()) };
    let mut uml = boot(&programs, Limits::default(), Box::new(MemoryDevice::new(64 * MIB)))?;
    uml.run(&flashkit_lab::vm::host_files())?;
    let id = uml.id();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        rustix::process::kill_process(id, rustix::process::Signal::KILL)
    });
    // If the end is not noticed, this would time out as a hang.
    let ended = uml.run(&flashkit_lab::vm::host_program("/bin/sh", &["-c", "while :; do :; done"])?);
    assert!(matches!(ended, Err(Failure::Died { .. })), "{ended:?}");
    killer.join().expect("it does not panic")?;
    Ok(())
}
