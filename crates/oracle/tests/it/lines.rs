use mainstay_oracle::{Asker, Asking, Fence, Final, Grant, GrantChange, History, Note, check};

use crate::script::{Script, Style};

#[test]
fn a_history_survives_being_written_and_read() {
    for seed in 0..20 {
        let mut script = Script::new(seed, Style::default());
        script.some(300);
        script.locks(2);
        let mut history = script.finish();
        history.settings.unrecorded = vec![b"\xff\x00raw".to_vec(), b"hex:looks like it".to_vec()];
        history.settings.lease_slack = 17;
        history.settings.expire_by = 18;
        history.finals.push(Final { member: 9, revision: 1, dump: Some(Vec::new()), hash: None });
        history.finals.push(Final { member: 10, revision: 1, dump: None, hash: Some((u32::MAX, 1, -1)) });
        history.notes.push(Note { at: 5, text: "member 2 was killed \"hard\"\n".to_owned() });
        let keys = Grant::Keys {
            user: "u".to_owned(),
            key: vec![0xff],
            range_end: vec![0],
            read: true,
            write: false,
        };
        let all = [Grant::Authentication, Grant::Role("u".to_owned()), Grant::Tokens("u".to_owned()), keys];
        history.grants = all
            .into_iter()
            .map(|grant| GrantChange { call: 1, returned: 2, certain: false, granted: true, grant })
            .collect();
        history.askers = vec![
            Asker { user: "u".to_owned(), token_at: 1, asking: Asking::Operation(1) },
            Asker { user: String::new(), token_at: 0, asking: Asking::Watch(2) },
        ];
        history.operations[0].fence = Some(Fence { prefix: vec![0], key: Vec::new(), create_revision: 3 });
        let lines = history.to_lines();
        let read = History::from_lines(&lines).expect("it was just written");
        assert!(read == history);
        assert_eq!(
            lines.lines().count(),
            1 + history.operations.len()
                + history.watches.len()
                + history.holdings.len()
                + history.finals.len()
                + history.grants.len()
                + history.askers.len()
                + history.notes.len()
        );
        assert_eq!(check(&read), check(&history));
    }
}

#[test]
fn what_is_no_history_is_refused_with_its_line() {
    let wrong = |text: &str| History::from_lines(text).expect_err("it is wrong");
    assert_eq!(wrong("\n{\n").line, 2);
    assert_eq!(wrong("{\"is\":\"poem\"}").text, "there is no kind of line \"poem\"");
    assert_eq!(wrong("{\"is\":\"operation\",\"id\":1}").text, "missing field `request`");
    assert_eq!(wrong("{\"is\":\"note\",\"at\":-1}").text, "invalid value: integer `-1`, expected u64");
    let odd =
        "{\"is\":\"operation\",\"request\":{\"put\":{\"key\":\"hex:abc\"}},\"outcome\":{\"unknown\":\"\"}}";
    assert_eq!(wrong(odd).text, "\"hex:abc\" is no hexadecimal");
    assert_eq!(History::from_lines("").expect("empty"), History::default());
}

#[test]
fn lines_have_the_form_that_recorded_ones_have() {
    let recorded = include_str!("recorded/lines.jsonl");
    assert_eq!(History::from_lines(recorded).expect("it was recorded so").to_lines(), recorded);
}
