//! A finding as data.

use std::{borrow::Cow, fmt};

use f2fs::Place;

use crate::Kind;

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// A state that follows from a power cut or an unmounted end, and that the next mount resolves.
    Notice,
    /// A rule of the format is broken.
    Error,
}

/// Confidence in the explanation of a finding, and so in its repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Certainty {
    /// Several explanations are possible; a person has to decide.
    Unclear,
    /// One explanation is far more probable than the others.
    Likely,
    /// Independent structures agree on the explanation.
    Certain,
}

impl fmt::Display for Certainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Certainty::Unclear => "unclear",
            Certainty::Likely => "likely",
            Certainty::Certain => "certain",
        })
    }
}

/// One broken rule at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub kind: Kind,
    /// The place on the volume.
    pub at: Place,
    /// The facts: the stored value, and the value that follows from other structures where it is known.
    pub known: String,
    /// The change that a repair makes.
    pub repair: Cow<'static, str>,
    /// Confidence in the explanation.
    pub certainty: Certainty,
}

impl Finding {
    /// Makes a finding with the usual repair and certainty of its kind.
    pub fn new(kind: Kind, at: Place, known: impl Into<String>) -> Finding {
        Finding { kind, at, known: known.into(), repair: kind.repair().into(), certainty: kind.certainty() }
    }

    /// Replaces the repair.
    pub fn repaired_by(self, repair: impl Into<Cow<'static, str>>) -> Finding {
        Finding { repair: repair.into(), ..self }
    }

    /// Replaces the certainty.
    pub fn with_certainty(self, certainty: Certainty) -> Finding {
        Finding { certainty, ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}]", self.at, self.known, self.kind.name())
    }
}
