//! AES-256-HCTR2: a length-preserving cipher of whole messages ("Length-preserving encryption with HCTR2", Crowley,
//! Huckleberry, Biggers, 2021).

use aes::{
    Aes256,
    cipher::{BlockDecrypt, BlockEncrypt, KeyInit},
};
use polyval::{Polyval, universal_hash::UniversalHash};
use zeroize::Zeroizing;

use super::{BLOCK_BYTES, Iv};

/// AES-256-HCTR2 with its key.
pub(crate) struct Hctr2 {
    aes: Aes256,
    /// The hash with its key, before the first block.
    hash: Polyval,
    /// The mask of the stream's start, called L in the paper.
    mask: Zeroizing<u128>,
}

/// The two directions, which differ in the half that AES makes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Encrypt,
    Decrypt,
}

impl Hctr2 {
    pub(crate) fn new(key: &[u8]) -> Hctr2 {
        let aes = Aes256::new(key.into());
        let of = |number: u128| encrypt(&aes, number);
        let (hash_key, mask) = (of(0), of(1));
        Hctr2 { hash: Polyval::new(&hash_key.to_le_bytes().into()), aes, mask: Zeroizing::new(mask) }
    }

    pub(crate) fn encrypt(&self, tweak: &Iv, message: &mut [u8]) {
        self.turn(tweak, message, Direction::Encrypt);
    }

    pub(crate) fn decrypt(&self, tweak: &Iv, message: &mut [u8]) {
        self.turn(tweak, message, Direction::Decrypt);
    }

    /// The two directions are the same, but for the one of the block cipher.
    fn turn(&self, tweak: &Iv, message: &mut [u8], direction: Direction) {
        let (head, rest) = message.split_first_chunk_mut::<BLOCK_BYTES>().expect("a message has 16 bytes");
        let before = u128::from_le_bytes(*head) ^ self.hash(tweak, rest);
        let after = match direction {
            Direction::Encrypt => encrypt(&self.aes, before),
            Direction::Decrypt => decrypt(&self.aes, before),
        };
        self.xor_stream(before ^ after ^ *self.mask, rest);
        *head = (after ^ self.hash(tweak, rest)).to_le_bytes();
    }

    /// The hash of tweak and message.
    fn hash(&self, tweak: &Iv, message: &[u8]) -> u128 {
        let mut hash = self.hash.clone();
        let is_whole = message.len() % BLOCK_BYTES == 0;
        let length = tweak.len() as u128 * 8 * 2 + if is_whole { 2 } else { 3 };
        hash.update(&[length.to_le_bytes().into()]);
        hash.update_padded(tweak);
        let (whole, rest) = message.split_at(message.len() - message.len() % BLOCK_BYTES);
        hash.update_padded(whole);
        if !is_whole {
            let mut last = [0; BLOCK_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            last[rest.len()] = 1;
            hash.update(&[last.into()]);
        }
        u128::from_le_bytes(hash.finalize().into())
    }

    /// The mode XCTR: the stream is AES of the start, combined with the number of the block, from 1 on.
    fn xor_stream(&self, start: u128, bytes: &mut [u8]) {
        for (block, number) in bytes.chunks_mut(BLOCK_BYTES).zip(1_u128..) {
            let stream = encrypt(&self.aes, start ^ number).to_le_bytes();
            block.iter_mut().zip(stream).for_each(|(byte, stream)| *byte ^= stream);
        }
    }
}

fn encrypt(aes: &Aes256, block: u128) -> u128 {
    let mut block = block.to_le_bytes().into();
    aes.encrypt_block(&mut block);
    u128::from_le_bytes(block.into())
}

fn decrypt(aes: &Aes256, block: u128) -> u128 {
    let mut block = block.to_le_bytes().into();
    aes.decrypt_block(&mut block);
    u128::from_le_bytes(block.into())
}
