//! The table of a dm-verity device (Linux, Documentation/admin-guide/device-mapper/verity.rst), which Android had in its
//! images before AVB.

use std::io;

use super::{
    from_hex,
    parameters::{HashForm, Parameters},
    to_hex,
};
use crate::bytes::invalid;

/// Parses `VERSION DATA HASHES DATA_BLOCK HASH_BLOCK BLOCKS START ALGORITHM ROOT SALT`, with anything before and behind it
/// that dmsetup(8) prints there. Returns the parameters and the root hash.
pub fn parse(text: &str) -> io::Result<(Parameters, Vec<u8>)> {
    let bad = |what: &str| invalid(format!("table of dm-verity {text:?}: {what}"));
    let words: Vec<&str> = text.split_whitespace().collect();
    // `0 SECTORS verity` precedes the table that dmsetup prints.
    let start = words.iter().position(|word| *word == "verity").map_or(0, |at| at + 1);
    let [form, _, _, data_block, hash_block, blocks, start, algorithm, root, salt, ..] = words[start..]
    else {
        return Err(bad("it needs at least ten words"));
    };
    let number = |word: &str| word.parse::<u64>().map_err(|_| bad(&format!("{word:?} is no number")));
    let small = |word: &str| u32::try_from(number(word)?).map_err(|_| bad(&format!("{word:?} is too large")));
    let hash_block_bytes = small(hash_block)?;
    let tree_at = number(start)?.checked_mul(hash_block_bytes.into());
    let digits = |word: &str| from_hex(word).ok_or_else(|| bad(&format!("{word:?} is not hexadecimal")));
    let parameters = Parameters {
        form: HashForm::of(number(form)?)?,
        algorithm: algorithm.parse()?,
        data_block_bytes: small(data_block)?,
        hash_block_bytes,
        data_blocks: number(blocks)?,
        tree_at: tree_at.ok_or_else(|| bad("the start is too large"))?,
        salt: if salt == "-" { Vec::new() } else { digits(salt)? },
    };
    Ok((parameters, digits(root)?))
}

/// Writes a table, in which dashes stand for the devices.
pub fn of(parameters: &Parameters, root: &[u8]) -> String {
    let Parameters { form, algorithm, data_block_bytes, hash_block_bytes, data_blocks, tree_at, salt } =
        parameters;
    let salt = if salt.is_empty() { "-".to_owned() } else { to_hex(salt) };
    format!(
        "{} - - {data_block_bytes} {hash_block_bytes} {data_blocks} {} {} {} {salt}",
        form.number(),
        tree_at / u64::from(*hash_block_bytes).max(1),
        algorithm.name(),
        to_hex(root),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dm_verity::Algorithm;

    #[test]
    fn tables_of_the_kernel_and_of_android_are_read() {
        let root = "ab".repeat(32);
        let plain = format!("1 /dev/sda1 /dev/sda1 4096 1024 262144 262145 sha256 {root} 0102");
        let (parameters, found) = parse(&plain).unwrap();
        assert_eq!((found, &parameters.salt[..]), (vec![0xAB; 32], &[1, 2][..]));
        assert_eq!((parameters.tree_at, parameters.data_blocks), (262_145 * 1024, 262_144));
        assert_eq!((parameters.algorithm, parameters.form), (Algorithm::Sha256, HashForm::Usual));
        let printed = format!("0 2097152 verity {plain} 1 ignore_zero_blocks");
        assert_eq!(parse(&printed).unwrap().0, parameters);
        assert_eq!(parse(&plain.replace("0102", "-")).unwrap().0.salt, []);
        assert_eq!(parse(&of(&parameters, &[0xAB; 32])).unwrap(), (parameters, vec![0xAB; 32]));
        for (word, wrong) in [
            ("1024", "x"),
            ("4096", "4294967296"),
            ("sha256", "sha1"),
            (root.as_str(), "abc"),
            (" 0102", ""),
            ("262145", "18446744073709551615"),
            ("1 /dev", "7 /dev"),
        ] {
            assert!(parse(&plain.replacen(word, wrong, 1)).is_err(), "{word}");
        }
    }
}
