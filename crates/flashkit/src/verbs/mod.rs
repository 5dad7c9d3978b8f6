//! One file per verb: its arguments and its action.

mod advised;
#[cfg(feature = "lab")]
pub mod bench;
pub mod card;
pub mod cat;
pub mod chmod;
pub mod chown;
pub mod completions;
pub mod compression;
pub mod convert;
pub mod cp;
pub mod defrag;
pub mod df;
pub mod dm_verity;
pub mod du;
pub mod dump;
pub mod encrypt;
pub mod export;
pub mod find;
pub mod fsck;
pub mod gc;
pub mod getfattr;
pub mod import;
pub mod info;
#[cfg(feature = "lab")]
mod lab_run;
pub mod label;
pub mod ln;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mkfs;
#[cfg(unix)]
pub mod mount;
pub mod mv;
pub mod partitions;
#[cfg(feature = "lab")]
mod power_cuts;
pub mod probe;
pub mod quota;
#[cfg(feature = "lab")]
pub mod report;
pub mod rescue;
pub mod resize;
pub mod rm;
pub mod setfattr;
pub mod stat;
#[cfg(feature = "lab")]
pub mod study;
pub mod tree;
pub mod trim;
pub mod tune;
pub mod verity;

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Verb;

/// Runs a verb. Returns the program's exit code.
pub fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        #[cfg(feature = "lab")]
        Verb::Study(args) => return study::run(&args),
        Verb::Cat(args) => return cat::run(&args),
        #[cfg(feature = "lab")]
        Verb::Bench(args) => return bench::run(&args),
        Verb::Fsck(args) => return fsck::run(&args),
        Verb::Verity(args) => return verity::run(&args),
        Verb::Rescue(args) => rescue::run(&args),
        #[cfg(feature = "lab")]
        Verb::Report(args) => report::run(&args),
        Verb::Trim(args) => trim::run(&args),
        Verb::Probe(args) => probe::run(&args),
        Verb::Quota(args) => quota::run(&args),
        Verb::Resize(args) => resize::run(&args),
        Verb::Tune(args) => tune::run(&args),
        Verb::Defrag(args) => defrag::run(&args),
        Verb::Gc(args) => gc::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Card(args) => card::run(&args),
        Verb::Mkfs(args) => mkfs::run(&args),
        Verb::Import(args) => import::run(&args),
        Verb::Info(args) => info::run(&args),
        Verb::Convert(args) => convert::run(&args),
        Verb::Partitions(args) => partitions::run(&args),
        Verb::Label(args) => label::run(&args),
        Verb::Ls(args) => ls::run(&args),
        Verb::Tree(args) => tree::run(&args),
        Verb::Find(args) => find::run(&args),
        Verb::Du(args) => du::run(&args),
        Verb::Df(args) => df::run(&args),
        Verb::DmVerity(args) => dm_verity::run(&args),
        Verb::Stat(args) => stat::run(&args),
        Verb::Getfattr(args) => getfattr::run(&args),
        Verb::Dump(args) => dump::run(&args),
        Verb::Compression(args) => compression::run(&args),
        Verb::Cp(args) => cp::run(&args),
        Verb::Rm(args) => rm::run(&args),
        Verb::Mv(args) => mv::run(&args),
        Verb::Mkdir(args) => mkdir::run(&args),
        Verb::Encrypt(args) => encrypt::run(&args),
        Verb::Ln(args) => ln::run(&args),
        Verb::Chmod(args) => chmod::run(&args),
        Verb::Chown(args) => chown::run(&args),
        Verb::Setfattr(args) => setfattr::run(&args),
        Verb::Completions(args) => completions::run(&args),
        #[cfg(unix)]
        Verb::Mount(args) => mount::run(&args),
        Verb::Man(args) => man::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
