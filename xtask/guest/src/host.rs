//! The host's programs in a guest that sees the host's files.

use std::io;

use crate::{Bytes, Op};

/// Where the host's files are in a guest that sees them.
pub const DIR: &str = "/host";

/// The operation that runs one of the host's programs in the guest; its libraries are the host's too.
///
/// # Errors
/// There is no such program, or no loader.
pub fn program(program: &str, arguments: &[&str]) -> io::Result<Op> {
    // Symbolic links with a full path would end in the guest's root.
    let in_guest = |path: &str| {
        let path = std::fs::canonicalize(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        Ok::<String, io::Error>(format!("{DIR}{}", path.display()))
    };
    let libraries =
        ["/lib/x86_64-linux-gnu", "/lib64"].map(|dir| in_guest(dir).unwrap_or_default()).join(":");
    let program = in_guest(program)?;
    let all = ["--library-path", &libraries, &program].into_iter().chain(arguments.iter().copied());
    Ok(Op::Execute {
        program: in_guest("/lib64/ld-linux-x86-64.so.2")?.as_str().into(),
        arguments: all.map(Bytes::from).collect(),
    })
}
