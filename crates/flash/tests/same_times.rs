//! The same requests take the same time and change the flash in the same way, on every machine and with every
//! version of this code. The expected results of some thousand requests on each profile are listed here. If
//! they change, the model has changed.

use block::Rng;
use flashkit_flash::{Condition, Model, Op, Profile};
use sha2::{Digest, Sha256};

/// Profile, true if it was preconditioned, and the digest of the result.
const KNOWN: [(&str, bool, &str); 30] = [
    ("transcend-16g-desktop", false, "5df63e07200cf1df"),
    ("transcend-16g-desktop", true, "bd68ad5b16564a62"),
    ("transcend-16g-phone", false, "a5a8387e7627d246"),
    ("transcend-16g-phone", true, "9da1440d87f98a84"),
    ("bergmann-stick", false, "6c5196c78c020a62"),
    ("bergmann-stick", true, "2d9d3ff5b86f0268"),
    ("survey-class4", false, "55ea1d96188140ff"),
    ("survey-class4", true, "f00060493f0af8bc"),
    ("survey-toshiba-4g", false, "cae705742fc00660"),
    ("survey-toshiba-4g", true, "bf96b96b5086c561"),
    ("survey-class10", false, "eb717bf6a7a3bf66"),
    ("survey-class10", true, "d5cc326777be0089"),
    ("survey-a1", false, "aeb327b0cf4bbc1e"),
    ("survey-a1", true, "5a6887932e71bc2a"),
    ("survey-a2", false, "bc9652e238b5a5d6"),
    ("survey-a2", true, "1d0abc170a6f0b32"),
    ("survey-usb-stick", false, "ed690126e3fc7e63"),
    ("survey-usb-stick", true, "6bf451dd1791db6e"),
    ("survey-emmc45", false, "1c2044fde0b424f1"),
    ("survey-emmc45", true, "32b5d3b7212b91fb"),
    ("survey-emmc51", false, "02c783b627fe01c8"),
    ("survey-emmc51", true, "6e9e3ba511ae3976"),
    ("survey-ufs21", false, "44c20fbd3d92ad6e"),
    ("survey-ufs21", true, "635624b469aced79"),
    ("survey-ufs31", false, "33c46cb934d4b4df"),
    ("survey-ufs31", true, "203b4b1635659652"),
    ("survey-ssd", false, "8810ffd88ce5597d"),
    ("survey-ssd", true, "ec8715b3b71c32ed"),
    ("nor-2003", false, "3fe3da0c8abab3a8"),
    ("nand-2003", false, "dbf6810819cc7bcb"),
];

/// Requests of all kinds, some in sequence, more than the card holds. Returns the digest of its answers and
/// counters.
fn lived(profile: &Profile, condition: Condition) -> String {
    let mut model = Model::new(profile.clone(), condition);
    let (mut rng, mut now_ns, mut next) = (Rng::new(5), 0, 0);
    let size = profile.size_bytes;
    let mut answers = Sha256::new();
    for n in 0..6000 {
        let length = 512 << rng.below(12);
        let at = match rng.below(3) {
            0 => next,
            1 => rng.below(size / 4096) * 4096,
            _ => rng.below(size / 64 / 512) * 512,
        };
        let at = if at + length > size { 0 } else { at };
        let op = match rng.below(20) {
            0 => Op::flush(),
            1 => Op::discard(at, length * 8 % (size - at)),
            2..4 => Op::read(at, length),
            _ => Op::write(at, length),
        };
        next = at + length;
        match model.submit(now_ns, op) {
            Ok(done) => {
                answers.update(done.done_ns.to_le_bytes());
                // Some arrive while the previous one is under way, some after a pause.
                now_ns = if n % 3 == 0 { done.start_ns } else { done.done_ns };
                now_ns += if n % 500 == 0 { 1_000_000_000 } else { 0 };
            }
            Err(refusal) => answers.update(refusal.to_string()),
        }
    }
    let counters = model.counters();
    answers.update(format!("{:?} {:?} {:?}", counters.flash, counters.layer, counters.time_ns));
    answers.update(format!("{:?} {:?}", model.array().wear(), model.layer().open_units()));
    let pages = (size / u64::from(profile.flash.page_bytes)) as u32;
    for page in 0..pages {
        answers.update(format!("{:?}", model.layer().location(model.array(), page)));
    }
    answers.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_profile_takes_its_recorded_times_for_requests() {
    let mut found = Vec::new();
    for profile in Profile::built_in() {
        let profile = profile.clone().with_size(64 << 20).unwrap_or(profile);
        for condition in Condition::ALL {
            if !(condition.is_preconditioned() && profile.is_raw()) {
                let lived = lived(&profile, condition);
                found.push((profile.name.clone(), condition.is_preconditioned(), lived));
            }
        }
    }
    let known = KNOWN.map(|(name, full, lived)| (name.to_string(), full, lived.to_string()));
    assert!(found == known, "{found:#?}");
}
