//! Adiantum: a length-preserving cipher for processors without AES instructions ("Adiantum: length-preserving
//! encryption for entry-level processors", Crowley, Biggers, 2018). XChaCha12 is the stream, AES-256 encrypts one
//! block, NHPoly1305 and Poly1305 are the hashes.

use aes::{
    Aes256,
    cipher::{BlockDecrypt, BlockEncrypt, KeyInit},
};
use chacha20::{
    XChaCha12,
    cipher::{KeyIvInit, StreamCipher},
};
use poly1305::{Poly1305, universal_hash::UniversalHash};
use zeroize::Zeroizing;

use super::{BLOCK_BYTES, Iv};

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// Size of a key of Poly1305 without its second half, which is not used.
const POLY_KEY_BYTES: usize = 16;

/// Bytes that NH hashes at once.
const NH_MESSAGE_BYTES: usize = 1024;
/// Bytes of a message that each step of NH takes.
const NH_UNIT_BYTES: usize = 16;
/// Words of the key by which a step, or a pass, is ahead of the one before it.
const NH_STRIDE_WORDS: usize = 4;
const NH_PASSES: usize = 4;
const NH_KEY_WORDS: usize = NH_MESSAGE_BYTES / 4 + NH_STRIDE_WORDS * (NH_PASSES - 1);

/// Adiantum with its key.
pub(crate) struct Adiantum {
    stream_key: Zeroizing<[u8; KEY_BYTES]>,
    aes: Aes256,
    /// The hash of the tweak.
    tweak_hash: Poly1305,
    /// The hash of what NH gives for a message.
    message_hash: Poly1305,
    nh_key: Zeroizing<[u32; NH_KEY_WORDS]>,
}

impl Adiantum {
    pub(crate) fn new(key: &[u8]) -> Adiantum {
        let stream_key: Zeroizing<[u8; KEY_BYTES]> =
            Zeroizing::new(key.try_into().expect("a key of Adiantum has 32 bytes"));
        let mut derived = Zeroizing::new([0; KEY_BYTES + 2 * POLY_KEY_BYTES + 4 * NH_KEY_WORDS]);
        let mut nonce = [0; NONCE_BYTES];
        nonce[0] = 1;
        XChaCha12::new((&*stream_key).into(), &nonce.into()).apply_keystream(&mut *derived);
        let (aes_key, rest) = derived.split_at(KEY_BYTES);
        let (tweak_key, rest) = rest.split_at(POLY_KEY_BYTES);
        let (message_key, nh_key) = rest.split_at(POLY_KEY_BYTES);
        let mut words = nh_key.chunks_exact(4).map(word);
        Adiantum {
            stream_key,
            aes: Aes256::new(aes_key.into()),
            tweak_hash: poly1305(tweak_key),
            message_hash: poly1305(message_key),
            nh_key: Zeroizing::new(std::array::from_fn(|_| words.next().expect("the key has as many words"))),
        }
    }

    pub(crate) fn encrypt(&self, tweak: &Iv, message: &mut [u8]) {
        let (bulk, last) = message.split_last_chunk_mut::<BLOCK_BYTES>().expect("a message has 16 bytes");
        let mut middle = u128::from_le_bytes(*last).wrapping_add(self.hash(tweak, bulk)).to_le_bytes().into();
        self.aes.encrypt_block(&mut middle);
        self.xor_stream(&middle.into(), bulk);
        let middle = u128::from_le_bytes(middle.into());
        *last = middle.wrapping_sub(self.hash(tweak, bulk)).to_le_bytes();
    }

    pub(crate) fn decrypt(&self, tweak: &Iv, message: &mut [u8]) {
        let (bulk, last) = message.split_last_chunk_mut::<BLOCK_BYTES>().expect("a message has 16 bytes");
        let mut middle = u128::from_le_bytes(*last).wrapping_add(self.hash(tweak, bulk)).to_le_bytes().into();
        self.xor_stream(&<[u8; BLOCK_BYTES]>::from(middle), bulk);
        self.aes.decrypt_block(&mut middle);
        let middle = u128::from_le_bytes(middle.into());
        *last = middle.wrapping_sub(self.hash(tweak, bulk)).to_le_bytes();
    }

    /// The stream whose nonce is the encrypted block, followed by 1.
    fn xor_stream(&self, block: &[u8; BLOCK_BYTES], bytes: &mut [u8]) {
        let mut nonce = [0; NONCE_BYTES];
        nonce[..BLOCK_BYTES].copy_from_slice(block);
        nonce[BLOCK_BYTES] = 1;
        XChaCha12::new((&*self.stream_key).into(), &nonce.into()).apply_keystream(bytes);
    }

    /// The hash of the tweak, and of the message without its last block.
    fn hash(&self, tweak: &Iv, message: &[u8]) -> u128 {
        let mut hash = self.tweak_hash.clone();
        hash.update(&[(message.len() as u128 * 8).to_le_bytes().into()]);
        hash.update_padded(tweak);
        let tweak = u128::from_le_bytes(hash.finalize().into());
        let mut hash = self.message_hash.clone();
        for part in message.chunks(NH_MESSAGE_BYTES) {
            let sums = nh(&self.nh_key, part);
            let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
            hash.update_padded(&bytes);
        }
        tweak.wrapping_add(u128::from_le_bytes(hash.finalize().into()))
    }
}

/// The hash NH of at most 1024 bytes; the last 16 are filled up with zeroes.
fn nh(key: &[u32; NH_KEY_WORDS], message: &[u8]) -> [u64; NH_PASSES] {
    let mut sums = [0_u64; NH_PASSES];
    for (step, bytes) in message.chunks(NH_UNIT_BYTES).enumerate() {
        let mut unit = [0; NH_UNIT_BYTES];
        unit[..bytes.len()].copy_from_slice(bytes);
        let mut words = unit.chunks_exact(4).map(word);
        let words: [u32; 4] = std::array::from_fn(|_| words.next().expect("a unit has four words"));
        for (pass, sum) in sums.iter_mut().enumerate() {
            let key = &key[(step + pass) * NH_STRIDE_WORDS..][..NH_STRIDE_WORDS];
            let part = |n: usize| u64::from(words[n].wrapping_add(key[n]));
            let products = (part(0) * part(2)).wrapping_add(part(1) * part(3));
            *sum = sum.wrapping_add(products);
        }
    }
    sums
}

/// Poly1305 with a key that adds nothing at the end.
fn poly1305(key: &[u8]) -> Poly1305 {
    let mut whole = Zeroizing::new([0; 2 * POLY_KEY_BYTES]);
    whole[..POLY_KEY_BYTES].copy_from_slice(key);
    Poly1305::new((&*whole).into())
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("a word has four bytes"))
}
