//! The ioctls of features without a system call: compression, verity, encryption, project quota, pinning, and
//! those that connect the kernel's NBD driver and UBI.
//!
//! This is the only `unsafe` code of the crate: an ioctl's argument type follows from its number, which no
//! compiler checks. Numbers and layouts: Linux, `include/uapi/linux/{f2fs,fs,fscrypt,fsverity}.h`,
//! `include/uapi/mtd/ubi-user.h`.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::{
    io::Result,
    ioctl::{IntegerSetter, NoArg, Opcode, Updater, ioctl, opcode},
};

use crate::op::Policy;

/// Bytes of an fscrypt key descriptor.
pub const KEY_DESCRIPTOR_BYTES: usize = 8;
/// Bytes of an fscrypt key identifier.
pub const KEY_IDENTIFIER_BYTES: usize = 16;

const fn f2fs_none(number: u8) -> Opcode {
    opcode::none(0xF5, number)
}

const fn f2fs_read<T>(number: u8) -> Opcode {
    opcode::read::<T>(0xF5, number)
}

const fn f2fs_write<T>(number: u8) -> Opcode {
    opcode::write::<T>(0xF5, number)
}

/// Calls `OP` with `argument`, and returns the argument as the kernel left it.
fn call<const OP: Opcode, const N: usize>(fd: impl AsFd, mut argument: [u8; N]) -> Result<[u8; N]> {
    // SAFETY: each caller below passes an array at least as long as the structure that the number OP stands
    // for. None of these structures holds a pointer except verity's, whose pointers are null. The kernel
    // copies user memory without regard to alignment.
    unsafe { ioctl(fd, Updater::<OP, [u8; N]>::new(&mut argument))? };
    Ok(argument)
}

/// Calls `OP`, which takes no argument.
fn call_plain<const OP: Opcode>(fd: impl AsFd) -> Result<()> {
    // SAFETY: the numbers passed by the callers below take no argument.
    unsafe { ioctl(fd, NoArg::<OP>::new()) }
}

/// Calls `OP` with a number as its argument.
fn call_number<const OP: Opcode>(fd: impl AsFd, number: usize) -> Result<()> {
    // SAFETY: the numbers passed by the callers below take an integer.
    unsafe { ioctl(fd, IntegerSetter::<OP>::new_usize(number)) }
}

/// Returns the `FS_*_FL` flags of a file or directory.
pub fn flags(fd: impl AsFd) -> Result<u32> {
    let out = call::<{ opcode::read::<usize>(b'f', 1) }, 8>(fd, [0; 8])?;
    Ok(u32::from_le_bytes(out[..4].try_into().expect("four bytes")))
}

/// Sets the `FS_*_FL` flags of a file or directory.
pub fn set_flags(fd: impl AsFd, flags: u32) -> Result<()> {
    call::<{ opcode::write::<usize>(b'f', 2) }, 8>(fd, u64::from(flags).to_le_bytes()).map(drop)
}

/// Returns the project of a file or directory.
pub fn project(fd: impl AsFd) -> Result<u32> {
    let out = call::<{ opcode::read::<[u8; 28]>(b'X', 31) }, 28>(fd, [0; 28])?;
    Ok(u32::from_le_bytes(out[12..16].try_into().expect("four bytes")))
}

/// The flag `FS_XFLAG_PROJINHERIT`: new entries of a directory get its project.
const PROJINHERIT: u32 = 0x200;

/// Moves a file or directory to a project.
pub fn set_project(fd: impl AsFd, id: u32) -> Result<()> {
    change_project(fd, id, 0)
}

/// Moves a directory to a project, which its new entries get, too.
pub fn set_inherited_project(fd: impl AsFd, id: u32) -> Result<()> {
    change_project(fd, id, PROJINHERIT)
}

fn change_project(fd: impl AsFd, id: u32, inherit: u32) -> Result<()> {
    let mut arg = call::<{ opcode::read::<[u8; 28]>(b'X', 31) }, 28>(&fd, [0; 28])?;
    let flags = u32::from_le_bytes(arg[..4].try_into().expect("four bytes"));
    let flags = flags & !PROJINHERIT | inherit;
    arg[..4].copy_from_slice(&flags.to_le_bytes());
    arg[12..16].copy_from_slice(&id.to_le_bytes());
    call::<{ opcode::write::<[u8; 28]>(b'X', 32) }, 28>(fd, arg).map(drop)
}

/// Returns the number of blocks that compression saves in a file.
pub fn compressed_blocks(fd: impl AsFd) -> Result<u64> {
    call::<{ f2fs_read::<u64>(17) }, 8>(fd, [0; 8]).map(u64::from_le_bytes)
}

/// Releases the blocks saved by compression to the volume. The file's content becomes immutable.
pub fn release_compressed_blocks(fd: impl AsFd) -> Result<u64> {
    call::<{ f2fs_read::<u64>(18) }, 8>(fd, [0; 8]).map(u64::from_le_bytes)
}

/// Reserves the blocks of [`release_compressed_blocks`] again.
pub fn reserve_compressed_blocks(fd: impl AsFd) -> Result<u64> {
    call::<{ f2fs_read::<u64>(19) }, 8>(fd, [0; 8]).map(u64::from_le_bytes)
}

/// Sets the algorithm (0 LZO, 1 LZ4, 2 zstd, 3 LZO-RLE) and log2 of the cluster's blocks. The file must be
/// empty.
pub fn set_compression(fd: impl AsFd, algorithm: u8, log_cluster: u8) -> Result<()> {
    call::<{ f2fs_write::<[u8; 2]>(22) }, 2>(fd, [algorithm, log_cluster]).map(drop)
}

/// Compresses a file now (mount option compress_mode=user).
pub fn compress_file(fd: impl AsFd) -> Result<()> {
    call_plain::<{ f2fs_none(24) }>(fd)
}

/// Pins a file's blocks in place.
pub fn pin(fd: impl AsFd) -> Result<()> {
    call::<{ f2fs_write::<u32>(13) }, 4>(fd, 1_u32.to_le_bytes()).map(drop)
}

/// Lets a file's blocks move again.
pub fn unpin(fd: impl AsFd) -> Result<()> {
    call::<{ f2fs_write::<u32>(13) }, 4>(fd, 0_u32.to_le_bytes()).map(drop)
}

/// Cleans one section.
pub fn collect_garbage(fd: impl AsFd) -> Result<()> {
    call::<{ f2fs_write::<u32>(6) }, 4>(fd, 1_u32.to_le_bytes()).map(drop)
}

/// Writes a checkpoint.
pub fn write_checkpoint(fd: impl AsFd) -> Result<()> {
    call_plain::<{ f2fs_none(7) }>(fd)
}

/// Opens an atomic write on a file.
pub fn start_atomic_write(fd: impl AsFd) -> Result<()> {
    call_plain::<{ f2fs_none(1) }>(fd)
}

/// Commits an atomic write.
pub fn commit_atomic_write(fd: impl AsFd) -> Result<()> {
    call_plain::<{ f2fs_none(2) }>(fd)
}

/// Makes a file read-only with a Merkle tree over its content (SHA-256, 4096-byte blocks).
pub fn enable_verity(fd: impl AsFd) -> Result<()> {
    let mut arg = [0; 128];
    arg[0..4].copy_from_slice(&1_u32.to_le_bytes()); // version
    arg[4..8].copy_from_slice(&1_u32.to_le_bytes()); // SHA-256
    arg[8..12].copy_from_slice(&4096_u32.to_le_bytes());
    call::<{ opcode::write::<[u8; 128]>(b'f', 133) }, 128>(fd, arg).map(drop)
}

/// Bytes of the longest digest of fs-verity, with the two numbers before it.
const DIGEST_BYTES: usize = 4 + 64;

/// Returns the fs-verity digest of a file: `sha256:` or `sha512:` and hexadecimal digits.
pub fn measure_verity(fd: impl AsFd) -> Result<String> {
    let mut room = [0; DIGEST_BYTES];
    room[2..4].copy_from_slice(&((DIGEST_BYTES - 4) as u16).to_le_bytes());
    // The number has the size of the structure without the digest.
    let told = call::<{ opcode::read_write::<[u8; 4]>(b'f', 134) }, DIGEST_BYTES>(fd, room)?;
    let [algorithm, bytes] = [0, 2].map(|at| u16::from_le_bytes([told[at], told[at + 1]]));
    let name = if algorithm == 1 { "sha256" } else { "sha512" };
    let digits = told[4..].iter().take(bytes.into()).map(|byte| format!("{byte:02x}"));
    Ok(format!("{name}:{}", digits.collect::<String>()))
}

/// Adds an fscrypt master key to the file system that `fd` lies on, by the descriptor of policies of version 1 or, without
/// one, by its identifier, which it returns.
pub fn add_encryption_key(
    fd: impl AsFd,
    key: &[u8; 64],
    descriptor: Option<[u8; KEY_DESCRIPTOR_BYTES]>,
) -> Result<[u8; KEY_IDENTIFIER_BYTES]> {
    const HEAD: usize = 80;
    let mut arg = [0; HEAD + 64];
    let by: u32 = if descriptor.is_some() { 1 } else { 2 };
    arg[0..4].copy_from_slice(&by.to_le_bytes());
    arg[8..8 + KEY_DESCRIPTOR_BYTES].copy_from_slice(&descriptor.unwrap_or_default());
    arg[40..44].copy_from_slice(&(key.len() as u32).to_le_bytes());
    arg[HEAD..].copy_from_slice(key);
    let out = call::<{ opcode::read_write::<[u8; HEAD]>(b'f', 23) }, { HEAD + 64 }>(fd, arg)?;
    Ok(out[8..8 + KEY_IDENTIFIER_BYTES].try_into().expect("sixteen bytes"))
}

/// Sets an fscrypt policy on an empty directory. `identifier` is the name of its key in a policy of version 2.
pub fn set_encryption_policy(
    fd: impl AsFd,
    policy: &Policy,
    identifier: &[u8; KEY_IDENTIFIER_BYTES],
) -> Result<()> {
    let mut arg = [0; 24];
    let argument = match &policy.descriptor {
        Some(descriptor) => policy.argument(descriptor),
        None => policy.argument(identifier),
    };
    arg[..argument.len()].copy_from_slice(&argument);
    call::<{ opcode::read::<[u8; 12]>(b'f', 19) }, 24>(fd, arg).map(drop)
}

/// Gives up the caller's claim to a key by its identifier. Returns the flags of what keeps the key.
pub fn remove_encryption_key(fd: impl AsFd, identifier: &[u8; KEY_IDENTIFIER_BYTES]) -> Result<u32> {
    let out = call::<{ opcode::read_write::<[u8; 64]>(b'f', 24) }, 64>(fd, by_identifier(identifier))?;
    Ok(u32::from_le_bytes(out[40..44].try_into().expect("four bytes")))
}

/// Returns the state of a key: 1 absent, 2 present.
pub fn encryption_key_status(fd: impl AsFd, identifier: &[u8; KEY_IDENTIFIER_BYTES]) -> Result<u32> {
    let out = call::<{ opcode::read_write::<[u8; 128]>(b'f', 26) }, 128>(fd, by_identifier(identifier))?;
    Ok(u32::from_le_bytes(out[64..68].try_into().expect("four bytes")))
}

/// Returns the policy of an encrypted file or directory.
pub fn encryption_policy(fd: impl AsFd) -> Result<Vec<u8>> {
    let mut arg = [0; 32];
    arg[0] = 24;
    let out = call::<{ opcode::read_write::<[u8; 9]>(b'f', 22) }, 32>(fd, arg)?;
    Ok(out[8..8 + usize::from(out[0]).min(24)].to_vec())
}

/// Returns the nonce of an encrypted file or directory.
pub fn encryption_nonce(fd: impl AsFd) -> Result<[u8; 16]> {
    call::<{ opcode::read::<[u8; 16]>(b'f', 27) }, 16>(fd, [0; 16])
}

/// Makes a `struct fscrypt_key_specifier` at the start of an argument.
fn by_identifier<const BYTES: usize>(identifier: &[u8; KEY_IDENTIFIER_BYTES]) -> [u8; BYTES] {
    let mut arg = [0; BYTES];
    arg[0] = 2;
    arg[8..8 + KEY_IDENTIFIER_BYTES].copy_from_slice(identifier);
    arg
}

/// Attaches the flash of this number to UBI. `control` is `/dev/ubi_ctrl`. Returns the number of UBI's
/// device.
pub fn ubi_attach(control: impl AsFd, flash: i32) -> Result<i32> {
    let mut request = [0; 24];
    request[..4].copy_from_slice(&(-1_i32).to_le_bytes()); // any free number
    request[4..8].copy_from_slice(&flash.to_le_bytes());
    let answer = call::<{ opcode::write::<[u8; 24]>(b'o', 64) }, 24>(control, request)?;
    Ok(i32::from_le_bytes(answer[..4].try_into().expect("four bytes")))
}

/// Detaches a UBI device of this number.
pub fn ubi_detach(control: impl AsFd, device: i32) -> Result<()> {
    call::<{ opcode::write::<i32>(b'o', 65) }, 4>(control, device.to_le_bytes()).map(drop)
}

/// Makes a volume on a UBI device.
pub fn ubi_make_volume(device: impl AsFd, name: &str, bytes: u64) -> Result<()> {
    const DYNAMIC: u8 = 3;
    let mut request = [0; 152];
    request[..4].copy_from_slice(&(-1_i32).to_le_bytes()); // any free number
    request[4..8].copy_from_slice(&1_i32.to_le_bytes()); // alignment
    request[8..16].copy_from_slice(&bytes.to_le_bytes());
    request[16] = DYNAMIC;
    request[18..20].copy_from_slice(&(name.len() as u16).to_le_bytes());
    request[24..24 + name.len()].copy_from_slice(name.as_bytes());
    call::<{ opcode::write::<[u8; 152]>(b'o', 0) }, 152>(device, request).map(drop)
}

const fn nbd(number: u8) -> Opcode {
    opcode::none(0xAB, number)
}

/// Sets the socket over which the device is served.
pub fn nbd_set_socket(device: impl AsFd, socket: impl AsFd) -> Result<()> {
    let number = usize::try_from(socket.as_fd().as_raw_fd()).expect("an open file has a number");
    call_number::<{ nbd(0) }>(device, number)
}

/// Sets the device's block size in bytes.
pub fn nbd_set_block_bytes(device: impl AsFd, bytes: usize) -> Result<()> {
    call_number::<{ nbd(1) }>(device, bytes)
}

/// Serves the device until it is disconnected.
pub fn nbd_do_it(device: impl AsFd) -> Result<()> {
    call_plain::<{ nbd(3) }>(device)
}

/// Sets the device's size in blocks.
pub fn nbd_set_blocks(device: impl AsFd, blocks: usize) -> Result<()> {
    call_number::<{ nbd(7) }>(device, blocks)
}

/// Ends the connection.
pub fn nbd_disconnect(device: impl AsFd) -> Result<()> {
    call_plain::<{ nbd(8) }>(device)
}

/// Sets the features of the server: its transmission flags.
pub fn nbd_set_flags(device: impl AsFd, flags: usize) -> Result<()> {
    call_number::<{ nbd(10) }>(device, flags)
}

/// Makes a `struct ifreq` for an interface, with these bytes after its name.
fn interface(name: &str, what: &[u8]) -> [u8; 40] {
    let mut request = [0; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..16 + what.len()].copy_from_slice(what);
    request
}

/// Makes a `struct sockaddr_in` of an IPv4 address.
fn ipv4(address: [u8; 4]) -> [u8; 8] {
    let [a, b, c, d] = address;
    // The family AF_INET is in the host's byte order; there is no port.
    [2, 0, 0, 0, a, b, c, d]
}

/// Sets an interface's address. `socket` can be any socket.
pub fn set_interface_address(socket: impl AsFd, name: &str, address: [u8; 4]) -> Result<()> {
    call::<0x8916, 40>(socket, interface(name, &ipv4(address))).map(drop)
}

/// Sets an interface's netmask.
pub fn set_interface_netmask(socket: impl AsFd, name: &str, netmask: [u8; 4]) -> Result<()> {
    call::<0x891C, 40>(socket, interface(name, &ipv4(netmask))).map(drop)
}

/// Turns an interface on.
pub fn set_interface_up(socket: impl AsFd, name: &str) -> Result<()> {
    call::<0x8914, 40>(socket, interface(name, &[1, 0])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers as a C compiler computes them from Linux's headers.
    #[test]
    fn numbers_equal_those_of_linux() {
        assert_eq!(f2fs_read::<u64>(18), 0x8008_F512);
        assert_eq!(f2fs_write::<u32>(13), 0x4004_F50D);
        assert_eq!(f2fs_none(7), 0xF507);
        assert_eq!(opcode::write::<[u8; 128]>(b'f', 133), 0x4080_6685);
        assert_eq!(opcode::read_write::<[u8; 80]>(b'f', 23), 0xC050_6617);
        assert_eq!(opcode::read::<[u8; 12]>(b'f', 19), 0x800C_6613);
        assert_eq!(opcode::read::<[u8; 28]>(b'X', 31), 0x801C_581F);
    }
}
