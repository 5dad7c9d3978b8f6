//! Numbers as f2fs-tools read them: digits up to the first other character, and 0 if there are none (atoi(3),
//! atof(3), strtoul(3)). libblockdev passes `-t nodiscard` and means 0.

use std::ffi::OsStr;

/// Reads a whole number.
pub fn whole(text: &OsStr) -> u64 {
    let text = text.to_string_lossy();
    let digits = text.trim_start().trim_start_matches('+');
    digits[..digits.bytes().take_while(u8::is_ascii_digit).count()].parse().unwrap_or(0)
}

/// Reads a number with a fraction.
pub fn fraction(text: &OsStr) -> f64 {
    let text = text.to_string_lossy();
    let digits = text.trim_start().trim_start_matches('+');
    let end = digits.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    digits[..end].parse().unwrap_or(0.0)
}

/// Reads a whole number, which after `0x` is hexadecimal.
pub fn any_base(text: &OsStr) -> u64 {
    let lossy = text.to_string_lossy();
    match lossy.strip_prefix("0x").or_else(|| lossy.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap_or(0),
        None => whole(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_ends_before_the_first_other_character() {
        let whole = |text: &str| whole(OsStr::new(text));
        assert_eq!(
            [whole("1"), whole(" +17x"), whole("nodiscard"), whole(""), whole("-3")],
            [1, 17, 0, 0, 0]
        );
        let fraction = |text: &str| fraction(OsStr::new(text));
        assert_eq!([fraction("5"), fraction("2.5%"), fraction("auto")], [5.0, 2.5, 0.0]);
        let any_base = |text: &str| any_base(OsStr::new(text));
        assert_eq!([any_base("0x1F"), any_base("31"), any_base("0xzz")], [31, 31, 0]);
    }
}
