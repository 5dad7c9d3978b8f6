//! The command line.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{progress, verbs};

/// Text at the end of the help.
const AFTER: &str = "Exit codes:
  0    success, even if the reader of standard output closes it
  1    failure; standard error gives the reason
  2    the arguments are invalid; nothing was done
  130  interrupted
fsck has those of fsck(8): 0, 1, 4, 8, 16. So has `verity check`: 0, 4, 8, 12, 16.

Each verb has --help with examples. `flashkit man DIR` writes a man page for each, with flashkit-filling(7) on sources,
owners and reproducible images, flashkit-json(7) on --json, and flashkit-names(7) on the names of f2fs-tools.

Examples:
  flashkit mkfs card.img --size 512M --from rootfs/
  flashkit ls -l card.img:/etc";

/// Flash file systems in user space: make, fill, read, change, check and rescue F2FS volumes without root and without a
/// kernel module.
#[derive(Parser)]
#[command(name = "flashkit", version, max_term_width = 100, arg_required_else_help = true, after_help = AFTER)]
pub struct Cli {
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

impl Cli {
    /// Parses a command line. A verb's `--quiet` hides all progress from now on.
    pub fn of(words: impl IntoIterator<Item = OsString>) -> clap::error::Result<Cli> {
        let mut matches = Cli::command().try_get_matches_from(words)?;
        let verb = matches.subcommand().map(|(_, verb)| verb);
        // Not every verb has the option.
        let quiet = verb.and_then(|verb| verb.try_get_one::<bool>("quiet").ok().flatten());
        if quiet == Some(&true) {
            progress::hide();
        }
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut Cli::command()))
    }
}

/// All verbs.
#[derive(Subcommand)]
pub enum Verb {
    /// Make a volume, empty or filled.
    Mkfs(Box<verbs::mkfs::Args>),
    /// Put a directory or tar archive into a volume.
    Import(Box<verbs::import::Args>),
    /// Copy a volume, or a part of it, into a directory or tar archive.
    Export(verbs::export::Args),
    /// Print a volume's properties: geometry, features, usage, state.
    Info(verbs::info::Args),
    /// Copy an image of any format as a raw or an Android sparse one.
    Convert(verbs::convert::Args),
    /// List the partitions of a disk image or device, and their content.
    Partitions(verbs::partitions::Args),
    /// Compare an image with its hash tree of dm-verity.
    #[command(name = "dmverity")]
    DmVerity(verbs::dm_verity::Args),
    /// List a directory of a volume.
    Ls(verbs::ls::Args),
    /// Draw the tree of a volume.
    Tree(verbs::tree::Args),
    /// Find files by name, kind, size, time, owner or permissions.
    Find(verbs::find::Args),
    /// Report the space of files and directories.
    Du(verbs::du::Args),
    /// Report the space of a volume.
    Df(verbs::df::Args),
    /// Show the metadata of a file.
    Stat(verbs::stat::Args),
    /// Print the content of files.
    Cat(verbs::cat::Args),
    /// Show extended attributes.
    Getfattr(verbs::getfattr::Args),
    /// Copy files into a volume, or out of it.
    Cp(verbs::cp::Args),
    /// Remove files and directories.
    Rm(verbs::rm::Args),
    /// Rename and move inside a volume.
    Mv(verbs::mv::Args),
    /// Make directories.
    Mkdir(verbs::mkdir::Args),
    /// Make an empty directory encrypted.
    Encrypt(verbs::encrypt::Args),
    /// Seal files (fs-verity), print their digests, check them.
    Verity(verbs::verity::Args),
    /// Make links, hard and symbolic.
    Ln(verbs::ln::Args),
    /// Change permissions.
    Chmod(verbs::chmod::Args),
    /// Change owner and group.
    Chown(verbs::chown::Args),
    /// Set and remove extended attributes.
    Setfattr(verbs::setfattr::Args),
    /// Print or change the label of a volume.
    Label(verbs::label::Args),
    /// Show on-disk structures.
    Dump(verbs::dump::Args),
    /// Report the space saved by compression and the part that can be released.
    Compression(verbs::compression::Args),
    /// Report usage and limits of users, groups and projects, and set limits.
    Quota(Box<verbs::quota::Args>),
    /// Check a volume; -p and -y repair it.
    Fsck(verbs::fsck::Args),
    /// Rescue the files of a damaged volume, without its checkpoint, tables or superblock.
    Rescue(Box<verbs::rescue::Args>),
    /// Grow or shrink a volume.
    Resize(verbs::resize::Args),
    /// Show or change the properties of a volume: UUID, features, extensions, quota.
    Tune(verbs::tune::Args),
    /// Report the fragmentation of files; -y moves their blocks into order.
    Defrag(verbs::defrag::Args),
    /// Clean sections: gather their valid blocks to free whole sections.
    Gc(verbs::gc::Args),
    /// Tell the device which blocks are unused.
    Trim(verbs::trim::Args),
    /// Modelled flash devices: list, show, make, serve, count.
    Card(verbs::card::Args),
    /// Find out a card's properties and how to format it.
    Probe(verbs::probe::Args),
    /// Run the experiments on every file system, on a modelled card.
    #[cfg(feature = "lab")]
    Study(verbs::study::Args),
    /// Run the experiments repeatedly in a directory of a real device.
    #[cfg(feature = "lab")]
    Bench(verbs::bench::Args),
    /// Show the results of a study or bench, or compare two.
    #[cfg(feature = "lab")]
    Report(verbs::report::Args),
    /// Mount a volume through FUSE.
    #[cfg(unix)]
    Mount(verbs::mount::Args),
    /// Print shell completions.
    Completions(verbs::completions::Args),
    /// Write the man pages.
    Man(verbs::man::Args),
}
