//! `cargo xtask`: see `cargo xtask help`.

use std::{io::Write, path::PathBuf, process::ExitCode};

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use model::fsck::fsck_image;
use xtask::{
    Image, Judge, Machine, bench, flashbench, golden, interrupt, judge::kernel::Kernel, judge::stock_guest,
    spec, study, study::real_tree, study::uml_kernel, trial::cost, trial::soak, trial::torture, workspace,
};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "What builds, judges and measures flashkit")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Writes docs/FORMAT.md from the structs
    Spec {
        /// Only says whether it is fresh
        #[arg(long)]
        check: bool,
    },
    /// Downloads the judge's kernel, if it is not there, and prints its release
    Kernel {
        /// The one for volumes of 16K blocks
        #[arg(long = "16k")]
        sixteen: bool,
    },
    /// Builds the lab's kernel, if it is not there, and its init, and prints where they are
    UmlKernel {
        /// A kernel tree to build from instead of the distribution's linux-source package
        #[arg(long)]
        tree: Option<PathBuf>,
        /// Also with the file systems that the study only measures where they are named: btrfs, exfat, xfs
        #[arg(long)]
        all: bool,
        /// Compilers at once
        #[arg(long)]
        jobs: Option<usize>,
        /// Builds also where the same kernel is there already
        #[arg(long)]
        force: bool,
    },
    /// For where that cannot be built: lets the lab's guest be the judge's kernel, whose figures are indicative
    StockGuest,
    /// Mounts images in the judge's kernel and prints what it sees as JSON, one manifest after the other
    Judge {
        /// Type of the file systems
        #[arg(long, default_value = "f2fs")]
        fs: String,
        /// Mount options
        #[arg(short = 'o', long, default_value = "")]
        options: String,
        /// On the machine for volumes of 16K blocks
        #[arg(long = "16k")]
        sixteen: bool,
        /// The images; they stay as they are
        #[arg(required = true)]
        images: Vec<PathBuf>,
    },
    /// Makes the golden images anew, all or some
    Golden {
        /// Leaves the images as they are and only asks the kernel anew what it sees there
        #[arg(long)]
        again: bool,
        /// Their names
        names: Vec<String>,
    },
    /// Runs the whole study: our own file system, then the kernel's once the lab's kernel is built, then a real tree
    Study,
    /// Fills a volume from a real tree, has it judged, and compares the cost with other tools'
    Tree {
        /// The tree; the kernel's sources of the distribution's linux-source package where it is not named
        #[arg(long)]
        tree: Option<PathBuf>,
    },
    /// Measures what flashkit costs, side by side with peers
    Bench,
    /// Runs Debian's flashbench in the guest on modelled devices that take real time, beside the probe
    Flashbench {
        /// Devices, by seed; some of those that judge the probe unless named
        seeds: Vec<u64>,
    },
    /// Prints the manifest of a directory of this machine as JSON
    Manifest {
        /// The directory
        dir: PathBuf,
    },
    /// Runs random operations beside a model on volumes of all kinds; each seed again to the same end
    Model {
        #[command(flatten)]
        limits: torture::Limits,
        /// Runs the operations in this file, one a line as a failure prints them, on the one kind that is named
        #[arg(long, requires = "kinds")]
        replay: Option<PathBuf>,
        /// Kinds of volumes; all unless named
        kinds: Vec<String>,
    },
    /// Cuts the power after each request of random sequences
    PowerCuts {
        #[command(flatten)]
        limits: torture::Limits,
        /// Hands so many cuts of one sequence of each case to Linux, which has to recover them as we do
        #[arg(long, conflicts_with_all = ["seconds", "steps"])]
        linux: Option<usize>,
        /// Cases; all unless named
        cases: Vec<String>,
    },
    /// Lets volumes go back and forth between Linux and our engine, with clean and unclean ends
    PingPong {
        /// Rounds, of a turn each
        #[arg(long, default_value_t = 8)]
        rounds: u32,
        /// Picks the operations
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Kinds of volumes; all unless named
        kinds: Vec<String>,
    },
    /// Keeps an almost full volume busy, with cleaning in the background and a small cache
    Soak {
        /// How long
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Picks the operations
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Counts what writing costs the device, with our engine and with Linux's f2fs
    Cost {
        /// Length of the file that is written buffered, in MiB; a tenth of it is written with fsync
        #[arg(long, default_value_t = 128)]
        mib: u64,
        /// Size of the volume, in MiB
        #[arg(long, default_value_t = 1024)]
        volume_mib: u64,
        /// Picks random orders
        #[arg(long, default_value_t = 2012)]
        seed: u64,
        /// Words that the names of cells must have, such as default, random, buffered, "4 KiB"; all unless named
        words: Vec<String>,
    },
    /// Runs fsck.f2fs over images and fails if it finds anything
    Fsck {
        /// The images; they stay as they are
        #[arg(required = true)]
        images: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Its causes in one line each; a backtrace says nothing to a reader of a study.
            eprintln!("xtask: {error:#}");
            if interrupt::check().is_err() { ExitCode::from(interrupt::CODE) } else { ExitCode::FAILURE }
        }
    }
}

fn run() -> Result<()> {
    interrupt::listen()?;
    let mut out = std::io::stdout().lock();
    match Arguments::parse().task {
        Task::Spec { check } => spec::run(workspace::root(), check)?,
        Task::Kernel { sixteen } => writeln!(out, "{}", Kernel::find(machine(sixteen))?.release)?,
        Task::UmlKernel { tree, all, jobs, force } => {
            let program = uml_kernel::build(&uml_kernel::Options { tree, all, jobs, force })?;
            let agent = uml_kernel::with_agent(&program)?;
            writeln!(out, "{}\n{}", program.display(), agent.display())?;
        }
        Task::StockGuest => {
            let (kernel, initial) = stock_guest::prepare()?;
            writeln!(out, "{}\n{}", kernel.display(), initial.display())?;
        }
        Task::Judge { fs, options, sixteen, images } => {
            let image = |path| Image {
                fs: fs.clone(),
                options: options.clone(),
                machine: machine(sixteen),
                ..Image::f2fs(path)
            };
            let images: Vec<Image> = images.into_iter().map(image).collect();
            for manifest in Judge::manifests(&images)? {
                manifest.write_json(&mut out)?;
            }
        }
        Task::Golden { again, names } => {
            let known: Vec<_> = golden::recipes().collect();
            if let Some(name) = names.iter().find(|name| known.iter().all(|recipe| recipe.name != **name)) {
                bail!("there is no golden image {name}");
            }
            let wanted =
                known.into_iter().filter(|it| names.is_empty() || names.iter().any(|n| n == it.name));
            let wanted: Vec<_> = wanted.collect();
            if again { golden::judge_again(&wanted)? } else { golden::make(&wanted)? }
        }
        Task::Study => study::run()?,
        Task::Tree { tree } => real_tree::run(tree)?,
        Task::Bench => bench::bench()?,
        Task::Flashbench { seeds } => {
            flashbench::run(if seeds.is_empty() { &flashbench::SEEDS } else { &seeds }, &mut out)?;
        }
        Task::Manifest { dir } => guest::Manifest::of_tree(&dir)?.write_json(&mut out)?,
        Task::Model { replay: Some(file), kinds, .. } => {
            torture::replay(&kinds[0], &std::fs::read_to_string(file)?)?;
        }
        Task::Model { limits, kinds, .. } => torture::model(limits, &kinds, &mut out)?,
        Task::PowerCuts { limits, linux: Some(cuts), cases } => {
            torture::recover(limits.seed, cuts, &cases, &mut out)?;
        }
        Task::PowerCuts { limits, linux: None, cases } => torture::power_cuts(limits, &cases, &mut out)?,
        Task::PingPong { rounds, seed, kinds } => torture::ping_pong(rounds, seed, &kinds, &mut out)?,
        Task::Soak { minutes, seed } => soak::soak(minutes, seed, &mut out)?,
        Task::Cost { mib, volume_mib, seed, words } => {
            cost::cost(mib << 20, volume_mib << 20, seed, &words, &mut out)?;
        }
        Task::Fsck { images } => {
            for image in images {
                fsck_image(&image)?;
                writeln!(out, "{}: clean", image.display())?;
            }
        }
    }
    Ok(())
}

fn machine(sixteen: bool) -> Machine {
    if sixteen { Machine::Arm64With16K } else { Machine::Amd64 }
}
