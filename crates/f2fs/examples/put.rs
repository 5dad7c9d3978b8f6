//! Copies a file of the host into a volume: `cargo run --example put IMAGE FILE /etc/motd`.

use std::{env, error::Error, fs, io, time::SystemTime};

use f2fs::OpenOptions;

fn main() -> Result<(), Box<dyn Error>> {
    let [image, from, to] = arguments().ok_or("usage: put IMAGE FILE PATH")?;
    let mut from = fs::File::open(from)?;
    let volume = OpenOptions::new().write().clock(SystemTime::now).open_path(image)?;
    if let Some((parent, _)) = to.rsplit_once('/') {
        volume.create_dir_all(parent)?;
    }
    let mut file = volume.create_file(&to)?;
    io::copy(&mut from, &mut file)?;
    file.set_modified(from.metadata()?.modified()?)?;
    drop(file);
    // Everything is durable after this; an error says that it is not.
    Ok(volume.close()?)
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
