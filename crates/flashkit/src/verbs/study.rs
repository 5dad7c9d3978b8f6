//! `study`: the experiments on every file system, on one modelled card.

mod again;
mod single;
mod wanted;

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::builder::TypedValueParser;
use flash::Profile;
use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use lab::{
    experiment::Experiment,
    matrix::{Matrix, Reach},
    plan::{self, Cell, Checks, Costs, Plan},
    preset::Preset,
    record::{Record, Records},
    report,
    rivals::FileSystem,
    scale::DIRTY_PERCENT,
    study::{self, Event, Outcome},
    systems::{GET_KERNEL, Machine, OURS, Programs, Setting, THROUGH_FUSE},
    tune,
    vm::Measured,
};

use self::wanted::{Wanted, experiments};
use super::{
    lab_run::{self, INTERRUPTED, Sizes},
    power_cuts::{self, Cuts},
};
use crate::{failure, notice::notice, render, size, suggested::Suggested};

/// Arguments of `study`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  flashkit study
  flashkit study --full -o original-sizes
  flashkit study -e write_fsync --fs flashkit --fs f2fs:mode=lfs --fs f2fs::'-s 2'
  flashkit study --card survey-class10 --card my-card.toml
  flashkit study --cell mount.nilfs2.desktop
  flashkit study --matrix matrix.toml --list | parallel flashkit study --matrix matrix.toml --cell
  flashkit study --equal-terms --steady --fs flashkit-fuse --fs f2fs
  flashkit study --card survey-class4 --tune --size 16M -o tuned
  flashkit study --fio job.fio --fs ext4 --fs f2fs:mode=lfs
  flashkit study -e 9 --fs flashkit --fs ext4:data=writeback --cuts 200
  flashkit study -e 9 --fs vfat --cut honest-0-17 --keep cut.img

Experiments, by name or number:
  1 buffered_write   2 write_fsync   3 mount   4 buffered_read   7 copy
  5 workloads (only if named; SQLite, a phone, a kernel's sources unpacked and compiled)
  8 latency (only if named; jffs2, ubifs on bare flash, the others on a card that is 95 % full)
  9 power_cuts (only by itself; the promises that each file system keeps when the power is cut)
  11 fsync_sizes (only if named; random writes with fsync on files of 1 to 32 MiB)
  12 utilization (only if named; random writes on a file system that is 80 to 97.5 % full)

Finished results are kept: the same call continues where it stopped, in experiment 9 after the last cut.")]
pub struct Args {
    /// Directory for the records and the report.
    #[arg(short, long, default_value = "study")]
    output: PathBuf,
    /// Run only this experiment; repeat for more.
    #[arg(short, long = "experiment", value_name = "EXPERIMENT", value_parser = experiments(), hide_possible_values = true)]
    experiments: Vec<Wanted>,
    /// Use only this file system, with mount and mkfs options; repeat for more.
    #[arg(long = "fs", value_name = "KIND[:MOUNT[:MKFS]]")]
    file_systems: Vec<String>,
    /// The machine: desktop (the default), phone, stick, nor or nand; repeat for more.
    #[arg(short, long = "preset", value_name = "PRESET", value_parser = presets(), hide_possible_values = true)]
    presets: Vec<Preset>,
    /// A card of `card list`, or a file with a profile as `probe --profile` writes it, in a desktop; repeat for
    /// more. Without --preset only these cards are used.
    #[arg(long = "card", value_name = "PROFILE|FILE")]
    cards: Vec<String>,
    /// Run the cells of this matrix of cards, file systems, experiments, sizes, ages, kernels and seeds; the
    /// format is in SCALE.md of the installed documents.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["experiments", "file_systems", "presets", "cards", "full", "size", "fsync_size", "writes", "dirty", "card_size", "age", "steady", "equal_terms", "tune", "seed"])]
    matrix: Option<PathBuf>,
    /// Repeat the study of a bundle that `report --bundle` wrote, and print where the new records differ.
    #[arg(long, value_name = "BUNDLE", conflicts_with_all = ["matrix", "cell", "list", "experiments", "file_systems", "presets", "cards", "full", "size", "fsync_size", "writes", "dirty", "card_size", "age", "steady", "equal_terms", "tune", "seed"])]
    from: Option<PathBuf>,
    /// With --from: run the commands, the programs with options of mkfs, and the fio jobs that the bundle names, with your
    /// rights.
    #[arg(long, requires = "from")]
    trust: bool,
    /// Run only the cell of this name, as --list prints it, and write only its files. The exit code is 0 once its
    /// record exists, and 75 if another attempt may succeed.
    #[arg(long, value_name = "CELL")]
    cell: Option<String>,
    #[command(flatten)]
    sizes: Sizes,
    /// Number of timed writes. By default, the preset nor has 100000 and then 10000 per part, as in 2003.
    #[arg(long)]
    writes: Option<u64>,
    /// Share of the file of buffered writes that may be dirty in the guest's memory before write-back starts,
    /// in percent, but at least 8 MiB. Writers wait at twice that.
    #[arg(long, value_name = "PERCENT", default_value_t = DIRTY_PERCENT, value_parser = clap::value_parser!(u64).range(1..=100))]
    dirty: u64,
    /// Size of the card, instead of its own.
    #[arg(long, value_parser = size::parse)]
    card_size: Option<u64>,
    /// First age the file systems: write the whole capacity TIMES times and leave them PERCENT full (60 by
    /// default). The card is cut to twelve times the file.
    #[arg(long, value_name = "TIMES[:PERCENT]")]
    age: Option<plan::Age>,
    /// Repeat the writes of experiments 1 and 2 on aged file systems until their rate stands: five rounds within 10 % of
    /// their mean and without a drift of more than 10 %, at most 25 rounds. Without --age, the capacity is written twice
    /// before.
    #[arg(long)]
    steady: bool,
    /// Also measure our file system at the defaults of its mkfs and mount, as the others are. By default it has the
    /// options that the probe advises for the card.
    #[arg(long)]
    equal_terms: bool,
    /// Search the best options on this card: measure experiments 1, 2, 4 and 7 with each combination of sections, zones,
    /// modes and logs (ext4: stripes and journal modes), and name the best for streams, databases, small files and mixed
    /// use. By default for flashkit, f2fs and ext4.
    #[arg(long, conflicts_with_all = ["experiments", "equal_terms", "age", "steady"])]
    tune: bool,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 2012)]
    seed: u64,
    /// Cells run at once; by default the number of processors.
    #[arg(short, long)]
    jobs: Option<usize>,
    /// Directory with the lab's kernel (`linux`) and its init (`guest-agent`).
    #[arg(long, value_name = "DIR", default_value = "var/uml")]
    guest: PathBuf,
    /// Directory for the cards' temporary data.
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Only list the cells.
    #[arg(long)]
    list: bool,
    /// List the cells as JSON, with command, inputs, and expected memory and time. With -e 9, print the records
    /// as JSON.
    #[arg(long)]
    json: bool,
    /// Run this fio job file in the guest instead, on a new volume of each of the kernel's file systems.
    #[arg(long, value_name = "JOB", conflicts_with_all = ["experiments", "cell", "list", "full", "matrix", "from"])]
    fio: Option<PathBuf>,
    #[command(flatten)]
    power_cuts: Cuts,
}

/// Parses the name of a preset.
fn presets() -> impl TypedValueParser<Value = Preset> {
    Suggested(|| Preset::ALL.map(Preset::name).to_vec()).try_map(|name| name.parse())
}

/// Runs the study.
pub fn run(args: &Args) -> Result<ExitCode> {
    let programs = Programs::find(&args.guest);
    if let Some(job) = &args.fio {
        return fio(args, programs, job);
    }
    if args.experiments.contains(&Wanted::PowerCuts) {
        return args.cut_power(programs);
    }
    if args.json && !args.list {
        bail!("--json needs --list, or -e 9");
    }
    if args.power_cuts.is_given() {
        bail!("--cut, --cuts and --dishonest-cuts are for experiment 9; add -e 9");
    }
    let unpacked = args.from.as_ref().map(|_| tempfile::tempdir()).transpose()?;
    let matrix = match (&args.from, &unpacked) {
        (Some(file), Some(dir)) => {
            let trust = if args.trust { again::Trust::Granted } else { again::Trust::Refused };
            Some(again::unpack(file, dir.path(), trust)?)
        }
        _ => args.matrix.as_ref().map(|file| Matrix::read(file, Reach::Anywhere)).transpose()?,
    };
    let plan = match &matrix {
        Some(matrix) => args.plan_of(matrix, programs.clone())?,
        None => args.plan(programs.clone())?,
    };
    if args.list {
        let format = if args.json { render::Format::Json } else { render::Format::Text };
        single::list(&plan, matrix.as_ref(), format)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(_), [cell]) = (&args.cell, &plan.cells[..]) {
        return single::run(&plan, cell, &args.output);
    }
    match &matrix {
        Some(matrix) => args.tell_left_out(matrix.left_out(programs.as_ref())),
        None => args.tell_guest(&plan),
    }
    let keep = || format!("{}: cannot store results", args.output.display());
    let records = Records::open(&args.output).with_context(keep)?;
    let stop = lab_run::stop_on_interrupt()?;

    let seed = matrix.as_ref().map_or(format!("seed {}, ", plan.seed), |_| String::new());
    notice!("{seed}{}, {} at once", render::count(plan.cells.len() as u64, "cell"), plan.jobs);
    let mut live = Live::new(plan.cells.len());
    let outcome = study::run(&plan, &records, &stop, &mut |event| live.tell(event)).with_context(keep)?;
    live.end();
    let of_plan: Vec<Record> =
        plan.cells.iter().filter_map(|cell| records.get(cell, plan.age_of(cell))).collect();
    let all = super::report::read(records.dir())?;
    let page = args.output.join("report.html");
    super::report::write_page(&all, records.dir(), &page)?;
    std::fs::write(args.output.join("figures.csv"), report::csv(&all)).with_context(keep)?;
    std::fs::write(args.output.join("wear.csv"), report::wear_csv(&all)).with_context(keep)?;
    notice!("{}: tables and charts of all its results", page.display());
    if let Some(bundle) = unpacked.filter(|_| outcome.stopped == 0) {
        again::compare(&plan, bundle.path(), &records)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Printed last, because standard output may already be closed.
    let sheets = report::sheets(&of_plan);
    let text = if args.tune { report::tuning_text(&sheets) } else { report::text(&sheets) };
    render::text(|out| write!(out, "{text}"))?;
    summary(args, &plan, outcome)
}

/// Runs a fio job file on each file system, and prints the results of the card and of fio.
fn fio(args: &Args, programs: Option<Programs>, job: &Path) -> Result<ExitCode> {
    let programs = programs.filter(|programs| programs.machine == Machine::Virtual);
    let job = lab::vm::host_file(job)?;
    let mut file_systems = args.file_systems();
    if args.file_systems.is_empty() {
        file_systems.retain(|it| !it.is_ours() && !it.is_raw());
    }
    if file_systems.iter().any(|it| it.is_ours()) {
        bail!("flashkit: fio needs a file system of the kernel");
    }
    let (preset, mut profile) = match (&args.presets[..], &args.cards()?[..]) {
        ([], []) => (Preset::Desktop, Preset::Desktop.profile()?),
        ([preset], []) => (*preset, preset.profile()?),
        ([], [card]) => (Preset::Card, card.clone()),
        _ => bail!("a job file is run on one machine; leave one --preset or one --card"),
    };
    if let Some(bytes) = args.card_size {
        profile = profile.with_size(bytes)?;
    }
    let stop = lab_run::stop_on_interrupt()?;
    let mut worst = ExitCode::SUCCESS;
    for file_system in file_systems {
        let name = file_system.name();
        let setting = Setting {
            file_system,
            preset,
            profile: profile.clone(),
            scale: args.sizes.scale().with_dirty(args.dirty),
            programs: programs.clone(),
            traced: false,
            cleaned: false,
            pace: flash::Pace::Virtual,
            seed: args.seed,
            stop: stop.clone(),
        };
        // Each file system has its own directory, so that none finds another's files.
        let work = tempfile::tempdir_in(args.work())?;
        let image = work.path().join("card");
        let run = lab::fio::run(&setting, &image, &[job.as_str()]);
        if stop.is_wished() {
            notice!("{name}: stopped");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        let run = run.with_context(|| name.clone())?;
        let Measured { totals, .. } = &run.measured;
        render::text(|out| {
            writeln!(
                out,
                "{name} on {}: {:.3} s of its clock; {} of {} bytes, {} of {} bytes, {}, busy {:.3} s",
                profile.name,
                run.measured.duration_ns() as f64 / 1e9,
                render::count(totals.reads, "read"),
                totals.read_bytes,
                render::count(totals.writes, "write"),
                totals.written_bytes,
                render::count(totals.flushes, "flush"),
                totals.busy_ns as f64 / 1e9,
            )?;
            writeln!(out, "{}\n", run.printed.trim_end())
        })?;
        if run.code != 0 {
            notice!("{name}: fio ended with {}", run.code);
            worst = ExitCode::FAILURE;
        }
    }
    Ok(worst)
}

fn summary(args: &Args, plan: &Plan, outcome: Outcome) -> Result<ExitCode> {
    let dir = args.output.display();
    if outcome.stopped > 0 {
        let there = outcome.done + outcome.kept;
        notice!(
            "stopped: {dir} has {there} of {}; the same call continues from there",
            render::count(plan.cells.len() as u64, "cell")
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if outcome.failed > 0 {
        bail!(
            "{} of {} failed or left faults; the results are in {dir}",
            outcome.failed,
            render::count(plan.cells.len() as u64, "cell")
        );
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Returns the named file systems, or else all.
    fn file_systems(&self) -> Vec<FileSystem> {
        let mut found: Vec<FileSystem> = match (self.file_systems.is_empty(), self.tune) {
            (true, true) => [OURS, "f2fs", "ext4"].map(FileSystem::new).to_vec(),
            (true, false) => plan::file_systems(),
            (false, _) => self.file_systems.iter().map(|text| FileSystem::parse(text)).collect(),
        };
        if self.equal_terms {
            let ours = found.iter().filter(|it| it.is_ours() && it.is_plain());
            let at_defaults: Vec<_> = ours.map(|it| it.clone().mounted(tune::DEFAULTS)).collect();
            found.extend(at_defaults);
        }
        found
    }

    /// Returns the named experiments on the card's clock.
    fn timed(&self) -> Vec<Experiment> {
        let timed = self.experiments.iter().filter_map(|wanted| match wanted {
            Wanted::Timed(experiment) => Some(*experiment),
            Wanted::PowerCuts => None,
        });
        timed.collect()
    }

    /// Returns the named experiments, or those that the other options imply.
    fn experiments<'a>(&self, named: &'a [Experiment]) -> Result<&'a [Experiment]> {
        const WRITES: [Experiment; 2] = [Experiment::BufferedWrite, Experiment::WriteFsync];
        if let Some(other) = named.iter().find(|it| self.steady && !WRITES.contains(it)) {
            bail!(
                "--steady: only experiments 1 and 2 write until their rate stands; leave out -e {}",
                other.name()
            );
        }
        Ok(match (named.is_empty(), self.tune, self.steady) {
            (false, ..) => named,
            (_, true, _) => &tune::EXPERIMENTS,
            (_, _, true) => &WRITES,
            _ => &Experiment::USUAL,
        })
    }

    /// Returns the age of the file systems.
    fn age(&self) -> Option<plan::Age> {
        match self.steady {
            true => Some(plan::Age { rounds: plan::Rounds::UntilSteady, ..self.age.unwrap_or_default() }),
            false => self.age,
        }
    }

    /// Runs experiment 9.
    fn cut_power(&self, programs: Option<Programs>) -> Result<ExitCode> {
        if self.experiments.iter().any(|wanted| *wanted != Wanted::PowerCuts) {
            bail!("experiment 9 is run by itself; leave only -e 9, or leave it out");
        }
        let without_effect = [
            ("--list", self.list),
            ("--cell", self.cell.is_some()),
            ("--preset", !self.presets.is_empty()),
            ("--age", self.age.is_some()),
            ("--writes", self.writes.is_some()),
            ("--steady", self.steady),
            ("--equal-terms", self.equal_terms),
            ("--tune", self.tune),
        ];
        if let Some((option, _)) = without_effect.into_iter().find(|(_, is_given)| *is_given) {
            bail!("{option} has no effect on experiment 9; leave it out");
        }
        let setting = power_cuts::Setting {
            output: self.output.clone(),
            file_systems: self.file_systems.iter().map(|text| FileSystem::parse(text)).collect(),
            cards: self.cards()?,
            card_bytes: self.card_size,
            seed: self.seed,
            jobs: self.jobs,
            guest: self.guest.clone(),
            programs,
            work: self.work(),
            format: self.json.into(),
        };
        power_cuts::run(&self.power_cuts, &setting)
    }

    /// Returns the profiles of the named cards, each with a name of its own.
    fn cards(&self) -> Result<Vec<Profile>> {
        let mut cards: Vec<Profile> = Vec::new();
        for text in &self.cards {
            let card = flash::verbs::profile(text).with_context(|| format!("--card {text}"))?;
            if card.is_raw() && !self.experiments.contains(&Wanted::PowerCuts) {
                bail!("--card {text}: {} is a raw chip; use --preset nor or --preset nand", card.name);
            }
            match cards.iter().find(|other| other.name == card.name) {
                Some(other) if *other == card => {}
                Some(_) => {
                    bail!("--card {text}: another card has the name {}; change `name` in one file", card.name)
                }
                None => cards.push(card),
            }
        }
        Ok(cards)
    }

    /// Returns the directory for the cards' data.
    fn work(&self) -> PathBuf {
        self.work.clone().unwrap_or_else(std::env::temp_dir)
    }

    fn plan(&self, programs: Option<Programs>) -> Result<Plan> {
        let named = self.timed();
        let experiments = self.experiments(&named)?;
        let file_systems = self.file_systems();
        if programs.is_none() {
            if let Some(rival) = self.file_systems.iter().zip(&file_systems).find(|(_, it)| it.kind != OURS) {
                bail!(
                    "{}: the kernel for the lab's guest is not in {}; {GET_KERNEL}",
                    rival.0,
                    self.guest.display()
                );
            }
        }
        let cards = self.cards()?;
        let mut presets = self.presets.clone();
        if presets.is_empty() && cards.is_empty() {
            presets.push(Preset::Desktop);
            if experiments.contains(&Experiment::Latency) {
                presets.extend([Preset::Nor, Preset::Nand]);
            }
        }
        let cells: tune::MakeCells = if programs.is_some() { Plan::cells } else { Plan::cells_without_guest };
        let mut cells = match self.tune {
            true => tune::cells(cells, experiments, &file_systems, &presets, &cards)?,
            false => cells(experiments, &file_systems, &presets, &cards),
        };
        if programs.as_ref().is_some_and(|programs| programs.machine == Machine::Stock) {
            cells.retain(|cell| !cell.preset.is_raw() && cell.file_system.kind != THROUGH_FUSE);
        }
        Ok(Plan {
            cells: self.selected(cells)?,
            scale: self.sizes.scale().with_dirty(self.dirty),
            timed_writes: self.writes,
            cards,
            card_bytes: self.card_size,
            age: self.age(),
            seed: self.seed,
            programs,
            kernels: BTreeMap::new(),
            workloads: BTreeMap::new(),
            costs: Costs::Measured,
            checks: Checks::Made,
            work: self.work(),
            jobs: self.jobs(),
        })
    }

    /// Returns the plan of a matrix.
    fn plan_of(&self, matrix: &Matrix, programs: Option<Programs>) -> Result<Plan> {
        let mut plan = matrix.plan(programs, self.work(), self.jobs());
        plan.cells = self.selected(plan.cells)?;
        Ok(plan)
    }

    /// Returns the cell that was asked for, or else all.
    fn selected(&self, mut cells: Vec<Cell>) -> Result<Vec<Cell>> {
        if let Some(wanted) = &self.cell {
            cells.retain(|cell| cell.id() == *wanted);
            if cells.is_empty() {
                bail!("{wanted}: no such cell; --list prints all");
            }
        }
        Ok(cells)
    }

    fn jobs(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.unwrap_or_else(processors).max(1)
    }

    /// Reports what a missing or inexact guest leaves out.
    fn tell_guest(&self, plan: &Plan) {
        // A study of our own file system alone needs no further programs.
        if self.file_systems().iter().all(|file_system| file_system.kind == OURS) {
            return;
        }
        let guest = self.guest.display();
        match plan.programs.as_ref().map(|programs| programs.machine) {
            None => notice!(
                "{guest}: contains no kernel for the lab's guest, so only our own file system is measured; {GET_KERNEL}"
            ),
            Some(Machine::Stock) => notice!(
                "{guest}: contains no kernel with time travel, so the kernel's file systems run in QEMU in real time. \
                 Their figures are indicative, and bare flash and our own mount are left out; {GET_KERNEL}"
            ),
            Some(Machine::Virtual) => {}
        }
    }

    /// Reports the cells of a matrix that need a kernel with time travel.
    fn tell_left_out(&self, cells: usize) {
        if cells > 0 {
            notice!(
                "{}: contains no kernel with time travel, so {} of the matrix are left out; {GET_KERNEL}",
                self.guest.display(),
                render::count(cells as u64, "cell")
            );
        }
    }
}

/// Progress of a study: a line for each finished cell and, on a terminal, the running cells and the remaining
/// time below.
struct Live {
    bars: MultiProgress,
    all: ProgressBar,
    under_way: BTreeMap<String, ProgressBar>,
    started: Instant,
    kept: usize,
    done: usize,
    cells: usize,
}

impl Live {
    fn new(cells: usize) -> Live {
        let bars = MultiProgress::new();
        let all = if std::io::stderr().is_terminal() {
            let style = "{wide_bar} {pos}/{len} cells, {elapsed}, {msg}";
            bars.add(ProgressBar::new(cells as u64))
                .with_style(ProgressStyle::with_template(style).expect("the template is a constant"))
        } else {
            ProgressBar::hidden()
        };
        all.enable_steady_tick(Duration::from_millis(500));
        Live { bars, all, under_way: BTreeMap::new(), started: Instant::now(), kept: 0, done: 0, cells }
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Kept(_) => {
                self.kept += 1;
                self.all.inc(1);
            }
            Event::Begun(cell) => self.begin(&cell),
            Event::Done(record) => self.finish(&record),
        }
    }

    fn begin(&mut self, cell: &Cell) {
        if self.all.is_hidden() {
            return;
        }
        let style = ProgressStyle::with_template("  {spinner} {msg} {elapsed}");
        let bar = self.bars.add(ProgressBar::new_spinner());
        bar.set_style(style.expect("the template is a constant"));
        bar.set_message(cell.id());
        bar.enable_steady_tick(Duration::from_millis(200));
        self.under_way.insert(cell.id(), bar);
    }

    fn finish(&mut self, record: &Record) {
        if let Some(bar) = self.under_way.remove(&record.cell.id()) {
            bar.finish_and_clear();
        }
        self.done += 1;
        let figures: Vec<String> = record
            .phases
            .iter()
            .map(|phase| format!("{} {} {}", phase.part, report::shown(phase.value), phase.unit.sign()))
            .collect();
        let mut line = format!("{:<34} {:>5.1} s  {}", record.cell.id(), record.took_s, figures.join(", "));
        if let Some(failure) = &record.failure {
            line += &format!("\n  ended early: {failure}");
        }
        match self.all.is_hidden() {
            true => notice!("{line}"),
            // A line that cannot be shown is in the record anyway.
            false => drop(self.bars.println(failure::plain(&line))),
        }
        self.all.inc(1);
        let left = plan::time_left(self.done, self.cells - self.kept, self.started.elapsed());
        self.all
            .set_message(left.map_or(String::new(), |left| format!("about {} left", HumanDuration(left))));
    }

    fn end(&mut self) {
        std::mem::take(&mut self.under_way).into_values().for_each(|bar| bar.finish_and_clear());
        self.all.finish_and_clear();
    }
}
