//! Volumes in long use stay clean for our checker and for fsck.f2fs.

mod support;

use std::sync::Arc;

use model::Setup;
use support::aging::{MIB, age, assert_good, entries, options};

#[test]
fn a_segment_table_larger_than_its_cache_stays_right_over_many_checkpoints() {
    // Two blocks of the table, and room for one.
    let setup = Setup { bytes: 144 * MIB, ..Setup::named("small cache").unwrap() };
    for percent in [50, 97] {
        let device = Arc::new(setup.make().unwrap());
        age(device.clone(), options(&setup), percent, percent);
        age(device.clone(), options(&setup), 97, 5);
        assert_good(&device, &entries(&device), &format!("{percent} % full"));
    }
}
