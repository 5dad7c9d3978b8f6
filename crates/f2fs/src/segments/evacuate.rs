//! Segments that are to be emptied for a resize.

use std::ops::Range;

use super::{Segments, sit::Prefree};
use crate::{Result, format::sit::SegmentType};

impl Segments {
    /// Keeps all logs out of `segments`, whole sections, as long as the volume is open. Logs that are there open other
    /// segments.
    pub(crate) fn close_segments(&mut self, segments: Range<u32>) -> Result<()> {
        self.sit.close(self.disk.io(), segments)?;
        self.spare_sections = None;
        for kind in SegmentType::ALL {
            if self.sit.is_closed(self.logs.get(kind).segment) {
                self.open_segment(kind, Prefree::Excluded)?;
            }
        }
        Ok(())
    }
}
