//! Lists a directory of a volume: `cargo run --example ls IMAGE /etc`.

use std::{
    env,
    error::Error,
    io::{self, Write},
};

use f2fs::{Volume, printable};

fn main() -> Result<(), Box<dyn Error>> {
    let [image, path] = arguments().ok_or("usage: ls IMAGE PATH")?;
    let volume = Volume::open_path(image)?;
    let mut out = io::stdout().lock();
    for entry in volume.read_dir(path)? {
        // An error costs one part of the directory; a program that rescues data would go on.
        let entry = entry?;
        let facts = entry.metadata()?;
        let name = printable::name(entry.file_name());
        writeln!(out, "{:04o} {:>5} {:>12} {name}", facts.permissions(), facts.uid(), facts.len())?;
    }
    Ok(())
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
