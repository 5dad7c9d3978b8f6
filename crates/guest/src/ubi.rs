//! UBI, the layer between bare flash and UBIFS.

use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
};

use crate::ioctl;

/// Attaches the flash of a name, and makes one volume of its whole space.
///
/// # Errors
/// There is no such flash, or the kernel has no UBI or refuses.
pub fn attach(flash: &str, volume: &str) -> io::Result<()> {
    let open = |path: String| OpenOptions::new().read(true).write(true).open(path);
    let number =
        ioctl::ubi_attach(open("/dev/ubi_ctrl".into())?, number_of(Path::new("/sys/class/mtd"), flash)?)?;
    let fact = |name: &str| -> io::Result<u64> {
        let text = fs::read_to_string(format!("/sys/class/ubi/ubi{number}/{name}"))?;
        text.trim().parse().map_err(io::Error::other)
    };
    let bytes = fact("avail_eraseblocks")? * fact("eraseblock_size")?;
    Ok(ioctl::ubi_make_volume(open(format!("/dev/ubi{number}"))?, volume, bytes)?)
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
