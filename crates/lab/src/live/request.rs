//! Checks of requests, which may come from any program: their hosts, and the files that they name.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    net::IpAddr,
    path::Path,
};

use super::folder::LOGS;
use crate::record::{CELLS, RUNS};

/// Maximum length of a file that is served, in bytes; of a longer one the end is.
const FILE_BYTES: u64 = 4 << 20;
/// Prefix of the addresses of files.
const FILES: &str = "/file/";

/// Returns true if a Host header is an IP address or `localhost`, with any port. A foreign site that points its own
/// name at this machine (DNS rebinding) sends that name.
pub(super) fn is_own_host(host: &str) -> bool {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

/// Returns the content of a file that an address names, and its type: a record, its circumstances, or a log. `None`
/// for everything else. `study` is a real path.
pub(super) fn file(study: &Path, address: &str) -> Option<(Vec<u8>, &'static str)> {
    let (folder, name) = address.strip_prefix(FILES)?.split_once('/')?;
    let kind = match folder {
        CELLS | RUNS => "application/json",
        LOGS => "text/plain; charset=utf-8",
        _ => return None,
    };
    let name = decoded(name)?;
    let is_plain = !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
    let ends = if folder == LOGS { ".log" } else { ".json" };
    if !is_plain || !name.ends_with(ends) {
        return None;
    }
    // A link may lead elsewhere, and opening a pipe would wait.
    let path = fs::canonicalize(study.join(folder).join(name)).ok()?;
    if !path.starts_with(study) || !fs::metadata(&path).ok()?.is_file() {
        return None;
    }
    Some((end_of(&path).ok()?, kind))
}

/// Reads the end of a file.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(FILE_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Decodes a percent-encoded name; `None` if it is no valid one.
fn decoded(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(match byte {
            b'%' => (digit()? * 16 + digit()?) as u8,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_or_localhost() {
        for own in
            ["127.0.0.1", "127.0.0.1:8470", "localhost", "LOCALHOST:1", "[::1]:8470", "[::1]", "10.0.0.7:80"]
        {
            assert!(is_own_host(own), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "evil.example:8470",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:",
            ":80",
        ] {
            assert!(!is_own_host(foreign), "{foreign}");
        }
    }

    #[test]
    fn only_records_and_logs_of_the_study_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let study = dir.path().canonicalize().unwrap().join("study");
        for folder in [CELLS, RUNS, LOGS] {
            fs::create_dir_all(study.join(folder)).unwrap();
        }
        fs::write(study.join("cells/a+b%20.json"), "record").unwrap();
        fs::write(study.join("cells/.hidden.json"), "hidden").unwrap();
        fs::write(study.join("logs/a.log"), "log").unwrap();
        fs::write(study.join("secret.json"), "secret").unwrap();
        fs::write(dir.path().join("secret.json"), "secret").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret.json"), study.join("cells/link.json")).unwrap();
        fs::create_dir(study.join("cells/dir.json")).unwrap();
        assert_eq!(
            file(&study, "/file/cells/a%2Bb%2520.json").unwrap(),
            (b"record".to_vec(), "application/json")
        );
        assert_eq!(file(&study, "/file/logs/a.log").unwrap().0, b"log");
        for hostile in [
            "/file/cells/../secret.json",
            "/file/cells/..%2fsecret.json",
            "/file/cells/..%2f..%2fsecret.json",
            "/file/../secret.json",
            "/file//secret.json",
            "/file/./secret.json",
            "/file/cells//etc/passwd",
            "/file/cells/link.json",
            "/file/cells/dir.json",
            "/file/cells/.hidden.json",
            "/file/cells/a%00.json",
            "/file/cells/%ff.json",
            "/file/cells/%2",
            "/file/cells/%zz.json",
            "/file/cells/a.log",
            "/file/logs/missing.log",
            "/secret.json",
            "/file/cells",
        ] {
            assert_eq!(file(&study, hostile), None, "{hostile}");
        }
    }

    #[test]
    fn only_the_end_of_a_long_log_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let study = dir.path().canonicalize().unwrap();
        fs::create_dir(study.join(LOGS)).unwrap();
        let mut log = vec![b'a'; FILE_BYTES as usize];
        log.extend(b"the end");
        fs::write(study.join("logs/long.log"), log).unwrap();
        let (served, _) = file(&study, "/file/logs/long.log").unwrap();
        assert!(served.len() == FILE_BYTES as usize && served.ends_with(b"the end"));
    }
}
