//! A bounded map in two generations: what is used stays.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A map of at most about twice `half` values. When the young generation is full, it becomes the old one, and values of
/// the previous old one that were not used since are dropped.
pub(crate) struct Generations<K, V> {
    young: FxHashMap<K, V>,
    old: FxHashMap<K, V>,
    half: usize,
}

impl<K: Copy + Eq + Hash, V: Clone> Generations<K, V> {
    /// Makes an empty map whose generations have at most `half` values each.
    pub(crate) fn new(half: usize) -> Generations<K, V> {
        Generations { young: FxHashMap::default(), old: FxHashMap::default(), half }
    }

    /// Returns a value, which counts as used.
    pub(crate) fn get(&mut self, key: K) -> Option<V> {
        if let Some(value) = self.young.get(&key) {
            return Some(value.clone());
        }
        let value = self.old.remove(&key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    /// Adds a value. A value that the old generation has for the key must be [removed](Self::remove) before.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Removes a value.
    pub(crate) fn remove(&mut self, key: K) {
        self.young.remove(&key);
        self.old.remove(&key);
    }

    /// Returns true if there are no values.
    pub(crate) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }
}
