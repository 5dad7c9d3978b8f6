//! One volume, written by Linux and by us in turns.

use model::Setup;
use xtask::trial::ping_pong;

#[test]
fn volumes_survive_turns_of_linux_and_the_engine() {
    for (name, seed) in [("base", 1), ("features", 2)] {
        let setup = Setup::named(name).expect("a kind of volume");
        let tally = ping_pong::play(&setup, seed, 4).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        println!("{name}: seed {seed}, {tally:?}");
        assert_eq!((tally.turns, tally.unclean), (8, 4));
    }
}
