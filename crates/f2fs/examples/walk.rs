//! Prints everything below a directory of a volume, and goes on where it is damaged:
//! `cargo run --example walk IMAGE /`.

use std::{
    env,
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

use f2fs::{Volume, printable};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let [image, path] = arguments().ok_or("usage: walk IMAGE PATH")?;
    let volume = Volume::open_path(image)?;
    let (mut out, mut code) = (io::stdout().lock(), ExitCode::SUCCESS);
    for entry in volume.walk(path)? {
        match entry {
            Ok(entry) => {
                let path = printable::name(entry.path());
                writeln!(out, "{:>12} {path}", entry.metadata().len())?;
            }
            Err(error) => {
                eprintln!("walk: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
