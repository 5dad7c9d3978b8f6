//! Bundles: a study in one file, for others to read and to repeat.
//!
//! *Invariant*: the same study gives the same bytes; unpacking writes only below its directory, and only files whose
//! checksums are right.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    path::{Component, Path, PathBuf},
    rc::Rc,
};

use crate::{
    matrix::Matrix,
    plan::{PLACE_MAX, digest_of, of_file_name},
    record::{CELLS, RUNS, Record, bytes_of, digest},
};

/// Name of the file with the checksums, in the form of sha256sum(1).
const SUMS: &str = "SHA256SUMS";
/// Directory of the matrix and its inputs.
const MATRIX: &str = "matrix";
/// File with the name of the matrix.
const MATRIX_NAME: &str = "matrix.name";
/// Maximum size of the files of a bundle together, in bytes: all of them are in memory. A record has some kilobytes.
const BYTES_MAX: u64 = 1 << 30;
/// Maximum size of the archive with its headers, in bytes.
const ARCHIVE_BYTES_MAX: u64 = 2 * BYTES_MAX;
/// Maximum size of the headers of a file, with those that hold a long name, in bytes. A name has at most 4 KiB.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// Compression level of zstd.
const LEVEL: i32 = 9;

/// The files of a bundle by their paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bundle {
    files: BTreeMap<String, Vec<u8>>,
}

impl Bundle {
    /// Gathers the files of studies: records with their circumstances, the cards' profiles, the matrix with the
    /// files that it names, and a page that says how to repeat the study.
    ///
    /// # Errors
    /// A file cannot be read, or a file of the matrix is not below the matrix's directory.
    pub fn of(studies: &[PathBuf], records: &[Record], matrix: Option<&Matrix>) -> io::Result<Bundle> {
        let mut files = BTreeMap::new();
        for study in studies {
            for dir in [CELLS, RUNS] {
                let Ok(entries) = fs::read_dir(study.join(dir)) else { continue };
                for entry in entries {
                    let entry = entry?;
                    let path = entry.path();
                    // A link of somebody else's study would lead any file of this machine into the bundle.
                    if entry.file_type()?.is_file() && path.extension().is_some_and(|end| end == "json") {
                        let name = path.file_name().unwrap_or_default().to_string_lossy();
                        files.insert(format!("{dir}/{name}"), bytes_of(&path)?);
                    }
                }
            }
        }
        for card in records.iter().filter_map(|record| record.card.as_ref()) {
            files.insert(format!("profiles/{}.toml", stem_of(&card.name)), card.to_toml().into_bytes());
        }
        if let Some(matrix) = matrix {
            let base = matrix.file.parent().unwrap_or(Path::new(""));
            for input in &matrix.inputs {
                let name = input.strip_prefix(base).ok().and_then(plain).ok_or_else(|| {
                    let what = format!("{}: is not below the directory of the matrix", input.display());
                    io::Error::new(io::ErrorKind::InvalidInput, what)
                })?;
                files.insert(format!("{MATRIX}/{name}"), fs::read(input)?);
            }
            let name = matrix.file.file_name().unwrap_or_default().to_string_lossy();
            files.insert(MATRIX_NAME.into(), name.into_owned().into_bytes());
        }
        files.insert("README.md".into(), page(records, matrix).into_bytes());
        let mut sums = String::new();
        for (name, bytes) in &files {
            sums += &format!("{}  {name}\n", digest(&bytes[..])?);
        }
        files.insert(SUMS.into(), sums.into_bytes());
        Ok(Bundle { files })
    }

    /// Writes the bundle as a tar archive, compressed by zstd.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(zstd::Encoder::new(out, LEVEL)?);
        for (name, bytes) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(0);
            archive.append_data(&mut header, format!("study/{name}"), &bytes[..])?;
        }
        archive.into_inner()?.finish()?.flush()
    }

    /// Reads a bundle, and compares its checksums.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it is no bundle, or a checksum is wrong.
    pub fn read(input: impl Read) -> io::Result<Bundle> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let limited = zstd::Decoder::new(input)?.take(ARCHIVE_BYTES_MAX);
        let budget = Budget::default();
        let (mut files, mut held_bytes) = (BTreeMap::new(), 0u64);
        let mut archive = tar::Archive::new(Limited { input: limited, budget: budget.clone() });
        let mut entries = archive.entries()?;
        loop {
            budget.set(HEADER_BYTES_MAX);
            let Some(entry) = entries.next() else { break };
            let mut entry = entry?;
            let path = entry.path()?.into_owned();
            let name = path.strip_prefix("study").ok().and_then(plain);
            let (Some(name), true) = (name, entry.header().entry_type().is_file()) else {
                return Err(invalid(format!("{}: is no file of a bundle", path.display())));
            };
            held_bytes = held_bytes.saturating_add(entry.size());
            if held_bytes > BYTES_MAX {
                return Err(invalid(format!("{name}: with it, the files have more than {BYTES_MAX} bytes")));
            }
            budget.set(entry.size());
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            files.insert(name, bytes);
        }
        let sums = files.remove(SUMS).ok_or_else(|| invalid(format!("contains no {SUMS}")))?;
        let sums = String::from_utf8_lossy(&sums).into_owned();
        let wanted: BTreeMap<&str, &str> =
            sums.lines().filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name, sum)).collect();
        for (name, bytes) in &files {
            if wanted.get(name.as_str()) != Some(&digest(&bytes[..])?.as_str()) {
                return Err(invalid(format!("{name}: its checksum differs from that in {SUMS}")));
            }
        }
        if let Some(missing) = wanted.keys().find(|name| !files.contains_key(**name)) {
            return Err(invalid(format!("{missing}: is in {SUMS}, and not in the bundle")));
        }
        files.insert(SUMS.into(), sums.into_bytes());
        Ok(Bundle { files })
    }

    /// Writes all files below a directory. Returns the path of the matrix, if there is one.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn unpack(&self, dir: &Path) -> io::Result<Option<PathBuf>> {
        for (name, bytes) in &self.files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap_or(dir))?;
            fs::write(path, bytes)?;
        }
        let name = self.files.get(MATRIX_NAME).map(|name| String::from_utf8_lossy(name).into_owned());
        Ok(name.and_then(|name| plain(Path::new(&name))).map(|name| dir.join(MATRIX).join(name)))
    }
}

/// Number of bytes that may still be read of the current part of an archive.
type Budget = Rc<Cell<u64>>;

/// A reader that fails past its budget: the reader of archives takes names of any length into memory.
struct Limited<R> {
    input: R,
    budget: Budget,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.get();
        if left == 0 && !buf.is_empty() {
            let what = format!("a file has headers of more than {HEADER_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.input.read(&mut buf[..most])?;
        self.budget.set(left - read as u64);
        Ok(read)
    }
}

/// Returns the name of a card as one plain file name without its ending. The card of somebody else's record may have any name.
fn stem_of(card: &str) -> String {
    let stem: String = card.chars().map(of_file_name).collect();
    match stem == card && !stem.is_empty() && stem.len() <= PLACE_MAX {
        true => stem,
        false => format!("{}{}", &stem[..stem.len().min(PLACE_MAX)], digest_of(card)),
    }
}

/// Returns a relative path of plain names, joined by slashes; `None` for any other path.
fn plain(path: &Path) -> Option<String> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => name.to_str().map(str::to_owned),
        _ => None,
    };
    let names: Option<Vec<String>> = path.components().map(name).collect();
    names.filter(|names| !names.is_empty()).map(|names| names.join("/"))
}

/// Returns the text of the page: content, versions, and the command that repeats the study.
fn page(records: &[Record], matrix: Option<&Matrix>) -> String {
    let mut versions: Vec<String> = Vec::new();
    let mut commands: Vec<String> = Vec::new();
    for record in records {
        let of = &record.versions;
        let kernel = of.guest_kernel.as_ref().map(|kernel| format!(", {kernel}")).unwrap_or_default();
        versions.push(format!("- flashkit {} (SHA-256 {}){kernel}\n", of.flashkit, of.build));
        commands.extend(record.made.as_ref().map(|made| format!("    {}\n", made.by)));
    }
    for list in [&mut versions, &mut commands] {
        list.sort();
        list.dedup();
    }
    let repeat = match matrix {
        Some(_) => "    flashkit study --from BUNDLE -o again\n\nThis says where the new records differ.\n"
            .to_owned(),
        None => format!("The records were made by\n\n{}", commands.concat()),
    };
    format!(
        "# A study of {} cells\n\n`cells/` has the records, `runs/` the date, machine and costs of each, `profiles/` the cards, \
         `matrix/` the matrix and its inputs. `sha256sum -c {SUMS}` checks all files; `flashkit report DIR` prints the \
         tables.\n\n## Versions\n\n{}\n## Repetition\n\n{repeat}",
        records.len(),
        versions.concat(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::Experiment, matrix::Reach, record::Records, record::tests::record};

    fn bundle(dir: &Path) -> Bundle {
        let one = record(Experiment::Mount, "f2fs", &[1.0, 2.0]);
        Records::open(dir).unwrap().put(&one).unwrap();
        fs::create_dir_all(dir.join("m")).unwrap();
        let file = dir.join("m/m.toml");
        fs::write(&file, "[[file_systems]]\nkind = \"flashkit\"\n").unwrap();
        let matrix = Matrix::read(&file, Reach::Anywhere).unwrap();
        Bundle::of(&[dir.to_owned()], &[one], Some(&matrix)).unwrap()
    }

    #[test]
    fn a_bundle_comes_back_whole_and_always_has_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = bundle(dir.path());
        let bytes = || {
            let mut bytes = Vec::new();
            bundle.write(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(bytes(), bytes());
        assert_eq!(Bundle::read(&bytes()[..]).unwrap(), bundle);
        let out = dir.path().join("out");
        let matrix = bundle.unpack(&out).unwrap().unwrap();
        assert_eq!(matrix, out.join("matrix/m.toml"));
        assert!(
            Matrix::read(&matrix, Reach::Below).is_ok()
                && out.join("cells/mount.f2fs.desktop.json").is_file()
        );
        assert!(fs::read_to_string(out.join("README.md")).unwrap().contains("--from BUNDLE"));
    }

    #[test]
    fn a_changed_or_hostile_bundle_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let whole = bundle(dir.path());
        let refused = |change: &dyn Fn(&mut Bundle)| {
            let mut changed = whole.clone();
            change(&mut changed);
            let mut bytes = Vec::new();
            changed.write(&mut bytes).unwrap();
            Bundle::read(&bytes[..]).unwrap_err().to_string()
        };
        let name = "cells/mount.f2fs.desktop.json";
        assert!(refused(&|it| it.files.get_mut(name).unwrap()[0] ^= 1).contains("checksum"));
        assert!(refused(&|it| drop(it.files.remove(name))).contains("and not in the bundle"));
        assert!(refused(&|it| drop(it.files.remove(SUMS))).contains("contains no SHA256SUMS"));
        assert!(refused(&|it| drop(it.files.insert("more".into(), Vec::new()))).contains("checksum"));
        assert_eq!(plain(Path::new("../a")), None);
        assert_eq!(plain(Path::new("/a")), None);
        assert!(Bundle::read(&b"nonsense"[..]).is_err());
    }

    #[test]
    fn the_card_of_a_record_gives_one_plain_file_whatever_its_name_is() {
        let dir = tempfile::tempdir().unwrap();
        let usual = flash::Profile::built_in().remove(0);
        let names =
            ["../../evil", "/etc/evil", "..", "", "a/b", "a_b", "x\0y", &"n".repeat(5000), &usual.name];
        let records = names.map(|name| {
            let card = flash::Profile { name: name.into(), ..usual.clone() };
            Record { card: Some(card), ..record(Experiment::Mount, "f2fs", &[1.0]) }
        });
        let bundle = Bundle::of(&[], &records, None).unwrap();
        let profiles: Vec<&str> =
            bundle.files.keys().filter_map(|name| name.strip_prefix("profiles/")).collect();
        assert_eq!(profiles.len(), names.len(), "{profiles:?}");
        assert!(
            profiles
                .iter()
                .all(|name| !name.contains(['/', '\0']) && !name.starts_with('.') && name.len() < 255)
        );
        assert!(profiles.contains(&&*format!("{}.toml", usual.name)), "{profiles:?}");
        let mut bytes = Vec::new();
        bundle.write(&mut bytes).unwrap();
        let out = dir.path().join("in/out");
        Bundle::read(&bytes[..]).unwrap().unpack(&out).unwrap();
        assert_eq!(fs::read_dir(out.join("profiles")).unwrap().count(), names.len());
        assert_eq!(fs::read_dir(dir.path().join("in")).unwrap().count(), 1);
    }

    #[test]
    fn a_bundle_is_refused_before_its_files_fill_the_memory() {
        let mut header = tar::Header::new_gnu();
        header.set_path("study/zeroes").unwrap();
        header.set_size(BYTES_MAX + 1);
        header.set_cksum();
        let archive = zstd::encode_all(&header.as_bytes()[..], 1).unwrap();
        let error = Bundle::read(&archive[..]).unwrap_err().to_string();
        assert!(error.contains("more than 1073741824 bytes"), "{error}");
    }

    #[test]
    fn a_bundle_is_refused_before_a_name_fills_the_memory() {
        let archive = |bytes: usize| {
            let name = format!("study/{}", "a".repeat(bytes));
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            tar.append_data(&mut header, &name, &b"x"[..]).unwrap();
            zstd::encode_all(&tar.into_inner().unwrap()[..], 1).unwrap()
        };
        let refused = |bytes| Bundle::read(&archive(bytes)[..]).unwrap_err().to_string();
        assert!(refused(1 << 24).contains("headers of more than 65536 bytes"), "{}", refused(1 << 24));
        // A name that is only long is read.
        assert!(refused(200).contains("contains no SHA256SUMS"), "{}", refused(200));
    }

    #[test]
    fn a_bundle_has_no_file_to_which_a_study_only_links() {
        let dir = tempfile::tempdir().unwrap();
        bundle(dir.path());
        fs::write(dir.path().join("secret"), "{}").unwrap();
        std::os::unix::fs::symlink("../secret", dir.path().join("cells/x.json")).unwrap();
        let names: Vec<String> =
            Bundle::of(&[dir.path().to_owned()], &[], None).unwrap().files.into_keys().collect();
        assert!(names.iter().any(|name| name.starts_with("cells/mount")), "{names:?}");
        assert!(!names.contains(&"cells/x.json".into()), "{names:?}");
    }
}
