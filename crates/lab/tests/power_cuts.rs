//! Experiment 9 in the guest. These tests need the kernel that `cargo xtask uml-kernel` builds; without it they
//! are skipped with a message.

mod support;

use std::path::Path;

use anyhow::Result;
use flash::Profile;
use flashkit_lab::{
    promises::{self, CARD_BYTES, CHIP_BYTES, CardFailure, PromiseRecord, Task},
    rivals::FileSystem,
    stop::Stop,
    systems::{Programs, THROUGH_FUSE},
};

fn task(programs: &Programs, kind: &str, work: &Path, cuts: &[(CardFailure, u64)]) -> Result<Task> {
    let file_system = FileSystem::new(kind);
    let bytes = if file_system.is_raw() { CHIP_BYTES } else { CARD_BYTES };
    Ok(Task {
        card: Profile::named(promises::card_of(&file_system))?.with_size(bytes)?,
        file_system,
        seed: 7,
        cuts: cuts.iter().copied().collect(),
        programs: Some(programs.clone()),
        work: work.to_owned(),
        stop: Stop::default(),
    })
}

fn run(task: &Task) -> Result<PromiseRecord> {
    let record = promises::run(task, &task.work, &mut |_| {})?;
    assert_eq!(record.failure, None, "{}", task.file_system.kind);
    Ok(record)
}

/// ext4 and our mounted file system keep their promises on an honest card.
#[test]
fn mounted_file_systems_keep_their_promises() -> Result<()> {
    let Some(programs) = support::programs()? else { return Ok(()) };
    let work = tempfile::tempdir()?;
    for kind in ["ext4", THROUGH_FUSE] {
        let record = run(&task(&programs, kind, work.path(), &[(CardFailure::Honest, 8)])?)?;
        let tally = &record.tallies[&CardFailure::Honest];
        assert_eq!((tally.cuts, tally.broken(), tally.not_mounted), (8, 0, 0), "{:#?}", record.findings);
        assert!(tally.kept() > 50, "{tally:#?}");
        assert!(tally.recovered_ns.iter().all(|ns| *ns > 0));
    }
    Ok(())
}

/// A card that ignores flushes makes ext4 break promises, and each of them can be replayed.
#[test]
fn a_promise_that_ext4_breaks_is_replayed() -> Result<()> {
    let Some(programs) = support::programs()? else { return Ok(()) };
    let work = tempfile::tempdir()?;
    let task = task(&programs, "ext4", work.path(), &[(CardFailure::IgnoredFlushes, 12)])?;
    let record = run(&task)?;
    let report = record.findings.iter().find(|report| !report.broken.is_empty());
    let report = report.expect("data that was flushed is lost");
    let again = promises::replay(&task, &report.id.parse().map_err(anyhow::Error::msg)?, None)?;
    assert_eq!((&again.broken, again.requests), (&report.broken, report.requests));
    Ok(())
}

/// JFFS2 and UBIFS recover on bare flash, whose driver records the programs and erases, and a cut can be replayed.
#[test]
fn file_systems_of_bare_flash_recover_from_torn_programs_and_erases() -> Result<()> {
    let Some(programs) = support::programs()? else { return Ok(()) };
    let work = tempfile::tempdir()?;
    for kind in ["jffs2", "ubifs"] {
        let task =
            task(&programs, kind, work.path(), &[(CardFailure::Honest, 8), (CardFailure::UnstableBits, 3)])?;
        let record = run(&task)?;
        let tally = &record.tallies[&CardFailure::Honest];
        let counts =
            (tally.cuts, tally.died, tally.checked, tally.recovered_ns.len() as u64 + tally.not_mounted);
        assert_eq!(counts, (8, 0, 0, 8), "{kind}: {:#?}", record.findings);
        assert!(tally.kept() > 50, "{kind}: {tally:#?}");
        assert_eq!(record.tallies[&CardFailure::UnstableBits].cuts, 3);
        let id = "honest-0-1".parse().map_err(anyhow::Error::msg)?;
        let (once, again) = (promises::replay(&task, &id, None)?, promises::replay(&task, &id, None)?);
        assert_eq!(once, again, "{kind}: a cut follows from its ID");
        assert!(once.requests > 10 && once.promises > 3, "{once:#?}");
    }
    Ok(())
}
