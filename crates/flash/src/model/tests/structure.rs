//! Tests of the structure that some cards have: granules, costs and limits by size, measured times.

use super::*;
use crate::profile::{Order, SizeCost, WriteCost};

/// The card with measured times: 4 KiB in 1 ms, 64 KiB in 8 ms; 5 ms more in turn, ten times as long out of order.
pub(super) fn measured(card: &Profile) -> Profile {
    let row = |order, bytes, us: u64, units: u64| WriteCost {
        order,
        bytes,
        ns_by_units: (0..units).map(|n| (us + n.min(2) * 5000) * US).collect(),
    };
    Profile {
        write_costs: vec![
            row(Order::InOrder, 4096, 1000, 2),
            row(Order::InOrder, 64 << 10, 8000, 3),
            row(Order::OutOfOrder, 4096, 10_000, 1),
            row(Order::OutOfOrder, 64 << 10, 80_000, 1),
        ],
        locality: Locality { unit_bytes: 256 << 10, ..Locality::default() },
        ..card.clone()
    }
}

#[test]
fn a_write_out_of_order_rewrites_the_granules_that_it_touches() {
    let mut layer = hybrid(2, 2);
    let Kind::Hybrid { granule_bytes, .. } = &mut layer else { unreachable!("made so") };
    *granule_bytes = 32 << 10;
    let mut model = Model::new(profile(layer), Condition::Preconditioned);
    let own = (200 + 300) * US;
    assert_eq!(cost(&mut model, Op::write(0, 4096)), own);
    assert_eq!(cost(&mut model, Op::write(4096, 4096)), own);
    // Out of order: the seven other pages of the granule are copied.
    assert_eq!(cost(&mut model, Op::write(40 << 10, 4096)), own + 7 * 330 * US);
    // Two pages across two granules copy seven of each.
    assert_eq!(cost(&mut model, Op::write(28 << 10, 8192)), own + 300 * US + 14 * 330 * US);
    // A whole granule copies nothing.
    assert_eq!(cost(&mut model, Op::write(32 << 10, 32 << 10)), (200 + 8 * 300) * US);
    assert_eq!(model.counters().layer.copied_pages, 21);
}

#[test]
fn limits_of_open_units_depend_on_the_size_of_writes() {
    let mut layer = hybrid(3, 0);
    let Kind::Hybrid { open_by_size, .. } = &mut layer else { unreachable!("made so") };
    *open_by_size = vec![OpenLimit { from_bytes: 8192, units: 2 }];
    let merges = |bytes: u64| {
        let mut model = Model::new(profile(layer.clone()), Condition::Preconditioned);
        let in_turn = (0..12).map(|n| Op::write(n % 3 * (256 << 10) + n / 3 * bytes, bytes));
        run(&mut model, in_turn);
        model.counters().layer.partial_merges
    };
    assert_eq!(merges(4096), 0, "three units are within the limit of small writes");
    assert!(merges(8192) >= 9, "three units are beyond the limit of larger ones");
}

#[test]
fn extra_times_by_size_are_interpolated() {
    let mut card = profile(Kind::Page { reserve_blocks: 2 });
    card.time.size_costs =
        vec![SizeCost { bytes: 8192, ns: 100 * US }, SizeCost { bytes: 16384, ns: 500 * US }];
    card.check().expect("valid");
    let mut model = Model::new(card, Condition::Fresh);
    for (pages, extra_us) in [(1, 0), (2, 100), (3, 300), (4, 500), (8, 500)] {
        let usual = (200 + pages * 300) * US;
        assert_eq!(cost(&mut model, Op::write(0, pages * 4096)), usual + extra_us * US, "{pages} pages");
    }
}

#[test]
fn measured_times_depend_on_order_size_and_units_in_turn() {
    const UNIT: u64 = 256 << 10;
    let card = measured(&profile(Kind::Page { reserve_blocks: 2 }));
    card.check().expect("valid");
    let mut model = Model::new(card.clone(), Condition::Preconditioned);
    let mut next = |op: Op| cost(&mut model, op) / US;
    assert_eq!(next(Op::write(0, 4096)), 1000, "a new unit from its start");
    assert_eq!(next(Op::write(4096, 4096)), 1000, "continues");
    assert_eq!(next(Op::write(UNIT, 4096)), 6000, "another unit is incomplete");
    assert_eq!(next(Op::write(8192, 4096)), 6000, "back, and still in order");
    assert_eq!(next(Op::write(2 * UNIT, 64 << 10)), 18_000, "two others");
    assert_eq!(next(Op::write(UNIT + 8192, 4096)), 10_000, "out of order");
    assert_eq!(next(Op::write(UNIT + 12288, 4096)), 10_000, "the unit stays out of order");
    let halfway = next(Op::write(3 * UNIT + 4096, 16384));
    assert_eq!(halfway, 28_284, "the size between 4 and 64 KiB: their geometric mean");
    let total_ns = model.counters().time_ns.total();
    assert_eq!(total_ns / US, 1000 + 1000 + 6000 + 6000 + 18_000 + 10_000 + 10_000 + halfway);
}

#[test]
fn complete_units_cost_the_next_unit_nothing() {
    const UNIT: u64 = 256 << 10;
    let card = measured(&profile(Kind::Page { reserve_blocks: 2 }));
    let mut model = Model::new(card, Condition::Preconditioned);
    let unit = |n: u64| (0..4).map(move |piece| Op::write(n * UNIT + piece * (64 << 10), 64 << 10));
    run(&mut model, (0..6).flat_map(unit));
    assert_eq!(model.counters().time_ns.unit_switch, 0);
    assert_eq!(model.counters().time_ns.page_program, 24 * 8_000 * US);
}

#[test]
fn a_state_with_impossible_units_is_refused() {
    let card = measured(&profile(Kind::Page { reserve_blocks: 2 }));
    let mut model = Model::new(card.clone(), Condition::Fresh);
    run(&mut model, [Op::write(0, 4096)]);
    let text = serde_json::to_string(model.state()).expect("figures");
    let resume = |text: &str| {
        let state = serde_json::from_str(text).expect("a state");
        Model::resume_checked(card.clone(), state, Condition::Fresh).map(|_| ())
    };
    resume(&text).expect("its own state");
    let changed = text.replace("\"next\":4096", "\"next\":999999999");
    assert_ne!(changed, text);
    assert!(resume(&changed).expect_err("beyond the unit").contains("units written last"));
}
