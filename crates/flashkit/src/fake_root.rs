//! fakeroot and pseudo, which simulate owners and device nodes for image builds by ordinary users.
//!
//! Both wrap functions of libc with a preloaded library. Calls go through libc (rustix's feature `use-libc`),
//! so the library sees them. A static program cannot load it.

use std::path::Path;

use anyhow::{Result, bail};

/// Refuses to read a directory if this program cannot see the simulated owners and device nodes.
pub fn require_seen(dir: &Path) -> Result<()> {
    // Without /proc the libraries of a dynamic program are unknown. A static program has none.
    let maps = std::fs::read("/proc/self/maps");
    let loaded = |library: &str| match &maps {
        Ok(maps) => maps.windows(library.len()).any(|part| part == library.as_bytes()),
        Err(_) => !cfg!(target_feature = "crt-static"),
    };
    if let Some(program) = unseen(|name| std::env::var(name).ok(), loaded) {
        bail!(
            "{}: {program} runs this program but cannot intercept its system calls, so owners would be the real \
             ones and device nodes would be regular files; use a dynamically linked flashkit, or --owner-map \
             with the file of fakeroot -s, \
             or `tar c -C {} . | flashkit mkfs --from -`",
            dir.display(),
            dir.display()
        );
    }
    Ok(())
}

/// Returns the program that simulates owners, if its library is not loaded.
fn unseen(variable: impl Fn(&str) -> Option<String>, loaded: impl Fn(&str) -> bool) -> Option<&'static str> {
    if variable("FAKEROOTKEY").is_some() && !loaded("libfakeroot") {
        return Some("fakeroot");
    }
    // Yocto sets the prefix in every task, and a second variable where pseudo is disabled.
    let is_on = |name: &str| variable(name).is_some_and(|value| !value.is_empty() && value != "0");
    let pretends =
        variable("PSEUDO_PREFIX").is_some() && !is_on("PSEUDO_UNLOAD") && !is_on("PSEUDO_DISABLED");
    (pretends && !loaded("libpseudo")).then_some("pseudo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_pretends_and_is_not_loaded_is_unseen() {
        let told = |set: &[(&str, &str)], loaded: &str| {
            let value =
                |name: &str| set.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string());
            unseen(value, |library| library == loaded)
        };
        assert_eq!(told(&[], ""), None);
        assert_eq!(told(&[("FAKEROOTKEY", "7")], ""), Some("fakeroot"));
        assert_eq!(told(&[("FAKEROOTKEY", "7")], "libfakeroot"), None);
        assert_eq!(told(&[("FAKEROOTKEY", "7")], "libpseudo"), Some("fakeroot"));
        assert_eq!(told(&[("PSEUDO_PREFIX", "/usr")], ""), Some("pseudo"));
        assert_eq!(told(&[("PSEUDO_PREFIX", "/usr"), ("PSEUDO_DISABLED", "0")], ""), Some("pseudo"));
        assert_eq!(told(&[("PSEUDO_PREFIX", "/usr")], "libpseudo"), None);
        assert_eq!(told(&[("PSEUDO_PREFIX", "/usr"), ("PSEUDO_DISABLED", "1")], ""), None);
        assert_eq!(told(&[("PSEUDO_PREFIX", "/usr"), ("PSEUDO_UNLOAD", "1")], ""), None);
    }
}
