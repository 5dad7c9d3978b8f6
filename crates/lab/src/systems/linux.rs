//! The kernel's file systems: user-mode Linux in virtual time.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use block::{Device, FileDevice, Geometry, OpenOptions, vhost_user::Traits};
use flash::{Condition, Model, Pace, Profile, Trace, counters::Counters};
use guest::{Bytes, Op, op::Answer};

use super::{
    GET_KERNEL, MOUNT_POINT, Setting, THROUGH_FUSE, Target,
    chip::{self, ChipRequest, Records, Told},
    cleaner, engine,
};
use crate::{
    preset::Preset,
    scale::Scale,
    vm::{Card, Failure, Limits, Measured, Setup, Uml, host_file, host_files},
    wear::Wear,
};

/// Queue directory of the guest's disk that is the card.
const QUEUE: &str = "/sys/block/vda/queue";

/// Error of mount(2) for a file system unknown to the kernel: ENODEV.
const NO_SUCH_DEVICE: i32 = 19;

/// Maximum length in bytes of a program's name in the kernel (proc(5), comm).
const NAME_BYTES: usize = 15;

/// Data of the card.
enum Data {
    /// A file, opened at each boot.
    File(PathBuf),
    /// A device of this process.
    Device(Arc<dyn Device>),
}

/// A guest with the card, and its settings.
pub struct GuestTarget {
    uml: Option<Uml<Model>>,
    setting: Setting,
    data: Data,
    /// Counters of the card when the previous guest ended.
    counted: Counters,
    /// Counters of raw flash so far.
    told: Option<Told>,
    /// Host processes that run the guest's init.
    own_programs: BTreeSet<u32>,
    /// Process ID of the cleaner of the mounted volume.
    cleaner: Option<u32>,
}

impl GuestTarget {
    /// Formats the file `image`, and boots a guest on it.
    ///
    /// # Errors
    /// Formatting or booting fails.
    pub fn start(setting: &Setting, image: &Path) -> Result<GuestTarget, Failure> {
        match setting.preset.is_raw() {
            // Erased flash is an empty file system, and is in the guest's memory.
            true => drop(FileDevice::create(image, setting.profile.size_bytes)?),
            false if setting.file_system.is_ours() => drop(engine::make(setting, image)?),
            false => setting.file_system.format(image, setting.profile.size_bytes)?,
        }
        GuestTarget::start_on(setting, image)
    }

    /// Boots a guest on the file `image`, which contains a volume.
    pub(super) fn start_on(setting: &Setting, image: &Path) -> Result<GuestTarget, Failure> {
        GuestTarget::with_data(setting, Data::File(image.to_owned()))
    }

    /// Boots a guest on a device, which contains a volume.
    ///
    /// # Errors
    /// Booting fails.
    pub(crate) fn start_on_device(
        setting: &Setting,
        device: Arc<dyn Device>,
    ) -> Result<GuestTarget, Failure> {
        GuestTarget::with_data(setting, Data::Device(device))
    }

    fn with_data(setting: &Setting, data: Data) -> Result<GuestTarget, Failure> {
        let mut target = GuestTarget {
            uml: None,
            setting: setting.clone(),
            data,
            counted: Counters::default(),
            told: None,
            own_programs: BTreeSet::new(),
            cleaner: None,
        };
        target.boot(Model::new(setting.profile.clone(), Condition::Preconditioned))?;
        Ok(target)
    }

    fn boot(&mut self, model: Model) -> Result<(), Failure> {
        let Setting { profile, preset, scale, programs, stop, pace, seed, .. } = &self.setting;
        let programs = programs.as_ref().ok_or_else(|| {
            let what = format!("the kernel for the lab's guest is missing; {GET_KERNEL}");
            io::Error::new(io::ErrorKind::NotFound, what)
        })?;
        let data: Box<dyn Device> = match &self.data {
            Data::File(image) => {
                Box::new(FileDevice::open(image, OpenOptions { write: true, direct: false })?)
            }
            Data::Device(device) => Box::new(device.clone()),
        };
        let (records, log_bytes) = match self.setting.traced {
            true => (Records::Kept, chip::LOG_BYTES),
            false => (Records::None, 0),
        };
        let setup = Setup {
            kernel: programs.kernel.clone(),
            agent: programs.agent.clone(),
            memory_mib: preset.memory_mib(scale)
                + if preset.is_raw() { ((profile.size_bytes + log_bytes) >> 20) as u32 } else { 0 },
            queue_depth: profile.host.queue_depth,
            traits: traits(profile),
            pace: *pace,
            seed: *seed,
            limits: Limits { stop: stop.clone(), ..Limits::default() },
        };
        let card = Card::new(model, data);
        let mut uml = Uml::boot(&setup, if self.setting.traced { card.traced() } else { card })?;
        for op in tunes(*preset, profile, scale) {
            uml.run(&op)?;
        }
        if preset.is_raw() {
            chip::plug(&mut uml, &programs.kernel, profile, records)?;
            if self.setting.file_system.kind == "ubifs" {
                chip::attach_ubi(&mut uml)?;
            }
            self.told = Some(chip::told(&mut uml)?);
        }
        if self.is_through_fuse() || self.has_cleaner() {
            uml.run(&host_files())?;
        }
        if self.has_cleaner() {
            cleaner::prepare(&mut uml)?;
            uml.run(&Op::WaitForRoom)?;
        }
        self.cleaner = None;
        self.own_programs = uml.programs().unwrap_or_default();
        self.uml = Some(uml);
        Ok(())
    }

    fn is_through_fuse(&self) -> bool {
        self.setting.file_system.kind == THROUGH_FUSE
    }

    /// Returns true if a program cleans the mounted volume.
    fn has_cleaner(&self) -> bool {
        self.setting.cleaned && self.setting.file_system.kind == "nilfs2"
    }

    fn uml(&mut self) -> Result<&mut Uml<Model>, Failure> {
        self.uml.as_mut().ok_or_else(|| io::Error::other("the guest did not come up again").into())
    }

    /// Runs one operation. For our own file system it adds the steps of a guest whose kernel does not know
    /// it.
    fn perform(&mut self, op: &Op) -> Result<Measured, Failure> {
        match op {
            Op::Mount { source, dir, options, .. } if self.is_through_fuse() => {
                self.mount_through_fuse(source, dir, options)
            }
            // sync(2) makes the kernel write its cache back, but does not reach a FUSE file system before
            // Linux 6.18.
            Op::Sync if self.is_through_fuse() => {
                let written = self.uml()?.run(op)?;
                let synced = self.uml()?.run(&Op::Fsync { path: MOUNT_POINT.into(), data_only: false })?;
                Ok(written.and(synced))
            }
            Op::Mount { source, dir, .. } if self.has_cleaner() => {
                let mounted = self.uml()?.run(op)?;
                let text = |path: &Bytes| path.as_path().display().to_string();
                self.cleaner = Some(cleaner::start(self.uml()?, &text(source), &text(dir))?);
                Ok(mounted)
            }
            Op::Unmount { .. } => {
                if let Some(process) = self.cleaner.take() {
                    cleaner::end(self.uml()?, process)?;
                }
                self.uml()?.run(op)
            }
            Op::Mount { fs, .. } => self.uml()?.run(op).map_err(|failure| of_mount(failure, fs)),
            _ => self.uml()?.run(op),
        }
    }

    /// Runs our mount program, which returns when the volume is mounted.
    fn mount_through_fuse(
        &mut self,
        source: &Bytes,
        dir: &Bytes,
        options: &str,
    ) -> Result<Measured, Failure> {
        let program = self.setting.programs.as_ref().and_then(|programs| programs.flashkit.as_ref());
        let program = host_file(program.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "the program that mounts our file system was not found")
        })?)?;
        let mut arguments: Vec<Bytes> = vec!["mount".into()];
        if !options.is_empty() {
            arguments.extend(["-o".into(), options.into()]);
        }
        arguments.extend(["--".into(), source.clone(), dir.clone()]);
        let mut measured = self.uml()?.run(&Op::Execute { program: program.as_str().into(), arguments })?;
        match measured.answer.take() {
            Some(Answer::Output { code: 0, .. }) => Ok(measured),
            Some(Answer::Output { stderr, .. }) => {
                let error = String::from_utf8_lossy(&stderr.0).trim().to_owned();
                Err(Failure::Refused { op: "flashkit mount".into(), errno: 0, error })
            }
            other => Err(io::Error::other(format!("unexpected answer to a mount: {other:?}")).into()),
        }
    }

    /// Replaces the content of bare flash, which nothing uses.
    pub(crate) fn load_chip(&mut self, content: &[u8]) -> Result<(), Failure> {
        chip::load(self.uml()?, content)
    }

    /// Returns the content of bare flash.
    pub(crate) fn chip_content(&mut self) -> Result<Vec<u8>, Failure> {
        chip::content(self.uml()?)
    }

    /// Begins the records of bare flash anew.
    pub(crate) fn forget_records(&mut self) -> Result<(), Failure> {
        chip::forget_records(self.uml()?)
    }

    /// Returns the programs and erases since then.
    pub(crate) fn records(&mut self) -> Result<Vec<ChipRequest>, Failure> {
        chip::records(self.uml()?)
    }

    /// Attaches bare flash to UBI with the volumes that are on it.
    pub(crate) fn find_ubi(&mut self) -> Result<Measured, Failure> {
        chip::find_ubi(self.uml()?)
    }

    /// Detaches bare flash from UBI.
    pub(crate) fn detach_ubi(&mut self) -> Result<(), Failure> {
        chip::detach_ubi(self.uml()?)
    }

    /// Returns the erase count of each sector of bare flash.
    pub(crate) fn chip_wear(&mut self) -> Result<Vec<u32>, Failure> {
        Ok(chip::told(self.uml()?)?.wear)
    }

    /// Number of requests since the last boot, reads included, if they are recorded; of bare flash, the programs and
    /// erases at the end of the last operation.
    pub(crate) fn requests(&self) -> usize {
        if let Some(told) = &self.told {
            return told.changes() as usize;
        }
        let trace = self.uml.as_ref().and_then(|uml| uml.events().card().trace());
        trace.map_or(0, |trace| trace.entries.len())
    }

    /// Returns the memory of the process that serves our mount, in bytes; 0 if it has ended.
    pub(crate) fn daemon_bytes(&mut self) -> Result<u64, Failure> {
        let programs = self.setting.programs.as_ref();
        let program = programs.and_then(|it| it.flashkit.as_ref()?.file_name());
        let mut name = program.unwrap_or_default().as_encoded_bytes().to_vec();
        name.truncate(NAME_BYTES);
        let name = String::from_utf8_lossy(&name).into_owned();
        match self.uml()?.run(&Op::Memory { name })?.answer {
            Some(Answer::Memory(bytes)) => Ok(bytes),
            other => Err(io::Error::other(format!(
                "unexpected answer to a request for a program's memory: \
                {other:?}"
            ))
            .into()),
        }
    }

    /// Processor time of the guest's programs outside its kernel so far, without its init: running and ended
    /// ones. `None` if the host does not report it.
    pub fn computed_ns(&self) -> Option<u64> {
        let uml = self.uml.as_ref()?;
        let programs = uml.programs()?;
        let running = programs.iter().filter(|program| !self.own_programs.contains(program));
        let running_ns: u64 = running.filter_map(|program| uml.computed_ns(*program)).sum();
        Some(running_ns + uml.ended_computed_ns()?)
    }

    /// Returns true if the costs include those of the process that serves our mount.
    fn counts_daemon(&self) -> bool {
        self.setting.pace == Pace::RealTime && self.is_through_fuse()
    }
}

impl Target for GuestTarget {
    fn run(&mut self, op: &Op) -> Result<Measured, Failure> {
        let before_ns = if self.counts_daemon() { self.computed_ns() } else { None };
        let mut measured = self.perform(op)?;
        if self.counts_daemon() {
            // The processor time of ended processes is less exact than that of running ones.
            let used_ns =
                self.computed_ns().zip(before_ns).map(|(after, before)| after.saturating_sub(before));
            measured.cpu_ns = measured.cpu_ns.zip(used_ns).map(|(kernel_ns, used_ns)| kernel_ns + used_ns);
        }
        if let (Some(uml), Some(before)) = (&mut self.uml, &mut self.told) {
            let after = chip::told(uml)?;
            measured.totals = after.totals().since(&before.totals());
            *before = after;
        }
        Ok(measured)
    }

    fn reboot(&mut self) -> Result<(), Failure> {
        if self.told.is_some() {
            let what = "a reboot would lose bare flash, which is in the guest's memory";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what).into());
        }
        let Some(uml) = self.uml.take() else { return Ok(()) };
        self.counted = uml.events().card().model().counters().clone();
        let state = uml.events().card().model().state().clone();
        drop(uml);
        self.boot(Model::resume(self.setting.profile.clone(), state))
    }

    fn counters(&self) -> Counters {
        if let Some(told) = &self.told {
            return told.counters(&self.setting.profile);
        }
        match &self.uml {
            Some(uml) => uml.events().card().model().counters().clone(),
            None => self.counted.clone(),
        }
    }

    fn wear(&self) -> Option<Wear> {
        match &self.told {
            Some(told) => Some(Wear::of_blocks(&told.wear)),
            None => Some(Wear::of_array(self.uml.as_ref()?.events().card().model().array())),
        }
    }

    fn trace(&self) -> Option<Trace> {
        self.uml.as_ref()?.events().card().trace().cloned()
    }

    fn kernel_memory(&mut self) -> Result<Option<u64>, Failure> {
        if self.setting.pace == Pace::Virtual {
            return Ok(None);
        }
        let Some(Answer::Content(text)) = self.uml()?.run(&Op::Read { path: "/proc/meminfo".into() })?.answer
        else {
            return Ok(None);
        };
        let of_daemon = if self.counts_daemon() { self.daemon_bytes()? } else { 0 };
        Ok(kernel_bytes(&String::from_utf8_lossy(&text.0)).map(|kernel| kernel + of_daemon))
    }
}

/// Adds a remedy if the guest's kernel does not know the file system.
fn of_mount(failure: Failure, fs: &str) -> Failure {
    match failure {
        Failure::Refused { op, errno: NO_SUCH_DEVICE, error } => {
            let error = format!(
                "{error}: the lab's kernel does not know {fs}; cargo xtask uml-kernel --all builds one with btrfs, \
                 exfat and xfs"
            );
            Failure::Refused { op, errno: NO_SUCH_DEVICE, error }
        }
        other => other,
    }
}

/// Returns the memory that is neither free nor holds pages of files or programs (proc(5), meminfo).
fn kernel_bytes(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let others = kib("MemFree")? + kib("Buffers")? + kib("Cached")? + kib("AnonPages")?;
    Some(kib("MemTotal")?.saturating_sub(others) << 10)
}

/// Returns the settings that give a guest's kernel the limits of a machine.
pub(super) fn tunes(preset: Preset, profile: &Profile, scale: &Scale) -> Vec<Op> {
    let dirty = preset.dirty_bytes(scale);
    let values = [
        (format!("{QUEUE}/max_sectors_kb"), u64::from(profile.host.max_request_bytes / 1024)),
        ("/proc/sys/vm/dirty_background_bytes".into(), dirty.0),
        ("/proc/sys/vm/dirty_bytes".into(), dirty.1),
    ];
    let tune = |(path, value): (String, u64)| Op::Tune {
        path: path.as_str().into(),
        value: value.to_string().as_str().into(),
    };
    values.into_iter().map(tune).collect()
}

/// Returns the properties of the guest's disk for a card of this profile.
pub fn traits(profile: &Profile) -> Traits {
    Traits {
        geometry: Geometry { size_bytes: profile.size_bytes, sector_bytes: 512 },
        serial: "card".into(),
        write_cache: profile.host.flush,
        discard: profile.host.discard,
        read_only: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_unknown_to_the_kernel_is_reported_with_a_remedy() {
        let refused = |errno| Failure::Refused { op: "mount".into(), errno, error: "error".into() };
        let text = of_mount(refused(NO_SUCH_DEVICE), "xfs").to_string();
        assert!(text.contains("does not know xfs; cargo xtask uml-kernel --all"), "{text}");
        assert_eq!(of_mount(refused(22), "xfs").to_string(), refused(22).to_string());
    }

    #[test]
    fn the_kernels_own_memory_is_the_unaccounted_rest() {
        let text =
            "MemTotal:  1000 kB\nMemFree:  500 kB\nBuffers:  50 kB\nCached:  150 kB\nAnonPages:  100 kB\n";
        assert_eq!(kernel_bytes(text), Some(200 << 10));
        assert_eq!(kernel_bytes("MemTotal: 1000 kB\n"), None);
    }
}
