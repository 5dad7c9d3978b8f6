//! `card serve`: a card as an NBD server.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use block::nbd::{Address, Server};

use super::text_in;
use crate::{
    card::Pace,
    card_file::{CardError, CardFile},
    fault::FaultPlan,
};

/// A served card. [`stop`](Serving::stop) puts it away.
pub struct Serving {
    server: Server,
    file: CardFile,
}

/// Options of `card serve`.
#[derive(Debug, Clone, Default)]
pub struct Serve {
    /// True if requests take as long as on the card.
    pub real_time: bool,
    /// Faults to inject.
    pub faults: FaultPlan,
    /// True if requests are recorded for [`Card::stop_trace`](crate::Card::stop_trace).
    pub trace: bool,
}

/// Reads a plan of faults from a TOML file.
///
/// # Errors
/// [`CardError`].
pub fn fault_plan(path: &Path) -> Result<FaultPlan, CardError> {
    let broken = |what: String| CardError::State { path: path.to_path_buf(), what };
    let faults: FaultPlan = toml::from_str(&text_in(path)?).map_err(|error| broken(error.to_string()))?;
    faults.check().map_err(broken)?;
    Ok(faults)
}

/// `card serve FILE --nbd ADDRESS`.
///
/// # Errors
/// [`CardError`].
pub fn serve(path: &Path, address: &Address, how: Serve) -> Result<Serving, CardError> {
    let file = CardFile::open(path, if how.real_time { Pace::RealTime } else { Pace::Virtual })?;
    file.card().set_faults(how.faults);
    if how.trace {
        file.card().start_trace();
    }
    let server = Server::start(file.card().clone(), address)
        .map_err(|source| CardError::Io { path: PathBuf::from(address.to_string()), source })?;
    Ok(Serving { server, file })
}

impl Serving {
    /// Returns the server's address as a URI.
    pub fn uri(&self) -> String {
        self.server.address().to_string()
    }

    /// The card.
    pub fn card(&self) -> &Arc<crate::card::Card> {
        self.file.card()
    }

    /// Answers the requests under way, stops serving, and puts the card away.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn stop(self) -> Result<(), CardError> {
        self.server.stop();
        self.file.close()
    }
}
