//! `cargo xtask`: see `cargo xtask help`.

use std::{io::Write, path::PathBuf, process::ExitCode};

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use model::fsck::fsck_image;
use xtask::{
    Image, Judge, Machine, bench, flashbench, golden, interrupt,
    judge::kernel::Kernel,
    judge::stock_guest,
    spec, study,
    study::real_tree,
    study::uml_kernel::{self, FileSystems},
    trial::cost,
    trial::linux_recovery,
    trial::soak,
    trial::torture,
    trial::{rescue, resize},
    workspace,
};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, judges and measures flashkit")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

/// The machine of a virtual machine's kernel.
#[derive(clap::Args)]
struct MachineArgs {
    /// Use the machine for volumes of 16K blocks
    #[arg(long = "16k")]
    sixteen: bool,
}

impl MachineArgs {
    fn machine(&self) -> Machine {
        if self.sixteen { Machine::Arm64With16K } else { Machine::Amd64 }
    }
}

#[derive(Subcommand)]
enum Task {
    /// Write docs/FORMAT.md from the structs
    Spec {
        /// Only check that it is up to date
        #[arg(long)]
        check: bool,
    },
    /// Download the judge's kernel, if it is missing, and print its release
    Kernel {
        #[command(flatten)]
        machine: MachineArgs,
    },
    /// Build the lab's kernel, if it is missing, and its init, and print their paths
    UmlKernel {
        /// Kernel tree to build from instead of the distribution's linux-source package
        #[arg(long)]
        tree: Option<PathBuf>,
        /// Build from this package of apt instead, such as linux-source-6.12, into var/uml-6.12
        #[arg(long, conflicts_with = "tree")]
        package: Option<String>,
        /// Include the file systems that the study measures only if they are named: btrfs, exfat, xfs
        #[arg(long)]
        all: bool,
        /// Number of parallel compilers
        #[arg(long)]
        jobs: Option<usize>,
        /// Build even if the same kernel exists already
        #[arg(long)]
        force: bool,
    },
    /// If that kernel cannot be built, let the lab's guest be the judge's kernel, whose figures are
    /// indicative
    StockGuest,
    /// Mount images in the judge's kernel and print its manifests as JSON, one after the other
    Judge {
        /// Type of the file systems
        #[arg(long, default_value = "f2fs")]
        fs: String,
        /// Mount options
        #[arg(short = 'o', long, default_value = "")]
        options: String,
        #[command(flatten)]
        machine: MachineArgs,
        /// The images, which stay unchanged
        #[arg(required = true)]
        images: Vec<PathBuf>,
    },
    /// Make the golden images anew, all or some
    Golden {
        /// Keep the images and only have the kernel read them again
        #[arg(long)]
        again: bool,
        /// Names of the images
        names: Vec<String>,
    },
    /// Run the whole study: our own file system, then the kernel's once the lab's kernel is built, then a
    /// real tree
    Study,
    /// Fill a volume from a real tree, have it judged, and compare the cost with other tools'
    Tree {
        /// The tree; by default the kernel's sources in the distribution's linux-source package
        #[arg(long)]
        tree: Option<PathBuf>,
    },
    /// Measure flashkit's costs, compared with peers
    Bench {
        /// Run the benchmarks of one subject only.
        subject: Option<bench::Subject>,
    },
    /// Run Debian's flashbench in the guest on modelled devices that take real time, beside the probe
    Flashbench {
        /// Devices, by seed; by default some of those that judge the probe
        seeds: Vec<u64>,
    },
    /// Print the manifest of a directory of this machine as JSON
    Manifest {
        /// The directory
        dir: PathBuf,
    },
    /// Run random operations beside a model on volumes of all kinds; each seed is repeatable
    Model {
        #[command(flatten)]
        limits: torture::Limits,
        /// Run the operations in this file, one per line as printed by a failure, on the single named kind
        #[arg(long, requires = "kinds")]
        replay: Option<PathBuf>,
        /// Kinds of volumes; all by default
        kinds: Vec<String>,
    },
    /// Cut the power after each request of random sequences
    PowerCuts {
        #[command(flatten)]
        limits: torture::Limits,
        /// Give this many cuts of one sequence of each case to Linux, which must recover the same state
        #[arg(long, conflicts_with_all = ["seconds", "steps"])]
        linux: Option<usize>,
        /// Cases; all by default
        cases: Vec<String>,
    },
    /// Pass volumes back and forth between Linux and our engine, with clean and unclean ends
    PingPong {
        /// Number of rounds, of one turn each
        #[arg(long, default_value_t = 8)]
        rounds: u32,
        /// Seed of the operations
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Kinds of volumes; all by default
        kinds: Vec<String>,
    },
    /// Keep an almost full volume busy, with cleaning in the background and a small cache
    Soak {
        /// Duration in minutes
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Seed of the operations
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Damage a volume in several ways, and count the files that `flashkit rescue`, PhotoRec and fsck.f2fs
    /// bring back
    Rescue {
        /// The files on the volume, those of at most 16 MiB
        #[arg(long, default_value = "/usr/share/doc")]
        tree: PathBuf,
        /// Size of the volume in MiB
        #[arg(long, default_value_t = 512)]
        volume_mib: u64,
    },
    /// Resize volumes that Linux filled, and let Linux read them; or kill flashkit and resize.f2fs before many of
    /// their writes, and count the volumes that are lost
    Resize {
        /// Number of volumes that Linux fills
        #[arg(long, default_value_t = 6, value_name = "VOLUMES")]
        filled: usize,
        /// Leave out the golden images
        #[arg(long, conflicts_with = "interruption")]
        only_filled: bool,
        /// Kill both programs so many times in each resize, instead
        #[arg(long, group = "interruption", conflicts_with = "filled")]
        kills: Option<u64>,
        /// Cut the power after so many writes of both programs in each resize, instead: after each of them if there are
        /// fewer
        #[arg(long, value_name = "WRITES", group = "interruption", conflicts_with = "filled")]
        cuts: Option<u64>,
        /// The flashkit to be killed or cut; by default it is built
        #[arg(long, requires = "interruption")]
        flashkit: Option<PathBuf>,
    },
    /// Count the device's writes, with our engine and with Linux's f2fs
    Cost {
        /// Length in MiB of the file that is written buffered; a tenth of it is written with fsync
        #[arg(long, default_value_t = 128)]
        mib: u64,
        /// Size of the volume in MiB
        #[arg(long, default_value_t = 1024)]
        volume_mib: u64,
        /// Seed of random orders
        #[arg(long, default_value_t = 2012)]
        seed: u64,
        /// Words that the names of cells must contain, such as default, random, buffered, "4 KiB"; all cells
        /// by default
        words: Vec<String>,
    },
    /// Mount images in the judge's kernel and compare with what the engine reads; the volumes must be clean
    Compare {
        /// The images, which stay unchanged
        #[arg(required = true)]
        images: Vec<PathBuf>,
    },
    /// Run fsck.f2fs over images and fail on any finding
    Fsck {
        /// The images, which stay unchanged
        #[arg(required = true)]
        images: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line with the causes, because a backtrace does not help the reader of a study.
            eprintln!("xtask: {error:#}");
            if interrupt::check().is_err() { ExitCode::from(interrupt::CODE) } else { ExitCode::FAILURE }
        }
    }
}

fn run() -> Result<()> {
    interrupt::listen()?;
    let mut out = std::io::stdout().lock();
    match Arguments::parse().task {
        Task::Spec { check: true } => spec::check(workspace::root())?,
        Task::Spec { check: false } => spec::write(workspace::root())?,
        Task::Kernel { machine } => writeln!(out, "{}", Kernel::find(machine.machine())?.release)?,
        Task::UmlKernel { tree, package, all, jobs, force } => {
            let file_systems = if all { FileSystems::All } else { FileSystems::Study };
            let program =
                uml_kernel::build(&uml_kernel::Options { tree, package, file_systems, jobs, force })?;
            let agent = uml_kernel::with_agent(&program)?;
            writeln!(out, "{}\n{}", program.display(), agent.display())?;
        }
        Task::StockGuest => {
            let (kernel, initial) = stock_guest::prepare()?;
            writeln!(out, "{}\n{}", kernel.display(), initial.display())?;
        }
        Task::Judge { fs, options, machine, images } => {
            let image = |path| Image {
                fs: fs.clone(),
                options: options.clone(),
                machine: machine.machine(),
                ..Image::f2fs(path)
            };
            let images: Vec<Image> = images.into_iter().map(image).collect();
            for manifest in Judge::manifests(&images)? {
                manifest.write_json(&mut out)?;
            }
        }
        Task::Golden { again: true, names } => golden::judge_again(&recipes(&names)?)?,
        Task::Golden { again: false, names } => golden::make(&recipes(&names)?)?,
        Task::Study => study::run()?,
        Task::Tree { tree } => real_tree::run(tree)?,
        Task::Bench { subject } => bench::bench(subject)?,
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
        Task::Rescue { tree, volume_mib } => rescue::rescue(&tree, volume_mib << 20, &mut out)?,
        Task::Resize { kills: Some(kills), flashkit, .. } => resize::kills(kills, flashkit, &mut out)?,
        Task::Resize { cuts: Some(most), flashkit, .. } => resize::cuts(most, flashkit, &mut out)?,
        Task::Resize { filled, only_filled, .. } => {
            resize::beside_linux(filled, only_filled.into(), &mut out)?;
        }
        Task::Compare { images } => {
            linux_recovery::compare(&images)?;
            writeln!(out, "{} images: Linux reads what the engine reads", images.len())?;
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

/// Returns the recipes of these golden images; without names, all.
fn recipes(names: &[String]) -> Result<Vec<golden::Recipe>> {
    let known: Vec<_> = golden::recipes().collect();
    if let Some(name) = names.iter().find(|name| known.iter().all(|recipe| recipe.name != **name)) {
        bail!("unknown golden image {name}");
    }
    let wanted = |recipe: &golden::Recipe| names.is_empty() || names.iter().any(|name| name == recipe.name);
    Ok(known.into_iter().filter(wanted).collect())
}
