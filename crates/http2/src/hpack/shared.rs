//! Header tables that connections share while they rest: clients of one kind send the same fields, and all are sent the same.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

/// Tables that a thread remembers, each of some kilobytes at most.
const REMEMBERED_MAX: usize = 8;

/// Tables that connections of this thread had when they came to rest; the one that was met last is the last.
pub(crate) type Remembered<T> = RefCell<Vec<Arc<T>>>;

/// Replaces a table by the same one of another connection, if there is one; otherwise remembers it for others. Whoever
/// changes it later makes a copy first (`Arc::make_mut`).
pub(crate) fn share<T: PartialEq>(table: &mut Arc<T>, of_thread: &'static LocalKey<Remembered<T>>) {
    // Absent while the thread ends.
    let _ = of_thread.try_with(|remembered| {
        let mut remembered = remembered.borrow_mut();
        if let Some(at) = remembered.iter().position(|known| **known == **table) {
            table.clone_from(&remembered[at]);
            remembered[at..].rotate_left(1);
            return;
        }
        if remembered.len() == REMEMBERED_MAX {
            remembered.remove(0);
        }
        remembered.push(table.clone());
    });
}

/// Returns true if other connections have the table, too, so that its memory is not this one's.
pub(crate) fn is_shared<T>(table: &Arc<T>) -> bool {
    // One may be that of the thread.
    Arc::strong_count(table) > 2
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static NUMBERS: Remembered<usize> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn equal_tables_become_one_and_few_are_remembered() {
        let mut tables: Vec<Arc<usize>> = (0..100).map(|at| Arc::new(at % 2)).collect();
        tables.iter_mut().for_each(|table| share(table, &NUMBERS));
        assert!(tables.iter().all(|table| Arc::ptr_eq(table, &tables[**table])));
        assert!(is_shared(&tables[7]));
        // One that changes leaves the others as they are.
        *Arc::make_mut(&mut tables[0]) = 7;
        assert_eq!((*tables[0], *tables[2]), (7, 0));
        let mut others: Vec<Arc<usize>> = (2..100).map(Arc::new).collect();
        others.iter_mut().for_each(|table| share(table, &NUMBERS));
        assert_eq!(NUMBERS.with_borrow(Vec::len), REMEMBERED_MAX);
        assert!(!is_shared(&others[3]));
    }
}
