//! Lets idle connections share equal header tables, to save memory. Many tables are equal, because clients of
//! the same kind send equal fields, and servers send equal fields to all clients.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

/// Maximum number of tables that a thread keeps for sharing, each of a few kilobytes at most.
const REMEMBERED_MAX: usize = 8;

/// The tables that a thread keeps for sharing among its connections. When a connection becomes idle, its
/// table is replaced by an equal one from here; if there is none, its table is added here. The table that was
/// taken or added longest ago is first.
pub(crate) type Remembered<T> = RefCell<Vec<Arc<T>>>;

/// Replaces a table by an equal table of another connection. If there is none, stores the table so that other
/// connections can share it. A connection that later changes its table makes a copy first (`Arc::make_mut`).
pub(crate) fn share<T: PartialEq>(table: &mut Arc<T>, of_thread: &'static LocalKey<Remembered<T>>) {
    // The error is ignored: it means that the thread is ending, so that its storage is not accessible and
    // nothing need be shared.
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

/// Returns true if other connections share the table, so that its memory must not be counted as that of one
/// connection.
pub(crate) fn is_shared<T>(table: &Arc<T>) -> bool {
    // Two references are no sign of another connection, because one may be that of the thread's list.
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
        // A change of one table leaves the others unchanged.
        *Arc::make_mut(&mut tables[0]) = 7;
        assert_eq!((*tables[0], *tables[2]), (7, 0));
        let mut others: Vec<Arc<usize>> = (2..100).map(Arc::new).collect();
        others.iter_mut().for_each(|table| share(table, &NUMBERS));
        assert_eq!(NUMBERS.with_borrow(Vec::len), REMEMBERED_MAX);
        assert!(!is_shared(&others[3]));
    }
}
