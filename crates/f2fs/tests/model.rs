//! Random operations on volumes of every kind, compared with a model. `cargo xtask model` runs more of them,
//! and other seeds.

use model::{Setup, sequence};

/// Seed of the operations.
const SEED: u64 = 1;
/// Operations per volume.
const STEPS: usize = 1500;

fn agree(name: &str) {
    let setup = Setup::named(name).expect("a kind of volume");
    println!("{name}: seed {SEED}, {STEPS} operations");
    sequence::torture(&setup, SEED, STEPS).unwrap_or_else(|report| panic!("{report}"));
}

macro_rules! kinds {
    ($($test:ident = $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                agree($name);
            }
        )*

        #[test]
        fn every_kind_of_volume_has_a_test() {
            let setups = Setup::all().into_iter().chain(Setup::encrypted());
            let names: Vec<&str> = setups.map(|setup| setup.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

kinds! {
    base = "base",
    features = "features",
    quota = "quota",
    casefold = "casefold",
    compressed = "compressed",
    lost_found = "lost+found",
    sections = "sections",
    large_sections = "large sections",
    sixteen = "16K blocks",
    four_logs = "four logs",
    two_logs = "two logs",
    in_place = "in place",
    append_only = "append only",
    not_inline = "not inline",
    write_through = "write through",
    two_devices = "two devices",
    small_cache = "small cache",
    full = "full",
    append_only_full = "append only, full",
    encrypted = "encrypted",
    encrypted_not_inline = "encrypted, not inline",
    encrypted_casefold_compressed = "encrypted, casefold, compressed",
}
