//! A null target that keeps no data: an operation on it costs only the generation of its content.

use std::io;

use guest::{pattern::RecordFile, tree::Planter, workload::Files};

/// Accepts all operations.
pub(super) struct NullTarget;

impl Planter for NullTarget {
    fn make_dir(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn make_file(&mut self, _: &str, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

impl RecordFile for NullTarget {
    fn read_record(&mut self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn write_record(&mut self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Files for NullTarget {
    fn make_dir(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn write(&mut self, _: &str, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn read(&mut self, _: &str, _: u64, _: &mut [u8]) -> io::Result<()> {
        Ok(())
    }
    fn truncate(&mut self, _: &str, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn fsync(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn fdatasync(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn close(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn rename(&mut self, _: &str, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn remove(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn sync_all(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn size(&mut self, _: &str) -> io::Result<u64> {
        Ok(0)
    }
    fn now_ns(&mut self) -> u64 {
        0
    }
    fn keeps(&self) -> bool {
        false
    }
}
