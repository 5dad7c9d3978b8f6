//! Prints a file of a volume: `cargo run --example cat IMAGE /etc/hostname`.

use std::{env, error::Error, io};

use f2fs::Volume;

fn main() -> Result<(), Box<dyn Error>> {
    let [image, path] = arguments().ok_or("usage: cat IMAGE PATH")?;
    let volume = Volume::open_path(image)?;
    let mut file = volume.open_file(path)?;
    io::copy(&mut file, &mut io::stdout().lock())?;
    Ok(())
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
