//! Lines on standard error, for people: names in them are made safe for a terminal, and a closed standard error is nobody's
//! failure.

use std::{
    fmt,
    io::{self, Write},
};

use crate::failure;

/// Tells a line, as `eprintln!` would.
macro_rules! notice {
    ($($argument:tt)*) => { $crate::notice::tell(format_args!($($argument)*)) };
}
pub(crate) use notice;

/// Tells a line, made safe.
pub fn tell(line: fmt::Arguments<'_>) {
    write(&failure::plain(&line.to_string()));
}

/// Tells lines that are safe already.
pub fn write(safe: &str) {
    // Without a reader there is nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{safe}");
}
