use mainstay_oracle::check;

use crate::script::{SECOND, Script, Style};

fn all_is_well(seed: u64, style: Style, operations: u64) {
    let mut script = Script::new(seed, style);
    script.some(operations);
    if seed.is_multiple_of(3) {
        script.locks(3);
        script.some(20);
    }
    let mut history = script.finish();
    history.settings.expire_by = 4 * SECOND;
    let verdict = check(&history);
    assert!(verdict.violations.is_empty(), "seed {seed}: {:#?}", &verdict.violations[..1]);
    assert!(verdict.undecided.is_empty(), "seed {seed}: {:#?}", verdict.undecided);
}

#[test]
fn a_right_store_is_never_blamed() {
    for seed in 0..400 {
        all_is_well(seed, Style::default(), 300);
    }
}

#[test]
fn a_right_store_is_never_blamed_where_nobody_saw_everything() {
    for seed in 0..400 {
        let style = Style { observed: false, unknown: 30, ..Style::default() };
        all_is_well(seed, style, 150);
    }
}

#[test]
fn a_right_store_is_never_blamed_when_the_search_is_given_up() {
    let mut open = 0;
    for seed in 0..400 {
        let mut script = Script::new(seed, Style { observed: false, unknown: 8, ..Style::default() });
        script.some(100);
        let mut history = script.finish();
        history.settings.search_steps_max = 1 + seed % 4;
        let verdict = check(&history);
        assert!(verdict.violations.is_empty(), "seed {seed}: {:#?}", &verdict.violations[..1]);
        open += u32::from(!verdict.undecided.is_empty());
    }
    // If the search is never given up, this test proves nothing.
    assert!(open > 20, "{open}");
}
