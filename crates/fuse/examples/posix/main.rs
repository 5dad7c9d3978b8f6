//! Executes the file-related calls of POSIX and Linux in a directory, and prints the outcome of each: its
//! result or errno, and every changed attribute of the watched files. Usage: `posix DIR`. Two file systems
//! behave alike if their outputs are equal. `posix DIR 4` executes one step in four of the long tables.
//!
//! Run it as root: parts of it act as other users.

mod content;
mod ground;
mod names;
mod rights;
mod special;
mod times;

use ground::Ground;

fn main() {
    let root = std::env::args().nth(1).expect("usage: posix DIR");
    let share = std::env::args().nth(2).map_or(1, |share| share.parse().expect("usage: posix DIR SHARE"));
    let mut ground = Ground::new(root.as_ref(), share);
    names::run(&mut ground);
    rights::run(&mut ground);
    times::run(&mut ground);
    content::run(&mut ground);
    special::run(&mut ground);
    ground.flush();
}
