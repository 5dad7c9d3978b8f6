//! The hash of a name, which determines the position of its entry in a directory.

/// Seeds of the two words that count (Linux, `TEA_hash_name`).
const SEED: [u32; 2] = [0x6745_2301, 0xEFCD_AB89];
const DELTA: u32 = 0x9E37_79B9;
const ROUNDS: u32 = 16;
/// Bytes of the name that one pass of the cipher takes.
const CHUNK: usize = 16;

/// Hashes a name's bytes or, in a casefolded directory, those of the folded name. "." and ".." have hash 0.
///
/// The hash is the first word of a half-strength TEA whose key is the name, 16 unsigned bytes per pass
/// (Linux, `f2fs_hash_filename`).
#[must_use]
pub fn name_hash(name: &[u8]) -> u32 {
    if name == b"." || name == b".." {
        return 0;
    }
    let mut state = SEED;
    let mut rest = name;
    loop {
        state = tea(state, key(rest));
        if rest.len() <= CHUNK {
            return state[0];
        }
        rest = &rest[CHUNK..];
    }
}

/// Returns four big-endian words of the rest of the name. A word that the name does not fill starts with the
/// pad: the number of remaining bytes, in each of its bytes.
fn key(rest: &[u8]) -> [u32; 4] {
    let length = u32::try_from(rest.len()).expect("a name is short");
    let pad = length | length << 8;
    let pad = pad | pad << 16;
    let mut words = [pad; 4];
    for (word, bytes) in words.iter_mut().zip(rest[..rest.len().min(CHUNK)].chunks(4)) {
        *word = bytes.iter().fold(pad, |word, byte| (word << 8).wrapping_add(u32::from(*byte)));
    }
    words
}

fn tea([start0, start1]: [u32; 2], key: [u32; 4]) -> [u32; 2] {
    let (mut word0, mut word1) = (start0, start1);
    let mut sum = 0u32;
    let mix = |word: u32, sum: u32, left: u32, right: u32| {
        (word << 4).wrapping_add(left) ^ word.wrapping_add(sum) ^ (word >> 5).wrapping_add(right)
    };
    for _ in 0..ROUNDS {
        sum = sum.wrapping_add(DELTA);
        word0 = word0.wrapping_add(mix(word1, sum, key[0], key[1]));
        word1 = word1.wrapping_add(mix(word0, sum, key[2], key[3]));
    }
    [start0.wrapping_add(word0), start1.wrapping_add(word1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes read from a volume that f2fs-tools 1.15 filled.
    #[test]
    fn hashes_are_those_on_real_volumes() {
        let long = [b'x'; 255];
        let known: [(&[u8], u32); 12] = [
            (b".", 0),
            (b"..", 0),
            (b"a", 0x6D0E_A4C1),
            (b"ab", 0xD27D_8659),
            (b"abc", 0xB143_5EC5),
            (b"abcd", 0x5A24_112E),
            (b"hello.txt", 0x5107_C3F3),
            (b"sixteen-bytes-ok", 0x28E8_3B2D),
            (b"seventeen-bytes-k", 0xCC6D_182A),
            (b"a-rather-long-name-of-a-file-that-takes-several-slots.tar.gz", 0x9F7C_06A2),
            (&long, 0x6C4C_00EE),
            (b"\xC3\xA4\xC3\xB6\xC3\xBC\xFF", 0x25D4_197D),
        ];
        for (name, hash) in known {
            assert_eq!(name_hash(name), hash, "{}", String::from_utf8_lossy(name));
        }
    }
}
