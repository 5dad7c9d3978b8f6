//! States of cards with any part changed: each is refused with the name of its file and the error in it, or
//! it works. None crashes the program, hangs, or takes memory that the file does not justify.

use std::{fs, path::Path};

use block::{Device, Rng};
use flashkit_flash::{CardError, CardFile, Condition, Pace, Profile};
use serde_json::Value;

const SIZE: u64 = 32 << 20;
const PROFILES: [&str; 7] = [
    "transcend-16g-desktop",
    "bergmann-stick",
    "survey-class4",
    "survey-class10",
    "survey-emmc45",
    "nor-2003",
    "nand-2003",
];

/// Sends requests to the whole card, like a host. Refusals do not matter here.
fn work(file: &CardFile, seed: u64, count: u64) {
    let mut rng = Rng::new(seed);
    let mut next = 0;
    for _ in 0..count {
        let at = match rng.below(3) {
            0 => rng.below(SIZE / 4096 - 40) * 4096,
            1 => rng.below(64) * 4096,
            _ => next,
        };
        let longest = 1 << rng.below(9);
        let length = 512 * (1 + rng.below(longest));
        let done = match rng.below(12) {
            0 => file.card().flush(),
            1 => file.card().discard(at, (length * 64).min(SIZE - at)),
            2 | 3 => file.card().read(at, &mut vec![0; length as usize]),
            _ => file.card().write(at, &vec![seed as u8; length as usize]),
        };
        // A worn-out card and a bare chip refuse.
        let _ = done;
        next = (at + length) % (SIZE - (1 << 20)) / 512 * 512;
    }
}

/// Returns the state of a used card.
fn used(dir: &Path, name: &str, condition: Condition) -> String {
    let path = dir.join("card");
    let profile = Profile::named(name).expect("built in").with_size(SIZE).expect("a smaller card");
    CardFile::create(&path, profile, condition).expect("a new card");
    let file = CardFile::open(&path, Pace::Virtual).expect("new");
    work(&file, 1, 600);
    file.close().expect("put away");
    fs::read_to_string(dir.join("card.card")).expect("readable")
}

/// Opens a card with a changed state, and uses it if the state is accepted. Returns true if it was.
fn is_taken(dir: &Path, state: &[u8], seed: u64) -> bool {
    let state_path = dir.join("card.card");
    fs::write(&state_path, state).expect("writable");
    match CardFile::open(&dir.join("card"), Pace::Virtual) {
        Ok(file) => {
            work(&file, seed, 300);
            // A card that cannot be put away again is worn out.
            let _ = file.close();
            true
        }
        Err(CardError::State { path, what }) => {
            assert!(path == state_path && !what.is_empty(), "{path:?}: {what}");
            assert_eq!(fs::read(&state_path).expect("readable"), state, "a refused state stays as it is");
            false
        }
        // The power cycle of a card that was in use when its state was stored finds no erased block.
        Err(CardError::Io { path, .. }) => {
            assert!(path.starts_with(dir), "{path:?}");
            false
        }
        Err(other) => panic!("{other}"),
    }
}

fn leaves(value: &Value) -> usize {
    match value {
        Value::Object(parts) => parts.values().map(leaves).sum::<usize>() + 1,
        Value::Array(parts) => parts.iter().map(leaves).sum::<usize>() + 1,
        _ => 1,
    }
}

/// Changes the `n`th value below in one of several ways.
fn change(value: &mut Value, n: &mut usize, rng: &mut Rng) {
    if *n == 0 {
        *n = usize::MAX;
        let old = value.as_u64();
        *value = match (value.take(), rng.below(8)) {
            (Value::Number(_), 0) => (old.unwrap_or(0).wrapping_add(1)).into(),
            (Value::Number(_), 1) => (old.unwrap_or(0).wrapping_sub(1)).into(),
            (Value::Number(_), 2) => u32::MAX.into(),
            (Value::Number(_), 3) => u64::MAX.into(),
            (Value::Number(_), 4) => 0.into(),
            (Value::Number(_), _) => rng.below(10_000).into(),
            (Value::Bool(old), _) => (!old).into(),
            (Value::Array(mut parts), 0..5) if !parts.is_empty() => {
                let at = rng.below(parts.len() as u64) as usize;
                match rng.chance(0.5) {
                    true => drop(parts.remove(at)),
                    false => parts.push(parts[at].clone()),
                }
                parts.into()
            }
            (Value::Object(mut parts), 0..5) if !parts.is_empty() => {
                let at = rng.below(parts.len() as u64) as usize;
                let (key, part) =
                    parts.iter().nth(at).map(|(k, v)| (k.clone(), v.clone())).expect("not empty");
                match key.parse::<u32>() {
                    // Moves an entry of a map to another number.
                    Ok(number) if rng.chance(0.7) => drop(parts.insert((number ^ 1).to_string(), part)),
                    _ => drop(parts.remove(&key)),
                }
                parts.into()
            }
            (Value::String(text), 0..6) => {
                // Changes a digit of the profile.
                let digits: Vec<usize> =
                    text.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(n, _)| n).collect();
                let mut bytes = text.into_bytes();
                if let Some(at) = digits.get(rng.below(digits.len().max(1) as u64) as usize) {
                    bytes[*at] = b'0' + rng.below(10) as u8;
                }
                String::from_utf8(bytes).expect("digits for digits").into()
            }
            _ => Value::Null,
        };
        return;
    }
    *n -= 1;
    let mut each = |part: &mut Value| {
        if *n != usize::MAX {
            change(part, n, rng);
        }
    };
    match value {
        Value::Object(parts) => parts.values_mut().for_each(&mut each),
        Value::Array(parts) => parts.iter_mut().for_each(&mut each),
        _ => {}
    }
}

#[test]
fn changed_states_are_refused_or_work() {
    let rounds: u64 = std::env::var("ROUNDS").map_or(15, |text| text.parse().expect("ROUNDS is a number"));
    let (mut taken, mut refused) = (0, 0);
    for (n, name) in PROFILES.into_iter().enumerate() {
        for condition in Condition::ALL {
            if condition.is_preconditioned() && name.starts_with('n') {
                continue;
            }
            let dir = tempfile::tempdir().expect("a temporary directory");
            let good = used(dir.path(), name, condition);
            assert!(is_taken(dir.path(), good.as_bytes(), 1), "{name}: as it was stored");
            let tree: Value = serde_json::from_str(&good).expect("JSON");
            let count = leaves(&tree) as u64;
            for round in 0..rounds {
                let mut rng = Rng::new(1000 * n as u64 + round);
                let mut changed = tree.clone();
                for _ in 0..1 + rng.below(3) {
                    change(&mut changed, &mut (rng.below(count) as usize), &mut rng);
                }
                let text = serde_json::to_vec(&changed).expect("JSON");
                match is_taken(dir.path(), &text, round) {
                    true => taken += 1,
                    false => refused += 1,
                }
                // These bytes are mostly no longer JSON.
                let mut bytes = good.clone().into_bytes();
                for _ in 0..1 + rng.below(3) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] = b"0123456789{}[],:\"\\n\0\xff"[rng.below(21) as usize];
                }
                is_taken(dir.path(), &bytes, round);
            }
        }
    }
    println!("{taken} taken, {refused} refused");
    assert!(refused > taken, "{taken} taken, {refused} refused");
}
