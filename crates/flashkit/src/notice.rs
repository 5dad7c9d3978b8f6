//! Lines on standard error, for people. Names in them are made safe for a terminal, and a closed standard
//! error is ignored.

use std::{
    fmt,
    io::{self, Write},
};

use crate::failure;

/// Prints a line on standard error, like `eprintln!`.
macro_rules! notice {
    ($($argument:tt)*) => { $crate::notice::tell(format_args!($($argument)*)) };
}
pub(crate) use notice;

/// Makes a line safe for a terminal and prints it.
pub fn tell(line: fmt::Arguments<'_>) {
    write(&failure::plain(&line.to_string()));
}

/// Prints lines that are already safe for a terminal.
pub fn write(safe: &str) {
    // Standard error may be closed, and then nothing can be reported.
    let _ = writeln!(io::stderr().lock(), "{safe}");
}
