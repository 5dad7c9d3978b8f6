//! The memory of a process that waits for an ioctl. The kernel sends a FUSE file system only the part of an argument whose
//! size the number of the ioctl has; the rest is where the process has put it.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
};

use crate::Errno;

/// The argument of an ioctl in the memory of its caller.
#[derive(Debug, Clone, Copy)]
pub struct CallerMemory {
    /// The calling thread; 0 if it is not visible in our PID namespace.
    pub pid: u32,
    /// Address of the argument.
    pub address: u64,
}

impl CallerMemory {
    /// Reads `bytes` bytes at `offset` of the argument.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if this process may not read the memory of the caller, `EFAULT` if there is none.
    pub fn read(self, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let mut found = vec![0; bytes];
        self.open(OpenOptions::new().read(true))?
            .read_exact_at(&mut found, self.at(offset)?)
            .map_err(|_| Errno::FAULT)?;
        Ok(found)
    }

    /// Reads `bytes` bytes at another address.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_at(self, address: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        CallerMemory { address, ..self }.read(0, bytes)
    }

    /// Writes at `offset` of the argument.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn write(self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.open(OpenOptions::new().write(true))?
            .write_all_at(bytes, self.at(offset)?)
            .map_err(|_| Errno::FAULT)
    }

    fn at(self, offset: u64) -> Result<u64, Errno> {
        self.address.checked_add(offset).ok_or(Errno::FAULT)
    }

    /// Opens the memory (proc(5)). That needs the rights of ptrace(2) over the caller, which root has.
    fn open(self, options: &OpenOptions) -> Result<File, Errno> {
        match self.pid {
            0 => Err(Errno::OPNOTSUPP),
            pid => options.open(format!("/proc/{pid}/mem")).map_err(|_| Errno::OPNOTSUPP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_process_is_read_around_an_address() {
        let text = *b"an argument, and what follows it";
        let memory = CallerMemory { pid: std::process::id(), address: text.as_ptr() as u64 };
        assert_eq!(memory.read(3, 8).expect("our own memory"), b"argument");
        assert_eq!(memory.read_at(memory.address + 13, 3).expect("our own memory"), b"and");
        assert_eq!(CallerMemory { address: 8, ..memory }.read(0, 8), Err(Errno::FAULT));
        assert_eq!(CallerMemory { address: u64::MAX, ..memory }.read(8, 8), Err(Errno::FAULT));
        assert_eq!(CallerMemory { pid: 0, ..memory }.read(0, 8), Err(Errno::OPNOTSUPP));
    }
}
