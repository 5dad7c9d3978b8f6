//! Mounts a volume in the foreground: `mount IMAGE DIR [OPTIONS [FLUSH_MS]]`. Prints `ready` once it answers requests. With
//! the last argument, each flush of the device takes so many milliseconds longer.

use std::{env, error::Error, process::ExitCode, sync::Arc, thread, time::Duration};

use block::{Device, Hooked, Verb};
use flashkit_fuse::{Event, Mount, MountOptions};
use image::Source;

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
        return Err("usage: mount IMAGE DIR [OPTIONS [FLUSH_MS]]".into());
    };
    let mut options = MountOptions::default();
    options.apply(&arguments.next().unwrap_or_default())?;
    let flush_ms: u64 = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let delay = Duration::from_millis(flush_ms);
    let wait = move |verb, _| {
        if verb == Verb::Flush {
            thread::sleep(delay);
        }
        Ok(())
    };
    let wrap = |inner| Arc::new(Hooked::new(inner, wait)) as Arc<dyn Device>;
    let mount = Mount::wrapping(&[Source::parse(image)], dir.as_ref(), options, wrap)?;
    if let Some(reason) = mount.read_only_reason() {
        eprintln!("mounted read-only: {reason}");
    }
    let ready = || {
        println!("ready");
        Ok(())
    };
    mount.run(ready, report)?;
    Ok(())
}

fn report(event: &Event) {
    eprintln!("mount: {event}");
    if *event == Event::MustAbort {
        std::process::abort();
    }
}
