//! Reading an open volume anew, after its tables have changed on the device.

use std::sync::Arc;

use block::Device;

use super::{Engine, Options};
use crate::Result;

/// Access to the device of an open volume that refuses changes meanwhile.
pub(crate) struct Lent {
    pub(crate) device: Arc<dyn Device>,
    options: Options,
}

impl Lent {
    /// Opens the volume beside the one that lent the device.
    ///
    /// # Errors
    /// Those of [`Engine::open`].
    pub(crate) fn reopen(self) -> Result<Engine> {
        Engine::as_left(self.device, self.options)
    }
}

impl Engine {
    /// Lends the device of an unmounted volume to one who changes its tables. The volume can be read meanwhile, and refuses
    /// changes until it is [replaced](Self::replace).
    pub(crate) fn lend(&mut self) -> Lent {
        self.is_syncing = true;
        Lent { device: self.device().clone(), options: self.options().clone() }
    }

    /// Continues with the volume as it was [read anew](Lent::reopen). Inodes that are held stay held, and those without a name
    /// stay until they are released. After a failed change of the tables or a failed reading, the volume refuses changes.
    ///
    /// # Errors
    /// The error of the change or, after a success, of the reading.
    pub(crate) fn replace(&mut self, changed: Result<()>, fresh: Result<Engine>) -> Result<()> {
        self.is_syncing = false;
        // Nothing must discard a block that the volume takes from now on.
        self.discards().stop();
        let failed = match fresh {
            Ok(mut fresh) => {
                fresh.names_mut().hold_like(self.names());
                *self = fresh;
                None
            }
            Err(error) => Some(error),
        };
        let outcome = changed.and(failed.map_or(Ok(()), Err));
        if let Err(error) = &outcome {
            self.disk_mut().refuse_changes(format!("its tables could not be changed: {error}"));
        }
        outcome
    }
}
