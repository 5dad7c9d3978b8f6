//! Makes an image file with a volume and a first file: `cargo run --example make IMAGE 64`, with the size in MiB.

use std::{env, error::Error, time::SystemTime};

use f2fs::{OpenOptions, mkfs};

fn main() -> Result<(), Box<dyn Error>> {
    let [image, mebibytes] = arguments().ok_or("usage: make IMAGE MIB")?;
    let size_bytes = mebibytes.parse::<u64>()? << 20;
    // A program for users takes a random UUID.
    let options = mkfs::Options { label: "example".into(), ..mkfs::Options::new(*b"f2fs example 001") };
    let volume = OpenOptions::new().clock(SystemTime::now).make_file(image, size_bytes, &options)?;
    volume.create_dir("/etc")?;
    volume.write("/etc/hostname", "example\n")?;
    volume.symlink("etc/hostname", "/name")?;
    Ok(volume.close()?)
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
