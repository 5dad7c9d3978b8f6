//! A repair keeps nodes and data in separate sections, and separates those that share one. Linux stops checkpoints when it
//! cleans a section with both.

use std::sync::Arc;

use block::{Device, MemoryDevice};
use f2fs::{
    engine::{Engine, Options},
    format::sit::SegmentType,
    units::{SecNo, SegNo},
};
use f2fs_check::{
    Certainty,
    repair::{Planned, plan},
};

mod support;

#[path = "support/volume.rs"]
mod volume;

use volume::{Damaged, NOW, contents};

/// Sections of these numbers of segments.
const SECTIONS: [u32; 2] = [2, 4];

/// The sections with valid blocks or logs of both contents, or whose first segment has a type of the other content.
fn mixed(device: &Arc<MemoryDevice>) -> Vec<SecNo> {
    let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
    let (geometry, logs) = (*volume.geometry(), volume.last_checkpoint().logs);
    let entry = |segment: SegNo| volume.sit_entry(segment).unwrap();
    let is_mixed = |section: &SecNo| {
        let first = geometry.segments_of(*section).next().map(entry).unwrap();
        let used = geometry.segments_of(*section).map(entry).filter(|entry| entry.valid_blocks > 0);
        let logs = SegmentType::ALL.into_iter().filter(|kind| {
            let segment = logs[kind.index()].segment;
            geometry.section_of(segment) == *section
        });
        let mut contents: Vec<bool> =
            used.map(|entry| entry.kind).chain(logs).map(SegmentType::is_node).collect();
        if !contents.is_empty() {
            contents.push(first.kind.is_node());
        }
        contents.windows(2).any(|pair| pair[0] != pair[1])
    };
    (0..geometry.sections).map(SecNo).filter(is_mixed).collect()
}

/// Repairs a volume. No section has nodes and data afterwards, and every file has its content.
fn repair(d: &Damaged, kind: &str) {
    let report = support::report(d.device.clone());
    assert!(support::errors(&report).contains(&kind), "{}", support::lines(&report));
    let device: Arc<dyn Device> = d.device.clone();
    let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
    plan.apply(&*d.device).unwrap();
    assert_eq!(mixed(&d.device), Vec::<SecNo>::new(), "{}", support::lines(&report));
    let report = support::report(d.device.clone());
    assert!(report.is_clean(), "{}", support::lines(&report));
    model::fsck::fsck(&d.device).unwrap();
}

#[test]
fn a_sound_volume_has_no_mixed_section() {
    for segments in SECTIONS {
        let d = Damaged::with_sections(segments);
        assert_eq!(mixed(&d.device), Vec::<SecNo>::new());
        assert!(support::report(d.device.clone()).is_clean());
    }
}

#[test]
fn moved_nodes_and_data_go_to_separate_sections() {
    for segments in SECTIONS {
        let d = Damaged::with_sections(segments);
        let sound = contents(&d.device);
        let many = d.ino("/many");
        d.put_dentry(many, d.slot(many, "entry 0"), 0, &[1, 2, 3]);
        repair(&d, "dentry-hash");
        assert_eq!(contents(&d.device), sound);
    }
}

#[test]
fn new_logs_go_to_sections_of_their_content() {
    for segments in SECTIONS {
        for kind in SegmentType::ALL {
            let d = Damaged::with_sections(segments);
            let sound = contents(&d.device);
            // The log goes on at a block in use.
            let (at, index) = if kind.is_node() { (68, kind.index() - 3) } else { (116, kind.index()) };
            d.put_checkpoint(at + 2 * index, &[0, 0]);
            repair(&d, "log-position");
            assert_eq!(contents(&d.device), sound, "{kind}");
        }
    }
}

#[test]
fn a_section_with_nodes_and_data_is_separated() {
    for segments in SECTIONS {
        let d = Damaged::with_sections(segments);
        let sound = contents(&d.device);
        d.move_data(d.free_beside_nodes());
        assert_eq!(mixed(&d.device).len(), 1);
        repair(&d, "section-mixed");
        assert_eq!(contents(&d.device), sound);
    }
}

#[test]
fn a_log_in_a_section_of_other_content_is_opened_elsewhere() {
    let d = Damaged::with_sections(2);
    let sound = contents(&d.device);
    let segment = d.free_beside_nodes();
    d.put_checkpoint(84 + 4 * SegmentType::ColdData.index(), &segment.0.to_le_bytes());
    d.put_checkpoint(116 + 2 * SegmentType::ColdData.index(), &[0, 0]);
    repair(&d, "section-mixed");
    assert_eq!(contents(&d.device), sound);
}

#[test]
fn an_empty_first_segment_has_the_type_of_its_section() {
    let d = Damaged::with_sections(2);
    let geometry = *d.volume().geometry();
    let is_free = |segment: SegNo| d.sit(segment).valid_blocks == 0 && !d.is_log(segment);
    let mut sections = (0..geometry.sections).map(SecNo);
    let section = sections.find(|section| geometry.segments_of(*section).all(is_free)).unwrap();
    let segments: Vec<SegNo> = geometry.segments_of(section).collect();
    d.move_data(segments[1]);
    d.put_sit(segments[0], 0, &(4u16 << 10).to_le_bytes());
    assert_eq!(mixed(&d.device), [section]);
    repair(&d, "section-mixed");
}

#[test]
fn sections_with_nodes_and_data_need_no_person_and_prevent_no_resize() {
    let d = Damaged::with_sections(2);
    d.move_data(d.free_beside_nodes());
    let report = support::report(d.device.clone());
    assert!(report.is_clean_for_resize(), "{}", support::lines(&report));
    let device: Arc<dyn Device> = d.device.clone();
    let Planned::Repair(plan) = plan(&device, NOW, &mut |_| {}).unwrap() else { panic!("a repair") };
    assert_eq!(plan.certainty(), Certainty::Certain);
}
