//! Case folding of names: the folded form that casefolded directories hash and compare.
//!
//! Linux calls it NFDi + CF of Unicode 12.1: full case folding, canonical decomposition, and removal of the
//! code points that are ignorable by default. Code points unknown to Unicode 12.1 stay unchanged; a name that
//! is not UTF-8 has no folded form and counts as bytes. Foldings and decompositions of known code points
//! never change, so tables of later versions give the same forms.

use std::sync::OnceLock;

use caseless::Caseless;
use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

use super::NAME_MAX;

/// Returns the folded form of a name. `None` if it has none, or one longer than a name can be (Linux,
/// `utf8_casefold`).
#[must_use]
pub fn fold(name: &[u8]) -> Option<Vec<u8>> {
    // Linux reserves a byte for a NUL after the form.
    let fits = |form: Vec<u8>| (form.len() < NAME_MAX).then_some(form);
    if name.is_ascii() {
        return fits(name.to_ascii_lowercase());
    }
    let name = std::str::from_utf8(name).ok()?;
    let mut folded = Vec::with_capacity(NAME_MAX);
    // Adjacent marks are sorted by their class. A removed code point ends such a sequence, as does any
    // character that is not a mark.
    let mut marks: Vec<(u8, char)> = Vec::new();
    for c in name.chars() {
        if is_ignorable(c) {
            flush(&mut marks, &mut folded);
            continue;
        }
        if !is_known(c) {
            flush(&mut marks, &mut folded);
            push(&mut folded, c);
            continue;
        }
        for c in std::iter::once(c).default_case_fold() {
            decompose_canonical(c, |c| match canonical_combining_class(c) {
                0 => {
                    flush(&mut marks, &mut folded);
                    push(&mut folded, c);
                }
                class => marks.push((class, c)),
            });
        }
    }
    flush(&mut marks, &mut folded);
    fits(folded)
}

fn flush(marks: &mut Vec<(u8, char)>, folded: &mut Vec<u8>) {
    marks.sort_by_key(|(class, _)| *class);
    for (_, c) in marks.drain(..) {
        push(folded, c);
    }
}

fn push(folded: &mut Vec<u8>, c: char) {
    folded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Default_Ignorable_Code_Point of Unicode 12.1.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}'
        | '\u{180B}'..='\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
        | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}'
        | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}' | '\u{E0000}'..='\u{E0FFF}')
}

/// Returns true if Unicode 12.1 has a code point.
fn is_known(c: char) -> bool {
    static KNOWN: OnceLock<Vec<(char, char)>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let hir = regex_syntax::parse(r"\p{Age=12.1}").expect("the tables of regex-syntax have the ages");
        let HirKind::Class(Class::Unicode(class)) = hir.kind() else {
            unreachable!("an age is a class of code points");
        };
        class.iter().map(|range| (range.start(), range.end())).collect()
    });
    let at = known.partition_point(|(_, end)| *end < c);
    known.get(at).is_some_and(|(start, _)| *start <= c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(name: &str) -> String {
        String::from_utf8(fold(name.as_bytes()).expect("has a folded form")).expect("is UTF-8")
    }

    /// The right-hand sides are the forms that Linux 6.1 makes of the left-hand sides.
    #[test]
    fn folded_names_equal_those_of_linux() {
        for (name, form) in [
            ("README.TXT", "readme.txt"),
            ("Straße", "strasse"),
            ("\u{1E9E}", "ss"),
            ("ΜΆΪΟΣ", "μα\u{301}ι\u{308}οσ"),
            ("İI\u{131}", "i\u{307}i\u{131}"),
            ("Å\u{212B}", "a\u{30A}a\u{30A}"),
            ("\u{1F80}\u{1FB3}", "\u{3B1}\u{313}\u{3B9}\u{3B1}\u{3B9}"),
            ("한", "\u{1112}\u{1161}\u{11AB}"),
            ("a\u{301}\u{316}\u{323}", "a\u{316}\u{323}\u{301}"),
            ("a\u{301}\u{200B}\u{316}", "a\u{301}\u{316}"),
            ("\u{345}\u{301}", "\u{3B9}\u{301}"),
            ("\u{FB03}\u{AD}", "ffi"),
            ("\u{10400}", "\u{10428}"),
            ("\u{A7C7}", "\u{A7C7}"), // a capital added after Unicode 12.1
            ("\u{10FFFE}\u{378}", "\u{10FFFE}\u{378}"),
        ] {
            assert_eq!(folded(name), form, "{name:?}");
        }
        assert_eq!(fold(b"\xFFabc"), None);
        assert_eq!(fold(b"\xED\xA0\x80"), None, "a surrogate");
    }

    #[test]
    fn forms_that_are_too_long_for_a_name_do_not_count() {
        assert_eq!(fold("ΐ".repeat(42).as_bytes()).expect("252 bytes").len(), 252);
        assert_eq!(fold("ΐ".repeat(43).as_bytes()), None);
        assert_eq!(fold(&[b'A'; 255]), None, "Linux keeps room for a zero");
        assert_eq!(fold(&[b'A'; 254]), Some(vec![b'a'; 254]));
    }
}
