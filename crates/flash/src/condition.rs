//! The condition of a card before its first request.

use serde::{Deserialize, Serialize};

/// The condition of a card when it was made. In a card's file it is a boolean, true if preconditioned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum Condition {
    /// Fresh out of the box: no address was ever written.
    #[default]
    Fresh,
    /// Every address was written once, in order, as measurements require.
    Preconditioned,
}

impl Condition {
    /// Both conditions.
    pub const ALL: [Condition; 2] = [Condition::Fresh, Condition::Preconditioned];

    /// Returns true if every address was written once.
    pub fn is_preconditioned(self) -> bool {
        self == Condition::Preconditioned
    }
}

impl From<bool> for Condition {
    fn from(is_preconditioned: bool) -> Condition {
        if is_preconditioned { Condition::Preconditioned } else { Condition::Fresh }
    }
}

impl From<Condition> for bool {
    fn from(condition: Condition) -> bool {
        condition.is_preconditioned()
    }
}
