//! Prints two digests of the device requests of random operations, one line for each kind of volume: of all requests, and of
//! those that change the device or flush it.
//!
//! A change that alters no policy leaves the second digest as it is, and the first one too unless it is about reading: run it
//! on both commits and compare. A digest covers kind, offset and length of each request, and not the content, because it has
//! random identifiers.
//!
//! ```sh
//! cargo run -p model --example requests -- SEED STEPS
//! ```

use std::sync::Arc;

use anyhow::{Context, Result};
use block::{Recording, Request, Verb};
use model::{Generator, Pair, Setup};
use sha2::{Digest, Sha256};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = || -> Result<u64> {
        Ok(arguments.next().context("give a seed and a number of operations")?.parse()?)
    };
    let (seed, steps) = (number()?, number()?);
    for setup in Setup::all() {
        let [all, changes] = digests(&setup, seed, steps).with_context(|| setup.name)?;
        println!("{:16} {all} {changes}", setup.name);
    }
    Ok(())
}

/// The number of some requests, and their digest.
#[derive(Default)]
struct Requests {
    count: usize,
    hash: Sha256,
}

impl Requests {
    fn add(&mut self, request: &Request) {
        self.count += 1;
        self.hash.update([request.verb as u8]);
        self.hash.update(request.offset_bytes.to_le_bytes());
        self.hash.update(request.length_bytes.to_le_bytes());
    }

    fn shown(self) -> String {
        let hash = self.hash.finalize();
        let digest: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:8} {digest}", self.count)
    }
}

/// The digests of all requests of a sequence, and of those without the reads.
fn digests(setup: &Setup, seed: u64, steps: u64) -> Result<[String; 2]> {
    let device = Arc::new(Recording::without_data(setup.make()?));
    let mut pair = Pair::new(setup, device.clone())?;
    let mut generator = Generator::new(setup.mixed(seed), setup.mix.clone());
    let (mut all, mut changes) = (Requests::default(), Requests::default());
    for _ in 0..steps {
        let op = generator.next(&pair.model);
        pair.step(&op).with_context(|| format!("{op:?}"))?;
        for request in device.take_trace() {
            all.add(&request);
            if request.verb != Verb::Read {
                changes.add(&request);
            }
        }
    }
    Ok([all.shown(), changes.shown()])
}
