//! Experiments 1 to 4 on the card of jeong-2012: `KERNEL AGENT [FILE_MIB [FILE_SYSTEM...]]`.
//! `cargo xtask uml-kernel` prints where kernel and agent are.
use std::{path::Path, time::Instant};

use anyhow::{Result, bail};
use flash::Profile;
use lab::{
    format::FileSystem,
    jeong::{self, Plan, Programs},
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, agent, rest @ ..] = &arguments[..] else { bail!("jeong KERNEL AGENT [MIB [NAME...]]") };
    let mib: u64 = rest.first().map_or(Ok(64), |n| n.parse())?;
    let mut file_systems = vec![
        FileSystem::new("ext4"),
        FileSystem::new("f2fs"),
        FileSystem::new("f2fs").mounted("mode=lfs"),
        FileSystem::new("nilfs2"),
        FileSystem::new("vfat"),
    ];
    if rest.len() > 1 {
        file_systems.retain(|fs| rest[1..].contains(&fs.name()));
    }
    let programs = Programs { kernel: Path::new(kernel), agent: Path::new(agent) };
    let plan = Plan::scaled(Profile::named("transcend-16g-desktop")?, mib << 20);
    let dir = tempfile::tempdir_in("/dev/shm")?;
    for fs in file_systems {
        let started = Instant::now();
        let run = jeong::run(&plan, &fs, &programs, &dir.path().join("card"));
        println!("{} ({:.1} s of wall time)", fs.name(), started.elapsed().as_secs_f64());
        let run = match run {
            Ok(run) => run,
            Err(failure) => {
                println!("  {failure}");
                continue;
            }
        };
        for phase in &run.phases {
            let (value, unit) = phase.part.figure(phase);
            let published = jeong::published(phase.part, &fs.kind)?;
            let part = format!("{:?}", phase.part);
            let totals = &phase.totals;
            let published = published.map_or(String::from("-"), |figure| format!("{figure}"));
            println!(
                "  {part:<24} {value:>9.1} {unit:<5} published {published:>7}   {} reads, {} writes of {} KiB, busy {:.3} of {:.3} s",
                totals.reads,
                totals.writes,
                totals.written_bytes / 1024,
                totals.busy_ns as f64 / 1e9,
                phase.duration_ns as f64 / 1e9,
            );
        }
    }
    Ok(())
}
