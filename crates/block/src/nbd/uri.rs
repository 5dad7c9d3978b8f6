//! URIs of exports (NetworkBlockDevice/nbd, doc/uri.md): `nbd://HOST[:PORT]/EXPORT` and
//! `nbd+unix:///EXPORT?socket=PATH`.

use std::{fmt, io, path::PathBuf, str::FromStr};

use super::unescape;

/// Port of NBD servers (RFC 6335).
const PORT: u16 = 10809;
const TCP: &str = "nbd://";
const UNIX: &str = "nbd+unix://";

/// Place of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

/// The URI of an export. Without a name, it is the default export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uri {
    pub(super) place: Place,
    pub(super) export: String,
    text: String,
}

impl Uri {
    /// Returns true for a text that begins as a URI of NBD.
    pub fn is_at(text: &[u8]) -> bool {
        text.starts_with(TCP.as_bytes()) || text.starts_with(UNIX.as_bytes())
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn invalid(text: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{text}: {why}"))
}

/// Decodes the escapes of a name.
fn decoded(text: &str, part: &str) -> io::Result<String> {
    let name = unescape(part).and_then(|name| name.into_string().ok());
    name.ok_or_else(|| invalid(text, "an escape that is not UTF-8"))
}

impl FromStr for Uri {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Uri> {
        let (place, export) = match (text.strip_prefix(UNIX), text.strip_prefix(TCP)) {
            (Some(rest), _) => {
                let usage = "write it as nbd+unix:///EXPORT?socket=/PATH, with an absolute path";
                let (export, socket) = rest.split_once("?socket=").ok_or_else(|| invalid(text, usage))?;
                let export = export.strip_prefix('/').ok_or_else(|| invalid(text, usage))?;
                let socket = decoded(text, socket)?;
                if !socket.starts_with('/') {
                    return Err(invalid(text, usage));
                }
                (Place::Unix(socket.into()), export)
            }
            (None, Some(rest)) => {
                let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
                // The colons of an IPv6 address stand in brackets.
                let has_port = host.rfind(':').is_some_and(|at| at > host.rfind(']').unwrap_or(0));
                let host = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
                (Place::Tcp(host), export)
            }
            (None, None) => return Err(invalid(text, "write it as nbd://HOST:PORT/EXPORT")),
        };
        Ok(Uri { place, export: decoded(text, export)?, text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_server_and_an_export() {
        let tcp = |host: &str| Place::Tcp(host.into());
        for (text, place, export) in [
            ("nbd://localhost", tcp("localhost:10809"), ""),
            ("nbd://localhost/", tcp("localhost:10809"), ""),
            ("nbd://host.example:99/a%20disk", tcp("host.example:99"), "a disk"),
            ("nbd://[::1]/x/y", tcp("[::1]:10809"), "x/y"),
            ("nbd://[::1]:7/x", tcp("[::1]:7"), "x"),
            ("nbd+unix:///?socket=/run/s", Place::Unix("/run/s".into()), ""),
            ("nbd+unix:///disk?socket=/run/a%20s", Place::Unix("/run/a s".into()), "disk"),
        ] {
            let uri: Uri = text.parse().expect(text);
            assert_eq!((&uri.place, uri.export.as_str(), uri.to_string().as_str()), (&place, export, text));
        }
        for text in ["nbd+unix:///x", "nbd+unix:///?socket=relative", "nbd://h/%zz", "http://h/"] {
            assert!(text.parse::<Uri>().is_err(), "{text}");
        }
    }
}
