//! Device numbers in the inodes of device nodes.

use super::{FileType, NodeBlock};

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DeviceNumber {
    /// Major number: the driver, below 4096.
    pub major: u32,
    /// Minor number: the driver's device, below 2^20.
    pub minor: u32,
}

impl NodeBlock {
    /// Returns the number in a device node; `None` for other inodes. The old encoding lies in address 0. If
    /// that is 0, the new one lies in address 1 (Linux, `__get_inode_rdev`).
    #[must_use]
    pub fn device_number(&self) -> Option<DeviceNumber> {
        if !matches!(self.file_type(), FileType::CharDevice | FileType::BlockDevice) {
            return None;
        }
        let (old, new) = (self.addr(0).0, self.addr(1).0);
        Some(if old != 0 {
            DeviceNumber { major: old >> 8 & 0xFF, minor: old & 0xFF }
        } else {
            DeviceNumber { major: new >> 8 & 0xFFF, minor: new & 0xFF | new >> 12 & 0xF_FF00 }
        })
    }

    /// Sets the number in a device node.
    ///
    /// # Panics
    /// If a number is too large to be stored: a bug of the caller.
    pub fn set_device_number(&mut self, to: DeviceNumber) {
        assert!(to.major < 1 << 12 && to.minor < 1 << 20, "device number {to:?}");
        let (old, new) = if to.major < 256 && to.minor < 256 {
            (to.major << 8 | to.minor, 0)
        } else {
            (0, to.minor & 0xFF | to.major << 8 | (to.minor & !0xFF) << 12)
        };
        let at = self.layout().addrs_at();
        self.set_word(at, old);
        self.set_word(at + 4, new);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Ino,
            tests::{FULL, file, format},
        },
        *,
    };

    #[test]
    fn device_numbers_have_an_old_and_a_new_form() {
        let mut node = NodeBlock::new_inode(format(FULL), Ino(9), 0o060_600, 0, 0);
        for (major, minor, words) in
            [(8, 1, [0x801, 0]), (259, 0x12345, [0, 0x1231_0345]), (1, 300, [0, 0x10_012C])]
        {
            node.set_device_number(DeviceNumber { major, minor });
            assert_eq!(node.device_number(), Some(DeviceNumber { major, minor }));
            assert_eq!([node.word(396), node.word(400)], words);
        }
        assert_eq!(file(FULL, 0).device_number(), None);
    }
}
