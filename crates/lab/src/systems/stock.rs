//! The kernel's file systems without virtual time: a stock kernel in QEMU, on the modelled card in real time.

use std::{
    io,
    path::{Path, PathBuf},
};

use block::{FileDevice, OpenOptions};
use flash::{Card, Condition, Model, Pace, Trace, counters::Counters};
use guest::Op;

use super::{Setting, Target, engine::totals, linux::tunes};
use crate::{
    vm::{Failure, Limits, Measured, Qemu, QemuSetup},
    wear::Wear,
};

/// A guest with the card, and its settings.
pub struct StockTarget {
    qemu: Option<Qemu>,
    setting: Setting,
    image: PathBuf,
    /// Counters of the card when the previous guest ended.
    counted: Counters,
}

impl StockTarget {
    /// Formats the file `image`, and boots a guest on it.
    ///
    /// # Errors
    /// Formatting or booting fails.
    pub(super) fn start(setting: &Setting, image: &Path) -> Result<StockTarget, Failure> {
        setting.file_system.format(image, setting.profile.size_bytes)?;
        StockTarget::start_on(setting, image)
    }

    /// Boots a guest on the file `image`, which contains a volume.
    pub(super) fn start_on(setting: &Setting, image: &Path) -> Result<StockTarget, Failure> {
        if setting.preset.is_raw() {
            let what = "QEMU does not model the time of bare flash";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what).into());
        }
        let image = image.to_owned();
        let mut target =
            StockTarget { qemu: None, setting: setting.clone(), image, counted: Counters::default() };
        target.boot(Model::new(setting.profile.clone(), Condition::Preconditioned))?;
        Ok(target)
    }

    fn boot(&mut self, model: Model) -> Result<(), Failure> {
        let Setting { profile, preset, scale, programs, stop, .. } = &self.setting;
        let programs = programs.as_ref().expect("this target has programs");
        let data = FileDevice::open(&self.image, OpenOptions { write: true, direct: false })?;
        let setup = QemuSetup {
            kernel: programs.kernel.clone(),
            initial: programs.agent.clone(),
            memory_mib: preset.memory_mib(scale),
            profile: profile.clone(),
            limits: Limits { stop: stop.clone(), ..Limits::default() },
        };
        let card = Card::from_parts(model, Box::new(data), Pace::RealTime);
        if self.setting.traced {
            card.start_trace();
        }
        let mut qemu = Qemu::boot(&setup, card)?;
        for op in tunes(*preset, profile, scale) {
            qemu.run(&op)?;
        }
        self.qemu = Some(qemu);
        Ok(())
    }
}

impl Target for StockTarget {
    fn run(&mut self, op: &Op) -> Result<Measured, Failure> {
        let before = totals(&self.counters());
        let Some(qemu) = &mut self.qemu else {
            return Err(io::Error::other("the guest did not come up again").into());
        };
        let measured = qemu.run(op)?;
        Ok(Measured { totals: totals(&self.counters()).since(&before), ..measured })
    }

    fn reboot(&mut self) -> Result<(), Failure> {
        let Some(qemu) = self.qemu.take() else { return Ok(()) };
        self.counted = qemu.card().with_model(|model| model.counters().clone());
        let state = qemu.card().with_model(|model| model.state().clone());
        drop(qemu);
        self.boot(Model::resume(self.setting.profile.clone(), state))
    }

    fn counters(&self) -> Counters {
        match &self.qemu {
            Some(qemu) => qemu.card().with_model(|model| model.counters().clone()),
            None => self.counted.clone(),
        }
    }

    fn wear(&self) -> Option<Wear> {
        Some(self.qemu.as_ref()?.card().with_model(|model| Wear::of_array(model.array())))
    }

    fn trace(&self) -> Option<Trace> {
        self.qemu.as_ref()?.card().trace()
    }
}
