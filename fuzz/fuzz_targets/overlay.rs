//! libFuzzer's entry.
#![no_main]

use std::{path::Path, sync::OnceLock};

use fuzz::Images;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: &[u8]| {
    static IMAGES: OnceLock<Images> = OnceLock::new();
    let images = IMAGES.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/golden");
        Images::load(&folder, "").expect("the golden images can be read")
    });
    let _ = fuzz::run(images, case);
});
