// What is wrong, worst first. Each rule looks at what the members told and returns problems; the limits are those of `mainstay doctor`.
// A problem is `{ level, title, facts, remedy, page }`: texts by name with their values; `facts` is a list of sentences.

import * as format from './format.mjs';
import { quantileOf } from './points.mjs';
import { t } from './texts.mjs';

const LIMITS = {
  fsyncSeconds: 0.01,
  commitSeconds: 0.025,
  peerSeconds: 0.1,
  leaderChanges: 3,
  rangeKeys: 5000,
  rangeBytes: 1 << 20,
  valueBytes: 102400,
  fragmentation: 0.5,
  fragmentationBytes: 64 << 20,
  quota: 0.8,
  watches: 5000,
  clockMs: 500,
  certificateSeconds: 720 * 3600,
  certificateSoonSeconds: 72 * 3600,
  backlog: 500,
  cpu: 0.85,
  files: 0.8,
  behind: 5000,
  pendingEvents: 10000,
};

const ORDER = { error: 0, warning: 1, note: 2 };

/** Votes that a cluster of so many voters needs. */
export function quorumOf(voters) {
  return Math.floor(voters / 2) + 1;
}

/** A problem made of what `judge` says of each member that answers; `null` if it says nothing of any. */
function ofEach(members, judge, { title, remedy, page, level = 'warning' }) {
  const facts = [];
  let worst = 'note';
  for (const member of members) {
    const said = member.isUp ? judge(member) : null;
    if (!said) continue;
    const [text, its] = Array.isArray(said) ? said : [said, level];
    facts.push(t('factOf', { member: member.name, text }));
    if (ORDER[its] < ORDER[worst]) worst = its;
  }
  return facts.length === 0 ? null : { level: worst, title: t(title), facts, remedy: t(remedy), page };
}

function unreachable({ members }) {
  const voters = members.filter((member) => !member.isLearner);
  const down = members.filter((member) => member.isUp === false);
  if (down.length === 0) return null;
  if (down.every((member) => member.error?.status === 0)) {
    return { level: 'error', title: t('errorConsole'), facts: [], remedy: t('problemConsoleDo'), page: 'overview' };
  }
  const up = voters.filter((member) => member.isUp).length;
  const quorum = quorumOf(voters.length);
  const facts = down.map((member) => t('factOf', { member: member.name, text: member.error?.message ?? '' }));
  const left = up - quorum;
  facts.push(left < 0 ? t('quorumLost', { up, voters: voters.length, quorum }) : t('quorumLeft', { up, voters: voters.length, quorum, left }));
  return { level: 'error', title: t('problemUnreachable', { count: down.length }), facts, remedy: t('problemUnreachableDo'), page: 'members' };
}

function noLeader({ members }) {
  const none = members.filter((member) => member.isUp && (member.sample?.sum('etcd_server_has_leader') === 0 || member.status?.leader === '0' || (member.status && !member.status.leader)));
  if (none.length === 0) return null;
  return { level: 'error', title: t('problemNoLeader'), facts: [t('namesOf', { names: none.map((member) => member.name).join(', ') })], remedy: t('problemNoLeaderDo'), page: 'members' };
}

function alarms({ members }) {
  const raised = new Set();
  for (const member of members) {
    for (const text of member.status?.errors ?? []) for (const [, kind] of text.matchAll(/\b(NOSPACE|CORRUPT)\b/g)) raised.add(kind);
    for (const { labels, value } of member.sample?.all('etcd_debugging_server_alarms') ?? []) if (value > 0) raised.add(labels.alarm_type);
  }
  return [...raised].map((kind) => {
    const known = kind === 'NOSPACE' || kind === 'CORRUPT' ? kind : 'Other';
    return { level: 'error', title: t(`problemAlarm${known}`, { kind }), facts: [], remedy: t(`problemAlarm${known}Do`), page: 'space' };
  });
}

function differs({ members }) {
  return ofEach(members, (member) => (member.sample?.sum('mainstay_state_hash_differences_total') > 0 ? t('differencesSeen', { count: format.count(member.sample.sum('mainstay_state_hash_differences_total')) }) : null),
    { title: 'problemDiffers', remedy: 'problemDiffersDo', page: 'members', level: 'error' });
}

export function quotaOf(member) {
  const quota = Number(member.status?.dbSizeQuota ?? 0) || member.sample?.sum('etcd_server_quota_backend_bytes') || 0;
  const size = Number(member.status?.dbSize ?? 0) || member.sample?.sum('etcd_mvcc_db_total_size_in_bytes') || 0;
  return { quota, size, share: quota > 0 ? size / quota : null };
}

function quota({ members }) {
  return ofEach(members, (member) => {
    const { quota: all, size, share } = quotaOf(member);
    if (share === null || share < LIMITS.quota) return null;
    return [t('quotaUsed', { size: format.bytes(size), quota: format.bytes(all), share: format.percent(share) }), share >= 0.95 ? 'error' : 'warning'];
  }, { title: 'problemQuota', remedy: 'problemQuotaDo', page: 'space' });
}

function slowDisk({ members }) {
  return ofEach(members, (member) => {
    const p99 = member.point && quantileOf(member.point, 'fsync', 0.99);
    return p99 > LIMITS.fsyncSeconds ? [t('p99Of', { time: format.seconds(p99) }), p99 > 10 * LIMITS.fsyncSeconds ? 'error' : 'warning'] : null;
  }, { title: 'problemSlowDisk', remedy: 'problemSlowDiskDo', page: 'charts' });
}

function slowPeer({ members }) {
  return ofEach(members, (member) => {
    const p99 = member.point && quantileOf(member.point, 'rtt', 0.99);
    return p99 > LIMITS.peerSeconds ? t('p99Of', { time: format.seconds(p99) }) : null;
  }, { title: 'problemSlowPeer', remedy: 'problemSlowPeerDo', page: 'charts' });
}

function backlog({ members }) {
  return ofEach(members, (member) => {
    const waiting = Math.max(member.applyLag ?? 0, member.point?.pendingProposals ?? 0);
    return waiting > LIMITS.backlog ? t('entriesWaiting', { count: format.count(waiting) }) : null;
  }, { title: 'problemBacklog', remedy: 'problemBacklogDo', page: 'charts' });
}

function behind({ members }) {
  const newest = Math.max(0, ...members.filter((member) => member.isUp).map((member) => Number(member.status?.raftIndex ?? 0)));
  return ofEach(members, (member) => {
    const lag = member.status ? newest - Number(member.status.raftIndex ?? 0) : 0;
    return lag > LIMITS.behind ? t('entriesBehind', { count: format.count(lag) }) : null;
  }, { title: 'problemBehind', remedy: 'problemBehindDo', page: 'members' });
}

function leaderChanges({ members, times }) {
  return ofEach(members, (member) => {
    const seen = member.points.map((point) => point?.leaderChanges).filter(format.isKnown);
    const changed = seen.length > 1 ? Math.max(...seen) - Math.min(...seen) : 0;
    return changed >= LIMITS.leaderChanges ? t('changesWithin', { count: changed, span: format.span((times.at(-1) - times[0]) / 1000) }) : null;
  }, { title: 'problemLeaderChanges', remedy: 'problemLeaderChangesDo', page: 'charts' });
}

function failedProposals({ members }) {
  return ofEach(members, (member) => (member.point?.failedProposals > 0 ? format.rate(member.point.failedProposals) : null),
    { title: 'problemFailedProposals', remedy: 'problemFailedProposalsDo', page: 'charts' });
}

function slowWatchers({ members }) {
  return ofEach(members, (member) => {
    const { slowWatchers: slow = 0, pendingEvents = 0 } = member.point ?? {};
    if (!(slow > 0) && !(pendingEvents > LIMITS.pendingEvents)) return null;
    return t('watchersBehind', { slow: format.count(slow), events: format.count(pendingEvents) });
  }, { title: 'problemSlowWatchers', remedy: 'problemSlowWatchersDo', page: 'requests' });
}

/** Seconds until the first certificate of a member ends; `null` if it does not tell, or what time it is is not known. */
export function certificateLeft(member, now) {
  const ends = member.sample?.all('mainstay_tls_certificate_not_after_seconds').map((each) => each.value).filter((value) => value > 0) ?? [];
  return ends.length === 0 || now === null ? null : Math.min(...ends) - now / 1000;
}

function certificates({ members, now }) {
  return ofEach(members, (member) => {
    const left = certificateLeft(member, now);
    if (left === null || left > LIMITS.certificateSeconds) return null;
    return [left <= 0 ? t('certificateEnded') : t('certificateEnds', { span: format.span(left) }), left < LIMITS.certificateSoonSeconds ? 'error' : 'warning'];
  }, { title: 'problemCertificate', remedy: 'problemCertificateDo', page: 'members' });
}

function tlsFiles({ members }) {
  return ofEach(members, (member) => (member.sample?.sum('mainstay_tls_reload_failing') > 0 ? t('tlsOld') : null),
    { title: 'problemTlsFiles', remedy: 'problemTlsFilesDo', page: 'members' });
}

function versions({ members }) {
  const known = new Map();
  for (const member of members) if (member.status?.version) known.set(member.status.version, [...(known.get(member.status.version) ?? []), member.name]);
  if (known.size < 2) return null;
  return { level: 'warning', title: t('problemVersions'), facts: [...known].map(([version, names]) => t('factOf', { member: names.join(', '), text: version })), remedy: t('problemVersionsDo'), page: 'members' };
}

function files({ members }) {
  return ofEach(members, (member) => {
    const [open, most] = [member.sample?.sum('process_open_fds'), member.sample?.sum('process_max_fds')];
    return open && most && open / most > LIMITS.files ? t('filesOpen', { open: format.count(open), most: format.count(most) }) : null;
  }, { title: 'problemFiles', remedy: 'problemFilesDo', page: 'requests' });
}

function processor({ members }) {
  return ofEach(members, (member) => {
    const cores = member.sample?.sum('mainstay_processors') ?? member.sample?.sum('go_sched_gomaxprocs_threads');
    const recent = member.points.slice(-5).map((point) => point?.cpu).filter(format.isKnown);
    if (!cores || recent.length < 3) return null;
    const used = recent.reduce((sum, each) => sum + each, 0) / recent.length;
    return used / cores > LIMITS.cpu ? t('coresUsed', { used: format.number(used), cores: format.number(cores) }) : null;
  }, { title: 'problemProcessor', remedy: 'problemProcessorDo', page: 'charts' });
}

function crowded({ members }) {
  return ofEach(members, (member) => {
    const since = (name) => {
      const [first, last] = [member.samples[0]?.sum(name), member.sample?.sum(name)];
      return first === null || last === null ? 0 : last - first;
    };
    const turned = since('mainstay_client_connections_shed_total') + since('mainstay_client_connections_refused_total') + since('mainstay_expensive_calls_refused_total');
    return turned > 0 ? t('turnedAway', { count: format.count(turned) }) : null;
  }, { title: 'problemCrowded', remedy: 'problemCrowdedDo', page: 'requests' });
}

/** Sizes of databases count only where a file keeps what was freed, as etcd's does. */
function fragmentation({ members }) {
  return ofEach(members, (member) => {
    const [size, used] = [Number(member.status?.dbSize ?? 0), Number(member.status?.dbSizeInUse ?? 0)];
    if (isMainstay(member) || size < LIMITS.fragmentationBytes || 1 - used / size < LIMITS.fragmentation) return null;
    return t('spaceUnused', { unused: format.bytes(size - used), size: format.bytes(size) });
  }, { title: 'problemFragmentation', remedy: 'problemFragmentationDo', page: 'space' });
}

function clocks({ members }) {
  return ofEach(members, (member) => {
    const off = member.diagnosis?.clockOffMs;
    // The header that it is compared by has whole seconds.
    return format.isKnown(off) && Math.abs(off) > LIMITS.clockMs + 1500 ? t('clockOff', { span: format.seconds(Math.abs(off) / 1000) }) : null;
  }, { title: 'problemClock', remedy: 'problemClockDo', page: 'members' });
}

function expensive({ members }) {
  return ofEach(members, (member) => {
    const worst = member.diagnosis?.expensive_ranges?.filter((range) => range.keys_max > LIMITS.rangeKeys || range.bytes_total / Math.max(1, range.count) > LIMITS.rangeBytes) ?? [];
    return worst.length > 0 ? t('expensiveSeen', { count: format.count(worst.length), keys: format.count(Math.max(...worst.map((range) => range.keys_max))) }) : null;
  }, { title: 'problemExpensive', remedy: 'problemExpensiveDo', page: 'requests' });
}

function largeValues({ members }) {
  return ofEach(members, (member) => {
    const large = member.diagnosis?.large_values?.filter((value) => value.bytes > LIMITS.valueBytes) ?? [];
    return large.length > 0 ? t('largeSeen', { count: format.count(large.length), bytes: format.bytes(Math.max(...large.map((value) => value.bytes))) }) : null;
  }, { title: 'problemLarge', remedy: 'problemLargeDo', page: 'requests' });
}

function stalls({ members, now }) {
  return ofEach(members, (member) => {
    const recent = member.diagnosis?.fsync_stalls?.filter((stall) => now !== null && now - stall.unix_ms < 3600000 && stall.seconds > 1) ?? [];
    return recent.length > 0 ? t('stallsSeen', { count: format.count(recent.length), time: format.seconds(Math.max(...recent.map((stall) => stall.seconds))) }) : null;
  }, { title: 'problemStalls', remedy: 'problemStallsDo', page: 'charts' });
}

function learner({ members }) {
  return ofEach(members, (member) => (member.isLearner ? t('learnerNoVote') : null), { title: 'problemLearner', remedy: 'problemLearnerDo', page: 'members', level: 'note' });
}

function evenVoters({ members }) {
  const voters = members.filter((member) => !member.isLearner).length;
  if (voters === 0 || voters % 2 === 1) return null;
  return { level: 'note', title: t('problemEven', { voters }), facts: [], remedy: t('problemEvenDo', { fewer: voters - 1, more: voters + 1 }), page: 'members' };
}

const RULES = [
  unreachable, noLeader, alarms, differs, quota, slowDisk, stalls, slowPeer, backlog, behind, leaderChanges, failedProposals, slowWatchers, certificates, tlsFiles,
  versions, files, processor, crowded, fragmentation, clocks, expensive, largeValues, learner, evenVoters,
];

/** True if the member is one of ours, by what only ours tells. */
export function isMainstay(member) {
  return member.sample?.has('mainstay_log_entries_total') ?? member.diagnosis !== null;
}

/** All problems of a cluster `{ members, times, now }`, worst first. */
export function findProblems(state) {
  const found = RULES.flatMap((rule) => rule(state) ?? []);
  return found.sort((a, b) => ORDER[a.level] - ORDER[b.level]);
}
