//! Segments that are to be emptied.

use std::ops::Range;

use super::{Segments, sit::Prefree};
use crate::{Result, format::sit::SegmentType};

impl Segments {
    /// Lets a log continue in a free segment, if it takes the holes of a used one and there is another.
    pub(crate) fn leave_holes(&mut self, kind: SegmentType) -> Result<()> {
        match self.logs.get(kind).mode.is_ssr() {
            true => self.open_segment(kind, Prefree::Excluded),
            false => Ok(()),
        }
    }

    /// Keeps all logs out of `ranges`, whole sections without a common one, as long as the volume is open. Logs that are there
    /// open other segments.
    pub(crate) fn disable_segments(&mut self, ranges: &[Range<u32>]) -> Result<()> {
        self.sit.disable(self.disk.io(), ranges)?;
        self.spare_sections = None;
        for kind in SegmentType::ALL {
            if self.sit.is_disabled(self.logs.get(kind).segment) {
                self.open_segment(kind, Prefree::Excluded)?;
            }
        }
        Ok(())
    }
}
