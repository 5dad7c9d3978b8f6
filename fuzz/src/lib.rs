//! Hostile volumes: golden images with some bytes overlaid, which are read as a whole, or changed.
//!
//! A case is a string of bytes: the first selects the image, the second the treatment, and the rest is
//! patches (see [`case`]). The same function, [`run`], is driven by libFuzzer (`cargo +nightly fuzz run
//! overlay --features libfuzzer`) and by the seeded runner that the tests use (`cargo run --release -p fuzz
//! --bin hostile`).
//!
//! *Invariant*: for any bytes, every call ends, with an answer or with an error, in bounded work. No call
//! panics, and reading never writes.

pub mod case;
pub mod disturb;
pub mod images;
pub mod survey;

use std::sync::Arc;

use block::{Counted, Device, Overlay};
use f2fs::{
    Key, Keyring,
    engine::{Engine, Options},
};

pub use disturb::Disturbed;
pub use images::Images;
pub use survey::Survey;

/// Memory for caches during a case: little, so that caches are exercised, too.
const CACHE_BYTES: usize = 1 << 20;

/// Result of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The volume was refused.
    Refused,
    /// The volume opened and was read.
    Read(Survey),
    /// The volume opened and was changed.
    Changed(Disturbed),
}

/// Runs a case.
///
/// # Panics
/// If the invariant does not hold. That is the finding.
pub fn run(images: &Images, case: &[u8]) -> Outcome {
    let Some((image, patches)) = case.split_first() else { return Outcome::Refused };
    let image = images.get(usize::from(*image));
    let device = Arc::new(Counted::new(Overlay::new(image.device.clone())));
    case::patch(image, patches, device.inner());
    if patches.first().is_some_and(|style| style & case::CHANGE == case::CHANGE) {
        let options = Options { cache_bytes: CACHE_BYTES, keys: keys(patches), ..Options::new(disturb::now) };
        let Ok(mut volume) = Engine::open(device, options) else { return Outcome::Refused };
        return Outcome::Changed(disturb::disturb(&mut volume));
    }
    let changed = device.inner().changed_ranges();
    let options = Options { cache_bytes: CACHE_BYTES, keys: keys(patches), ..Options::read_only() };
    let Ok(volume) = Engine::open(device.clone(), options) else { return Outcome::Refused };
    let survey = survey::read_everything(&volume);
    drop(volume);
    assert_eq!(device.inner().changed_ranges(), changed, "reading has written");
    let counts = device.counts();
    assert_eq!((counts.writes, counts.discards), (0, 0), "reading has written");
    Outcome::Read(survey)
}

/// The keys of the encrypted golden images, in half of the cases. Policies of version 1 have the descriptor of the first
/// key and the bytes of the second.
fn keys(bytes: &[u8]) -> Keyring {
    let mut keys = Keyring::default();
    if bytes.last().is_some_and(|last| last & 1 == 1) {
        let first = Key::new(&[0x5A; 64]).expect("its length is right");
        let counted: Vec<u8> = (0x5A..0x9A).collect();
        let second = Key::new(&counted).expect("its length is right").with_descriptor(first.descriptor());
        keys.add(first);
        keys.add(second);
    }
    keys
}

/// A shared device.
pub type Shared = Arc<dyn Device>;
