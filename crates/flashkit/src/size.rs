//! Sizes on the command line: `4096`, `64M`, `16GiB`, `16GB`. As in truncate(1) and dd(1), K, M, G, T, P, E
//! alone or with `iB` are powers of 1024, and with `B` powers of 1000.

use parse_size::Config;

/// Parses a size. Returns bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let refused =
        |why: String| format!("{why}; write it as 64M or 64MiB (powers of 1024), or as 64MB (of 1000)");
    let suffix = text.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let config = match suffix.to_ascii_lowercase().as_bytes() {
        [] | [b'b'] | [b'k' | b'm' | b'g' | b't' | b'p' | b'e'] => Config::new().with_binary(),
        [b'k' | b'm' | b'g' | b't' | b'p' | b'e', b'i', b'b'] => Config::new().with_binary(),
        [b'k' | b'm' | b'g' | b't' | b'p' | b'e', b'b'] => Config::new().with_decimal(),
        _ => return Err(refused(format!("{suffix:?} is not a unit of size"))),
    };
    config.parse_size(text).map_err(|error| refused(error.to_string()))
}

/// Formats a number as du(1) and df(1) do with `-h`: in powers of 1024, rounded up, with one decimal below ten.
pub fn human(number: u64) -> String {
    let (mut unit, mut scale) = (0, 1u128);
    let number = u128::from(number);
    // Rounding up may reach the next unit.
    while number.div_ceil(scale) >= 1024 {
        scale *= 1024;
        unit += 1;
    }
    let suffix = ["", "K", "M", "G", "T", "P", "E"][unit];
    match (number * 10).div_ceil(scale) {
        _ if unit == 0 => number.to_string(),
        tenths if tenths < 100 => format!("{}.{}{suffix}", tenths / 10, tenths % 10),
        _ => format!("{}{suffix}", number.div_ceil(scale)),
    }
}

#[cfg(test)]
mod tests {
    use super::{human, parse};

    #[test]
    fn sizes_for_people_round_up() {
        for (number, shown) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (9 * 1024 + 922, "10K"),
            (9 * 1024 + 921, "9.9K"),
            (10 * 1024 + 1, "11K"),
            (1023 * 1024, "1023K"),
            (1023 * 1024 + 1, "1.0M"),
            (1 << 20, "1.0M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(number), shown, "{number}");
        }
    }

    #[test]
    fn a_prefix_alone_is_a_power_of_1024_and_with_b_one_of_1000() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512B", 512),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("16GiB", 16 << 30),
            ("16gib", 16 << 30),
            ("16G", 16 << 30),
            ("16GB", 16_000_000_000),
            ("8kB", 8_000),
            ("1.5G", 3 << 29),
            ("1.5MB", 1_500_000),
            ("2T", 2 << 40),
            ("1E", 1 << 60),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_input_is_refused() {
        for text in [
            "", "M", "64X", "1e3M", "1e3", "64 M", "-1", "+1", "0x10", "64Mi", "64MiBs", "1.2.3M", "16EB9",
            "99E",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains("64MiB"), "{text}: {error}");
        }
    }
}
