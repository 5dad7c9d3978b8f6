//! UBI, the layer between bare flash and UBIFS.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
};

use crate::ioctl;

/// Device through which UBI is controlled.
const CONTROL: &str = "/dev/ubi_ctrl";
/// Directories in which the kernel lists each flash, and each device of UBI.
const FLASHES: &str = "/sys/class/mtd";
const DEVICES: &str = "/sys/class/ubi";

/// Attaches the flash of a name, and makes one volume of its whole space.
///
/// # Errors
/// There is no such flash, or the kernel has no UBI or refuses.
pub fn attach(flash: &str, volume: &str) -> io::Result<()> {
    let number = find(flash)?;
    let fact = |name: &str| -> io::Result<u64> {
        let text = fs::read_to_string(format!("{DEVICES}/ubi{number}/{name}"))?;
        text.trim().parse().map_err(io::Error::other)
    };
    let bytes = fact("avail_eraseblocks")? * fact("eraseblock_size")?;
    Ok(ioctl::ubi_make_volume(open(&format!("/dev/ubi{number}"))?, volume, bytes)?)
}

/// Attaches the flash of a name, with the volumes that are there. Returns the number of UBI's device.
///
/// # Errors
/// Those of [`attach`]; UBI does not recognize the content.
pub fn find(flash: &str) -> io::Result<i32> {
    Ok(ioctl::ubi_attach(open(CONTROL)?, number_of(Path::new(FLASHES), flash)?)?)
}

/// Detaches the flash of a name.
///
/// # Errors
/// It is not attached, or is in use.
pub fn detach(flash: &str) -> io::Result<()> {
    let number = number_of(Path::new(FLASHES), flash)?;
    for entry in fs::read_dir(DEVICES)? {
        let entry = entry?;
        let device = entry.file_name().to_str().and_then(|name| name.strip_prefix("ubi")?.parse().ok());
        let attached = fs::read_to_string(entry.path().join("mtd_num")).unwrap_or_default();
        if let Some(device) = device.filter(|_| attached.trim_end() == number.to_string()) {
            return Ok(ioctl::ubi_detach(open(CONTROL)?, device)?);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("the flash {flash} is not attached to UBI")))
}

fn open(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Returns the number of a flash from a directory in which the kernel lists each, as in `mtd3/name`.
fn number_of(dir: &Path, flash: &str) -> io::Result<i32> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.strip_prefix("mtd")?.parse().ok());
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if let Some(number) = number.filter(|_| name.trim_end() == flash) {
            return Ok(number);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no flash has the name {flash}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flash_is_found_by_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        for (number, name) in [("mtd0", "other"), ("mtd0ro", "flash"), ("mtd12", "flash")] {
            fs::create_dir(dir.path().join(number)).expect("a directory");
            fs::write(dir.path().join(number).join("name"), format!("{name}\n")).expect("a file");
        }
        assert_eq!(number_of(dir.path(), "flash").expect("it exists"), 12);
        assert_eq!(number_of(dir.path(), "none").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
