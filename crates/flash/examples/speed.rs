//! How fast the model is: requests of 4 KiB a second on one core, without and with data.
//!
//! `cargo run --release -p flash --example speed`

use std::time::Instant;

use block::{Device, Rng};
use flash::{Card, Model, Op, Profile};

const REQUESTS: u64 = 2_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for name in ["survey-class10", "survey-ssd", "bergmann-stick"] {
        let profile = Profile::named(name)?.with_size(1 << 40)?;
        let mut model = Model::new(profile.clone(), false);
        let mut rng = Rng::new(1);
        let places = (256 << 20) / 4096;
        report(&format!("{name}, model, sequential"), &mut |n| {
            model.submit(0, Op::write(n * 4096, 4096)).map(|_| ())?;
            Ok(())
        })?;
        report(&format!("{name}, model, random in 256 MiB"), &mut |_| {
            model.submit(0, Op::write(rng.below(places) * 4096, 4096)).map(|_| ())?;
            Ok(())
        })?;
        let card = Card::new(profile, false);
        let data = [7; 4096];
        report(&format!("{name}, card with data, sequential over 256 MiB"), &mut |n| {
            Ok(card.write(n % places * 4096, &data)?)
        })?;
    }
    Ok(())
}

type Step<'a> = &'a mut dyn FnMut(u64) -> Result<(), Box<dyn std::error::Error>>;

fn report(what: &str, step: Step) -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    for n in 0..REQUESTS {
        step(n)?;
    }
    let rate = REQUESTS as f64 / start.elapsed().as_secs_f64();
    println!("{what:<60} {rate:>12.0} requests/s");
    Ok(())
}
