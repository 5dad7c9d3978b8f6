//! The purpose that a card is formatted for, and the shape that is best for it on a model of the card.

use anyhow::Result;
use flash::{Profile, probe::Findings};

use crate::progress::Verbosity;

/// The use that advice is for.
#[derive(Debug, Clone, clap::Args)]
pub struct Purpose {
    /// The use that the advice is for; without it, mixed. Shapes are compared on a model of the card, which takes some
    /// seconds.
    #[cfg(feature = "lab")]
    #[arg(long = "for", value_name = "USE", value_parser = measured::purposes())]
    purpose: Option<lab::tune::Purpose>,
}

impl Purpose {
    /// Returns true if a use was named.
    #[cfg_attr(not(feature = "lab"), allow(clippy::unused_self))]
    pub fn is_given(&self) -> bool {
        #[cfg(feature = "lab")]
        let is_given = self.purpose.is_some();
        #[cfg(not(feature = "lab"))]
        let is_given = false;
        is_given
    }

    /// Adds the best shape on a card of a profile to its findings. Without the lab, and on raw chips, the advice follows
    /// rules.
    ///
    /// # Errors
    /// The search was interrupted, or has no room for temporary files.
    pub fn advise_for(&self, card: &Profile, verbosity: Verbosity) -> Result<Findings> {
        #[cfg_attr(not(feature = "lab"), allow(unused_mut))]
        let mut findings = Findings::of(card);
        #[cfg(feature = "lab")]
        {
            findings.measured =
                measured::shape(self.purpose, verbosity, |search, tell| search.shape(card, tell))?;
        }
        #[cfg(not(feature = "lab"))]
        let _ = verbosity;
        Ok(findings)
    }

    /// Adds the best shape on a card like the one that was probed to the findings, if they are certain.
    ///
    /// # Errors
    /// As [`advise_for`](Self::advise_for).
    #[cfg_attr(not(feature = "lab"), allow(clippy::unused_self))]
    pub fn advise(&self, findings: Findings, verbosity: Verbosity) -> Result<Findings> {
        #[cfg(feature = "lab")]
        {
            let of = |search: &lab::advise::Search, tell: &mut dyn FnMut(&str)| {
                search.of_findings(&findings, tell)
            };
            let measured = measured::shape(self.purpose, verbosity, of)?;
            Ok(Findings { measured, ..findings })
        }
        #[cfg(not(feature = "lab"))]
        {
            let _ = verbosity;
            Ok(findings)
        }
    }
}

#[cfg(feature = "lab")]
mod measured {
    use std::io;

    use anyhow::{Context, Result};
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    use flash::probe::Shape;
    use lab::{advise::Search, tune::Purpose};

    use crate::progress::{self, Verbosity};

    /// Parses the name of a purpose.
    pub fn purposes() -> impl TypedValueParser<Value = Purpose> {
        let named = |name: &str| Purpose::ALL.into_iter().find(|purpose| purpose.argument() == name);
        PossibleValuesParser::new(Purpose::ALL.map(Purpose::argument))
            .try_map(move |name| named(&name).ok_or("no such use"))
    }

    /// Searches the best shape, with progress.
    pub fn shape(
        purpose: Option<Purpose>,
        verbosity: Verbosity,
        search: impl FnOnce(&Search, &mut dyn FnMut(&str)) -> io::Result<Option<Shape>>,
    ) -> Result<Option<Shape>> {
        let (purpose, bar) = (purpose.unwrap_or(Purpose::Mixed), progress::shapes(verbosity));
        let shape =
            search(&Search::new(purpose, std::env::temp_dir()), &mut |name| bar.set_message(name.to_owned()));
        bar.finish_and_clear();
        shape.context("cannot compare shapes on a model of the card")
    }
}
