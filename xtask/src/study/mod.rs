//! The whole study, in the order in which its results become available.
//!
//! Our own file system needs no kernel, so its tables come first, and the lab's kernel is built meanwhile at
//! the lowest priority. Then come the kernel's file systems, and a real tree last.
//!
//! *Invariant*: a part that fails does not prevent the results of another. The study then fails in the end
//! with the reason.

pub mod filling;
pub mod linux_source;
pub mod measure;
pub mod real_tree;
pub mod uml_kernel;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, anyhow, bail};
use lab::systems::OURS;

use crate::{
    Machine, interrupt,
    judge::initramfs,
    judge::kernel::Kernel,
    judge::stock_guest,
    step::Step,
    workspace::{root, var},
};

/// Guest for the kernel's file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guest {
    /// A guest is available.
    Ready,
    /// No guest is available; the reason has been printed.
    Missing,
}

/// The parts of the study.
trait Parts: Sync {
    /// Measures our own file system.
    fn own_cells(&self) -> Result<()>;
    /// Builds the guest. Runs beside [`own_cells`](Parts::own_cells).
    fn guest(&self) -> Guest;
    /// Measures all file systems. Existing figures are kept.
    fn all_cells(&self) -> Result<()>;
    /// Fills a volume from a real tree.
    fn tree(&self) -> Result<()>;
}

/// Runs the study, and leaves its records in `var/study`.
///
/// # Errors
/// A part failed; the others were run.
pub fn run() -> Result<()> {
    filling::build()?;
    in_order(&Machinery { records: var("study")?.join("lab") })
}

fn in_order(parts: &impl Parts) -> Result<()> {
    let mut failures = Vec::new();
    let mut note = |what: &str, result: Result<()>| {
        if let Err(error) = result {
            failures.push(format!("{what}: {error:#}"));
        }
    };
    let guest = thread::scope(|scope| {
        let guest = scope.spawn(|| parts.guest());
        note("our own file system", parts.own_cells());
        guest.join()
    });
    interrupt::check()?;
    match guest.map_err(|_| anyhow!("the guest's build panicked"))? {
        Guest::Ready => note("all file systems", parts.all_cells()),
        Guest::Missing => {}
    }
    interrupt::check()?;
    note("a real tree", parts.tree());
    match failures.is_empty() {
        true => Ok(()),
        false => bail!("{}", failures.join("\n")),
    }
}

/// The parts on this machine.
struct Machinery {
    /// Directory of the lab's records.
    records: PathBuf,
}

impl Machinery {
    /// Runs `flashkit study`, whose tables go to standard output.
    fn cells(&self, what: &str, more: &[&str]) -> Result<()> {
        let step = Step::begin(what);
        let mut study = Command::new(filling::our_program());
        study.arg("study").arg("-o").arg(&self.records).args(more).current_dir(root()).stdin(Stdio::null());
        let status = study.status().context("cannot start flashkit")?;
        interrupt::check()?;
        if !status.success() {
            bail!("flashkit study: {status}; the reasons are above");
        }
        step.end();
        Ok(())
    }
}

impl Parts for Machinery {
    fn own_cells(&self) -> Result<()> {
        self.cells("measure our own file system, while the lab's kernel is built", &["--fs", OURS])
    }

    fn guest(&self) -> Guest {
        let guest = exact_guest().or_else(|error| {
            eprintln!(
                "\nstudy: THERE IS NO KERNEL FOR THE LAB: {error:#}\n\
                 `cargo xtask uml-kernel` tries again. Until then the kernel's file systems run in QEMU, whose figures are \
                 indicative, and bare flash and our own mount are left out.\n"
            );
            stock_guest::prepare().map(drop)
        });
        if let Err(error) = &guest {
            eprintln!("\nstudy: THERE IS NO GUEST, so only our own file system is measured: {error:#}\n");
        }
        // The judge for the tree. The tree's part reports if it is missing.
        let judge = Kernel::find(Machine::Amd64).and_then(|kernel| initramfs::build(Machine::Amd64, &kernel));
        drop(judge);
        if guest.is_ok() { Guest::Ready } else { Guest::Missing }
    }

    fn all_cells(&self) -> Result<()> {
        self.cells("measure all file systems", &[])
    }

    fn tree(&self) -> Result<()> {
        real_tree::run(None)
    }
}

/// Prepares user-mode Linux, and starts it once. If it cannot be built anew, uses that of an earlier run.
fn exact_guest() -> Result<()> {
    let kernel = uml_kernel::build(&uml_kernel::Options::default()).or_else(|error| {
        let earlier = uml_kernel::earlier().ok_or(error)?;
        eprintln!("{}: used, because no newer kernel can be built", earlier.display());
        anyhow::Ok(earlier)
    })?;
    let agent = uml_kernel::with_agent(&kernel)?;
    uml_kernel::check_start(&kernel, &agent)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    };

    use super::*;

    /// Parts that record their order. The guest is ready only after our own cells are measured.
    struct Noted {
        order: Mutex<Vec<&'static str>>,
        own_is_done: (Sender<()>, Mutex<Receiver<()>>),
        guest: Guest,
        fails: &'static str,
    }

    impl Noted {
        fn new(guest: Guest, fails: &'static str) -> Noted {
            let (send, receive) = channel();
            Noted { order: Mutex::default(), own_is_done: (send, Mutex::new(receive)), guest, fails }
        }

        fn note(&self, part: &'static str) -> Result<()> {
            self.order.lock().unwrap().push(part);
            if self.fails == part { bail!("{part} fails") } else { Ok(()) }
        }

        fn order(&self) -> Vec<&'static str> {
            self.order.lock().unwrap().clone()
        }
    }

    impl Parts for Noted {
        fn own_cells(&self) -> Result<()> {
            let done = self.note("own");
            self.own_is_done.0.send(()).unwrap();
            done
        }

        fn guest(&self) -> Guest {
            self.own_is_done.1.lock().unwrap().recv().unwrap();
            self.note("guest").unwrap();
            self.guest
        }

        fn all_cells(&self) -> Result<()> {
            self.note("all")
        }

        fn tree(&self) -> Result<()> {
            self.note("tree")
        }
    }

    #[test]
    fn our_own_tables_need_no_kernel_and_the_tree_comes_last() {
        let parts = Noted::new(Guest::Ready, "");
        in_order(&parts).unwrap();
        assert_eq!(parts.order(), ["own", "guest", "all", "tree"]);
    }

    #[test]
    fn without_a_guest_the_study_continues_with_the_tree_and_succeeds() {
        let parts = Noted::new(Guest::Missing, "");
        in_order(&parts).unwrap();
        assert_eq!(parts.order(), ["own", "guest", "tree"]);
    }

    #[test]
    fn a_failed_part_stops_no_other_and_fails_the_study() {
        for part in ["own", "all", "tree"] {
            let parts = Noted::new(Guest::Ready, part);
            let error = in_order(&parts).unwrap_err().to_string();
            assert!(error.contains(&format!("{part} fails")), "{error}");
            assert_eq!(parts.order(), ["own", "guest", "all", "tree"]);
        }
    }
}
