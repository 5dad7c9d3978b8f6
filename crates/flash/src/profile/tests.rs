//! Tests of profiles.

use super::*;

#[test]
fn every_built_in_profile_is_valid_and_has_its_own_name() {
    let names: Vec<String> = Profile::built_in().into_iter().map(|profile| profile.name).collect();
    assert_eq!(names.len(), BUILT_IN.len());
    for (n, name) in names.iter().enumerate() {
        assert_eq!(names.iter().position(|other| other == name), Some(n));
        assert_eq!(Profile::named(name).expect("listed").name, *name);
    }
    assert!(matches!(Profile::named("nothing"), Err(ProfileError::Unknown(_))));
}

/// Each figure, or its table, has a source. No source lacks its figure, or covers one that is partly
/// assumed.
#[test]
fn every_figure_has_a_source() {
    for (text, profile) in BUILT_IN.iter().zip(Profile::built_in()) {
        let table: toml::Table = toml::from_str(text).expect("it was parsed before");
        let mut used = std::collections::BTreeSet::new();
        for (name, value) in
            table.iter().filter(|(name, _)| !["name", "title", "sources"].contains(&name.as_str()))
        {
            let figures: Vec<String> = match value {
                toml::Value::Table(inner) => inner.keys().map(|key| format!("{name}.{key}")).collect(),
                _ => vec![name.clone()],
            };
            for figure in figures {
                let source = [&figure, name].into_iter().find(|key| profile.sources.contains_key(*key));
                used.insert(source.unwrap_or_else(|| panic!("{}: {figure}", profile.name)).clone());
            }
        }
        let given: Vec<&String> = profile.sources.keys().collect();
        assert_eq!(given, used.iter().collect::<Vec<_>>(), "{}", profile.name);
        for (figure, source) in &profile.sources {
            let whole = source.starts_with(ASSUMED) || !source.contains(ASSUMED);
            assert!(whole && !source.contains("typical of the class"), "{}: {figure}", profile.name);
        }
    }
    let stick = Profile::named("bergmann-stick").expect("built in");
    assert!(stick.assumed().contains(&"fat_area.length_bytes"), "{:?}", stick.assumed());
    assert!(!stick.assumed().contains(&"layer.open_units"), "{:?}", stick.assumed());
}

#[test]
fn a_profile_survives_its_file() {
    for profile in Profile::built_in() {
        assert_eq!(Profile::parse(&profile.to_toml()).expect("its own text"), profile);
    }
}

#[test]
fn invalid_figures_are_named() {
    let good = BUILT_IN[2];
    for (from, to, figure) in [
        ("page_bytes = 4096", "page_bytes = 4095", "flash.page_bytes"),
        ("page_bytes = 4096", "page_bytes = 0", "flash.page_bytes"),
        ("\nblock_bytes = 131072", "\nblock_bytes = 0", "flash.block_bytes"),
        ("channels = 1", "channels = 0", "flash.channels"),
        ("size_bytes = 2097151488", "size_bytes = 18446744073709551104", "size_bytes"),
        ("size_bytes = 2097151488", "size_bytes = 0", "size_bytes"),
        ("spare_blocks = 64", "spare_blocks = 5", "flash.spare_blocks"),
        ("max_request_bytes = 122880", "max_request_bytes = 0", "host.max_request_bytes"),
        ("queue_depth = 1", "queue_depth = 0", "host.queue_depth"),
        ("au_bytes = 4194304", "au_bytes = 4194305", "layer.au_bytes"),
        ("open_units = 2", "open_units = 0", "layer.open_units"),
        ("length_bytes = 4194304", "length_bytes = 18446744073709551615", "fat_area"),
        ("erase_block_ns = 500000", "erase_block_ns = 1000000000000", "time"),
        ("open_units = 2\n", "open_units = 2\nsmall_write_ns = 9000000000000000000\n", "time"),
        ("bad_blocks = 0", "bad_blocks = 65", "flash.bad_blocks"),
        ("max_request_bytes = 122880", "max_request_bytes = 4294966784", "host.max_request_bytes"),
        ("name = \"bergmann-stick\"", "name = \"A B\"", "name"),
    ] {
        let changed = good.replace(from, to);
        assert_ne!(changed, good, "{from}");
        match Profile::parse(&changed) {
            Err(ProfileError::Figure { figure: found, .. }) => assert_eq!(found, figure),
            Err(ProfileError::Syntax(_)) if to.len() > 30 => {}
            other => panic!("{to}: {other:?}"),
        }
    }
    assert!(matches!(Profile::parse("name = 1"), Err(ProfileError::Syntax(_))));
    let chip = Profile::named("nor-2003").expect("built in");
    for (from, to, figure) in [
        ("bad_blocks = 0", "bad_blocks = 1", "flash.bad_blocks"),
        ("page_bytes = 256", "page_bytes = 1", "flash.page_bytes"),
    ] {
        match Profile::parse(&chip.to_toml().replace(from, to)) {
            Err(ProfileError::Figure { figure: found, .. }) => assert_eq!(found, figure),
            other => panic!("{to}: {other:?}"),
        }
    }
}

#[test]
fn invalid_costs_and_limits_are_named() {
    let good = BUILT_IN[3];
    let with = |table: &str, line: &str| good.replace(table, &format!("{table}\n{line}"));
    let cost = |order: &str, bytes: u64, ns: &str| {
        format!("[[write_costs]]\norder = \"{order}\"\nbytes = {bytes}\nns_by_units = [{ns}]\n\n")
    };
    let costs = |costs: &[String]| good.replace("[sources]", &(costs.concat() + "[sources]"));
    let valid = costs(&[cost("in_order", 4096, "1000, 2000"), cost("out_of_order", 4096, "7")]);
    let parsed = Profile::parse(&valid).expect("valid");
    assert_eq!(Profile::parse(&parsed.to_toml()).expect("its own text"), parsed);
    for (text, figure) in [
        (with("[layer]", "granule_bytes = 4095"), "layer.granule_bytes"),
        (with("[layer]", "open_by_size = [{ from_bytes = 1, units = 99 }]"), "layer.open_by_size"),
        (with("[layer]", "open_by_size = [{ from_bytes = 1, units = 0 }]"), "layer.open_by_size"),
        (with("[time]", "size_costs = [{ bytes = 2, ns = 1 }, { bytes = 1, ns = 1 }]"), "time.size_costs"),
        (with("[time]", "size_costs = [{ bytes = 2, ns = 900000000000 }]"), "time"),
        (costs(&[cost("in_order", 4096, "")]), "write_costs"),
        (costs(&[cost("in_order", 1, "1")]), "write_costs"),
        (costs(&[cost("in_order", 4096, "1"), cost("in_order", 4096, "1")]), "write_costs"),
        (costs(&[cost("in_order", 512, "9000000000")]), "write_costs"),
        (costs(&[cost("in_order", 512, "9000000000000")]), "write_costs"),
    ] {
        match Profile::parse(&text) {
            Err(ProfileError::Figure { figure: found, .. }) => assert_eq!(found, figure, "{text}"),
            other => panic!("{figure}: {other:?}"),
        }
    }
}
