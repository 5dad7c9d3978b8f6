//! A set of numbers of nodes or inodes. A fill adds millions of them in ascending order, so 64 adjacent numbers share a word.

use rustc_hash::FxHashMap;

/// Numbers in a word.
const WORD_BITS: u32 = u64::BITS;

/// A set of numbers.
#[derive(Default)]
pub(super) struct NumberSet {
    /// A bit for each number, by the number of the word. No word is 0.
    words: FxHashMap<u32, u64>,
    count: usize,
}

impl NumberSet {
    /// Adds a number.
    pub(super) fn insert(&mut self, number: u32) {
        let (word, bit) = position(number);
        let bits = self.words.entry(word).or_default();
        self.count += usize::from(*bits & bit == 0);
        *bits |= bit;
    }

    /// Removes a number.
    pub(super) fn remove(&mut self, number: u32) {
        let (word, bit) = position(number);
        let Some(bits) = self.words.get_mut(&word) else { return };
        self.count -= usize::from(*bits & bit != 0);
        *bits &= !bit;
        if *bits == 0 {
            self.words.remove(&word);
        }
    }

    /// Returns true if the set has a number.
    pub(super) fn contains(&self, number: u32) -> bool {
        let (word, bit) = position(number);
        self.words.get(&word).is_some_and(|bits| bits & bit != 0)
    }

    /// Count of the numbers.
    pub(super) fn len(&self) -> usize {
        self.count
    }
}

/// The word of a number, and its bit there.
fn position(number: u32) -> (u32, u64) {
    (number / WORD_BITS, 1 << (number % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_set_has_the_numbers_that_were_added_and_not_removed() {
        let (mut set, mut expected) = (NumberSet::default(), BTreeSet::new());
        for n in 0..5000u32 {
            let number = n.wrapping_mul(2_654_435_761) % 700;
            if n % 3 == 0 {
                set.remove(number);
                expected.remove(&number);
            } else {
                set.insert(number);
                expected.insert(number);
            }
            assert_eq!(set.len(), expected.len());
        }
        assert!((0..800).all(|number| set.contains(number) == expected.contains(&number)));
        expected.iter().for_each(|number| set.remove(*number));
        assert!(set.words.is_empty(), "empty words take no memory");
    }
}
