//! File capabilities, encoded as the value of `security.capability`.

/// Name of the attribute.
pub const NAME: &[u8] = b"security.capability";

/// `VFS_CAP_REVISION_2` with the flag that makes the permitted set effective.
const REVISION_2_EFFECTIVE: u32 = 0x0200_0001;

/// Returns the attribute's value (`struct vfs_cap_data`) for a permitted set. The set is effective; nothing
/// is inheritable.
pub fn value(permitted: u64) -> Vec<u8> {
    let (low, high, inheritable) = (permitted as u32, (permitted >> 32) as u32, 0);
    [REVISION_2_EFFECTIVE, low, inheritable, high, inheritable]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}
