//! AES in CBC mode: with ciphertext stealing for names, and with ESSIV for contents.

use aes::{
    Aes128, Aes256,
    cipher::{
        Block, BlockCipher, BlockDecrypt, BlockDecryptMut, BlockEncrypt, BlockEncryptMut, InnerIvInit,
        KeyInit, consts::U16, generic_array::GenericArray,
    },
};
use cbc::{Decryptor, Encryptor};
use sha2::{Digest, Sha256};

use super::BLOCK_BYTES;

type AesBlock = GenericArray<u8, U16>;

/// AES-CBC with ciphertext stealing, variant CS3 of NIST SP 800-38A: the last two blocks are always exchanged, except
/// in a message of one block.
pub(crate) struct AesCts<A> {
    aes: A,
}

impl<A> AesCts<A>
where
    A: BlockCipher<BlockSize = U16> + BlockEncrypt + BlockDecrypt,
{
    pub(crate) fn new(aes: A) -> AesCts<A> {
        AesCts { aes }
    }

    pub(crate) fn encrypt(&self, iv: &[u8; BLOCK_BYTES], message: &mut [u8]) {
        let mut blocks = padded(message);
        let count = blocks.len();
        Encryptor::inner_iv_init(&self.aes, iv.into()).encrypt_blocks_mut(&mut blocks);
        if count > 1 {
            blocks.swap(count - 2, count - 1);
        }
        put(&blocks, message);
    }

    pub(crate) fn decrypt(&self, iv: &[u8; BLOCK_BYTES], message: &mut [u8]) {
        let mut blocks = padded(message);
        let count = blocks.len();
        if count > 1 {
            let stolen = (count - 1) * BLOCK_BYTES;
            let end = message.len() - stolen;
            let mut last = blocks[count - 2];
            // The rest of the block before the last one is in the last one, decrypted.
            self.aes.decrypt_block(&mut last);
            blocks[count - 1][end..].copy_from_slice(&last[end..]);
            blocks.swap(count - 2, count - 1);
        }
        Decryptor::inner_iv_init(&self.aes, iv.into()).decrypt_blocks_mut(&mut blocks);
        put(&blocks, message);
    }
}

/// A message in blocks, the last one filled up with zeroes.
fn padded(message: &[u8]) -> Vec<AesBlock> {
    let block = |bytes: &[u8]| {
        let mut block = AesBlock::default();
        block[..bytes.len()].copy_from_slice(bytes);
        block
    };
    message.chunks(BLOCK_BYTES).map(block).collect()
}

fn put(blocks: &[AesBlock], message: &mut [u8]) {
    for (bytes, block) in message.chunks_mut(BLOCK_BYTES).zip(blocks) {
        bytes.copy_from_slice(&block[..bytes.len()]);
    }
}

/// AES-128-CBC whose vector is encrypted with the hash of the key (ESSIV with SHA-256).
pub(crate) struct Essiv {
    data: Aes128,
    vector: Aes256,
}

impl Essiv {
    pub(crate) fn new(key: &[u8]) -> Essiv {
        Essiv { data: Aes128::new(key.into()), vector: Aes256::new(&Sha256::digest(key)) }
    }

    pub(crate) fn encrypt(&self, iv: [u8; BLOCK_BYTES], message: &mut [u8]) {
        let mut cipher = Encryptor::inner_iv_init(&self.data, &self.hidden(iv));
        for bytes in message.chunks_exact_mut(BLOCK_BYTES) {
            cipher.encrypt_block_mut(Block::<Aes128>::from_mut_slice(bytes));
        }
    }

    pub(crate) fn decrypt(&self, iv: [u8; BLOCK_BYTES], message: &mut [u8]) {
        let mut cipher = Decryptor::inner_iv_init(&self.data, &self.hidden(iv));
        for bytes in message.chunks_exact_mut(BLOCK_BYTES) {
            cipher.decrypt_block_mut(Block::<Aes128>::from_mut_slice(bytes));
        }
    }

    fn hidden(&self, iv: [u8; BLOCK_BYTES]) -> AesBlock {
        let mut iv = AesBlock::from(iv);
        self.vector.encrypt_block(&mut iv);
        iv
    }
}
