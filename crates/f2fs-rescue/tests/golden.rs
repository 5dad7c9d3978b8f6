//! Volumes made by Linux, undamaged and without their metadata.

mod support;

#[path = "../../f2fs/tests/support/golden.rs"]
mod golden;

use std::sync::Arc;

use block::Device;
use f2fs_rescue::{Grade, Options};
use support::{compare, rescued, tree_of};

#[test]
fn the_rescued_tree_of_a_sound_volume_is_the_volumes_tree() {
    let mut failures = Vec::new();
    for name in golden::names() {
        let device: Arc<dyn Device> = golden::device(&name);
        let expected = tree_of(device.clone());
        let result = rescued(device, &Options::default());
        if name.contains("encrypted") {
            // Names are shown in another form.
            let others = result.losses.iter().filter(|loss| !loss.contains("the key is missing"));
            failures.extend(others.map(|loss| format!("{name}: {loss}")));
            continue;
        }
        let (_, missing) = compare(&expected, &result.tree);
        let extra: Vec<_> = result.tree.keys().filter(|path| !expected.contains_key(*path)).collect();
        // With disabled checkpoints, the kernel goes back to the state before; the new files are there.
        let extra = if name == "unclean-disabled" { Vec::new() } else { extra };
        if !missing.is_empty() || !extra.is_empty() {
            failures.push(format!("{name}: missing {missing:?}, extra {extra:?}, {:?}", result.losses));
        }
        // Nothing contradicts the counts of a sound volume.
        failures.extend(result.losses.iter().map(|loss| format!("{name}: {loss}")));
        let is_sound = |found: &f2fs_rescue::Found| {
            found.certainty.is_none_or(|certainty| certainty.grade() <= Grade::Likely)
        };
        if let Some(found) = result.found.iter().find(|found| !is_sound(found)) {
            let certainty = found.certainty.expect("it is judged");
            failures.push(format!("{name}: {}: {certainty}", String::from_utf8_lossy(&found.path)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
