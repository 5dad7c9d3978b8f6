//! Transactions: the way to change files, names and attributes.
//!
//! *Invariant*: a public change reaches the layers below only through a [`Step`], and only this module makes one: after
//! the volume has admitted the change, and with the rights of its caller.

use fscrypt::KeyName;

use super::{Engine, Limits};
use crate::{Result, files::Files, names::Names, units::Ino};

/// The caller of a transaction, with its rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The quota limits that hold for it.
    pub limits: Limits,
}

impl Caller {
    /// An administrator (`CAP_SYS_RESOURCE`), or a program that has the volume for itself: it may exceed quota limits.
    pub const ADMIN: Caller = Caller { limits: Limits::Exempt };
    /// Everyone else: the quota limits of the volume hold.
    pub const USER: Caller = Caller { limits: Limits::Enforced };
}

/// A change of the volume on behalf of a [`Caller`]; [`Engine::begin`] makes one.
///
/// Nothing else changes files, names and attributes. Each operation consumes its transaction, because the volume does its
/// [upkeep](Engine::begin_upkeep) between two of them:
///
/// ```compile_fail
/// # use f2fs::{Result, engine::{Caller, Engine}, units::Ino};
/// fn twice(volume: &mut Engine, dir: Ino) -> Result<()> {
///     let transaction = volume.begin(Caller::ADMIN);
///     transaction.unlink(dir, b"one")?;
///     transaction.unlink(dir, b"two") // the transaction has ended
/// }
/// ```
///
/// With one transaction for each operation it compiles:
///
/// ```
/// # use f2fs::{Result, engine::{Caller, Engine}, units::Ino};
/// fn both(volume: &mut Engine, dir: Ino) -> Result<()> {
///     volume.begin(Caller::ADMIN).unlink(dir, b"one")?;
///     volume.begin(Caller::ADMIN).unlink(dir, b"two")
/// }
/// ```
///
/// A checkpoint has all of an operation or nothing of it. The exceptions are operations on large ranges and on several
/// directories, which state the parts that they are done in.
///
/// # Errors
/// All operations fail as [every change](Engine#errors) does.
#[must_use = "a transaction changes nothing before one of its operations is called"]
pub struct Transaction<'e> {
    engine: &'e mut Engine,
    caller: Caller,
}

impl Engine {
    /// Begins a change of the volume with the rights of `caller`. The volume admits or refuses the change when the
    /// operation is called.
    pub fn begin(&mut self, caller: Caller) -> Transaction<'_> {
        Transaction { engine: self, caller }
    }
}

impl Transaction<'_> {
    /// The volume, for reading.
    pub(super) fn engine(&self) -> &Engine {
        self.engine
    }

    /// Has the volume admit the change, and gives access to the layers that make it.
    pub(super) fn step(&mut self) -> Result<Step<'_>> {
        self.engine.admit_change()?;
        let mut step = Step { engine: &mut *self.engine, caller: self.caller };
        step.set_limits(self.caller.limits);
        Ok(step)
    }

    /// Continues a change whose first part the volume has admitted. No upkeep and so no checkpoint comes in between.
    pub(super) fn continued_step(&mut self) -> Result<Step<'_>> {
        self.engine.start()?;
        let mut step = Step { engine: &mut *self.engine, caller: self.caller };
        step.set_limits(self.caller.limits);
        Ok(step)
    }

    /// Removes the keys of a name in memory. Returns true if there was one.
    pub(super) fn forget_key(&mut self, name: &KeyName) -> bool {
        let was_there = self.engine.disk_mut().remove_key(name);
        self.engine.files_mut().forget_ciphers();
        was_there
    }

    /// Undoes one [`Engine::hold`] in memory. Returns true if the inode is to be removed now.
    pub(super) fn end_hold(&mut self, ino: Ino) -> bool {
        self.engine.names_mut().release(ino)
    }
}

/// The part of a transaction between two times at which a checkpoint can be written. The limits of the caller hold as long
/// as it exists.
pub(super) struct Step<'t> {
    engine: &'t mut Engine,
    caller: Caller,
}

impl Step<'_> {
    /// The volume, for reading.
    pub(super) fn engine(&self) -> &Engine {
        self.engine
    }

    /// The names of the volume, to change them.
    pub(super) fn names(&mut self) -> &mut Names {
        self.engine.names_mut()
    }

    /// The files of the volume, to change them.
    pub(super) fn files(&mut self) -> &mut Files {
        self.engine.files_mut()
    }

    /// Ends this step and begins the next one.
    pub(super) fn renew(&mut self) -> Result<()> {
        self.exempt(Engine::admit_change)
    }

    /// Frees space for the rest of the operation, by a checkpoint if necessary.
    pub(super) fn free_space(&mut self) -> Result<()> {
        self.exempt(Engine::free_space)
    }

    /// Has the volume do work of its own, such as a checkpoint, which is subject to no limit.
    fn exempt(&mut self, work: impl FnOnce(&mut Engine) -> Result<()>) -> Result<()> {
        self.set_limits(Limits::Exempt);
        let result = work(self.engine);
        self.set_limits(self.caller.limits);
        result
    }

    fn set_limits(&mut self, limits: Limits) {
        self.engine.nodes_mut().quota_mut().set_limits(limits);
    }

    /// Fails unless `blocks` blocks fit into wholly free sections, beside those that cleaning needs.
    pub(super) fn require_free_sections(&mut self, blocks: u64) -> Result<()> {
        self.engine.require_free_sections(blocks)
    }

    /// Runs a change of the quota files, which the engine itself writes.
    pub(super) fn change_quota<T>(&mut self, change: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        change(self.engine)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        // The volume's own work, such as a checkpoint, is subject to no limit.
        self.set_limits(Limits::Exempt);
    }
}
