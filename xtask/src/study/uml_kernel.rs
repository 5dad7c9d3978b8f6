//! The lab's kernel: Linux as a user-mode program whose time the lab controls.
//!
//! Distributions ship no user-mode kernel with time travel, so it is built here: from the distribution's
//! `linux-source` package, unpacked but not installed, or from a kernel tree named by the user. The program
//! and a record of its sources are kept. The objects are removed, because they take 1 GB.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use block::MemoryDevice;
use flash::{Condition, Model, Pace, Profile};
use lab::{
    systems,
    vm::{Card, Limits, RANDOM_BYTES, Setup, Uml},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    Machine, interrupt,
    judge::apt::Apt,
    judge::initramfs,
    lock::Lock,
    step::Step,
    study::linux_source::{self, LinuxSource},
    workspace::{run, var},
};

/// Required options of the kernel, merged over `allnoconfig`.
const CONFIG: &str = include_str!("../../data/uml.config");
/// Options added by [`FileSystems::All`].
const MORE: &str = include_str!("../../data/uml-more.config");
/// Sources of our module: raw flash that takes time.
const MODULE: [(&str, &str); 2] = [
    ("Kbuild", include_str!("../../data/flash/Kbuild")),
    ("lab_flash.c", include_str!("../../data/flash/lab_flash.c")),
];
/// File name of the compiled module.
const MODULE_FILE: &str = "lab_flash.ko";
/// Source of the library that gives the guest random bytes in place of the host's.
const RANDOM: &str = include_str!("../../data/random.c");
/// Options without which the program cannot be a guest of the lab. The rest of [`CONFIG`] is wanted, but
/// another kernel may have dropped or renamed it.
const NEEDED: [&str; 7] =
    ["UML_TIME_TRAVEL_SUPPORT", "VIRTIO_UML", "VIRTIO_BLK", "HOSTFS", "TMPFS", "MODULES", "MTD"];
/// Programs that configure the kernel and that a compiler's package does not include: the program, and its
/// packages.
const TOOLS: [(&str, &[&str]); 4] =
    [("flex", &["flex"]), ("bison", &["bison"]), ("m4", &["m4", "libsigsegv2"]), ("bc", &["bc"])];

/// Definition, in the sources of user-mode Linux up to 6.12, of the bytes that it keeps of a program's vector
/// registers. Its size is that of AVX-512 with protection keys.
const REGISTERS: (&str, &str) = ("arch/x86/um/user-offsets.c", "DEFINE_LONGS(HOST_FP_SIZE, 2696)");
/// The same with space for the 11,008 bytes of processors with AMX (Intel's manual, volume 1, chapter 13:
/// CPUID leaf 0DH gives the size). A host refuses to restore a shorter state, so no program would run.
const MORE_REGISTERS: &str = "DEFINE_LONGS(HOST_FP_SIZE, 16384)";

/// Card of the guest that shows that the kernel starts.
const CHECK_CARD: &str = "transcend-16g-desktop";
const CHECK_BYTES: u64 = 64 << 20;

/// Intervals between progress reports of the build, and between checks for its end.
const PROGRESS: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);

/// The file systems of a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileSystems {
    /// Those of the study.
    #[default]
    Study,
    /// Also those that the study measures only if they are named.
    All,
}

/// Options of the verb.
#[derive(Debug, Default)]
pub struct Options {
    /// Kernel tree to build from; by default the distribution's package.
    pub tree: Option<PathBuf>,
    /// Package to build from instead, such as `linux-source-6.12`. Its kernel has a folder of its own.
    pub package: Option<String>,
    /// File systems of the kernel.
    pub file_systems: FileSystems,
    /// Number of parallel compilers; by default the number of processors.
    pub jobs: Option<usize>,
    /// True to build even if the same kernel exists already.
    pub force: bool,
}

/// Builds the guest's init if it is older than its source, and puts it beside the kernel.
pub fn with_agent(kernel: &Path) -> Result<PathBuf> {
    let agent = kernel.with_file_name("guest-agent");
    let built = initramfs::agent(Machine::Amd64)?;
    // Copied and renamed, so that a running guest keeps its own, and concurrent runs do not disturb each
    // other.
    let copy = tempfile::NamedTempFile::new_in(kernel.parent().context("the kernel lies in a directory")?)?;
    fs::copy(built, copy.path())?;
    copy.persist(&agent)?;
    Ok(agent)
}

/// Boots a guest on an empty card, and removes the kernel if that fails: another host, processor or policy of
/// this one may refuse the services that the kernel needs.
///
/// # Errors
/// The guest does not start; the reason is the end of its console.
pub fn check_start(kernel: &Path, agent: &Path) -> Result<()> {
    let profile = Profile::named(CHECK_CARD).and_then(|card| card.with_size(CHECK_BYTES))?;
    let setup = Setup {
        kernel: kernel.to_owned(),
        agent: agent.to_owned(),
        memory_mib: 256,
        queue_depth: 1,
        traits: systems::traits(&profile),
        pace: Pace::Virtual,
        seed: 1,
        limits: Limits::default(),
    };
    let card =
        Card::new(Model::new(profile, Condition::Preconditioned), Box::new(MemoryDevice::new(CHECK_BYTES)));
    match Uml::boot(&setup, card) {
        Ok(_) => Ok(()),
        Err(failure) => {
            fs::remove_file(kernel)?;
            bail!("the kernel does not start on this machine, and was removed: {failure}")
        }
    }
}

/// Inputs of a kernel's build. The record lies beside the kernel.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    /// The kernel's release.
    pub release: String,
    /// Package and its version, or the tree's path.
    pub source: String,
    /// SHA-256 of the requested configuration.
    pub wanted_sha256: String,
    /// SHA-256 of our module's source.
    #[serde(default)]
    pub module_sha256: String,
    /// SHA-256 of the resulting configuration.
    pub config_sha256: String,
    /// SHA-256 of the program.
    pub program_sha256: String,
    /// First line of the compiler's version.
    pub compiler: String,
    /// Requested options that this kernel does not have.
    pub missing: Vec<String>,
    /// Duration of the build in seconds.
    pub build_s: u64,
}

/// Builds the kernel into `var/uml`, or into a folder of a named package, unless it exists. Returns its program's
/// path.
pub fn build(options: &Options) -> Result<PathBuf> {
    let cache = var(&linux_source::folder(options.package.as_deref()))?;
    let program = cache.join("linux");
    let _lock = Lock::take(&cache)?;
    compile_random(&cache)?;
    let mut old = kept(&cache).filter(|record| !options.force && record.serves(options.file_systems));
    let has_all = old.as_ref().is_some_and(|record| record.serves(FileSystems::All));
    let wanted = wanted(if has_all { FileSystems::All } else { options.file_systems });
    // A kernel requested by its tree is a different one. A newer package alone does not justify a build of
    // minutes.
    let source = match (&old, &options.tree) {
        (Some(record), None) if record.module_sha256 == module_sha256() => {
            let (release, source) = (&record.release, &record.source);
            eprintln!("{}: Linux {release} of {source} is built already", program.display());
            return Ok(program);
        }
        (_, tree) => Source::choose(tree.as_deref(), options.package.as_deref())?,
    };
    old = old.filter(|record| record.source == source.name());
    if old.as_ref().is_some_and(|record| record.module_sha256 == module_sha256()) {
        return Ok(program);
    }

    let work = tempfile::tempdir_in(&cache)?;
    let tools = Tools::find(&cache)?;
    let tree = with_registers(source.tree(work.path())?, work.path())?;
    let build = work.path().join("build");
    fs::create_dir(&build)?;
    let (config, missing) = configure(&tree, &build, &tools, &wanted)?;
    let module = compile_module(&tree, &build, &tools)?;
    if let Some(record) = &mut old {
        record.module_sha256 = module_sha256();
        fs::rename(&module, cache.join(MODULE_FILE))?;
        record.keep(&cache)?;
        return Ok(program);
    }
    let started = Instant::now();
    compile(&tree, &build, &tools, options.jobs)?;
    let release = fs::read_to_string(build.join("include/config/kernel.release"))?.trim().to_owned();

    let built = build.join("linux");
    run(Command::new("strip").arg("--strip-debug").arg(&built))?;

    let record = Record {
        release,
        source: source.name(),
        wanted_sha256: sha256(wanted.as_bytes()),
        module_sha256: module_sha256(),
        config_sha256: sha256(config.as_bytes()),
        program_sha256: sha256(&fs::read(&built)?),
        compiler: compiler()?,
        missing,
        build_s: started.elapsed().as_secs(),
    };
    // The record is written last: a program without one is built anew.
    let _ = fs::remove_file(cache.join("linux.json"));
    fs::rename(&built, &program)?;
    fs::rename(&module, cache.join(MODULE_FILE))?;
    fs::write(cache.join("linux.config"), config)?;
    record.keep(&cache)?;
    eprintln!("{}: Linux {} of {}", program.display(), record.release, record.source);
    Ok(program)
}

/// Returns the requested configuration.
fn wanted(file_systems: FileSystems) -> String {
    match file_systems {
        FileSystems::Study => CONFIG.to_owned(),
        FileSystems::All => [CONFIG, MORE].concat(),
    }
}

impl Record {
    /// Returns true if the kernel was made from the current configuration. One with all file systems serves
    /// every request.
    fn serves(&self, file_systems: FileSystems) -> bool {
        let has = |file_systems| self.wanted_sha256 == sha256(wanted(file_systems).as_bytes());
        has(FileSystems::All) || has(file_systems)
    }

    fn keep(&self, cache: &Path) -> Result<()> {
        Ok(fs::write(cache.join("linux.json"), serde_json::to_vec_pretty(self)?)?)
    }
}

/// Returns the kernel built by an earlier run, whatever its configuration.
pub fn earlier() -> Option<PathBuf> {
    let cache = var("uml").ok()?;
    kept(&cache).map(|_| cache.join("linux"))
}

/// Returns the record of the kernel in the cache.
fn kept(cache: &Path) -> Option<Record> {
    cache.join("linux").exists().then_some(())?;
    serde_json::from_slice(&fs::read(cache.join("linux.json")).ok()?).ok()
}

/// Source of the kernel.
enum Source {
    Package(LinuxSource),
    Tree(PathBuf),
}

impl Source {
    fn choose(tree: Option<&Path>, package: Option<&str>) -> Result<Source> {
        if let Some(tree) = tree {
            let tree = tree.canonicalize().with_context(|| tree.display().to_string())?;
            if !tree.join("arch/um/Kconfig").exists() {
                bail!("{} is not a kernel tree: it has no arch/um", tree.display());
            }
            return Ok(Source::Tree(tree));
        }
        Ok(Source::Package(package.map_or_else(LinuxSource::find, LinuxSource::named)?))
    }

    fn name(&self) -> String {
        match self {
            Source::Package(package) => format!("{} {}", package.name, package.version),
            Source::Tree(path) => path.display().to_string(),
        }
    }

    /// Returns the tree to build from, which is not written to. The package's tree is kept, since the study
    /// fills volumes from it. If an older one was kept, the package is unpacked for the build.
    fn tree(&self, work: &Path) -> Result<PathBuf> {
        match self {
            Source::Package(package) => {
                let kept = LinuxSource::tree()?;
                let is_same = kept.file_name().is_some_and(|name| name == package.name.as_str());
                if is_same { Ok(kept) } else { package.unpack(work) }
            }
            Source::Tree(path) => Ok(path.clone()),
        }
    }
}

/// Returns a tree like `tree` in which the kernel keeps all vector registers of the host's processor, or `tree`
/// itself if its kernel asks the host for their size. `tree` is not written to: the result is made of symbolic
/// links in `work`, except for the one file that differs and the directories on the path to it.
fn with_registers(tree: PathBuf, work: &Path) -> Result<PathBuf> {
    let (file, size) = REGISTERS;
    let Ok(source) = fs::read_to_string(tree.join(file)) else { return Ok(tree) };
    if !source.contains(size) {
        return Ok(tree);
    }
    let copy = work.join("tree");
    let (mut from, mut to) = (tree, copy.clone());
    for name in Path::new(file) {
        fs::create_dir(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            if entry.file_name() != name {
                symlink(entry.path(), to.join(entry.file_name()))?;
            }
        }
        from.push(name);
        to.push(name);
    }
    fs::write(to, source.replace(size, MORE_REGISTERS))?;
    Ok(copy)
}

/// Location of the programs that the build needs, if they are not installed.
struct Tools {
    /// An unpacked tree with `usr/bin`.
    dir: PathBuf,
}

impl Tools {
    fn find(cache: &Path) -> Result<Tools> {
        let tools = Tools { dir: cache.join("tools") };
        for program in ["gcc", "make", "perl"] {
            if !on_path(program) {
                bail!("{program} is not installed, and the kernel cannot be built without it");
            }
        }
        let there = |program: &str| on_path(program) || tools.dir.join("usr/bin").join(program).exists();
        let lacking = TOOLS.iter().filter(|(program, _)| !there(program));
        let packages: Vec<String> =
            lacking.flat_map(|(_, packages)| packages.iter().map(|&name| name.to_owned())).collect();
        if !packages.is_empty() {
            let step = Step::begin(&format!("download {}", packages.join(", ")));
            fs::create_dir_all(&tools.dir)?;
            Apt::of_machine(&tools.dir).unpack(&packages, &tools.dir)?;
            step.end();
        }
        Ok(tools)
    }

    /// Sets the environment in which `command` finds the programs, and they their data.
    fn set(&self, command: &mut Command) {
        let (usr, path) = (self.dir.join("usr"), std::env::var("PATH").unwrap_or_default());
        command.env("LC_ALL", "C").env("PATH", format!("{path}:{}", usr.join("bin").display()));
        if usr.join("share/bison").exists() {
            command.env("BISON_PKGDATADIR", usr.join("share/bison"));
        }
        if usr.join("bin/m4").exists() {
            command.env("M4", usr.join("bin/m4"));
            command.env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"));
        }
    }
}

/// Makes the configuration. Returns it and the requested options that it does not have.
fn configure(tree: &Path, build: &Path, tools: &Tools, wanted: &str) -> Result<(String, Vec<String>)> {
    let step = Step::begin("configure the lab's kernel");
    let file = build.join("wanted.config");
    fs::write(&file, wanted)?;
    let mut make = make(tree, build, tools);
    make.arg("allnoconfig").env("KCONFIG_ALLCONFIG", &file);
    run(&mut make)?;
    let config = fs::read_to_string(build.join(".config"))?;
    let missing = missing(wanted, &config);
    for option in &missing {
        if NEEDED.iter().any(|needed| *option == format!("CONFIG_{needed}=y")) {
            bail!("this kernel has no {option}");
        }
        eprintln!("  this kernel has no {option}");
    }
    step.end();
    Ok((config, missing))
}

/// Returns the options of `wanted` that `config` lacks.
fn missing(wanted: &str, config: &str) -> Vec<String> {
    let set: std::collections::HashSet<&str> = config.lines().collect();
    let options = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    options.filter(|line| !set.contains(line)).map(str::to_owned).collect()
}

fn compile(tree: &Path, build: &Path, tools: &Tools, jobs: Option<usize>) -> Result<()> {
    let jobs = match jobs {
        Some(jobs) => jobs,
        None => std::thread::available_parallelism()?.get(),
    };
    let step =
        Step::begin(&format!("compile the lab's kernel (about 4 minutes of one processor, {jobs} at once)"));
    let log = build.join("log");
    let out = fs::File::create(&log)?;
    let mut make = make(tree, build, tools);
    make.arg(format!("-j{jobs}")).arg("linux");
    let mut make = make.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).spawn()?;
    let mut told = Instant::now();
    let status = loop {
        if let Some(status) = make.try_wait()? {
            break status;
        }
        if interrupt::check().is_err() {
            // Fails only if it has ended already.
            let _ = make.kill();
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            step.tell(&format!("{} files so far", objects(&fs::read_to_string(&log)?)));
        }
        thread::sleep(LOOK);
    };
    interrupt::check()?;
    if !status.success() {
        let text = fs::read_to_string(&log)?;
        let lines: Vec<&str> = text.lines().collect();
        bail!("the kernel does not build:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
    }
    step.end();
    Ok(())
}

/// Counts the files that make reports as compiled: `  CC      fs/f2fs/dir.o`.
fn objects(log: &str) -> usize {
    log.lines().filter(|line| line.trim_start().starts_with("CC ")).count()
}

/// Builds our module for the kernel that is configured there, and returns its path. The kernel need not be
/// built yet: the module's symbols are resolved when it is loaded.
fn compile_module(tree: &Path, build: &Path, tools: &Tools) -> Result<PathBuf> {
    let step = Step::begin("compile the lab's module (about 15 s)");
    run(make(tree, build, tools).arg("modules_prepare"))?;
    let dir = build.join("lab");
    fs::create_dir(&dir)?;
    for (name, text) in MODULE {
        fs::write(dir.join(name), text)?;
    }
    let mut make = make(tree, build, tools);
    make.arg(format!("M={}", dir.display())).arg("KBUILD_MODPOST_WARN=1").arg("modules");
    run(&mut make)?;
    let module = dir.join(MODULE_FILE);
    run(Command::new("strip").arg("--strip-debug").arg(&module))?;
    step.end();
    Ok(module)
}

/// Builds the library that gives the guest its random bytes, and puts it into the cache.
fn compile_random(cache: &Path) -> Result<()> {
    let work = tempfile::tempdir_in(cache)?;
    let (source, library) = (work.path().join("random.c"), work.path().join(RANDOM_BYTES));
    fs::write(&source, RANDOM)?;
    run(Command::new("gcc").args(["-O2", "-shared", "-fPIC", "-s", "-o"]).arg(&library).arg(&source))?;
    Ok(fs::rename(&library, cache.join(RANDOM_BYTES))?)
}

/// Makes a command of make for user-mode Linux, at the lowest priority.
fn make(tree: &Path, build: &Path, tools: &Tools) -> Command {
    let mut make = Command::new("nice");
    make.args(["make", "ARCH=um", "-C"]).arg(tree).arg(format!("O={}", build.display()));
    // Fixed values keep the date and the user's name out of the program.
    make.env("KBUILD_BUILD_TIMESTAMP", "2024-02-29").env("KBUILD_BUILD_USER", "lab");
    make.env("KBUILD_BUILD_HOST", "lab").env("KBUILD_BUILD_VERSION", "1");
    tools.set(&mut make);
    make
}

fn compiler() -> Result<String> {
    let text = run(Command::new("gcc").arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn module_sha256() -> String {
    sha256(MODULE.map(|(_, text)| text).concat().as_bytes())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_option_without_effect_is_reported_as_missing() {
        let config = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_AB=y\n";
        assert_eq!(missing("# why\nCONFIG_A=y\nCONFIG_B=y\n", config), ["CONFIG_B=y"]);
    }

    #[test]
    fn the_configuration_requests_every_needed_option() {
        for needed in NEEDED {
            assert!(CONFIG.lines().any(|line| line == format!("CONFIG_{needed}=y")), "{needed}");
        }
    }

    #[test]
    fn each_file_system_of_the_study_is_in_its_kernel() {
        let has = |config: &str, kind: &str| {
            let option = format!("CONFIG_{}_FS=y", kind.trim_end_matches("-fuse").to_uppercase());
            config.lines().any(|line| line == option)
        };
        for file_system in lab::plan::file_systems().iter().filter(|it| !it.is_ours()) {
            assert!(has(CONFIG, &file_system.kind), "{}", file_system.kind);
        }
        assert!(has(CONFIG, "fuse"), "ours as it is mounted");
        for kind in ["btrfs", "exfat", "xfs"] {
            assert!(has(MORE, kind) && !has(CONFIG, kind), "{kind}");
        }
    }

    #[test]
    fn a_kernel_with_all_file_systems_serves_every_study_and_an_outdated_one_none() {
        let of = |config: &str| Record {
            release: "6.1".into(),
            source: "linux-source-6.1 6.1.1".into(),
            wanted_sha256: sha256(config.as_bytes()),
            module_sha256: String::new(),
            config_sha256: String::new(),
            program_sha256: String::new(),
            compiler: String::new(),
            missing: Vec::new(),
            build_s: 0,
        };
        let serves =
            |config: &str| [FileSystems::Study, FileSystems::All].map(|wanted| of(config).serves(wanted));
        assert_eq!(serves(&wanted(FileSystems::All)), [true, true]);
        assert_eq!(serves(&wanted(FileSystems::Study)), [true, false]);
        assert_eq!(serves("CONFIG_F2FS_FS=y\n"), [false, false]);
    }

    #[test]
    fn compiled_files_are_counted() {
        let log = "  SYNC    include/config/auto.conf\n  CC      fs/f2fs/dir.o\n  CC      fs/f2fs/file.o\n  AR      fs/f2fs/built-in.a\n";
        assert_eq!(objects(log), 2);
    }

    #[test]
    fn a_kernel_is_built_with_space_for_more_registers_and_its_tree_stays_as_it_is() {
        let (dir, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tree = dir.path().to_owned();
        let (file, size) = REGISTERS;
        fs::create_dir_all(tree.join("arch/x86/um")).unwrap();
        fs::create_dir(tree.join("fs")).unwrap();
        fs::write(tree.join("fs/Kconfig"), "menu").unwrap();
        fs::write(tree.join("arch/x86/um/Makefile"), "obj-y").unwrap();
        fs::write(tree.join(file), format!("\t{size};\n")).unwrap();

        let changed = with_registers(tree.clone(), work.path()).unwrap();
        let read = |path: &str| fs::read_to_string(changed.join(path)).unwrap();
        assert_eq!(read(file), format!("\t{MORE_REGISTERS};\n"));
        assert_eq!([read("fs/Kconfig"), read("arch/x86/um/Makefile")], ["menu", "obj-y"]);
        assert_eq!(fs::read_to_string(tree.join(file)).unwrap(), format!("\t{size};\n"));

        fs::write(tree.join(file), "host_fp_size").unwrap();
        assert_eq!(with_registers(tree.clone(), work.path()).unwrap(), tree);
    }

    #[test]
    fn a_kernel_that_does_not_start_is_removed_with_the_end_of_its_console() {
        let dir = tempfile::tempdir().unwrap();
        let (kernel, agent) = (dir.path().join("linux"), dir.path().join("guest-agent"));
        fs::write(&kernel, "#!/bin/sh\necho 'userspace - ptrace set fp regs failed'\nexit 1\n").unwrap();
        fs::set_permissions(&kernel, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&agent, "").unwrap();

        let error = check_start(&kernel, &agent).unwrap_err().to_string();
        assert!(error.contains("does not start on this machine"), "{error}");
        assert!(error.contains("ptrace set fp regs failed"), "{error}");
        assert!(!kernel.exists());
    }

    #[test]
    fn a_directory_that_is_not_a_kernel_tree_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = Source::choose(Some(dir.path()), None).err().unwrap();
        assert!(error.to_string().contains("not a kernel tree"), "{error}");
    }
}
