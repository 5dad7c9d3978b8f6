//! The tables of docs/DEVICE-MODEL.md: experiments 1 to 4 by real kernels on the card of jeong-2012, behind both
//! hosts, beside the published figures: `KERNEL AGENT [desktop|galaxy_s3...]`. `cargo xtask uml-kernel` prints where
//! kernel and agent are.
use std::path::Path;

use anyhow::{Result, bail};
use flash::Profile;
use lab::{
    format::FileSystem,
    jeong::{self, Part, Plan, Programs},
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, agent, hosts @ ..] = &arguments[..] else { bail!("jeong_table KERNEL AGENT [HOST...]") };
    let programs = Programs { kernel: Path::new(kernel), agent: Path::new(agent) };
    for (host, profile) in [("desktop", "transcend-16g-desktop"), ("galaxy_s3", "transcend-16g-phone")] {
        if hosts.is_empty() || hosts.iter().any(|wanted| wanted == host) {
            table(host, Profile::named(profile)?, &programs)?;
        }
    }
    Ok(())
}

fn table(host: &str, profile: Profile, programs: &Programs<'_>) -> Result<()> {
    println!("<!-- jeong-2012 {host} -->");
    println!("| row | published | model | error | |\n|---|---:|---:|---:|---|");
    // A quarter of the original's buffered file; the file with fsync lies on as many units as the original.
    let plan = Plan { fsync_bytes: 100 << 20, ..Plan::scaled(profile, 256 << 20) };
    let work = tempfile::tempdir_in("/dev/shm")?;
    for fs in [
        FileSystem::new("ext4"),
        FileSystem::new("nilfs2"),
        FileSystem::new("f2fs"),
        FileSystem::new("f2fs").mounted("mode=lfs"),
        FileSystem::new("vfat"),
    ] {
        let run = jeong::run(&plan, &fs, programs, &work.path().join("card"))?;
        for phase in &run.phases {
            let Some(published) = jeong::published_on(host, phase.part, &fs.kind)? else { continue };
            let (figure, unit) = phase.part.figure(phase);
            let error = (figure / published - 1.0) * 100.0;
            let digits = if figure.max(published) < 100.0 { 1 } else { 0 };
            let kind = kind(host, phase.part, &fs.kind);
            let part = format!("{:?}", phase.part);
            println!(
                "| {}: {}, {unit} | {published} | {figure:.digits$} | {error:+.0} % | {kind} |",
                fs.name(),
                words(&part),
            );
        }
    }
    println!("<!-- end of jeong-2012 {host} -->");
    Ok(())
}

/// What the profiles were fitted to, as crates/flash/tests/ext4_fit.rs has it.
fn kind(host: &str, part: Part, fs: &str) -> &'static str {
    match part {
        _ if fs != "ext4" => "predicted",
        Part::MountAfterFormat | Part::MountAfterReboot => "predicted",
        Part::BufferedSequentialWrite if host == "desktop" => "out of reach",
        _ => "calibrated",
    }
}

/// "BufferedRandomWrite" as "buffered random write".
fn words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}
