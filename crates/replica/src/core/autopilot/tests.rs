use stdx::Random;

use super::*;

const ELECTION: Duration = Duration::from_secs(1);
const GONE_AFTER: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(30);

/// A member of a cluster that exists only in the test.
#[derive(Clone, Debug)]
struct Simulated {
    id: u64,
    is_learner: bool,
    is_standby: bool,
    answers: bool,
    keeps_up: bool,
    is_corrupt: bool,
    /// True if the member has the data of the others although the CORRUPT alarm names it.
    is_accused_wrongly: bool,
    /// True if the member has other data and no alarm names it yet.
    differs_unnamed: bool,
    drains: bool,
    zone: &'static str,
    clients: u64,
    /// Duration in milliseconds of each of its syncs.
    sync_ms: u64,
    syncs: Vec<u64>,
    reports: bool,
    is_started: bool,
    matched: Index,
    /// Looks of the autopilot since the member has answered.
    looks_silent: u32,
}

impl Simulated {
    fn voter(id: u64) -> Simulated {
        Simulated {
            id,
            is_learner: false,
            is_standby: false,
            answers: true,
            keeps_up: true,
            is_corrupt: false,
            is_accused_wrongly: false,
            differs_unnamed: false,
            drains: false,
            zone: "",
            clients: 0,
            sync_ms: 2,
            syncs: vec![0; 15],
            reports: true,
            is_started: true,
            matched: Index(0),
            looks_silent: 0,
        }
    }

    /// Returns true if the member answers, or has for as long as the autopilot takes it to.
    fn seems_to_answer(&self) -> bool {
        self.answers || self.looks_silent <= 2 * ALIVE_TIMEOUTS
    }

    fn learner(id: u64) -> Simulated {
        Simulated { is_learner: true, ..Simulated::voter(id) }
    }

    fn standby(id: u64) -> Simulated {
        Simulated { is_standby: true, ..Simulated::learner(id) }
    }
}

/// A cluster, its clock, and the autopilot of its leader. The leader is always the member with the id `leader`.
struct Cluster {
    members: Vec<Simulated>,
    removed: Vec<u64>,
    removed_corrupt: Vec<u64>,
    leader: u64,
    term: u64,
    commit: u64,
    now: Instant,
    autopilot: Autopilot,
    /// Steps taken, each with the seconds since the start and the reason.
    steps: Vec<(u64, Step, String)>,
    start: Instant,
    advice: Vec<String>,
    is_changing: bool,
    has_witness: bool,
}

fn autopilot(mode: Mode) -> Autopilot {
    let options = AutopilotOptions { mode, replace_after: GONE_AFTER, interval: INTERVAL, is_standby: false };
    Autopilot::new(options, ELECTION, Instant::now())
}

impl Cluster {
    fn new(members: Vec<Simulated>) -> Cluster {
        let start = Instant::now();
        Cluster {
            members,
            removed: Vec::new(),
            removed_corrupt: Vec::new(),
            leader: 1,
            term: 1,
            commit: 0,
            now: start,
            autopilot: autopilot(Mode::On),
            steps: Vec::new(),
            start,
            advice: Vec::new(),
            is_changing: false,
            has_witness: false,
        }
    }

    fn member(&mut self, id: u64) -> &mut Simulated {
        self.members.iter_mut().find(|member| member.id == id).expect("is a member")
    }

    fn voters(&self) -> usize {
        self.members.iter().filter(|member| !member.is_learner).count()
    }

    /// Returns how many more voters may fail than have failed; negative without a majority. A voter that has just
    /// fallen silent counts, because nobody can know yet.
    fn margin(&self) -> i64 {
        let answers = |member: &&Simulated| !member.is_learner && member.seems_to_answer();
        let answering = self.members.iter().filter(answers).count();
        answering as i64 - quorum(self.voters()) as i64
    }

    fn situation(&self) -> Situation {
        let facts = self.members.iter().map(|member| MemberFacts {
            id: member.id,
            name: if member.is_started { format!("m{}", member.id) } else { String::new() },
            is_learner: member.is_learner,
            matched: member.matched,
            is_replicating: member.answers && member.keeps_up,
            has_answered: member.answers,
            is_corrupt: member.is_corrupt,
        });
        Situation {
            own: self.leader,
            commit: Index(self.commit),
            members: facts.collect(),
            removed_corrupt: self.removed_corrupt.clone(),
            is_changing: self.is_changing,
            has_witness: self.has_witness,
        }
    }

    /// Lets a quarter of a second pass, and carries out what the autopilot decides.
    fn tick(&mut self) {
        self.now += Duration::from_millis(250);
        let answering = self.members.iter().filter(|member| !member.is_learner && member.answers).count();
        let has_majority = answering >= quorum(self.voters());
        if has_majority {
            self.commit += 10;
        }
        for member in &mut self.members {
            if member.answers && member.keeps_up {
                member.matched = Index(self.commit);
            }
            let bucket = (0..15).find(|bucket| member.sync_ms <= 1 << bucket).unwrap_or(14);
            member.syncs[bucket] += 1;
        }
        if !self.autopilot.is_due(Some(Term(self.term)), self.now) {
            return;
        }
        for member in &mut self.members {
            member.looks_silent = if member.answers { 0 } else { member.looks_silent + 1 };
        }
        let reports = self.members.iter().map(|member| {
            let report = MemberReport {
                is_standby: member.is_standby,
                drains: member.drains,
                zone: member.zone.to_owned(),
                clients: member.clients,
                syncs: member.syncs.clone(),
            };
            (member.id, (member.answers && member.reports).then_some(report))
        });
        let reports = reports.collect();
        let differs =
            |member: &&Simulated| member.differs_unnamed || member.is_corrupt && !member.is_accused_wrongly;
        let (differ, agree): (Vec<_>, Vec<_>) =
            self.members.iter().filter(|member| member.answers).partition(differs);
        let ids = |members: Vec<&Simulated>| members.into_iter().map(|member| member.id).collect();
        self.autopilot.reported(reports, ids(agree), ids(differ));
        let before = self.margin();
        let decision = self.autopilot.look(&self.situation());
        self.advice = decision.advice;
        let Some((step, why)) = decision.step else { return };
        assert!(before >= 0, "a step without a majority: {step}, {why}");
        assert!(!self.is_changing, "a step beside another change: {step}, {why}");
        assert!(self.autopilot.begin(step, &why, 0));
        if !has_majority && !matches!(step, Step::MoveLeader(_)) {
            // The proposal is never committed.
            return self.autopilot.ended(Some("no majority"));
        }
        self.steps.push(((self.now - self.start).as_secs(), step, why.clone()));
        match step {
            Step::Promote(id) => {
                let commit = self.commit;
                let learner = self.member(id);
                assert!(
                    learner.is_learner && learner.seems_to_answer() && learner.matched.0 + 200 >= commit,
                    "{why}"
                );
                learner.is_learner = false;
            }
            Step::Remove(id) => {
                assert_ne!(id, self.leader);
                let member = self.member(id).clone();
                assert!(
                    !member.answers || member.is_corrupt && !member.is_accused_wrongly,
                    "{id} is well: {why}"
                );
                assert!(member.is_started, "{id} was never started: {why}");
                self.members.retain(|member| member.id != id);
                self.removed.push(id);
                self.removed_corrupt.extend(member.is_corrupt.then_some(id));
            }
            Step::MoveLeader(id) => {
                self.autopilot.ended(None);
                let heir = self.member(id);
                assert!(!heir.is_learner && heir.seems_to_answer() && !heir.is_corrupt, "{why}");
                return self.lead(id);
            }
            Step::Disarm(id) => {
                assert!(self.removed_corrupt.contains(&id));
                self.removed_corrupt.retain(|other| *other != id);
            }
        }
        self.autopilot.ended(None);
        assert!(self.margin() >= before, "{step} makes the margin {} of {before}: {why}", self.margin());
    }

    /// Makes another member the leader; its autopilot knows nothing of the past.
    fn lead(&mut self, id: u64) {
        self.leader = id;
        self.term += 1;
        self.autopilot = autopilot(Mode::On);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.tick();
        }
    }

    fn taken(&self) -> Vec<Step> {
        self.steps.iter().map(|(_, step, _)| *step).collect()
    }

    fn said(&self, text: &str) -> bool {
        self.advice.iter().any(|advice| advice.contains(text))
    }
}

fn voters(count: u64) -> Vec<Simulated> {
    (1..=count).map(Simulated::voter).collect()
}

#[test]
fn a_member_that_is_gone_is_replaced_by_a_standby() {
    let mut cluster = Cluster::new([voters(3), vec![Simulated::standby(4)]].concat());
    cluster.run(Duration::from_secs(300));
    assert_eq!(cluster.taken(), [], "all is well, and the standby waits");
    assert_eq!(cluster.advice, [""; 0]);
    cluster.member(3).answers = false;
    cluster.run(GONE_AFTER - ELECTION);
    assert_eq!(cluster.taken(), [], "it may come back");
    cluster.run(Duration::from_secs(120));
    assert_eq!(cluster.taken(), [Step::Promote(4), Step::Remove(3)]);
    let (promoted, removed) = (cluster.steps[0].0, cluster.steps[1].0);
    assert!(removed - promoted >= INTERVAL.as_secs(), "{:?}", cluster.steps);
    assert!(cluster.steps[0].2.starts_with("it replaces member \"m3\" (3), which has not answered for 1m"));
    assert_eq!(cluster.voters(), 3);
}

#[test]
fn a_new_leader_goes_on_with_a_replacement() {
    let mut cluster = Cluster::new([voters(3), vec![Simulated::standby(4)]].concat());
    cluster.member(1).answers = false;
    cluster.lead(2);
    cluster.run(GONE_AFTER + Duration::from_secs(2));
    assert_eq!(cluster.taken(), [Step::Promote(4)]);
    // The leader is lost before the member that is gone is removed; the two others are no majority of four.
    cluster.member(2).answers = false;
    cluster.leader = 3;
    cluster.lead(3);
    cluster.run(Duration::from_secs(300));
    assert_eq!(cluster.taken(), [Step::Promote(4)], "nothing without a majority");
    assert!(cluster.said("only 2 of 4 voters answer, and 3 are needed"), "{:?}", cluster.advice);
    cluster.member(2).answers = true;
    cluster.run(GONE_AFTER + Duration::from_secs(5));
    assert_eq!(cluster.taken(), [Step::Promote(4), Step::Remove(1)]);
}

#[test]
fn an_answer_between_two_looks_counts() {
    let mut cluster = Cluster::new([voters(3), vec![Simulated::standby(4)]].concat());
    cluster.run(Duration::from_secs(40));
    cluster.member(3).answers = false;
    for _ in 0..20 {
        cluster.run(GONE_AFTER / 2);
        cluster.autopilot.answered([3].into_iter());
    }
    assert_eq!(cluster.taken(), []);
}

#[test]
fn nothing_is_removed_without_a_spare_or_with_one_that_lags() {
    let mut cluster = Cluster::new(voters(3));
    cluster.member(2).answers = false;
    cluster.run(Duration::from_secs(600));
    assert_eq!(cluster.taken(), []);
    assert!(cluster.said("there is no spare: start it again, or add a learner"), "{:?}", cluster.advice);
    cluster.members.push(Simulated { keeps_up: false, ..Simulated::standby(4) });
    cluster.run(Duration::from_secs(600));
    assert_eq!(cluster.taken(), [], "the spare has old data");
    assert!(cluster.said("has not caught up yet"), "{:?}", cluster.advice);
    cluster.member(4).keeps_up = true;
    cluster.run(Duration::from_secs(60));
    assert_eq!(cluster.taken(), [Step::Promote(4), Step::Remove(2)]);
    // A second one is gone, too, and nothing is left to replace it.
    cluster.member(3).answers = false;
    cluster.run(Duration::from_secs(600));
    assert_eq!(cluster.taken().len(), 2);
    assert_eq!(cluster.voters(), 3);
}

#[test]
fn more_members_are_gone_than_there_are_spares() {
    let mut cluster = Cluster::new([voters(5), vec![Simulated::standby(6)]].concat());
    cluster.member(4).answers = false;
    cluster.run(Duration::from_secs(10));
    cluster.member(5).answers = false;
    cluster.run(Duration::from_secs(600));
    assert_eq!(cluster.taken(), [Step::Promote(6), Step::Remove(4)], "the one gone longest");
    assert!(cluster.said("member \"m5\" (5) has not answered for"), "{:?}", cluster.advice);
    assert_eq!(cluster.margin(), 1);
}

#[test]
fn learners_that_have_caught_up_are_promoted_and_those_that_are_gone_are_removed() {
    let mut cluster = Cluster::new([voters(3), vec![Simulated::learner(4)]].concat());
    cluster.member(4).keeps_up = false;
    cluster.run(Duration::from_secs(120));
    assert_eq!(cluster.taken(), []);
    cluster.member(4).keeps_up = true;
    cluster.run(Duration::from_secs(10));
    assert_eq!(cluster.taken(), [Step::Promote(4)]);
    cluster.members.push(Simulated { reports: false, ..Simulated::learner(5) });
    cluster.run(Duration::from_secs(120));
    assert_eq!(cluster.taken().len(), 1, "it may be a standby");
    assert!(cluster.said("does not say whether it is a standby"), "{:?}", cluster.advice);
    cluster.member(5).answers = false;
    cluster.run(Duration::from_secs(120));
    assert_eq!(cluster.taken(), [Step::Promote(4), Step::Remove(5)]);
    cluster.members.push(Simulated { is_started: false, answers: false, ..Simulated::learner(6) });
    cluster.run(Duration::from_secs(300));
    assert_eq!(cluster.taken().len(), 2);
    assert!(cluster.said("was added as a learner and never started"), "{:?}", cluster.advice);
}

#[test]
fn a_member_with_other_data_is_replaced_and_its_alarm_ends() {
    let mut cluster = Cluster::new(voters(3));
    cluster.member(2).is_corrupt = true;
    cluster.run(Duration::from_secs(120));
    assert_eq!(cluster.taken(), []);
    assert!(cluster.said("there is no spare: rebuild it with `mainstay rebuild`"), "{:?}", cluster.advice);
    cluster.members.push(Simulated::standby(4));
    cluster.run(Duration::from_secs(120));
    assert_eq!(cluster.taken(), [Step::Promote(4), Step::Remove(2), Step::Disarm(2)]);
    // The third one does not answer, so that one says this and the other that.
    let mut cluster = Cluster::new([voters(5), vec![Simulated::standby(6)]].concat());
    cluster.member(2).is_corrupt = true;
    for id in [3, 4] {
        cluster.member(id).answers = false;
    }
    cluster.run(Duration::from_secs(50));
    assert_eq!(cluster.taken(), []);
    assert!(
        cluster.said("2 of them have the data of the leader, which is no majority"),
        "{:?}",
        cluster.advice
    );
    // Two of three differ from each other: nobody knows who is right.
    let mut cluster = Cluster::new([voters(3), vec![Simulated::standby(4)]].concat());
    (cluster.member(2).is_corrupt, cluster.member(3).is_corrupt) = (true, true);
    cluster.run(Duration::from_secs(300));
    assert_eq!(cluster.taken(), []);
    assert!(cluster.said("nobody knows which data are right"), "{:?}", cluster.advice);
}

#[test]
fn leadership_leaves_a_slow_disk_once() {
    let mut cluster = Cluster::new(voters(3));
    cluster.member(1).sync_ms = 200;
    cluster.member(3).sync_ms = 60;
    cluster.run(Duration::from_secs(60));
    assert_eq!(cluster.taken(), [], "it is not slow for long enough");
    cluster.run(Duration::from_secs(60));
    assert_eq!(cluster.taken(), [Step::MoveLeader(2)]);
    cluster.run(Duration::from_secs(3600));
    assert_eq!(cluster.taken().len(), 1);
    // Both disks are slow, and take turns to be a little slower: leadership stays.
    let mut cluster = Cluster::new(voters(3));
    for second in 0..3600 {
        let (one, other) = if second % 200 < 100 { (200, 600) } else { (600, 200) };
        (cluster.member(1).sync_ms, cluster.member(2).sync_ms) = (one, other);
        cluster.member(3).sync_ms = 300;
        cluster.run(Duration::from_secs(1));
    }
    assert_eq!(cluster.taken(), []);
}

#[test]
fn leadership_leaves_disks_that_take_turns_to_be_slow_at_most_every_three_intervals() {
    let mut cluster = Cluster::new(voters(3));
    for second in 0..3600 {
        let slow = second / 5 % 2;
        cluster.member(1).sync_ms = if slow == 0 { 2 } else { 500 };
        cluster.member(2).sync_ms = if slow == 1 { 2 } else { 500 };
        cluster.run(Duration::from_secs(1));
    }
    let times: Vec<u64> = cluster.steps.iter().map(|(at, ..)| *at).collect();
    let least = (INTERVAL * SLOW_INTERVALS).as_secs();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= least), "{times:?}");
    // The third disk is fast all the time, so at last leadership stays there.
    assert!(cluster.leader == 3 && cluster.steps.len() <= 2, "{:?}", cluster.steps);
}

#[test]
fn leadership_leaves_a_member_that_drains_at_once() {
    let mut cluster = Cluster::new(voters(3));
    cluster.run(Duration::from_secs(5));
    cluster.member(2).drains = true;
    cluster.member(1).drains = true;
    cluster.run(Duration::from_secs(2));
    assert_eq!(cluster.taken(), [Step::MoveLeader(3)]);
    cluster.member(3).drains = true;
    cluster.run(Duration::from_secs(120));
    assert_eq!(cluster.taken().len(), 1);
    assert!(cluster.said("no other voter can take over"), "{:?}", cluster.advice);
}

#[test]
fn leadership_follows_the_clients_to_another_zone_slowly() {
    let mut cluster = Cluster::new(voters(3));
    for (id, zone, clients) in [(1, "a", 0), (2, "b", 5), (3, "c", 9)] {
        (cluster.member(id).zone, cluster.member(id).clients) = (zone, clients);
    }
    cluster.run(INTERVAL * (ZONE_INTERVALS - 1));
    cluster.member(1).clients = 1;
    cluster.run(Duration::from_secs(5));
    cluster.member(1).clients = 0;
    cluster.run(INTERVAL * (ZONE_INTERVALS - 1));
    assert_eq!(cluster.taken(), [], "a client came in between");
    cluster.run(INTERVAL * 2);
    assert_eq!(cluster.taken(), [Step::MoveLeader(3)]);
    // Without zones there is nothing to follow.
    let mut cluster = Cluster::new(voters(3));
    cluster.member(2).clients = 5;
    cluster.run(INTERVAL * ZONE_INTERVALS * 2);
    assert_eq!(cluster.taken(), []);
}

#[test]
fn a_dry_run_tells_each_step_once_and_counts_as_no_change() {
    let mut cluster = Cluster::new([voters(3), vec![Simulated::standby(4)]].concat());
    let mut dry = autopilot(Mode::DryRun);
    cluster.member(3).answers = false;
    let mut told = Vec::new();
    for _ in 0..2000 {
        cluster.now += Duration::from_millis(250);
        cluster.commit += 10;
        let commit = cluster.commit;
        for id in [1, 2, 4] {
            cluster.member(id).matched = Index(commit);
        }
        if dry.is_due(Some(Term(1)), cluster.now) {
            let report = MemberReport { is_standby: true, ..MemberReport::default() };
            dry.reported(vec![(4, Some(report))], Vec::new(), Vec::new());
            if let Some((step, why)) = dry.look(&cluster.situation()).step
                && dry.begin(step, &why, 0)
            {
                told.push(step);
            }
        }
    }
    assert_eq!(told, [Step::Promote(4)]);
    assert_eq!(dry.open_step(), None);
    assert_eq!(dry.state(None).steps[0].outcome, StepOutcome::DryRun);
    assert!(!autopilot(Mode::Off).is_due(Some(Term(1)), cluster.now));
}

#[test]
fn a_leader_that_was_deposed_forgets_what_it_saw_and_takes_no_step() {
    let mut cluster = Cluster::new([voters(3), vec![Simulated::standby(4)]].concat());
    cluster.member(3).answers = false;
    cluster.run(GONE_AFTER - Duration::from_secs(5));
    assert!(cluster.autopilot.is_due(None, cluster.now), "its state is published once more");
    assert!(!cluster.autopilot.is_due(None, cluster.now));
    assert!(!cluster.autopilot.state(None).decides);
    cluster.term += 1;
    cluster.run(GONE_AFTER - Duration::from_secs(5));
    assert_eq!(cluster.taken(), [], "it observes again for as long");
    cluster.run(Duration::from_secs(60));
    assert_eq!(cluster.taken(), [Step::Promote(4), Step::Remove(3)]);
}

#[test]
fn a_leader_that_was_suspended_takes_nobody_for_gone() {
    let mut cluster = Cluster::new([voters(4), vec![Simulated::standby(5)]].concat());
    cluster.run(Duration::from_secs(60));
    for id in 2..=4 {
        cluster.member(id).answers = false;
    }
    cluster.now += Duration::from_secs(3600);
    // The clock has gone on, and at the first look one of them has not answered yet.
    (cluster.member(2).answers, cluster.member(3).answers) = (true, true);
    cluster.tick();
    cluster.tick();
    cluster.member(4).answers = true;
    cluster.run(Duration::from_secs(60));
    assert_eq!(cluster.taken(), []);
}

#[test]
fn nothing_is_begun_while_a_change_is_under_way_or_the_last_step_is_open() {
    let mut cluster = Cluster::new([voters(3), vec![Simulated::standby(4)]].concat());
    cluster.member(3).answers = false;
    cluster.is_changing = true;
    cluster.run(Duration::from_secs(300));
    assert_eq!(cluster.taken(), []);
    cluster.is_changing = false;
    let situation = cluster.situation();
    let decision = cluster.autopilot.look(&situation);
    let (step, why) = decision.step.expect("is decided");
    assert!(cluster.autopilot.begin(step, &why, 0));
    for _ in 0..1000 {
        cluster.now += Duration::from_millis(500);
        cluster.autopilot.is_due(Some(Term(1)), cluster.now);
        assert_eq!(cluster.autopilot.look(&situation).step, None);
    }
    assert_eq!(cluster.autopilot.open_step(), Some(step));
    cluster.autopilot.ended(Some("lost"));
    assert_eq!(cluster.autopilot.state(None).steps[0].error, "lost");
}

#[test]
fn percentiles_are_bounds_of_buckets() {
    assert_eq!(percentile_99(&[0; 3], &[19, 0, 0]), None, "too few");
    assert_eq!(percentile_99(&[0; 3], &[20, 0, 0]), Some(Duration::from_millis(1)));
    assert_eq!(percentile_99(&[100, 0, 0], &[199, 1, 0]), Some(Duration::from_millis(1)));
    assert_eq!(percentile_99(&[100, 0, 0], &[198, 0, 2]), Some(Duration::from_millis(4)));
    assert_eq!(percentile_99(&[100, 0, 0], &[50, 90, 0]), None, "the member was restarted");
    assert_eq!(percentile_99(&[], &[20]), None);
    assert_eq!(percentile_99(&[0, 0], &[u64::MAX, u64::MAX]), Some(Duration::from_millis(2)));
}

/// Members of any kind fail, come back, lag and differ at any time, and leaders change. [`Cluster::tick`] asserts
/// that no step makes the margin smaller, is taken without a majority or beside another change, promotes a learner
/// that lags, or removes a member that is well.
#[test]
fn no_step_makes_the_cluster_weaker_whatever_happens() {
    let mut steps = BTreeMap::new();
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let count = random.pick(&[1, 2, 3, 3, 4, 5, 5, 6, 7]);
        let mut cluster = Cluster::new(voters(count));
        let mut next = count + 1;
        // So many voters may fail with the voters of the beginning.
        let tolerated = (count - 1) / 2;
        let mut last_step: Option<(u64, u64)> = None;
        for _ in 0..60 {
            let number = random.index(cluster.members.len());
            let (leader, size) = (cluster.leader, cluster.members.len());
            let own = cluster.members[number].id == leader;
            let member = &mut cluster.members[number];
            match random.below(9) {
                0 | 1 if !own => member.answers = false,
                2 => member.answers = true,
                3 if !own => member.keeps_up = random.one_in(2),
                4 if !own && member.is_started && random.one_in(4) => {
                    member.is_corrupt = true;
                    member.is_accused_wrongly = random.one_in(3);
                }
                5 if size < 10 => {
                    let standby = random.one_in(2);
                    let learner = if standby { Simulated::standby(next) } else { Simulated::learner(next) };
                    cluster.members.push(Simulated { is_started: !random.one_in(4), ..learner });
                    next += 1;
                }
                6 => cluster.is_changing = random.one_in(4),
                7 if !own && !member.is_learner && member.answers && !member.is_corrupt => {
                    member.keeps_up = true;
                    let id = member.id;
                    cluster.lead(id);
                    last_step = None;
                }
                _ => {
                    for member in
                        cluster.members.iter_mut().filter(|member| !random.one_in(3) || member.id == leader)
                    {
                        (member.answers, member.keeps_up) = (true, true);
                    }
                }
            }
            let known = cluster.steps.len();
            let time = Duration::from_secs(random.below(90));
            cluster.run(time);
            for (at, step, why) in &cluster.steps[known..] {
                *steps.entry(step.kind()).or_insert(0) += 1;
                if let Some((before, term)) = last_step.filter(|(_, term)| *term == cluster.term) {
                    assert!(at - before >= INTERVAL.as_secs() - 1, "{step} in term {term} too soon: {why}");
                }
                last_step = Some((*at, cluster.term));
            }
            let tolerates = (cluster.voters() as u64 - 1) / 2;
            assert!(tolerates >= tolerated, "seed {seed}: {:?}", cluster.steps);
        }
    }
    for kind in ["promote", "remove", "disarm"] {
        assert!(steps.get(kind).is_some_and(|count| *count > 10), "{steps:?}");
    }
}

#[test]
fn a_cluster_with_a_witness_is_left_alone() {
    let mut members = voters(3);
    members.push(Simulated::standby(4));
    let mut cluster = Cluster::new(members);
    cluster.has_witness = true;
    cluster.member(2).answers = false;
    cluster.run(GONE_AFTER * 10);
    assert_eq!(cluster.steps.len(), 0, "{:?}", cluster.steps);
    assert!(cluster.advice.iter().any(|advice| advice.contains("has a witness")), "{:?}", cluster.advice);
    cluster.has_witness = false;
    cluster.run(GONE_AFTER * 10);
    assert_ne!(cluster.steps.len(), 0, "the witness was the only reason");
}

#[test]
fn a_member_that_the_alarm_names_wrongly_stays() {
    let mut members = voters(3);
    members.push(Simulated::standby(4));
    let mut cluster = Cluster::new(members);
    for id in [2, 4] {
        cluster.member(id).is_corrupt = true;
        cluster.member(id).is_accused_wrongly = true;
        cluster.run(GONE_AFTER * 2);
    }
    assert_eq!(cluster.steps.len(), 0, "{:?}", cluster.steps);
    let is_told =
        |id: &str| cluster.advice.iter().any(|advice| advice.contains("not proven") && advice.contains(id));
    assert!(is_told("(2)") && is_told("(4)"), "{:?}", cluster.advice);
    // Somebody removes the member all the same: the alarm stays, because the others may be the wrong ones.
    cluster.members.retain(|member| member.id != 2);
    cluster.member(4).is_corrupt = false;
    cluster.removed_corrupt = vec![2];
    cluster.run(GONE_AFTER);
    assert!(!cluster.taken().contains(&Step::Disarm(2)), "{:?}", cluster.steps);
    assert!(cluster.advice.iter().any(|advice| advice.contains("disarm")), "{:?}", cluster.advice);
}

#[test]
fn a_learner_whose_data_differ_is_not_promoted_before_the_alarm_names_it() {
    let learners = vec![Simulated::standby(4), Simulated::learner(5)];
    let mut cluster = Cluster::new([voters(3), learners].concat());
    for id in [4, 5] {
        cluster.member(id).differs_unnamed = true;
    }
    cluster.member(2).answers = false;
    cluster.run(GONE_AFTER * 3);
    assert_eq!(cluster.taken(), []);
    assert!(cluster.said("its state differs from the leader's"), "{:?}", cluster.advice);
    cluster.members.push(Simulated::standby(6));
    cluster.run(GONE_AFTER);
    assert_eq!(cluster.taken(), [Step::Promote(6), Step::Remove(2)]);
}

#[test]
fn the_alarm_of_a_removed_member_that_it_does_not_know_keeps_no_other_alarm_raised() {
    let mut cluster = Cluster::new([voters(3), vec![Simulated::standby(4)]].concat());
    // A person has removed this one, and its alarm stays.
    cluster.removed_corrupt = vec![9];
    cluster.member(2).is_corrupt = true;
    cluster.run(Duration::from_secs(240));
    assert_eq!(cluster.taken(), [Step::Promote(4), Step::Remove(2), Step::Disarm(2)]);
    assert_eq!(cluster.removed_corrupt, [9]);
    assert!(cluster.autopilot.removed_wrong.is_empty(), "what is disarmed is forgotten");
}
