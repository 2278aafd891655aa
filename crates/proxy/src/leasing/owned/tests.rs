use super::*;

const LEASE: i64 = 77;

struct World {
    owned: Owned,
    now: Instant,
}

fn header(revision: i64) -> ResponseHeader {
    ResponseHeader { revision, ..ResponseHeader::default() }
}

fn get(key: &'static str) -> RangeRequest {
    RangeRequest { key: key.into(), ..RangeRequest::default() }
}

fn put(key: &'static str, value: &'static str) -> PutRequest {
    PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() }
}

fn kv(key: &'static str, value: &'static str, revision: i64) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: value.into(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        lease: 0,
    }
}

impl World {
    fn new() -> World {
        let (mut owned, now) = (Owned::default(), Instant::now());
        owned.begin(LEASE, now + Duration::from_secs(60));
        World { owned, now }
    }

    /// Returns a world that owns `k` with the value `v`, by a leasing key of revision 7.
    fn with_k() -> World {
        let mut world = World::new();
        world.own("k", 7, Some(kv("k", "v", 3)));
        world
    }

    fn own(&mut self, key: &'static str, granted: i64, found: Option<KeyValue>) {
        assert_eq!(self.owned.read(&get(key), self.now), Read::Claim(LEASE));
        self.owned.told(&header(granted));
        self.owned.claimed(&key.into(), LEASE, &header(granted), found);
    }

    /// Returns the outcome of a read of a key as text: its value, or how it has to be read.
    fn read(&mut self, key: &'static str) -> String {
        match self.owned.read(&get(key), self.now) {
            Read::Known(answer) => match answer.kvs.first() {
                Some(kv) => format!(
                    "{}@{} version {}",
                    String::from_utf8_lossy(&kv.value),
                    kv.mod_revision,
                    kv.version
                ),
                None => "nothing".to_owned(),
            },
            Read::Member => "member".to_owned(),
            Read::Claim(_) => "claim".to_owned(),
            Read::Again(_) => "again".to_owned(),
        }
    }

    fn begin(&mut self, key: &'static str, end: &'static str) -> Write {
        self.owned.write(&[(key.into(), end.into())])
    }

    fn done(&mut self, write: Write, change: Change, revision: i64) {
        self.owned.told(&header(revision));
        self.owned.written(write, &Outcome::Done(&[change], &header(revision)));
    }

    fn event(&mut self, key: &'static str, revision: i64, lease: i64, kind: &str) {
        let event =
            LeasingEvent { revision, lease, is_deleted: kind == "deleted", is_wanted_back: kind == "wanted" };
        self.owned.leasing_key_changed(&key.into(), event, self.now);
    }

    fn deletions(&mut self) -> Vec<(String, i64)> {
        let left = self.owned.take_to_delete();
        left.into_iter().map(|(key, up_to)| (String::from_utf8_lossy(&key).into_owned(), up_to)).collect()
    }

    /// Checks that the counters match the entries.
    fn check(&self) {
        let bytes: usize = self.owned.keys.iter().map(|(key, entry)| size_of(key, &entry.state)).sum();
        assert_eq!(self.owned.bytes, bytes);
        let owned = self.owned.keys.iter().filter(|(_, entry)| entry.state.is_owned());
        assert_eq!(self.owned.order.len(), owned.count());
    }
}

#[test]
fn an_owned_key_is_told_until_somebody_wants_it() {
    let mut world = World::with_k();
    assert_eq!(world.read("k"), "v@3 version 1");
    assert_eq!(world.owned.granted(&"k".into()), 7);
    // The event of the leasing key's own creation changes nothing.
    world.event("k", 7, LEASE, "created");
    assert_eq!(world.read("k"), "v@3 version 1");
    world.event("k", 9, LEASE, "wanted");
    assert_eq!((world.read("k"), world.deletions()), ("member".to_owned(), vec![("k".to_owned(), 7)]));
    assert_eq!(world.owned.granted(&"k".into()), 0);
    world.owned.deleted(&"k".into());
    // The key is not claimed again at once, since other proxies want to write it.
    assert_eq!((world.read("k"), world.owned.len()), ("member".to_owned(), 0));
    world.now += REFUSED;
    assert_eq!(world.read("k"), "claim");
    world.check();
}

#[test]
fn a_key_that_is_wanted_before_the_claims_answer_is_never_told() {
    for kind in ["wanted", "deleted"] {
        let mut world = World::new();
        assert_eq!(world.read("k"), "claim");
        // Only one claim is in flight at a time.
        assert_eq!(world.read("k"), "member");
        world.event("k", 9, LEASE, kind);
        world.owned.claimed(&"k".into(), LEASE, &header(7), Some(kv("k", "v", 3)));
        assert_eq!((world.read("k"), world.deletions()), ("member".to_owned(), vec![("k".to_owned(), 7)]));
    }
    let mut world = World::new();
    assert_eq!(world.read("k"), "claim");
    // An event from before the claim is ignored.
    world.event("k", 6, 0, "deleted");
    world.owned.claimed(&"k".into(), LEASE, &header(7), None);
    assert_eq!(world.read("k"), "nothing");
    world.check();
}

#[test]
fn a_claim_without_an_answer_is_left_and_a_refused_one_rests() {
    let mut world = World::new();
    assert_eq!(world.read("k"), "claim");
    world.owned.give_up_claim(&"k".into());
    assert_eq!(world.deletions(), [("k".to_owned(), i64::MAX)]);
    assert_eq!(world.read("k"), "member");
    // The claim may still be carried out. The key is given back as soon as another proxy asks for it.
    world.owned.deleted(&"k".into());
    world.event("k", 9, LEASE, "wanted");
    assert_eq!(world.deletions(), [("k".to_owned(), 9)]);
    world.owned.deleted(&"k".into());
    // The same if this proxy reads the key first.
    assert_eq!(world.read("k"), "claim");
    let own = KeyValue { lease: LEASE, ..kv("l/k", "", 8) };
    world.owned.claim_refused(&"k".into(), Some(&own), world.now);
    assert_eq!(world.deletions(), [("k".to_owned(), 8)]);
    // The leasing key of another proxy is not deleted.
    assert_eq!(world.read("x"), "claim");
    let others = KeyValue { lease: 5, ..kv("l/x", "", 8) };
    world.owned.claim_refused(&"x".into(), Some(&others), world.now);
    assert_eq!((world.deletions(), world.read("x")), (vec![], "member".to_owned()));
    world.event("y", 12, 5, "wanted");
    assert_eq!(world.deletions(), []);
    world.check();
}

#[test]
fn own_writes_change_what_is_told() {
    let mut world = World::with_k();
    let write = world.begin("k", "");
    assert_eq!(world.read("k"), "member", "a write is under way");
    world.done(write, Change::Put(put("k", "w")), 10);
    assert_eq!(world.read("k"), "w@10 version 2");
    let write = world.begin("a", "z");
    world.done(write, Change::Deleted(("a".into(), "z".into())), 11);
    assert_eq!(world.read("k"), "nothing");
    let write = world.begin("k", "");
    world.done(write, Change::Put(put("k", "x")), 12);
    assert_eq!(world.read("k"), "x@12 version 1");
    let write = world.begin("k", "");
    world.done(write, Change::Put(PutRequest { ignore_value: true, ..put("k", "") }), 13);
    assert_eq!(world.read("k"), "x@13 version 2");
    let write = world.begin("k", "");
    world.owned.written(write, &Outcome::Refused);
    assert_eq!(world.read("k"), "x@13 version 2");
    // The branch of a transaction that was not taken changes nothing.
    let write = world.begin("k", "");
    world.done(write, Change::Put(put("other", "y")), 14);
    assert_eq!(world.read("k"), "x@13 version 2");
    world.own("all", 8, None);
    world.owned.leave_all();
    assert_eq!((world.read("k"), world.read("all")), ("member".to_owned(), "member".to_owned()));
    assert_eq!(world.deletions(), [("all".to_owned(), 8), ("k".to_owned(), 7)]);
    // The response to an in-flight claim comes too late.
    assert_eq!(world.read("asked"), "claim");
    world.owned.leave_all();
    world.event("asked", 15, LEASE, "created");
    world.owned.claimed(&"asked".into(), LEASE, &header(15), None);
    assert_eq!(
        (world.read("asked"), world.deletions()),
        ("member".to_owned(), vec![("asked".to_owned(), 15)])
    );
    world.check();
    let mut world = World::with_k();
    // A key with a lease is deleted when the lease ends.
    let write = world.begin("k", "");
    world.done(write, Change::Put(PutRequest { lease: 5, ..put("k", "y") }), 15);
    assert_eq!((world.read("k"), world.deletions()), ("member".to_owned(), vec![("k".to_owned(), 7)]));
    world.check();
}

#[test]
fn writes_that_overlap_have_the_value_read_again() {
    let mut world = World::with_k();
    let (first, second) = (world.begin("k", ""), world.begin("k", ""));
    // The order of the responses does not show which write came first.
    world.done(second, Change::Put(put("k", "second")), 11);
    assert_eq!(world.read("k"), "member");
    world.done(first, Change::Put(put("k", "first")), 10);
    let Read::Again(moment) = world.owned.read(&get("k"), world.now) else { panic!("it is not known") };
    // A write that begins during the read makes its response outdated.
    let third = world.begin("k", "");
    world.owned.read_again(&"k".into(), moment, Some(kv("k", "second", 11)));
    world.done(third, Change::Put(put("k", "third")), 12);
    assert_eq!(world.read("k"), "again");
    let Read::Again(moment) = world.owned.read(&get("k"), world.now) else { panic!("it is not known") };
    world.owned.read_again(&"k".into(), moment, Some(kv("k", "third", 12)));
    assert_eq!(world.read("k"), "third@12 version 1");
    world.check();
}

#[test]
fn a_write_without_an_answer_costs_the_key() {
    let mut world = World::with_k();
    let write = world.begin("k", "");
    world.owned.written(write, &Outcome::Lost);
    assert_eq!((world.read("k"), world.deletions()), ("member".to_owned(), vec![("k".to_owned(), 7)]));
    world.owned.deleted(&"k".into());
    // A write ends after its key was left and claimed again: it does not affect the new ownership.
    let mut world = World::with_k();
    let late = world.begin("k", "");
    world.event("k", 8, 0, "deleted");
    world.owned.deleted(&"k".into());
    world.now += REFUSED;
    world.own("k", 9, Some(kv("k", "w", 9)));
    world.owned.written(late, &Outcome::Lost);
    assert_eq!(world.read("k"), "w@9 version 1");
    world.check();
}

#[test]
fn nothing_is_told_when_the_lease_may_be_over() {
    let mut world = World::with_k();
    world.now += Duration::from_secs(59);
    assert_eq!(world.read("k"), "v@3 version 1");
    world.now += Duration::from_secs(1);
    assert_eq!((world.read("k"), world.read("new")), ("member".to_owned(), "member".to_owned()));
    world.owned.renewed(world.now + Duration::from_secs(60));
    assert_eq!(world.read("k"), "v@3 version 1");
    assert_eq!(world.read("x"), "claim");
    // A claim of an earlier session does not count in this one.
    world.owned.begin(LEASE + 1, world.now + Duration::from_secs(60));
    world.owned.claimed(&"x".into(), LEASE, &header(9), None);
    assert_eq!((world.read("x"), world.owned.len()), ("claim".to_owned(), 1));
    world.owned.end();
    assert_eq!(world.read("k"), "member");
    world.check();
}

#[test]
fn only_plain_reads_of_one_key_are_answered() {
    let mut world = World::with_k();
    let mut asked = |request: RangeRequest| world.owned.read(&request, world.now);
    for request in [
        RangeRequest { range_end: "l".into(), ..get("k") },
        RangeRequest { revision: 3, ..get("k") },
        RangeRequest { sort_order: 1, ..get("k") },
        RangeRequest { limit: -1, ..get("k") },
        get(""),
        RangeRequest { serializable: true, ..get("unknown") },
    ] {
        assert_eq!(asked(request.clone()), Read::Member, "{request:?}");
    }
    let mut told = |request: RangeRequest| match asked(request) {
        Read::Known(answer) => (answer.kvs.len(), answer.count, answer.kvs.first().map(|kv| kv.value.len())),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(RangeRequest { serializable: true, limit: 1, ..get("k") }), (1, 1, Some(1)));
    assert_eq!(told(RangeRequest { keys_only: true, ..get("k") }), (1, 1, Some(0)));
    assert_eq!(told(RangeRequest { count_only: true, ..get("k") }), (0, 1, None));
    assert_eq!(told(RangeRequest { min_mod_revision: 4, ..get("k") }), (0, 1, None));
    assert_eq!(told(RangeRequest { max_create_revision: 2, ..get("k") }), (0, 1, None));
    assert_eq!(told(RangeRequest { min_mod_revision: 3, max_mod_revision: 3, ..get("k") }), (1, 1, Some(1)));
}

#[test]
fn a_transaction_that_only_reads_owned_keys_needs_no_member() {
    let mut world = World::with_k();
    world.own("gone", 8, None);
    let range = |key| RequestOp { request: Some(Request::RequestRange(get(key))) };
    let compare = |key: &'static str, target: CompareTarget, union| Compare {
        result: CompareResult::Equal as i32,
        target: target as i32,
        key: key.into(),
        target_union: Some(union),
        ..Compare::default()
    };
    let value =
        |key, value: &'static str| compare(key, CompareTarget::Value, TargetUnion::Value(value.into()));
    let version = |key, version| compare(key, CompareTarget::Version, TargetUnion::Version(version));
    let ask = |world: &World, compare: Vec<Compare>, then: &'static str| {
        let request = TxnRequest { compare, success: vec![range(then)], failure: vec![range("gone")] };
        let answer = world.owned.transaction(&request, world.now)?;
        assert_eq!(answer.header.unwrap().revision, 8);
        Some(answer.succeeded)
    };
    assert_eq!(ask(&world, vec![value("k", "v"), version("gone", 0)], "k"), Some(true));
    assert_eq!(ask(&world, vec![version("k", 2)], "k"), Some(false));
    // Every condition on the value of a missing key is false.
    assert_eq!(ask(&world, vec![value("gone", "")], "k"), Some(false));
    assert_eq!(ask(&world, vec![], "unknown"), None);
    assert_eq!(ask(&world, vec![version("unknown", 0)], "k"), None);
    let _write = world.begin("k", "");
    assert_eq!(ask(&world, vec![], "k"), None);
}

#[test]
fn what_is_owned_is_bounded_and_the_oldest_makes_way() {
    let mut world = World::new();
    let claim = |world: &mut World, key: Bytes, value: Bytes| {
        let request = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        assert_eq!(world.owned.read(&request, world.now), Read::Claim(LEASE));
        let found = KeyValue { key: key.clone(), value, ..KeyValue::default() };
        world.owned.claimed(&key, LEASE, &header(7), Some(found));
    };
    for key in 0..=OWNED_MAX {
        claim(&mut world, key.to_string().into(), Bytes::new());
    }
    assert_eq!((world.owned.order.len(), world.deletions()), (OWNED_MAX, vec![("0".to_owned(), 7)]));
    // While leasing keys cannot be deleted, claims are limited, too.
    for key in OWNED_MAX + 1..KEYS_MAX {
        claim(&mut world, key.to_string().into(), Bytes::new());
    }
    assert_eq!((world.owned.len(), world.read("more")), (KEYS_MAX, "member".to_owned()));
    let left = world.owned.take_to_delete();
    left.keys().for_each(|key| world.owned.deleted(key));
    let large = Bytes::from(vec![0; VALUE_BYTES_MAX]);
    for key in 0..100 {
        claim(&mut world, format!("large {key}").into(), large.clone());
    }
    assert!(world.owned.bytes <= BYTES_MAX);
    world.check();
    let larger = Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
    claim(&mut world, "larger".into(), larger);
    assert_eq!(world.read("larger"), "member");
    for key in 0..2 * REFUSED_MAX {
        world.owned.refuse(&key.to_string().into(), world.now);
    }
    assert_eq!((world.owned.refused.len(), world.owned.refusals.len()), (REFUSED_MAX, REFUSED_MAX));
}

#[test]
fn a_large_transaction_or_one_without_keys_is_a_members() {
    let mut world = World::with_k();
    let range = |key: &'static str| RequestOp { request: Some(Request::RequestRange(get(key))) };
    let is_known =
        |world: &World, request: &TxnRequest| world.owned.transaction(request, world.now).is_some();
    let reads = |count: usize, key| TxnRequest { success: vec![range(key); count], ..TxnRequest::default() };
    assert!(is_known(&world, &reads(128, "k")) && !is_known(&world, &reads(129, "k")));
    // The branch that is not taken counts, too: a member has to decide whether it is too long.
    let other = TxnRequest { failure: vec![range("k"); 129], ..reads(1, "k") };
    assert!(!is_known(&world, &other));
    let compare = Compare {
        target: CompareTarget::Version as i32,
        result: CompareResult::Equal as i32,
        key: "k".into(),
        target_union: Some(TargetUnion::Version(1)),
        ..Compare::default()
    };
    let compared =
        |count: usize| TxnRequest { compare: vec![compare.clone(); count], ..TxnRequest::default() };
    assert!(is_known(&world, &compared(128)) && !is_known(&world, &compared(129)));
    let large = KeyValue { value: vec![0; 600 << 10].into(), ..kv("large", "", 3) };
    world.own("large", 8, Some(large));
    assert!(is_known(&world, &reads(1, "large")) && !is_known(&world, &reads(2, "large")));
    let keys_only =
        RequestOp { request: Some(Request::RequestRange(RangeRequest { keys_only: true, ..get("large") })) };
    assert!(is_known(&world, &TxnRequest { success: vec![keys_only; 2], ..TxnRequest::default() }));
    // If no key was read, only a member knows the revision.
    assert!(!is_known(&world, &TxnRequest::default()));
    let mut world = World::new();
    assert_eq!(world.read("k"), "claim");
    world.owned.claimed(&"k".into(), LEASE, &header(7), None);
    assert!(!is_known(&world, &reads(1, "k")), "no revision was told yet");
}

#[test]
fn what_is_kept_does_not_hold_the_messages_it_came_in() {
    let message = Bytes::from(b"k and the rest of a long message".to_vec());
    let (key, value) = (message.slice(..1), message.slice(2..5));
    let found = || Some(KeyValue { key: key.clone(), value: value.clone(), ..KeyValue::default() });
    let request = RangeRequest { key: key.clone(), ..RangeRequest::default() };
    let mut world = World::new();
    assert_eq!(world.owned.read(&request, world.now), Read::Claim(LEASE));
    world.owned.claimed(&key, LEASE, &header(7), found());
    assert!(matches!(world.owned.read(&request, world.now), Read::Known(_)));
    let write = |world: &mut World| world.owned.write(&[(key.clone(), Bytes::new())]);
    let put = || Change::Put(PutRequest { key: key.clone(), value: value.clone(), ..PutRequest::default() });
    let first = write(&mut world);
    world.done(first, put(), 9);
    assert_eq!(world.read("k"), "and@9 version 1");
    let (first, second) = (write(&mut world), write(&mut world));
    world.done(first, put(), 10);
    world.done(second, put(), 11);
    let Read::Again(moment) = world.owned.read(&request, world.now) else { panic!("it is not known") };
    world.owned.read_again(&key, moment, found());
    assert_eq!(world.read("k"), "and@0 version 0");
    let lost = write(&mut world);
    world.owned.written(lost, &Outcome::Lost);
    world.owned.refuse(&key, world.now);
    let wanted = LeasingEvent { revision: 12, lease: LEASE, is_deleted: false, is_wanted_back: true };
    let other = message.slice(3..4);
    world.owned.leasing_key_changed(&other, wanted, world.now);
    drop((key, value, other, request));
    assert_eq!((world.owned.len(), world.owned.refused.len()), (2, 1));
    assert!(message.is_unique());
    world.check();
}

#[test]
fn a_write_of_many_ranges_leaves_all_keys_instead_of_comparing_them() {
    let mut world = World::with_k();
    let ranges = |count: usize| -> Vec<Keys> { (0..count).map(|_| ("x".into(), "y".into())).collect() };
    world.owned.write(&ranges(128));
    assert_eq!(world.read("k"), "v@3 version 1");
    world.owned.write(&ranges(129));
    assert_eq!((world.read("k"), world.deletions()), ("member".to_owned(), vec![("k".to_owned(), 7)]));
    world.check();
}
