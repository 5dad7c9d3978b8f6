//! The extension lists: name endings of files with cold or hot data.
//!
//! The defaults are mkfs.f2fs's; the kernel matches them against the end of a name, and those of two letters
//! also against the beginning of an extension, so that "mp" covers mp3 and mp4.

use crate::{
    Error, Result,
    format::superblock::{EXTENSIONS_MAX, raw},
};

/// Maximum length of an extension in bytes. A slot of the superblock has 8 bytes and ends with a zero.
pub(crate) const EXTENSION_BYTES: usize = 7;

/// Cold by default: media, archives, packages. They are written once.
const COLD: [&str; 36] = [
    "mp", "wm", "og", "jp", "avi", "m4v", "m4p", "mkv", "mov", "webm", "wav", "m4a", "3gp", "opus", "flac",
    "gif", "png", "svg", "webp", "jar", "deb", "iso", "gz", "xz", "zst", "pdf", "pyc", "ttc", "ttf", "exe",
    "apk", "cnt", "exo", "odex", "vdex", "so",
];
/// Hot by default: databases and disks of virtual machines.
const HOT: [&str; 4] = ["db", "vmdk", "vdi", "qcow2"];

/// Returns the cold and the hot list of a new volume: the defaults, then the caller's, without repetitions.
pub(super) fn lists(cold: &[String], hot: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let mut all: Vec<String> = COLD.map(String::from).into();
    add(&mut all, cold)?;
    let cold_count = all.len();
    all.extend(HOT.map(String::from));
    add(&mut all, hot)?;
    let hot = all.split_off(cold_count);
    Ok((all, hot))
}

/// Stores both lists.
pub(crate) fn store(raw: &mut raw::Superblock, cold: &[String], hot: &[String]) -> Result<()> {
    let count = cold.len() + hot.len();
    if count > EXTENSIONS_MAX {
        return Err(Error::Invalid(
            format!("{count} file name extensions; a volume stores at most {EXTENSIONS_MAX}").into(),
        ));
    }
    raw.extension_count.set(cold.len() as u32);
    raw.hot_ext_count = hot.len() as u8;
    raw.extension_list = [[0; 8]; EXTENSIONS_MAX];
    for (slot, extension) in raw.extension_list.iter_mut().zip(cold.iter().chain(hot)) {
        slot[..extension.len()].copy_from_slice(extension.as_bytes());
    }
    Ok(())
}

/// Adds extensions that are not in a list yet.
pub(crate) fn add(list: &mut Vec<String>, extensions: &[String]) -> Result<()> {
    for extension in extensions {
        if extension.is_empty() || extension.len() > EXTENSION_BYTES || extension.contains('\0') {
            return Err(Error::Invalid(
                format!("file name extension {extension:?} must have 1 to {EXTENSION_BYTES} bytes").into(),
            ));
        }
        if !list.contains(extension) {
            list.push(extension.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn owned(extensions: &[&str]) -> Vec<String> {
        extensions.iter().map(|ext| ext.to_string()).collect()
    }

    #[test]
    fn own_extensions_follow_the_built_in_ones_once() {
        let (cold, hot) = lists(&owned(&["log", "mp", "log"]), &owned(&["sqlite", "so"])).unwrap();
        assert_eq!(cold.len(), 37);
        assert_eq!(cold[35..], ["so", "log"]);
        assert_eq!(hot, ["db", "vmdk", "vdi", "qcow2", "sqlite"]);
    }

    #[test]
    fn extensions_that_do_not_fit_are_an_error() {
        for (cold, part) in [
            (owned(&["12345678"]), "12345678"),
            (owned(&[""]), "1 to 7 bytes"),
            ((0..25).map(|n| format!("x{n}")).collect(), "at most 64"),
        ] {
            let stored = lists(&cold, &[])
                .and_then(|(cold, hot)| store(&mut raw::Superblock::new_zeroed(), &cold, &hot));
            let error = stored.unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let (cold, hot) = lists(&(0..24).map(|n| format!("x{n}")).collect::<Vec<_>>(), &[]).unwrap();
        assert!(store(&mut raw::Superblock::new_zeroed(), &cold, &hot).is_ok());
    }
}
