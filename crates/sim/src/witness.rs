//! Panics of what is simulated, as text.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// `None` while nobody listens; else what the last panic said.
    static HEARD: RefCell<Option<String>> = const { RefCell::new(None) };
}

static LISTENS: Once = Once::new();

/// Does something; a panic in it is an error that says what and where. Where panics abort the process, they do.
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
    outcome.map_err(|_| heard)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_is_told_with_its_place() {
        let heard = super::panics(|| assert_eq!(1 + 1, 3, "sums")).expect_err("it panics");
        assert!(heard.contains("sums") && heard.contains("witness.rs"), "{heard}");
        assert_eq!(super::panics(|| 7), Ok(7));
    }
}
