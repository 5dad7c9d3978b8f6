//! Tests of the model's rules.

mod structure;

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::{
    array::{BlockNo, NOTHING},
    op::CLOCK_END_NS,
    profile::{FatArea, Flash, Host, Layer as Kind, Locality, OpenLimit, SlcCache, Times},
};

const US: u64 = 1000;

/// 8 MiB of 4 KiB pages in blocks of 64 KiB.
fn profile(layer: Kind) -> Profile {
    Profile {
        name: "test".into(),
        title: "test".into(),
        size_bytes: 8 << 20,
        host: Host {
            max_request_bytes: 128 << 10,
            queue_depth: 1,
            flush: true,
            discard: true,
            write_cache_bytes: 0,
        },
        time: Times {
            read_command_ns: 100 * US,
            write_command_ns: 200 * US,
            flush_ns: 50 * US,
            discard_ns: 10 * US,
            read_bytes_per_s: 1_000_000_000,
            write_bytes_per_s: 0,
            read_page_ns: 30 * US,
            program_page_ns: 300 * US,
            erase_block_ns: 2000 * US,
            ..Times::default()
        },
        flash: Flash {
            page_bytes: 4096,
            block_bytes: 64 << 10,
            channels: 1,
            spare_blocks: 16,
            endurance_erases: 1_000_000,
            bad_blocks: 1,
        },
        layer,
        locality: Locality::default(),
        write_costs: Vec::new(),
        slc_cache: None,
        fat_area: None,
        sources: Default::default(),
    }
}

/// The longest steps that a profile may have, on a card near the end of its clock.
#[test]
fn the_clock_ends_before_it_overflows() {
    for layer in [hybrid(2, 0), hybrid(3, 3), Kind::Page { reserve_blocks: 4 }] {
        let mut slow = profile(layer);
        let longest = crate::profile::STEP_NS_MAX;
        slow.host.queue_depth = 64;
        slow.time.program_page_ns = longest;
        slow.time.read_page_ns = longest;
        slow.time.erase_block_ns = longest;
        slow.time.write_bytes_per_s = 1;
        let plan = FaultPlan { jitter: 1.0, stall_chance: 0.5, stall_ns: longest, ..FaultPlan::default() };
        let mut model = Model::new(slow, Condition::Preconditioned).with_faults(plan);
        let mut now = CLOCK_END_NS - (1 << 57);
        let mut refused = false;
        for n in 0..3000u64 {
            match model.submit(now, Op::write(n * 37 % 60 * (128 << 10), 128 << 10)) {
                Ok(done) => now = now.max(done.start_ns),
                Err(refusal) => {
                    refused = refusal == Refusal::ClockEnd;
                    break;
                }
            }
        }
        assert!(refused || now < CLOCK_END_NS);
        let error = model.submit(u64::MAX, Op::read(0, 4096)).unwrap_err();
        assert_eq!(error, Refusal::ClockEnd);
        model.counters().time_ns.total();
    }
}

fn hybrid(open_units: u32, open_random: u32) -> Kind {
    Kind::Hybrid {
        au_bytes: 256 << 10,
        open_units,
        open_random,
        small_write_bytes: 0,
        small_write_ns: 0,
        granule_bytes: 0,
        open_by_size: Vec::new(),
    }
}

fn run(model: &mut Model, ops: impl IntoIterator<Item = Op>) -> u64 {
    let mut now = 0;
    for op in ops {
        now = model.submit(now, op).expect("a valid request").done_ns;
    }
    now
}

/// Time of `op` as the next request.
fn cost(model: &mut Model, op: Op) -> u64 {
    let now = model.controller_free_ns.max(model.channels_free_ns[0]).max(model.link_free_ns) + 1_000_000_000;
    let done = model.submit(now, op).expect("a valid request").done_ns;
    done - now
}

#[test]
fn a_request_costs_the_sum_of_its_parts() {
    let mut model = Model::new(profile(hybrid(2, 0)), Condition::Fresh);
    assert_eq!(cost(&mut model, Op::write(0, 8192)), (200 + 2 * 300) * US);
    assert_eq!(cost(&mut model, Op::read(0, 8192)), (100 + 2 * 30) * US + 8192);
    assert_eq!(cost(&mut model, Op::read(4095, 2)), (100 + 2 * 30) * US + 2);
    assert_eq!(cost(&mut model, Op::flush()), 50 * US);
    assert_eq!(model.counters().time_ns.total(), (800 + 160 + 160 + 50) * US + 8194);
}

#[test]
fn requests_are_split_at_the_largest_command() {
    let mut model = Model::new(profile(hybrid(2, 0)), Condition::Fresh);
    assert_eq!(cost(&mut model, Op::write(0, 256 << 10)), (2 * 200 + 64 * 300) * US);
    assert_eq!(model.counters().host.writes, 2);
}

#[test]
fn one_open_unit_too_many_causes_merges() {
    let write = |au: u64, n: u64| Op::write(au * (256 << 10) + n * 4096, 4096);
    for (units, slow) in [(2, false), (3, true)] {
        let mut model = Model::new(profile(hybrid(2, 0)), Condition::Preconditioned);
        let ops = (0..16).flat_map(|n| (0..units).map(move |au| write(au, n)));
        run(&mut model, ops);
        let layer = &model.counters().layer;
        assert_eq!(layer.partial_merges > 0, slow, "{units} units: {layer:?}");
        assert_eq!(layer.full_merges, 0);
        assert_eq!(model.layer().open_units().len(), 2);
    }
}

#[test]
fn full_blocks_are_switched_without_a_copy() {
    let mut model = Model::new(profile(hybrid(2, 0)), Condition::Preconditioned);
    run(&mut model, (0..128).map(|n| Op::write(n * 4096, 4096)));
    let layer = &model.counters().layer;
    assert_eq!((layer.switch_merges, layer.copied_pages), (8, 0));
    assert_eq!(model.counters().flash.block_erases, 8);
    assert_eq!(model.counters().write_amplification(4096), Some(1.0));
}

#[test]
fn random_order_is_merged_in_full_or_bit_by_bit() {
    let shuffled = || {
        let mut order: Vec<u64> = (0..16).collect();
        block::Rng::new(3).shuffle(&mut order);
        order.into_iter().map(|n| Op::write(n * 4096, 4096))
    };
    let mut capable = Model::new(profile(hybrid(2, 1)), Condition::Preconditioned);
    run(&mut capable, shuffled().chain([Op::write(0, 4096)]));
    assert_eq!(capable.counters().layer.full_merges, 1);
    assert_eq!(capable.counters().layer.copied_pages, 16);
    let mut linear = Model::new(profile(hybrid(2, 0)), Condition::Preconditioned);
    run(&mut linear, shuffled());
    assert!(linear.counters().layer.copied_pages > 64, "{:?}", linear.counters().layer);
}

#[test]
fn the_locality_terms_follow_their_rules() {
    let mut card = profile(Kind::Page { reserve_blocks: 2 });
    card.locality = Locality {
        unit_bytes: 1 << 20,
        unit_switch_ns: 5 * US,
        streams: 2,
        stream_miss_ns: 7 * US,
        read_crossing_ns: 3 * US,
    };
    let mut model = Model::new(card, Condition::Fresh);
    let mut extra = |offset: u64| cost(&mut model, Op::write(offset, 4096)) - 500 * US;
    const M: u64 = 1 << 20;
    assert_eq!(extra(M), 7 * US, "unknown place; a unit's start is no switch");
    assert_eq!(extra(M + 4096), 0, "continues");
    assert_eq!(extra(M + 3 * 4096), 0, "ascends");
    assert_eq!(extra(M), 7 * US, "goes back");
    assert_eq!(extra(2 * M + 4096), 0, "the next unit");
    assert_eq!(extra(5 * M + 4096), 12 * US, "far away");
    assert_eq!(extra(2 * M + 2 * 4096), 5 * US, "remembered, in another unit");
    assert_eq!(extra(7 * M), 7 * US, "far away, pushes the oldest stream out");
    assert_eq!(extra(5 * M + 2 * 4096), 12 * US, "no longer remembered");
    assert_eq!(cost(&mut model, Op::read(M - 1, 2)), (160 + 3) * US + 2);
}

#[test]
fn a_cache_hides_programs_until_it_is_full_or_flushed() {
    let mut card = profile(Kind::Page { reserve_blocks: 2 });
    card.host.write_cache_bytes = 16384;
    card.time.write_command_ns = 10 * US;
    let mut model = Model::new(card, Condition::Fresh);
    let mut now = 0;
    let mut took = Vec::new();
    for n in 0..6 {
        let done = model.submit(now, Op::write(n * 4096, 4096)).expect("valid").done_ns;
        took.push((done - now) / US);
        now = done;
    }
    assert_eq!(took, [10, 10, 10, 10, 270, 300]);
    let flushed = model.submit(now, Op::flush()).expect("valid").done_ns;
    assert_eq!((flushed - now) / US, 4 * 300 + 50);
    let fua = Op { fua: true, ..Op::write(0, 4096) };
    assert_eq!(model.submit(flushed, fua).expect("valid").done_ns - flushed, 310 * US);
}

#[test]
fn cells_of_one_bit_are_fast_until_they_are_full_and_again_after_a_rest() {
    let mut card = profile(Kind::Page { reserve_blocks: 2 });
    card.slc_cache = Some(SlcCache { size_bytes: 16 << 10, program_page_ns: 50 * US });
    let mut model = Model::new(card, Condition::Fresh);
    let mut now = 0;
    let mut took = |rest_ns: u64, pages: u64| {
        now += rest_ns;
        let done = model.submit(now, Op::write(0, pages * 4096)).expect("valid").done_ns;
        (std::mem::replace(&mut now, done), done)
    };
    let mut us = |rest_ns, pages| {
        let (from, to) = took(rest_ns, pages);
        (to - from) / US
    };
    assert_eq!(us(0, 3), 200 + 3 * 50);
    // The first fits; the second goes to the other cells.
    assert_eq!(us(0, 2), 200 + 50 + 300);
    assert_eq!(us(0, 1), 200 + 300);
    // A rest in which two are moved, each read and programmed.
    assert_eq!(us(2 * 330 * US, 3), 200 + 2 * 50 + 300);
    let counters = model.counters();
    assert_eq!((counters.layer.slc_pages, counters.layer.slc_moved_pages), (6, 2));
    assert_eq!(counters.flash.page_programs, 9 + 2);
    assert_eq!(counters.time_ns.total(), (350 + 550 + 500 + 600) * US);
}

#[test]
fn channels_and_queue_work_side_by_side() {
    let mut card = profile(Kind::Page { reserve_blocks: 2 });
    card.flash.channels = 4;
    card.host.queue_depth = 4;
    card.time.read_command_ns = 5 * US;
    let mut model = Model::new(card, Condition::Fresh);
    let done: Vec<u64> =
        (0..8).map(|n| model.submit(0, Op::read(n * 4096, 4096)).expect("valid").done_ns / US).collect();
    assert_eq!(done, [39, 44, 49, 54, 78, 83, 88, 93]);
    assert_eq!(cost(&mut model, Op::write(0, 16384)), 500 * US);
}

#[test]
fn a_bare_chip_programs_once_in_order_after_an_erase() {
    let mut card = profile(Kind::Nand);
    let mut nand = Model::new(card.clone(), Condition::Fresh);
    let now = run(&mut nand, [Op::write(0, 4096), Op::write(8192, 4096)]);
    assert_eq!(nand.submit(now, Op::write(4096, 4096)), Err(Refusal::NotErased { offset_bytes: 4096 }));
    assert_eq!(nand.submit(now, Op::write(0, 512)), Err(Refusal::Unaligned { page_bytes: 4096 }));
    assert_eq!(cost(&mut nand, Op::discard(0, 64 << 10)), 2010 * US);
    run(&mut nand, [Op::write(4096, 4096)]);
    card.layer = Kind::Nor;
    let mut nor = Model::new(card, Condition::Fresh);
    let now = run(&mut nor, [Op::write(8192, 4096), Op::write(4096, 4096)]);
    assert_eq!(nor.submit(now, Op::write(8192, 4096)), Err(Refusal::NotErased { offset_bytes: 8192 }));
    assert_eq!(nor.counters().flash.page_programs, 2);
}

#[test]
fn blocks_wear_out_and_then_the_card_only_reads() {
    let mut card = profile(Kind::Page { reserve_blocks: 2 });
    card.flash.endurance_erases = 3;
    let mut model = Model::new(card, Condition::Fresh);
    let mut rng = block::Rng::new(1);
    let mut now = 0;
    let refusal = loop {
        match model.submit(now, Op::write(rng.below(1024) * 4096, 4096)) {
            Ok(completion) => now = completion.done_ns,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, Refusal::WornOut);
    let array = model.array();
    assert!(
        array.retired_blocks() > 10,
        "{} {} {:?}",
        array.retired_blocks(),
        array.free_blocks(),
        array.wear()
    );
    assert!(model.submit(now, Op::read(0, 4096)).is_ok());
}

#[test]
fn requests_past_the_end_are_refused() {
    let mut model = Model::new(profile(hybrid(2, 0)), Condition::Fresh);
    for op in [Op::read(8 << 20, 1), Op::write(u64::MAX, 2), Op::discard(0, (8 << 20) + 1)] {
        assert!(matches!(model.submit(0, op), Err(Refusal::PastEnd { .. })));
    }
}

fn profiles() -> Vec<Profile> {
    let small = Kind::Hybrid {
        au_bytes: 128 << 10,
        open_units: 3,
        open_random: 1,
        small_write_bytes: 8192,
        small_write_ns: 5 * US,
        granule_bytes: 16 << 10,
        open_by_size: vec![OpenLimit { from_bytes: 32 << 10, units: 2 }],
    };
    let mut all: Vec<Profile> =
        [hybrid(1, 0), hybrid(3, 0), hybrid(3, 3), hybrid(4, 1), small, Kind::Page { reserve_blocks: 2 }]
            .map(profile)
            .into();
    let fat = |card: &Profile, start: u64| {
        let fat = FatArea { start_bytes: start, length_bytes: 1 << 20, program_page_ns: 100 * US };
        Profile { fat_area: Some(fat), ..card.clone() }
    };
    all.push(fat(&all[2], 0));
    all.push(fat(&all[5], 1 << 20));
    let slc = SlcCache { size_bytes: 64 << 10, program_page_ns: 50 * US };
    all.push(Profile { slc_cache: Some(slc), ..all[7].clone() });
    all.push(structure::measured(&all[5]));
    all
}

prop_compose! {
    fn any_op()(
        kind in 0u32..20, at in 0u64..16000, length in 1u64..200, place in 0u64..8, fine in any::<bool>()
    ) -> Op {
        let unit = if fine { 512 } else { 4096 };
        // Most requests are close together, so that logs fill and units compete.
        let at = (at >> place) * 512 / unit * unit;
        let length = (length * unit / 8).max(512) / 512 * 512;
        let length = length.min((8 << 20) - at);
        match kind {
            0 => Op::flush(),
            1 => Op::discard(at, length),
            2 => Op::discard(at, (256 << 10).min((8 << 20) - at)),
            3..6 => Op::read(at, length),
            _ => Op::write(at, length),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every written page is at a position that was programmed for it, and no two pages share one. No block
    /// is lost or held twice. Time never goes back, and the parts of the time add up. A repetition gives the
    /// same result.
    #[test]
    fn invariants_hold(
        which in 0..9usize, condition in prop::sample::select(&Condition::ALL[..]),
        ops in prop::collection::vec(any_op(), 1..400)
    ) {
        let card = profiles().swap_remove(which);
        let mut model = Model::new(card.clone(), condition);
        let mut twin = Model::new(card.clone(), condition);
        let mut written: HashMap<u32, bool> = HashMap::new();
        let mut now = 0;
        for op in &ops {
            let done = model.submit(now, *op).expect("a valid request").done_ns;
            prop_assert!(done >= now);
            prop_assert_eq!(twin.submit(now, *op).expect("a valid request").done_ns, done);
            now = done;
            if op.command == Command::Write {
                for page in op.offset_bytes / 4096..op.end_bytes().div_ceil(4096) {
                    written.insert(page as u32, true);
                }
            }
            if op.command == Command::Discard {
                for page in op.offset_bytes / 4096..op.end_bytes().div_ceil(4096) {
                    written.remove(&(page as u32));
                }
            }
        }
        let mut places: HashMap<(BlockNo, u32), u32> = HashMap::new();
        for page in 0..2048 {
            let place = model.layer().location(model.array(), page);
            prop_assert!(place.is_some() || !written.contains_key(&page), "page {} is lost", page);
            if let Some((block, at)) = place {
                prop_assert_eq!(model.array().tag(block, at), page);
                prop_assert_eq!(places.insert((block, at), page), None);
                prop_assert_ne!(page, NOTHING);
            }
        }
        let held = model.layer().held_blocks();
        let total = card.data_blocks() + card.flash.spare_blocks - card.flash.bad_blocks;
        prop_assert_eq!(held + model.array().free_blocks(), total);
        prop_assert_eq!(model.counters().time_ns.total(), now);
        let counters = model.counters();
        let host = &counters.host;
        for counts in [&host.writes_by_log2_bytes, &host.writes_by_log2_alignment] {
            prop_assert_eq!(counts.values().sum::<u64>(), host.writes);
        }
        let wear = model.array().wear();
        prop_assert_eq!(wear.iter().map(|(erases, blocks)| u64::from(*erases) * blocks).sum::<u64>(), counters.flash.block_erases);
    }

    /// With many commands under way and a cache, answers may overtake each other, but time never goes back.
    #[test]
    fn a_queue_keeps_time(ops in prop::collection::vec((any_op(), 0u64..1_000_000), 1..200)) {
        let mut card = profile(Kind::Page { reserve_blocks: 2 });
        card.flash.channels = 4;
        card.host.queue_depth = 8;
        card.host.write_cache_bytes = 1 << 20;
        let mut model = Model::new(card, Condition::Preconditioned);
        let mut now = 0;
        let mut under_way: Vec<u64> = Vec::new();
        for (op, pause) in ops {
            now += pause;
            let Completion { start_ns, done_ns } = model.submit(now, op).expect("a valid request");
            prop_assert!(now <= start_ns && start_ns <= done_ns);
            under_way.push(done_ns);
            let busy = under_way.iter().filter(|done| **done > start_ns).count();
            prop_assert!(busy <= 8, "{} commands under way", busy);
        }
    }
}
