//! Years of use: files are made, changed and removed until a multiple of the capacity was written.
//!
//! The idea is that of Geriatrix (Kadekodi and others, USENIX ATC '18) and of its predecessor (Smith and
//! Seltzer, SIGMETRICS '97). A volume is filled to a given share. From then on each new file takes the place
//! of an older one, so that both the files and the free space become fragmented. The rule is simple. The file
//! to remove is picked evenly, so ages are distributed exponentially. Half of the files have up to 64 KiB, a
//! third up to 1 MiB, and the rest up to 8 MiB, evenly on a logarithmic scale. Every fourth step overwrites
//! up to an eighth of a file in place.

use serde::{Deserialize, Serialize};

use super::Step;
use crate::content::SplitMix;

/// Sizes of an aging workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aging {
    /// Maximum total size of the files.
    pub live_bytes: u64,
    /// Total number of bytes written.
    pub written_bytes: u64,
    /// Seed of all choices.
    pub seed: u64,
}

/// Files per directory.
const DIR_FILES: u64 = 100;
const KIB: u64 = 1 << 10;
/// Unit of writes in place: whole blocks.
const BLOCK_BYTES: u64 = 4 * KIB;

impl Aging {
    /// Returns the steps. A unit is a new or changed file.
    pub(super) fn steps(self) -> Box<dyn Iterator<Item = Step>> {
        let mut age = Age {
            aging: self,
            random: SplitMix(self.seed),
            files: Vec::new(),
            made: 0,
            live_bytes: 0,
            written_bytes: 0,
        };
        let mut ended = false;
        Box::new(
            std::iter::from_fn(move || {
                if age.written_bytes < self.written_bytes {
                    return Some(age.next());
                }
                (!std::mem::replace(&mut ended, true)).then(|| vec![Step::SyncAll])
            })
            .flatten(),
        )
    }
}

struct Age {
    aging: Aging,
    random: SplitMix,
    /// Existing files: number and size.
    files: Vec<(u64, u64)>,
    made: u64,
    live_bytes: u64,
    written_bytes: u64,
}

impl Age {
    fn next(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let is_full = self.live_bytes + 8 * KIB * KIB > self.aging.live_bytes;
        match is_full && self.random.next() >> 62 == 0 && !self.files.is_empty() {
            true => self.overwrite(&mut steps),
            false => self.create(&mut steps),
        }
        steps.push(Step::Done);
        steps
    }

    fn create(&mut self, steps: &mut Vec<Step>) {
        let bytes = self.size();
        while self.live_bytes + bytes > self.aging.live_bytes && !self.files.is_empty() {
            let picked = self.pick();
            let (number, bytes) = self.files.swap_remove(picked);
            steps.push(Step::Remove { path: path(number) });
            self.live_bytes -= bytes;
        }
        let number = self.made;
        if number % DIR_FILES == 0 {
            steps.push(Step::MakeDir { path: format!("{}", number / DIR_FILES) });
        }
        steps.push(Step::Write { path: path(number), at: 0, length: bytes });
        steps.push(Step::Close { path: path(number) });
        self.files.push((number, bytes));
        self.made += 1;
        self.live_bytes += bytes;
        self.written_bytes += bytes;
    }

    fn overwrite(&mut self, steps: &mut Vec<Step>) {
        let picked = self.pick();
        let (number, bytes) = self.files[picked];
        let blocks = (bytes / BLOCK_BYTES).max(1);
        let length = (1 + self.random.next() % (blocks / 8).max(1)).min(blocks) * BLOCK_BYTES;
        let at = self.random.next() % blocks * BLOCK_BYTES;
        // Files do not grow.
        let length = length.min(bytes.saturating_sub(at)).max(1);
        steps.push(Step::Write { path: path(number), at: at.min(bytes - 1), length });
        steps.push(Step::Close { path: path(number) });
        self.written_bytes += length;
    }

    fn pick(&mut self) -> usize {
        (self.random.next() % self.files.len() as u64) as usize
    }

    fn size(&mut self) -> u64 {
        let (least, most) = match self.random.next() % 6 {
            0..3 => (4 * KIB, 64 * KIB),
            3..5 => (64 * KIB, KIB * KIB),
            _ => (KIB * KIB, 8 * KIB * KIB),
        };
        let doublings = (most / least).ilog2();
        let class = least << (self.random.next() % u64::from(doublings));
        (class + self.random.next() % class).min((self.aging.live_bytes / 4).max(1))
    }
}

fn path(number: u64) -> String {
    format!("{}/{number}", number / DIR_FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_data_stays_below_its_limit_and_ends_close_to_it() {
        let aging = Aging { live_bytes: 100 << 20, written_bytes: 400 << 20, seed: 7 };
        let mut sizes = std::collections::HashMap::new();
        let (mut live, mut written, mut removed) = (0, 0, 0);
        for step in aging.steps() {
            match step {
                Step::Write { path, at, length } => {
                    written += length;
                    let size: &mut u64 = sizes.entry(path).or_default();
                    live += (at + length).saturating_sub(*size);
                    *size = (*size).max(at + length);
                }
                Step::Remove { path } => {
                    live -= sizes.remove(&path).unwrap();
                    removed += 1;
                }
                _ => {}
            }
            assert!(live <= aging.live_bytes);
        }
        assert!(live > 80 << 20, "{live}");
        assert!((400 << 20..410 << 20).contains(&written), "{written}");
        assert!(removed > 200, "{removed}");
    }
}
