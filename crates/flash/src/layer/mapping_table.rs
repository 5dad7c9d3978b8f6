//! The mapping table of an area: a tree of three levels in which only written parts take memory.

use std::{collections::BTreeMap, ops::Range};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::condition::Condition;

/// Pages per leaf, and leaves per branch. Random writes to a large card touch one leaf each.
const LEAF: u32 = 64;
const BRANCH: u32 = 64;
const LAST_LEAF: u32 = u32::MAX / LEAF;

/// The physical position of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Place(u32);

impl Place {
    /// Unmapped since the card was opened: the page is at its earlier position, if it has one.
    pub const AS_BEFORE: Place = Place(0);
    /// The page has no data.
    pub const NOWHERE: Place = Place(1);
    /// Offset of stored positions, which keeps them apart from the two values above.
    const BIAS: u32 = 2;

    /// Makes the position of this flash page.
    pub fn at(flash_page: u32) -> Place {
        Place(flash_page + Place::BIAS)
    }

    /// Returns the position `pages` flash pages later.
    pub fn plus(self, pages: u32) -> Place {
        Place(self.0 + pages)
    }

    /// Returns the flash page, if the page is mapped and holds data.
    pub fn get(self) -> Option<u32> {
        self.0.checked_sub(Place::BIAS)
    }
}

type Leaf = [Place; LEAF as usize];

/// A group of adjacent leaves.
#[derive(Debug, Clone)]
struct Branch {
    leaves: [Option<Box<Leaf>>; BRANCH as usize],
    /// A bit for each missing leaf whose pages were all forgotten.
    forgotten: u64,
}

/// Positions of pages by number.
#[derive(Debug, Clone, Default)]
pub struct MappingTable {
    branches: Vec<Option<Box<Branch>>>,
}

impl Branch {
    fn new() -> Box<Branch> {
        Box::new(Branch { leaves: [const { None }; BRANCH as usize], forgotten: 0 })
    }

    /// Returns the common position of the pages of a missing leaf.
    fn common(&self, leaf: u32) -> Place {
        if self.forgotten >> leaf & 1 == 1 { Place::NOWHERE } else { Place::AS_BEFORE }
    }

    /// Returns a leaf, and creates it if it is missing.
    fn leaf(&mut self, leaf: u32) -> &mut Leaf {
        let common = self.common(leaf);
        self.forgotten &= !(1 << leaf);
        self.leaves[leaf as usize].get_or_insert_with(|| Box::new([common; LEAF as usize]))
    }
}

impl MappingTable {
    /// Returns the position of a page.
    pub fn get(&self, page: u32) -> Place {
        let (branch, leaf, slot) = split(page);
        match self.branches.get(branch) {
            Some(Some(branch)) => match &branch.leaves[leaf as usize] {
                Some(leaf) => leaf[slot],
                None => branch.common(leaf),
            },
            _ => Place::AS_BEFORE,
        }
    }

    /// Sets each of the pages to the position that `now` returns, and calls `was` with its old position.
    pub fn replace(
        &mut self,
        pages: Range<u32>,
        now: impl Fn(u32) -> Place,
        mut was: impl FnMut(u32, Place),
    ) {
        for (number, part) in by_leaf(pages) {
            let leaf = self.branch(number / BRANCH).leaf(number % BRANCH);
            for (page, place) in part.clone().zip(&mut leaf[split(part.start).2..]) {
                was(page, std::mem::replace(place, now(page)));
            }
        }
    }

    /// Moves a page if it is at the expected position. Returns true if it was.
    pub fn relocate(&mut self, page: u32, from: Place, to: Place) -> bool {
        let (branch, leaf, slot) = split(page);
        let branch = self.branches.get_mut(branch).and_then(Option::as_deref_mut);
        if let Some(place) = branch.and_then(|branch| branch.leaves[leaf as usize].as_mut()) {
            let there = place[slot] == from;
            if there {
                place[slot] = to;
            }
            return there;
        }
        let there = self.get(page) == from;
        if there {
            self.replace(page..page + 1, |_| to, |_, _| ());
        }
        there
    }

    /// Forgets pages and calls `was` with their old positions. On a fresh card, an unmapped page has none.
    pub fn forget(&mut self, pages: Range<u32>, condition: Condition, mut was: impl FnMut(u32, Place)) {
        for (number, part) in by_leaf(pages) {
            let is_known = |branch: &Branch| branch.leaves[(number % BRANCH) as usize].is_some();
            let branch = self.branches.get((number / BRANCH) as usize).and_then(Option::as_deref);
            if condition == Condition::Fresh && !branch.is_some_and(is_known) {
                continue;
            }
            if part.len() < LEAF as usize {
                self.replace(part, |_| Place::NOWHERE, &mut was);
                continue;
            }
            let branch = self.branch(number / BRANCH);
            let common = branch.common(number % BRANCH);
            match branch.leaves[(number % BRANCH) as usize].take() {
                Some(leaf) => part.zip(*leaf).for_each(|(page, place)| was(page, place)),
                None => part.for_each(|page| was(page, common)),
            }
            branch.forgotten |= u64::from(condition.is_preconditioned()) << (number % BRANCH);
        }
    }

    /// Returns every mapped or forgotten page with its position.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Place)> {
        self.leaves().flat_map(|(number, leaf)| {
            let place = move |slot: usize| leaf.map_or(Place::NOWHERE, |leaf| leaf[slot]);
            (0..LEAF).map(move |slot| (number * LEAF + slot, place(slot as usize)))
        })
    }

    /// Returns the existing leaves, and `None` for each missing one whose pages were forgotten.
    fn leaves(&self) -> impl Iterator<Item = (u32, Option<&Leaf>)> {
        let branches = (0..).zip(&self.branches).filter_map(|(n, branch)| Some((n, branch.as_deref()?)));
        branches.flat_map(|(n, branch)| {
            let leaves = (0..).zip(&branch.leaves).map(|(leaf, places)| (leaf, places.as_deref()));
            let said =
                leaves.filter(|(leaf, places)| places.is_some() || branch.common(*leaf) == Place::NOWHERE);
            said.map(move |(leaf, places)| (n * BRANCH + leaf, places))
        })
    }

    /// Returns a branch, and creates it if it is missing.
    fn branch(&mut self, number: u32) -> &mut Branch {
        let number = number as usize;
        if number >= self.branches.len() {
            self.branches.resize(number + 1, None);
        }
        self.branches[number].get_or_insert_with(Branch::new)
    }
}

/// Serialised as a map from the numbers of leaves to their positions, or to null if their pages were
/// forgotten.
impl Serialize for MappingTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.leaves().map(|(number, leaf)| (number, leaf.map(|leaf| &leaf[..]))))
    }
}

impl<'de> Deserialize<'de> for MappingTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MappingTable, D::Error> {
        let mut places = MappingTable::default();
        for (number, leaf) in BTreeMap::<u32, Option<Vec<Place>>>::deserialize(deserializer)? {
            let none = || D::Error::custom(format!("leaf {number} of the map is invalid"));
            if number > LAST_LEAF {
                return Err(none());
            }
            let branch = places.branch(number / BRANCH);
            match leaf {
                Some(leaf) => *branch.leaf(number % BRANCH) = leaf.try_into().map_err(|_| none())?,
                None => branch.forgotten |= 1 << (number % BRANCH),
            }
        }
        Ok(places)
    }
}

/// Splits a range of pages by leaf.
fn by_leaf(pages: Range<u32>) -> impl Iterator<Item = (u32, Range<u32>)> {
    let leaves = if pages.is_empty() { 0..0 } else { pages.start / LEAF..(pages.end - 1) / LEAF + 1 };
    leaves.map(move |leaf| {
        let start = leaf * LEAF;
        (leaf, pages.start.max(start)..pages.end.min(start.saturating_add(LEAF)))
    })
}

/// Returns the numbers of a page's branch, of the leaf in the branch, and of the page in the leaf.
fn split(page: u32) -> (usize, u32, usize) {
    ((page / LEAF / BRANCH) as usize, page / LEAF % BRANCH, (page % LEAF) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Place = Place(777);

    /// Returns the number of allocated leaves.
    fn there(places: &MappingTable) -> usize {
        places.leaves().filter(|(_, leaf)| leaf.is_some()).count()
    }

    /// Forgets pages and returns their old positions.
    fn forgotten(places: &mut MappingTable, pages: Range<u32>, condition: Condition) -> Vec<(u32, Place)> {
        let mut was = Vec::new();
        places.forget(pages, condition, |page, place| was.push((page, place)));
        was
    }

    #[test]
    fn forgotten_pages_take_no_memory() {
        let mut places = MappingTable::default();
        places.replace(60..200, |_| SOME, |_, was| assert_eq!(was, Place::AS_BEFORE));
        assert_eq!((places.get(59), places.get(60), places.get(199)), (Place::AS_BEFORE, SOME, SOME));
        let was = forgotten(&mut places, 70..1 << 20, Condition::Preconditioned);
        assert_eq!(was.len(), (1 << 20) - 70);
        assert!(was.iter().all(|(page, was)| *was == if *page < 200 { SOME } else { Place::AS_BEFORE }));
        assert_eq!(
            (places.get(69), places.get(70), places.get((1 << 20) - 1)),
            (SOME, Place::NOWHERE, Place::NOWHERE)
        );
        assert_eq!(there(&places), 2, "those of which a part was forgotten");
        let again = forgotten(&mut places, 70..1 << 20, Condition::Preconditioned);
        assert!(again.iter().all(|(_, was)| *was == Place::NOWHERE), "a second time there is nothing");
        // Without earlier data, an unmapped page has no position and need not be stored.
        let mut places = MappingTable::default();
        places.replace(0..64, |_| SOME, |_, _| ());
        forgotten(&mut places, 0..1 << 20, Condition::Fresh);
        assert_eq!(there(&places), 0);
    }

    #[test]
    fn a_page_is_moved_only_from_its_current_place() {
        let mut places = MappingTable::default();
        assert!(!places.relocate(5, SOME, Place::NOWHERE) && there(&places) == 0);
        assert!(places.relocate(5, Place::AS_BEFORE, SOME));
        assert!(!places.relocate(5, Place::AS_BEFORE, SOME) && places.relocate(5, SOME, Place::at(9)));
        forgotten(&mut places, 0..64, Condition::Preconditioned);
        assert!(!places.relocate(5, SOME, SOME) && !places.relocate(5, Place::AS_BEFORE, SOME));
    }

    #[test]
    fn places_survive_a_file_and_hostile_ones_are_refused() {
        let mut places = MappingTable::default();
        places.replace(60..70, Place::at, |_, _| ());
        forgotten(&mut places, 128..192, Condition::Preconditioned);
        let text = serde_json::to_string(&places).expect("figures");
        let again: MappingTable = serde_json::from_str(&text).expect("its own text");
        assert!((0..300).all(|page| again.get(page) == places.get(page)), "{text}");
        assert!(
            again.iter().all(|(page, place)| places.get(page) == place) && again.iter().count() == 3 * 64
        );
        for bad in [r#"{"0":[1,2]}"#.to_string(), text.replace("\"2\"", "\"4294967295\"")] {
            assert_ne!(bad, text);
            assert!(serde_json::from_str::<MappingTable>(&bad).is_err(), "{bad}");
        }
    }
}
