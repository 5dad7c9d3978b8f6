//! Mounts a volume in the foreground: `mount IMAGE DIR [OPTIONS]`. Prints `ready` once it answers requests.

use std::{env, error::Error, path::PathBuf, process::ExitCode};

use flashkit_fuse::{Mount, MountOptions};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mount: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(image), Some(dir)) = (arguments.next(), arguments.next()) else {
        return Err("usage: mount IMAGE DIR [OPTIONS]".into());
    };
    let mut options = MountOptions::default();
    options.apply(&arguments.next().unwrap_or_default())?;
    let mount = Mount::new(&[PathBuf::from(image)], dir.as_ref(), options)?;
    if let Some(reason) = mount.read_only_reason() {
        eprintln!("mounted read-only: {reason}");
    }
    mount.run(|| {
        println!("ready");
        Ok(())
    })?;
    Ok(())
}
