//! Blocks that several owners name.

use f2fs::units::BlockAddr;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{Slot, checker::ODD_MAX};

/// A claim of an owner on a block that another one named before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The block.
    pub addr: BlockAddr,
    /// The owner, as text.
    pub claimant: String,
    /// The place that names the block; `None` if it cannot be changed.
    pub slot: Option<Slot>,
}

/// The claims of all owners but the first of each block: at most [`ODD_MAX`].
#[derive(Debug, Default)]
pub struct SharedBlocks {
    claims: FxHashMap<(BlockAddr, Option<Slot>), String>,
    /// Number of owners of each block without the first.
    owners: FxHashMap<BlockAddr, usize>,
    /// Blocks that their first owner gave up: the next one keeps them.
    given_up: FxHashSet<BlockAddr>,
}

impl SharedBlocks {
    /// Adds a claim.
    ///
    /// # Errors
    /// The claim, if there are too many.
    pub fn add(&mut self, claim: Claim) -> Result<(), Claim> {
        if self.claims.len() >= ODD_MAX {
            return Err(claim);
        }
        let Claim { addr, claimant, slot } = claim;
        if self.claims.insert((addr, slot), claimant).is_none() {
            *self.owners.entry(addr).or_default() += 1;
        }
        Ok(())
    }

    /// Returns true if a block has several owners.
    pub fn contains(&self, addr: BlockAddr) -> bool {
        self.owners.contains_key(&addr)
    }

    /// Takes a block away from the owner at a place. Returns false if the block has no other owner.
    pub fn release(&mut self, addr: BlockAddr, slot: Slot) -> bool {
        let Some(left) = self.owners.get_mut(&addr) else { return false };
        *left -= 1;
        if *left == 0 {
            self.owners.remove(&addr);
        }
        let is_later = self.claims.remove(&(addr, Some(slot))).is_some();
        if !is_later {
            self.given_up.insert(addr);
        }
        true
    }

    /// Takes all claims that are left, in the order of their blocks.
    pub fn take(&mut self) -> Vec<Claim> {
        let claims = std::mem::take(&mut self.claims).into_iter();
        let mut claims: Vec<Claim> =
            claims.map(|((addr, slot), claimant)| Claim { addr, claimant, slot }).collect();
        claims.sort_unstable_by_key(|claim| (claim.addr, claim.slot));
        self.owners.clear();
        // The first of these claims takes the place of the first owner.
        claims.retain(|claim| !self.given_up.remove(&claim.addr));
        claims
    }
}

#[cfg(test)]
mod tests {
    use f2fs::units::Nid;

    use super::*;

    fn claim(at: usize) -> Claim {
        Claim { addr: BlockAddr(9), claimant: format!("owner {at}"), slot: slot(at) }
    }

    fn slot(at: usize) -> Option<Slot> {
        Some(Slot { nid: Nid(5), at })
    }

    fn shared_by_four() -> SharedBlocks {
        let mut shared = SharedBlocks::default();
        (1..4).for_each(|at| shared.add(claim(at)).expect("there is space"));
        shared
    }

    #[test]
    fn all_owners_but_the_first_give_a_block_up() {
        let mut shared = shared_by_four();
        assert!(shared.release(BlockAddr(9), slot(2).unwrap()));
        assert_eq!(shared.take(), [claim(1), claim(3)]);
        assert!(!shared.contains(BlockAddr(9)));
    }

    #[test]
    fn the_next_owner_keeps_a_block_that_the_first_gave_up() {
        let mut shared = shared_by_four();
        assert!(shared.release(BlockAddr(9), slot(0).unwrap()));
        assert_eq!(shared.take(), [claim(2), claim(3)]);
    }

    #[test]
    fn the_last_owner_keeps_a_block() {
        let mut shared = shared_by_four();
        let released: Vec<bool> = (0..4).map(|at| shared.release(BlockAddr(9), slot(at).unwrap())).collect();
        assert_eq!(released, [true, true, true, false]);
        assert_eq!(shared.take(), []);
    }

    #[test]
    fn the_claims_are_bounded() {
        let mut shared = SharedBlocks::default();
        (0..ODD_MAX).for_each(|at| shared.add(claim(at)).expect("there is space"));
        assert_eq!(shared.add(claim(ODD_MAX)), Err(claim(ODD_MAX)));
    }
}
