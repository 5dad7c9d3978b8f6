//! Random writes predicted from random reads and the size of the card, of 15 cards with each left out.

use std::fs;

use flashkit_flash::{
    fit::unmeasured::{BY_READS, BY_SIZE, CONSTANT, SPREAD, mb_per_s},
    probe::fit::median,
};

/// Logarithms of size in GB, and of MB/s: hdparm, dd, random reads, random writes.
fn cards() -> Vec<[f64; 5]> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/reference/pidramble-pi4.csv");
    let text = fs::read_to_string(path).expect("in the repository");
    let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.map(|row| {
        let cells: Vec<f64> = row.split(',').skip(1).map(|cell| cell.parse().expect("a number")).collect();
        let cells: [f64; 5] = cells.try_into().expect("five figures");
        cells.map(f64::ln)
    })
    .collect()
}

/// Least squares of `card[4]` over a constant and these columns. Returns the coefficients.
fn least_squares(cards: &[[f64; 5]], columns: &[usize]) -> Vec<f64> {
    let features =
        |card: &[f64; 5]| -> Vec<f64> { [1.0].into_iter().chain(columns.iter().map(|n| card[*n])).collect() };
    let count = columns.len() + 1;
    let mut matrix = vec![vec![0.0; count + 1]; count];
    for card in cards {
        let own = features(card);
        for (i, row) in matrix.iter_mut().enumerate() {
            (0..count).for_each(|j| row[j] += own[i] * own[j]);
            row[count] += own[i] * card[4];
        }
    }
    for i in 0..count {
        for k in (0..count).filter(|k| *k != i) {
            let factor = matrix[k][i] / matrix[i][i];
            let pivot = matrix[i].clone();
            matrix[k].iter_mut().zip(pivot).for_each(|(it, other)| *it -= factor * other);
        }
    }
    (0..count).map(|i| matrix[i][count] / matrix[i][i]).collect()
}

fn predicted(coefficients: &[f64], columns: &[usize], card: &[f64; 5]) -> f64 {
    coefficients[0] + columns.iter().zip(&coefficients[1..]).map(|(n, by)| by * card[*n]).sum::<f64>()
}

/// Predicts each card from the others. Returns the predictions as logarithms.
fn left_out(cards: &[[f64; 5]], predict: impl Fn(&[[f64; 5]], &[f64; 5]) -> f64) -> Vec<f64> {
    (0..cards.len())
        .map(|n| {
            let others: Vec<[f64; 5]> =
                cards.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, card)| *card).collect();
            predict(&others, &cards[n])
        })
        .collect()
}

/// Returns the median relative error, and the correlation of ranks.
fn judge(cards: &[[f64; 5]], found: &[f64]) -> (f64, f64) {
    let errors: Vec<f64> =
        cards.iter().zip(found).map(|(card, found)| (found - card[4]).exp_m1().abs()).collect();
    let ranks = |of: &[f64]| -> Vec<f64> {
        of.iter().map(|one| of.iter().filter(|other| *other < one).count() as f64).collect()
    };
    let (one, other) = (ranks(found), ranks(&cards.iter().map(|card| card[4]).collect::<Vec<_>>()));
    let squares: f64 = one.iter().zip(&other).map(|(a, b)| (a - b).powi(2)).sum();
    let count = cards.len() as f64;
    (median(&errors), 1.0 - 6.0 * squares / (count * (count * count - 1.0)))
}

#[test]
fn random_reads_and_size_predict_random_writes_better_than_random_reads_alone() {
    let cards = cards();
    let proportional = left_out(&cards, |others, card| {
        card[3] + median(&others.iter().map(|it| it[4] - it[3]).collect::<Vec<_>>())
    });
    let columns = [3, 0];
    let both = left_out(&cards, |others, card| predicted(&least_squares(others, &columns), &columns, card));
    let (plain, found) = (judge(&cards, &proportional), judge(&cards, &both));
    println!("proportional: {plain:?}; reads and size: {found:?}");
    assert!(found.0 < 0.25 && found.1 > 0.7, "{found:?}");
    assert!(plain.0 > 0.35, "{plain:?}");
    // Sequential rates make it worse: these columns alone do not determine random writes.
    let all = [3, 1, 2];
    let sequential = left_out(&cards, |others, card| predicted(&least_squares(others, &all), &all, card));
    assert!(judge(&cards, &sequential).0 > 0.35);
    let squares: f64 = cards.iter().zip(&both).map(|(card, found)| (card[4] - found).powi(2)).sum();
    let spread = (squares / cards.len() as f64).sqrt();
    println!("spread {spread}");
    assert!((spread - SPREAD).abs() < 0.01, "{spread}");
}

#[test]
fn the_figures_are_the_least_squares_of_all_cards() {
    let found = least_squares(&cards(), &[3, 0]);
    for (found, figure) in found.iter().zip([CONSTANT, BY_READS, BY_SIZE]) {
        assert!((found - figure).abs() < 0.001, "{found} is not {figure}");
    }
    let of_32_gb = mb_per_s(10.0, 32.0);
    assert!((2.0..4.0).contains(&of_32_gb), "{of_32_gb}");
}
