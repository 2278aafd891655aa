//! Captures panics of the simulated code as text.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Text of the last panic; `None` while no run captures panics.
    static HEARD: RefCell<Option<String>> = const { RefCell::new(None) };
}

static LISTENS: Once = Once::new();

/// Runs a closure and returns its panic as an error with message and location. A panic that other code has
/// caught is returned as well, since a panicking task would otherwise disappear silently. In builds with
/// `panic = "abort"`, a panic still aborts the process.
pub fn panics<T>(something: impl FnOnce() -> T) -> Result<T, String> {
    LISTENS.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            let heard = HEARD.with(|heard| {
                let mut heard = heard.borrow_mut();
                heard.as_mut().map(|heard| *heard = panic.to_string()).is_some()
            });
            if !heard || cfg!(panic = "abort") {
                before(panic);
            }
        }));
    });
    HEARD.with(|heard| *heard.borrow_mut() = Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(something));
    let heard = HEARD.with(|heard| heard.borrow_mut().take()).unwrap_or_default();
    outcome.ok().filter(|_| heard.is_empty()).ok_or(heard)
}

/// Returns true if there was any panic since [`panics`] was called, even if other code caught it.
pub fn heard_one() -> bool {
    HEARD.with(|heard| heard.borrow().as_ref().is_some_and(|heard| !heard.is_empty()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_is_told_with_its_place() {
        let heard = super::panics(|| assert_eq!(1 + 1, 3, "sums")).expect_err("it panics");
        assert!(heard.contains("sums") && heard.contains("witness.rs"), "{heard}");
        assert_eq!(super::panics(|| 7), Ok(7));
        let caught = || std::panic::catch_unwind(|| assert_eq!(1 + 1, 4, "caught")).is_err();
        let heard = super::panics(|| assert!(caught() && super::heard_one())).expect_err("it panics");
        assert!(heard.contains("caught"), "{heard}");
        assert!(!super::heard_one(), "nobody listens");
    }
}
