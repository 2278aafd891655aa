//! Runs each program in every order of its threads.

use mainstay_interleaving::{mailboxes, reclamation, sitting, watching};

/// Default maximum of preemptions per run; `MAINSTAY_PREEMPTIONS` overrides it. The run time grows tenfold
/// with each preemption.
const PREEMPTIONS_MAX: usize = 2;

fn every_order(program: fn()) {
    let said = std::env::var("MAINSTAY_PREEMPTIONS").ok().and_then(|text| text.parse().ok());
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(said.unwrap_or(PREEMPTIONS_MAX));
    model.check(program);
}

#[test]
fn what_a_view_sees_is_not_freed() {
    every_order(reclamation::what_a_view_sees_is_not_freed);
}

#[test]
fn the_oldest_view_decides() {
    every_order(reclamation::the_oldest_view_decides);
}

#[test]
fn a_shared_view_holds_until_both_let_go() {
    every_order(reclamation::a_shared_view_holds_until_both_let_go);
}

#[test]
fn every_send_is_received() {
    every_order(mailboxes::every_send_is_received);
}

#[test]
fn who_wants_two_is_woken_by_the_second() {
    every_order(mailboxes::who_wants_two_is_woken_by_the_second);
}

#[test]
fn who_waits_for_more_is_woken_by_what_is_urgent() {
    every_order(mailboxes::who_waits_for_more_is_woken_by_what_is_urgent);
}

#[test]
fn nothing_stays_in_a_closed_inbox() {
    every_order(mailboxes::nothing_stays_in_a_closed_inbox);
}

#[test]
fn a_loop_that_found_nothing_is_woken() {
    every_order(mailboxes::a_loop_that_found_nothing_is_woken);
}

#[test]
fn what_comes_while_the_work_is_lent_is_done() {
    every_order(sitting::what_comes_while_the_work_is_lent_is_done);
}

#[test]
fn what_is_no_longer_lent_is_done_by_its_owner() {
    every_order(sitting::what_is_no_longer_lent_is_done_by_its_owner);
}

#[test]
fn what_a_borrower_leaves_is_done_by_the_owner() {
    every_order(sitting::what_a_borrower_leaves_is_done_by_the_owner);
}

#[test]
fn what_becomes_due_in_a_borrowed_turn_wakes_the_owner() {
    every_order(sitting::what_becomes_due_in_a_borrowed_turn_wakes_the_owner);
}

#[test]
fn two_that_borrow_leave_nothing() {
    every_order(sitting::two_that_borrow_leave_nothing);
}

#[test]
fn a_watch_sees_what_was_published_or_is_woken() {
    every_order(watching::a_watch_sees_what_was_published_or_is_woken);
}

#[test]
fn nothing_is_removed_before_all_were_told() {
    every_order(watching::nothing_is_removed_before_all_were_told);
}
