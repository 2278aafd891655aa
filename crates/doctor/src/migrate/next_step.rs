//! Determines the next step of a migration, and the shell commands that the operator has to run for it.

use super::survey::{Product, RELEASES, Survey, shown};
use crate::evidence::{Evidence, Member, Status};

/// A step of a migration: one member is switched to the other product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextStep {
    /// Label of the member.
    pub member: String,
    /// True if the member is the leader. The leader is switched last.
    pub is_leader: bool,
    /// The shell commands, in the order in which they must be run. Words in capitals are placeholders that
    /// the operator fills in.
    pub commands: Vec<String>,
    /// Explanations of the commands, for the operator.
    pub notes: Vec<String>,
}

/// Returns the next step. Followers are switched first and the leader last, so that leadership moves only
/// once. Returns `None` if all members whose product is known run the target product already.
pub fn next_step(survey: &Survey) -> Option<NextStep> {
    let leader = leader(&survey.evidence);
    let left = survey.running().filter(|(.., runs)| runs.is_some_and(|runs| runs != survey.to));
    let (member, status, _) = left.min_by_key(|(member, ..)| (is_leading(member, leader), member.label()))?;
    let is_leader = is_leading(member, leader);
    let mut step = NextStep { member: member.label(), is_leader, commands: Vec::new(), notes: Vec::new() };
    if is_leader && let Some((successor, _)) = successor(survey, member) {
        let endpoint = word(&member.endpoint);
        step.commands.push(format!("mainstay ctl --endpoints={endpoint} move-leader {:x}", successor.id));
        step.notes.push(format!(
            "{} becomes the leader; etcdctl has the same command, and both need the flags for certificates \
             and users that were given here. Then this member is a follower like the others.",
            successor.label()
        ));
    }
    let back = survey.way_back();
    match survey.to {
        Product::Mainstay => to_mainstay(&mut step, back),
        Product::Etcd => to_etcd(&mut step, back, survey.learners().len()),
    }
    let voters = survey.evidence.statuses().filter(|(_, status)| !status.is_learner).count();
    if voters < 3 && !status.is_learner {
        step.notes.push(
            "The cluster does not serve while this member is down: it has too few voting members to continue without it."
                .to_owned(),
        );
    }
    Some(step)
}

fn to_mainstay(step: &mut NextStep, back: Option<(u32, u32)>) {
    step.commands.push("systemctl stop etcd".to_owned());
    let back = back.filter(|back| *back < RELEASES.1);
    let api_version = back.map(|back| format!(" --api-version={}", shown(back))).unwrap_or_default();
    step.commands.push(format!("mainstay FLAGS{api_version}"));
    step.notes.push(
        "On that member's machine. Stop etcd in any way that sends it SIGTERM and lets it exit. FLAGS are etcd's, with the same data directory."
            .to_owned(),
    );
    if let Some(back) = back {
        let back = shown(back);
        step.notes.push(format!(
            "--api-version keeps the way back to etcd {back} open; omit it if you will not go back."
        ));
    }
}

fn to_etcd(step: &mut NextStep, back: Option<(u32, u32)>, learners: usize) {
    let release = back.map_or_else(|| "RELEASE".to_owned(), shown);
    // With at most one learner, leave out the flag: in this case the export works without it, or its error
    // asks for it.
    let limit = if learners > 1 { " --max-learners MAX" } else { "" };
    // Chain the commands with `&&`, so that etcd is not started if the export fails. It could start with an
    // empty store under this member's id, or with an older export.
    let export = format!("mainstay utl export --data-dir DIR --to DIR.etcd --release {release}{limit}");
    let stopped = format!("systemctl stop mainstay && {export}");
    step.commands.push(format!("{stopped} && mv DIR DIR.mainstay && mv DIR.etcd DIR && etcd FLAGS"));
    step.notes.push(format!(
        "On that member's machine; DIR is its data directory. etcd {release} and later can be started, with the flags as before; an \
         older one only after a downgrade (mainstay ctl downgrade)."
    ));
    if learners > 1 {
        step.notes.push(format!(
            "MAX is the member's own --max-learners: the cluster has {learners} learners, and etcd needs this flag too."
        ));
    }
    step.notes.push(
        "With --wal-dir=W, the last part is: mv W W.mainstay && mv DIR/member/wal W && etcd FLAGS."
            .to_owned(),
    );
    step.notes.push(
        "If a part fails, start only Mainstay, as before. Never start Mainstay on DIR.mainstay again, and \
         never use an export made before Mainstay last ran."
            .to_owned(),
    );
}

/// Returns the id of the leader, as reported by a member with the highest raft term; 0 if none reports a
/// leader.
fn leader(evidence: &Evidence) -> u64 {
    let told = evidence.statuses().filter(|(_, status)| status.leader != 0);
    told.max_by_key(|(_, status)| status.term).map_or(0, |(_, status)| status.leader)
}

fn is_leading(member: &Member, leader: u64) -> bool {
    member.id != 0 && member.id == leader
}

/// Returns true if the member is the leader.
pub(crate) fn is_leader(evidence: &Evidence, member: &Member) -> bool {
    is_leading(member, leader(evidence))
}

/// Returns the voter to which leadership should be moved before the leader stops; if possible, one that has
/// been migrated already. Returns `None` if there is no other voter.
pub(crate) fn successor<'s>(survey: &'s Survey, leader: &Member) -> Option<(&'s Member, &'s Status)> {
    let others = survey.evidence.statuses().filter(|(member, _)| member.id != leader.id && member.id != 0);
    let voters = others.filter(|(_, status)| !status.is_learner);
    voters.min_by_key(|(member, _)| (Product::of(member) != Some(survey.to), member.label()))
}

/// Quotes a text as one word of a shell command. This is needed because a member may report any text, such as
/// one with `;` in it.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":/.-_[]%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{all_mainstay, etcds, mixed, run_etcd, run_mainstay};
    use crate::migrate::survey::Listed;

    #[test]
    fn followers_come_first_and_the_leader_last() {
        let mut survey = etcds("3.6.16");
        let first = next_step(&survey).unwrap();
        assert_eq!((&*first.member, first.is_leader), ("m2 (10.0.0.2:2379)", false));
        assert_eq!(first.commands, ["systemctl stop etcd", "mainstay FLAGS --api-version=3.6"]);
        run_mainstay(&mut survey, 1, "3.6.0");
        assert_eq!(next_step(&survey).unwrap().member, "m3 (10.0.0.3:2379)");
        run_mainstay(&mut survey, 2, "3.6.0");
        let last = next_step(&survey).unwrap();
        assert_eq!((&*last.member, last.is_leader), ("m1 (10.0.0.1:2379)", true));
        assert_eq!(last.commands[0], "mainstay ctl --endpoints=10.0.0.1:2379 move-leader 2");
        run_mainstay(&mut survey, 0, "3.6.0");
        assert_eq!(next_step(&survey), None);
    }

    #[test]
    fn the_way_back() {
        let mut survey = all_mainstay();
        survey.to = Product::Etcd;
        let step = next_step(&survey).unwrap();
        assert_eq!(
            step.commands,
            [
                "systemctl stop mainstay && mainstay utl export --data-dir DIR --to DIR.etcd --release 3.6 && mv DIR DIR.mainstay && \
                 mv DIR.etcd DIR && etcd FLAGS"
            ]
        );
        let mut with_learners = survey.clone();
        for (id, is_one_too_many) in [(8, false), (9, true)] {
            let (name, peer_urls) = (format!("l{id}"), Vec::new());
            let view = with_learners.views[0].members.as_mut().unwrap();
            view.insert(Listed { id, name, peer_urls, is_learner: true });
            let step = next_step(&with_learners).unwrap();
            assert_eq!(
                (
                    step.commands[0].contains("--release 3.6 --max-learners MAX && mv"),
                    step.notes.iter().any(|note| note.contains("the cluster has 2 learners"))
                ),
                (is_one_too_many, is_one_too_many)
            );
        }
        run_etcd(&mut survey, 1, "3.6.16");
        run_etcd(&mut survey, 2, "3.6.16");
        let step = next_step(&survey).unwrap();
        assert_eq!(
            (step.is_leader, &*step.commands[0]),
            (true, "mainstay ctl --endpoints=10.0.0.1:2379 move-leader 2")
        );
    }

    #[test]
    fn few_voters_and_learners() {
        let mut survey = mixed();
        survey.evidence.members.truncate(1);
        let step = next_step(&survey).unwrap();
        assert!(step.is_leader && !step.commands[0].contains("move-leader"));
        assert!(step.notes.last().unwrap().starts_with("The cluster does not serve"));
        let mut survey = mixed();
        survey.evidence.members[1].status.as_mut().unwrap().is_learner = true;
        survey.evidence.members[2].page = Ok(crate::page::Page::default());
        let step = next_step(&survey).unwrap();
        assert_eq!(
            step.commands[0], "mainstay ctl --endpoints=10.0.0.1:2379 move-leader 3",
            "a learner leads nobody"
        );
    }

    #[test]
    fn nothing_that_a_member_says_becomes_a_command() {
        assert_eq!(word("https://[::1]:2379"), "https://[::1]:2379");
        assert_eq!(word("http://x;rm -rf '/'"), "'http://x;rm -rf '\\''/'\\'''");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn no_flag_is_needed_for_the_newest_release() {
        assert_eq!(next_step(&etcds("3.7.1")).unwrap().commands[1], "mainstay FLAGS");
        assert_eq!(next_step(&etcds("3.4.30")).unwrap().commands[1], "mainstay FLAGS --api-version=3.5");
    }
}
