//! The same requests take the same time and change the flash in the same way, on every machine and with every
//! version of this code. The expected results of some thousand requests on each profile are listed here. If
//! they change, the model has changed.

use block::Rng;
use flashkit_flash::{Condition, Model, Op, Profile};
use sha2::{Digest, Sha256};

/// Profile, true if it was preconditioned, and the digest of the result.
const KNOWN: [(&str, bool, &str); 30] = [
    ("transcend-16g-desktop", false, "f4cb7b50227a3e5d"),
    ("transcend-16g-desktop", true, "832a621085d94261"),
    ("transcend-16g-phone", false, "e65845184db71fae"),
    ("transcend-16g-phone", true, "077104890fef99a4"),
    ("bergmann-stick", false, "91c621e743ded405"),
    ("bergmann-stick", true, "17e8de942c5220cb"),
    ("survey-class4", false, "230edb570c4b5a28"),
    ("survey-class4", true, "b91db6d936c8dcf4"),
    ("survey-toshiba-4g", false, "ddace862f72603c6"),
    ("survey-toshiba-4g", true, "8c608b559144e5f3"),
    ("survey-class10", false, "a23eef7457075b9d"),
    ("survey-class10", true, "f798783670cb786f"),
    ("survey-a1", false, "c37a02e949960ca1"),
    ("survey-a1", true, "d976e1383aef6b23"),
    ("survey-a2", false, "a1fec96a6a4ef7aa"),
    ("survey-a2", true, "f6cae6180107a8c8"),
    ("survey-usb-stick", false, "ae3db8304ef8957e"),
    ("survey-usb-stick", true, "f24aa93da264ee96"),
    ("survey-emmc45", false, "f94971caaf471a56"),
    ("survey-emmc45", true, "f68980b1131bb7f1"),
    ("survey-emmc51", false, "b6ff41a57e675ad6"),
    ("survey-emmc51", true, "0a7deddf9bd78258"),
    ("survey-ufs21", false, "b304a1249383db47"),
    ("survey-ufs21", true, "ba7da842f4e6c585"),
    ("survey-ufs31", false, "d232bff7bcf7bd53"),
    ("survey-ufs31", true, "97616f2076e29683"),
    ("survey-ssd", false, "877d25f0a81725ff"),
    ("survey-ssd", true, "d95d036456e166be"),
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
