//! Containment of panics to the request in which they happen.
//!
//! The worker thread continues: if it ended, one fewer would be left for the next request, and after the last
//! one none.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Runs a closure that may panic. `Err` holds the panic message. Shared state is protected by locks, which
/// the panic poisons.
pub fn contain<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| message(&*payload))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(contain(|| 7), Ok(7));
        assert_eq!(contain(|| panic!("plain")), Err::<(), _>("plain".to_string()));
        assert_eq!(contain(|| panic!("number {}", 7)), Err::<(), _>("number 7".to_string()));
        assert_eq!(
            contain(|| std::panic::panic_any(7)),
            Err::<(), _>("a panic without a message".to_string())
        );
    }
}
