//! A few hundred cases of a fixed seed, so that the machinery cannot rot; `make hostile` runs for longer.

use std::path::Path;

use block::Rng;
use fuzz::{Images, Outcome};

#[test]
fn hostile_volumes_are_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/golden");
    let images = Images::load(&folder, "").expect("the golden images can be read");
    let mut rng = Rng::new(7);
    let (mut refused, mut changed, mut errors) = (0, 0, 0);
    for _ in 0..300 {
        let case: Vec<u8> = (0..80).map(|_| rng.next_u64() as u8).collect();
        match fuzz::run(&images, &case) {
            Outcome::Refused => refused += 1,
            Outcome::Read(survey) => errors += survey.errors,
            Outcome::Changed(_) => changed += 1,
        }
    }
    assert!(
        refused > 0 && changed > 20 && errors > 300,
        "the patches had no effect: {refused} refused, {errors} errors"
    );
}

#[test]
fn unpatched_images_cause_almost_no_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/golden");
    let images = Images::load(&folder, "base").expect("the golden image can be read");
    let Outcome::Read(survey) = fuzz::run(&images, &[0]) else { panic!("refused") };
    assert!(survey.inodes > 50 && survey.entries > 50 && survey.bytes > 100_000, "{survey:?}");
}
