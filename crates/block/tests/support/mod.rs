//! Common NBD clients, and a file for them to copy. The tests of `flash` use them, too.

use std::{
    path::Path,
    process::{Command, Output},
};

use flashkit_block::{Device, FileDevice, Rng};

/// Size of the served devices in bytes.
pub const SIZE: u64 = 64 << 20;

/// Runs a client and returns its standard output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let Output { status, stdout, stderr } =
        output.unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup installs it"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{program} {arguments:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// Makes a file with scattered random data and holes between.
pub fn sparse_file(path: &Path) {
    let file = FileDevice::create(path, SIZE).expect("a new file");
    let mut rng = Rng::new(5);
    for _ in 0..100 {
        let length = 512 * (1 + rng.below(256)) as usize;
        let data: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
        file.write(rng.below((SIZE - length as u64) / 512) * 512, &data).expect("within the file");
    }
    file.flush().expect("flushed");
}
