//! Sizes on the command line: `4096`, `64M`, `16GiB`. Prefixes are powers of 1024.

use parse_size::Config;

/// Bytes of a size.
pub fn parse(text: &str) -> Result<u64, String> {
    Config::new().with_binary().parse_size(text).map_err(|error| format!("{error}; write it as 64M or 16GiB"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn prefixes_are_powers_of_1024() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64M"), Ok(64 << 20));
        assert_eq!(parse("16GiB"), Ok(16 << 30));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert!(parse("64X").is_err() && parse("").is_err());
    }
}
