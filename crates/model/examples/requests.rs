//! Prints a digest of the device requests of random operations, one line for each kind of volume.
//!
//! A change that alters no policy leaves all lines as they are: run it on both commits and compare. A digest covers kind,
//! offset and length of each request, reads included, and not the content, because it has random identifiers.
//!
//! ```sh
//! cargo run -p model --example requests -- SEED STEPS
//! ```

use std::sync::Arc;

use anyhow::{Context, Result};
use block::Recording;
use model::{Generator, Pair, Setup};
use sha2::{Digest, Sha256};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = || -> Result<u64> {
        Ok(arguments.next().context("give a seed and a number of operations")?.parse()?)
    };
    let (seed, steps) = (number()?, number()?);
    for setup in Setup::all() {
        let (requests, digest) = digest(&setup, seed, steps).with_context(|| setup.name)?;
        println!("{:16} {requests:8} {digest}", setup.name);
    }
    Ok(())
}

/// The number of requests of a sequence, and their digest.
fn digest(setup: &Setup, seed: u64, steps: u64) -> Result<(usize, String)> {
    let device = Arc::new(Recording::without_data(setup.make()?));
    let mut pair = Pair::new(setup, device.clone())?;
    let mut generator = Generator::new(setup.mixed(seed), setup.mix.clone());
    let (mut requests, mut hash) = (0, Sha256::new());
    for _ in 0..steps {
        let op = generator.next(&pair.model);
        pair.step(&op).with_context(|| format!("{op:?}"))?;
        for request in device.take_trace() {
            requests += 1;
            hash.update([request.verb as u8]);
            hash.update(request.offset_bytes.to_le_bytes());
            hash.update(request.length_bytes.to_le_bytes());
        }
    }
    let hash = hash.finalize();
    Ok((requests, hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()))
}
