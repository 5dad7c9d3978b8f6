//! Each kind of finding: a volume is damaged so, and the check finds exactly that.

use f2fs::{
    format::{BLOCKS_PER_SEGMENT, dir_hash},
    units::{BlockAddr, Ino, Nid, SegNo},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{BLOCK, Damaged};

macro_rules! damage {
    ($($test:ident => [$($kind:literal),*]: |$damaged:ident| $damage:block)*) => {$(
        #[test]
        fn $test() {
            let $damaged = Damaged::new();
            $damage
            let report = support::report($damaged.device.clone());
            let expected: Vec<&str> = vec![$($kind),*];
            assert_eq!(support::errors(&report), expected, "{}", support::lines(&report));
        }
    )*};
}

include!("support/cases.rs");
include!("support/inode_cases.rs");

#[test]
fn a_feature_without_extra_attributes() {
    let device = std::sync::Arc::new(model::Setup::named("base").unwrap().make().unwrap());
    for copy in [0, BLOCK as u64] {
        let mut page = [0; BLOCK];
        block::Device::read(&*device, copy, &mut page).unwrap();
        page[1024 + 2180] |= 0x20;
        block::Device::write(&*device, copy, &page).unwrap();
    }
    let report = support::report(device);
    assert_eq!(support::errors(&report), ["feature-needs"], "{}", support::lines(&report));
}
