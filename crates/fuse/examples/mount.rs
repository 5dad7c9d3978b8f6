//! Mounts a volume in the foreground: `mount IMAGE DIR [OPTIONS [FLUSH_MS]]`. Prints `ready` once it answers requests. With
//! the last argument, each flush of the device takes so many milliseconds longer.

use std::{env, error::Error, io, process::ExitCode, sync::Arc, thread, time::Duration};

use block::{Device, DiscardUnit, Geometry};
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
    let wrap = |inner| Arc::new(SlowFlush { inner, delay }) as Arc<dyn Device>;
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

/// A device of which each flush takes longer.
struct SlowFlush {
    inner: Arc<dyn Device>,
    delay: Duration,
}

impl Device for SlowFlush {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset_bytes, buf)
    }
    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write(offset_bytes, buf)
    }
    fn flush(&self) -> io::Result<()> {
        thread::sleep(self.delay);
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset_bytes, length_bytes)
    }
    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.inner.discard_unit()
    }
}

fn report(event: &Event) {
    eprintln!("mount: {event}");
    if *event == Event::MustAbort {
        std::process::abort();
    }
}
