//! Arguments that are usually one of a few names, which help and completions show; other values are taken as well.

use clap::{
    Arg, Command,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
    error::Error,
};
use std::ffi::OsStr;

/// A text for which these names are suggested.
#[derive(Clone)]
pub struct Suggested(pub fn() -> Vec<&'static str>);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}
