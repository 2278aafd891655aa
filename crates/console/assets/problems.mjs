// What is wrong, worst first: what `mainstay doctor` would find, by the same names and limits, as far as a page can see it, and a few things
// more. Each rule looks at what the members told in the last seconds and returns a problem `{ level, title, facts, remedy, page }`: texts,
// with a list of sentences in `facts`.

import * as format from './format.mjs';
import { AMOUNT, isWithheld, standingOut } from './heavy.mjs';
import { bucketsBetween, quantile } from './metrics.mjs';
import { clientName, quotedText } from './parts.mjs';
import { quantileOf } from './points.mjs';
import { t } from './texts.mjs';

/** The limits of `mainstay doctor`, under the names of its flags. Times are in seconds, sizes in bytes, the rest shares and numbers. */
export const LIMITS = {
  fsync: 0.01,
  commit: 0.025,
  stall: 1,
  peerRtt: 0.1,
  leaderChanges: 3,
  rangeKeys: 5000,
  rangeBytes: 1048576,
  rangeTime: 0.1,
  valueBytes: 102400,
  revisions: 100000,
  fragmentation: 0.5,
  quota: 0.8,
  authentications: 1,
  watches: 5000,
  leases: 5000,
  imbalance: 2,
  imbalanceRate: 50,
  clock: 0.5,
  certificate: 720 * 3600,
  backlog: 500,
  cpu: 0.85,
  descriptors: 0.8,
  behind: 5000,
};

/** Limits that are no flags of the doctor's, and the same there. */
const QUOTA_CRITICAL = 0.95;
const CERTIFICATE_URGENT_S = 7 * 86400;
const SEVERE = 10;
const RECENT_MS = 600000;
const QUARTER_HOUR_S = 900;
const FRAGMENTATION_BYTES = 64 << 20;
const REVISIONS_PER_KEY = 3;
const REQUESTS_PER_TOKEN = 10;
const ANSWERS_MIN = 5;
const OBSERVATIONS_MIN = 20;
const PROBES_MIN = 2;
const SLOW_APPLIES = 1;
const SHARE_MAX = 0.9;
/** Facts of a member that are told. */
const TOLD_MAX = 5;
/** A header that tells the server's time has whole seconds. */
const HEADER_CLOCK_S = 1.5;

const ORDER = { error: 0, warning: 1, note: 2 };

/** Votes that a cluster of so many voters needs. */
export function quorumOf(voters) {
  return Math.floor(voters / 2) + 1;
}

/** How many voters answer, of those in the list of members, and what that means. Of those that are not asked nobody knows if they are up. */
export function quorumText({ voters, up, notAsked = 0 }) {
  const quorum = quorumOf(voters);
  const left = up - quorum;
  if (left >= 0) return t('quorumLeft', { up, voters, quorum, left });
  return t(up + notAsked < quorum ? 'quorumLost' : 'quorumUnknown', { up, voters, quorum, notAsked });
}

/** True if the member is one of ours, by what only ours tells. */
export function isMainstay(member) {
  return member.sample?.has('mainstay_log_entries_total') ?? member.diagnosis !== null;
}

/**
 * A problem made of what `judge` says of each member that answers: a fact, several, or nothing, each a text or `[text, level]`; `null` if it
 * says nothing of any.
 */
function ofEach(members, judge, { title, remedy, page, level = 'warning' }) {
  const facts = [];
  let worst = 'note';
  for (const member of members) {
    const said = member.isUp ? judge(member) : null;
    for (const each of [said ?? []].flat()) {
      const { text, level: its = level } = typeof each === 'string' ? { text: each } : each;
      facts.push(t('factOf', { member: member.name, text }));
      if (ORDER[its] < ORDER[worst]) worst = its;
    }
  }
  return facts.length === 0 ? null : { level: worst, title: t(title), facts, remedy: t(remedy), page };
}

/** How much a counter grew in the last seconds, at most the span of the samples that are kept; `null` if that is not known. */
function grown(member, name, wanted) {
  const [before, after] = [member.samples[0], member.sample];
  if (!before?.has(name) || !after?.has(name) || before === after) return null;
  const change = after.sum(name, wanted) - before.sum(name, wanted);
  return change < 0 ? null : change;
}

function spanOf(member) {
  return member.sample ? (member.sample.at - member.samples[0].at) / 1000 : 0;
}

function rate(member, name, wanted) {
  const change = grown(member, name, wanted);
  return change === null ? null : change / spanOf(member);
}

function recentOf(member, list) {
  const now = member.diagnosis?.clock_unix_ns / 1e6;
  return (member.diagnosis?.[list] ?? []).filter((each) => !Number.isFinite(now) || now - (each.last_unix_ms ?? each.unix_ms) < RECENT_MS);
}

/** The first facts of many, and how many more there are. */
function first(facts) {
  return facts.length <= TOLD_MAX ? facts : [...facts.slice(0, TOLD_MAX), t('andMore', { count: format.count(facts.length - TOLD_MAX) })];
}

function nameOf(members, id) {
  return members.find((member) => member.memberId === id)?.name ?? id;
}

function unreachable({ members }) {
  const voters = members.filter((member) => !member.isLearner);
  const down = members.filter((member) => member.isUp === false && !member.isNotAsked);
  if (down.length === 0) return null;
  if (down.every((member) => member.error?.status === 0)) {
    return { level: 'error', title: t('errorConsole'), facts: [], remedy: t('problemConsoleDo'), page: 'overview' };
  }
  const facts = down.map((member) => t('factOf', { member: member.name, text: member.error?.message ?? '' }));
  facts.push(quorumText(votesOf(voters)));
  return { level: 'error', title: t('problemUnreachable', { count: down.length }), facts, remedy: t('problemUnreachableDo'), page: 'members' };
}

function votesOf(voters) {
  return { voters: voters.length, up: voters.filter((member) => member.isUp).length, notAsked: voters.filter((member) => member.isNotAsked).length };
}

/** Members that have no address at which the console may ask them. They have their votes all the same. */
function notAsked({ members }) {
  const those = members.filter((member) => member.isNotAsked);
  if (those.length === 0) return null;
  const facts = those.map((member) => t('factOf', { member: member.name, text: member.error.forUser }));
  facts.push(quorumText(votesOf(members.filter((member) => !member.isLearner))));
  return { level: 'warning', title: t('problemNotAsked', { count: those.length }), facts, remedy: t('problemNotAskedDo'), page: 'members' };
}

function noLeader({ members }) {
  const none = members.filter((member) => member.isUp && (member.status ? !member.status.leader || member.status.leader === '0' : member.sample?.sum('etcd_server_has_leader') === 0));
  if (none.length === 0) return null;
  return { level: 'error', title: t('problemNoLeader'), facts: [t('namesOf', { names: none.map((member) => member.name).join(', ') })], remedy: t('problemNoLeaderDo'), page: 'members' };
}

function differentClusters({ members, foreign = [] }) {
  const ids = new Set(members.filter((member) => member.isUp && member.status).map((member) => member.status.header?.cluster_id));
  const differing = ids.size > 1 ? members.filter((member) => member.isUp && member.status) : [];
  const facts = differing.map((member) => t('factOf', { member: member.name, text: t('clusterOf', { id: BigInt(member.status.header?.cluster_id ?? 0).toString(16) }) }));
  // Endpoints that the console was given, and leaves alone.
  facts.push(...foreign.map((url) => t('factOf', { member: url, text: t('clusterForeign') })));
  if (facts.length === 0) return null;
  return { level: 'error', title: t('problemDifferentClusters'), facts, remedy: t('problemDifferentClustersDo'), page: 'members' };
}

/** Alarms that any member tells of, as kind and the member that it was raised for; '' if that is not told. */
function alarmsOf(members) {
  const raised = new Map();
  const add = (kind, id) => raised.set(`${kind} ${id}`, { kind, member: nameOf(members, id) });
  for (const member of members) {
    for (const text of (member.isUp && member.status?.errors) || []) {
      for (const [, id, kind] of text.matchAll(/\bmemberID:(\d+)\s+alarm:(\w+)/g)) add(kind, BigInt(id).toString(16));
    }
  }
  const isTold = (kind) => [...raised.values()].some((alarm) => alarm.kind === kind);
  for (const member of members) {
    for (const { labels, value } of member.sample?.all('etcd_debugging_server_alarms') ?? []) if (value > 0 && !isTold(labels.alarm_type)) add(labels.alarm_type, '');
    for (const text of (member.isUp && member.status?.errors) || []) for (const [, kind] of text.matchAll(/\b(NOSPACE|CORRUPT)\b/g)) if (!isTold(kind)) add(kind, '');
  }
  return [...raised.values()];
}

function raisedFor(alarms) {
  return alarms.filter((alarm) => alarm.member !== '').map((alarm) => t('alarmOf', { alarm: alarm.kind, member: alarm.member }));
}

function alarmCorrupt({ members }) {
  const alarms = alarmsOf(members).filter((alarm) => alarm.kind === 'CORRUPT');
  const differs = ofEach(members, (member) => {
    const count = member.sample?.sum('mainstay_state_hash_differences_total');
    return count > 0 ? t('differencesSeen', { count: format.count(count) }) : null;
  }, { title: 'problemDiffers', remedy: 'problemDiffersDo', page: 'members', level: 'error' });
  if (alarms.length === 0) return differs;
  return { level: 'error', title: t('problemAlarmCORRUPT'), facts: [...raisedFor(alarms), ...(differs?.facts ?? [])], remedy: t('problemAlarmCORRUPTDo'), page: 'space' };
}

function alarmNoSpace({ members }) {
  const alarms = alarmsOf(members).filter((alarm) => alarm.kind !== 'CORRUPT');
  return [...new Set(alarms.map((alarm) => alarm.kind))].map((kind) => {
    const its = alarms.filter((alarm) => alarm.kind === kind);
    if (kind !== 'NOSPACE') return { level: 'error', title: t('problemAlarmOther', { kind }), facts: raisedFor(its), remedy: t('problemAlarmOtherDo'), page: 'space' };
    const full = members.filter((member) => member.isUp && quotaOf(member).share >= LIMITS.quota);
    const facts = [...raisedFor(its), ...full.map((member) => t('factOf', { member: member.name, text: quotaText(member) }))];
    return { level: 'error', title: t('problemAlarmNOSPACE'), facts, remedy: t('problemAlarmNOSPACEDo'), page: 'space' };
  });
}

/**
 * The quota of a member with the bytes that it counts: at etcd those of the file, at ours those in use. `disk` is what the data takes on
 * disk. What is not told is 0, and then `share` is `null`.
 */
export function quotaOf(member) {
  const { status, sample } = member;
  const quota = Number(status?.dbSizeQuota ?? 0) || sample?.sum('etcd_server_quota_backend_bytes') || 0;
  const disk = Number(status?.dbSize ?? 0) || sample?.sum('etcd_mvcc_db_total_size_in_bytes') || 0;
  const inUse = sample?.sum('etcd_mvcc_db_total_size_in_use_in_bytes') ?? Number(status?.dbSizeInUse ?? 0);
  const counted = isMainstay(member) ? inUse : disk;
  return { quota, counted, inUse, disk, share: quota > 0 ? counted / quota : null };
}

function quotaText(member) {
  const { quota: all, counted, share } = quotaOf(member);
  return t('quotaUsed', { size: format.bytes(counted), quota: format.bytes(all), share: format.percent(share) });
}

function quota({ members }) {
  return ofEach(members, (member) => {
    const { share } = quotaOf(member);
    return share === null || share < LIMITS.quota ? null : { text: quotaText(member), level: share >= QUOTA_CRITICAL ? 'error' : 'warning' };
  }, { title: 'problemQuota', remedy: 'problemQuotaDo', page: 'space' });
}

/** The flag that names a certificate. */
function flagOf({ listener, certificate }) {
  const names = { server: 'cert-file', client: 'client-cert-file', authority: 'trusted-ca-file' };
  return `--${listener === 'client' ? '' : 'peer-'}${names[certificate] ?? names.authority}`;
}

function certificatesOf(member) {
  return member.sample?.all('mainstay_tls_certificate_not_after_seconds').filter((each) => each.value > 0) ?? [];
}

/** Seconds until the first certificate of a member ends; `null` if it does not tell, or what time it is is not known. */
export function certificateLeft(member, now) {
  const ends = certificatesOf(member).map((each) => each.value);
  return ends.length === 0 || now === null ? null : Math.min(...ends) - now / 1000;
}

function certificates({ members, now }) {
  return ofEach(members, (member) => (now === null ? [] : certificatesOf(member)).flatMap(({ labels, value }) => {
    const left = value - now / 1000;
    if (left > LIMITS.certificate) return [];
    const text = left <= 0 ? t('certificateEnded') : t('certificateEnds', { span: format.span(left) });
    return [{ text: t('factOf', { member: flagOf(labels), text }), level: left < CERTIFICATE_URGENT_S ? 'error' : 'warning' }];
  }), { title: 'problemCertificate', remedy: 'problemCertificateDo', page: 'members' });
}

function tlsFiles({ members }) {
  return ofEach(members, (member) => (member.sample?.sum('mainstay_tls_reload_failing') > 0 ? t('tlsOld') : null),
    { title: 'problemTlsFiles', remedy: 'problemTlsFilesDo', page: 'members', level: 'error' });
}

/** What a p99 above its limit is a fact of. A few observations tell nothing. */
function slower(member, histogram, limit) {
  if (!(member.point?.histograms[histogram]?.counts.at(-1) >= OBSERVATIONS_MIN)) return null;
  const [p99, median] = [0.99, 0.5].map((share) => quantileOf(member.point, histogram, share));
  return p99 > limit ? { text: t('p99Of', { time: format.seconds(p99), median: format.seconds(median), limit: format.seconds(limit) }), level: p99 > SEVERE * limit ? 'error' : 'warning' } : null;
}

function slowDisk({ members }) {
  return ofEach(members, (member) => slower(member, 'fsync', LIMITS.fsync), { title: 'problemSlowDisk', remedy: 'problemSlowDiskDo', page: 'charts' });
}

function stalls({ members }) {
  return ofEach(members, (member) => {
    const recent = recentOf(member, 'fsync_stalls').filter((stall) => stall.seconds >= LIMITS.stall);
    if (recent.length > 0) return t('stallsSeen', { count: format.count(recent.length), time: format.seconds(Math.max(...recent.map((stall) => stall.seconds))) });
    const buckets = member.sample && bucketsBetween(member.samples[0], member.sample, 'etcd_disk_wal_fsync_duration_seconds');
    const at = buckets?.bounds.findLastIndex((bound) => bound <= LIMITS.stall * 1.03) ?? -1;
    const above = at < 0 ? 0 : buckets.counts.at(-1) - buckets.counts[at];
    return above > 0 ? t('stallsNow', { count: format.count(above), time: format.seconds(LIMITS.stall) }) : null;
  }, { title: 'problemStalls', remedy: 'problemStallsDo', page: 'charts', level: 'error' });
}

/** No request waits for a commit of ours. */
function slowCommit({ members }) {
  return ofEach(members, (member) => (isMainstay(member) ? null : slower(member, 'commit', LIMITS.commit)), { title: 'problemSlowCommit', remedy: 'problemSlowCommitDo', page: 'charts' });
}

function slowPeer({ members }) {
  return ofEach(members, (member) => {
    const facts = [];
    for (const to of member.sample?.valuesOf('etcd_network_peer_round_trip_time_seconds_count', 'To') ?? []) {
      const probes = bucketsBetween(member.samples[0], member.sample, 'etcd_network_peer_round_trip_time_seconds', (labels) => labels.To === to);
      const p99 = probes?.counts.at(-1) >= PROBES_MIN ? quantile(0.99, probes) : null;
      if (p99 > LIMITS.peerRtt) facts.push(t('roundTripTo', { member: nameOf(members, to), time: format.seconds(p99) }));
    }
    for (const to of member.sample?.valuesOf('etcd_network_peer_sent_failures_total', 'To') ?? []) {
      const failures = grown(member, 'etcd_network_peer_sent_failures_total', (labels) => labels.To === to);
      if (failures > 0) facts.push(t('notSentTo', { count: format.count(failures), member: nameOf(members, to) }));
    }
    return facts;
  }, { title: 'problemSlowPeer', remedy: 'problemSlowPeerDo', page: 'charts' });
}

function leaderChanges({ members, times, now }) {
  return ofEach(members, (member) => {
    const recent = grown(member, 'etcd_server_leader_changes_seen_total');
    if (recent >= 1) return { text: t('changesWithin', { count: recent, span: format.span(spanOf(member)) }), level: 'error' };
    const seen = member.points.map((point) => point?.leaderChanges).filter(format.isKnown);
    const changed = seen.length > 1 ? Math.max(...seen) - Math.min(...seen) : 0;
    if (changed >= LIMITS.leaderChanges) return t('changesWithin', { count: changed, span: format.span((times.at(-1) - times[0]) / 1000) });
    // The first leader that a member sees is no change.
    const [all, began] = [member.sample?.sum('etcd_server_leader_changes_seen_total') - 1, member.sample?.sum('process_start_time_seconds')];
    const quarters = now === null || !began ? 0 : (now / 1000 - began) / QUARTER_HOUR_S;
    return quarters > 0 && all / Math.max(1, quarters) >= LIMITS.leaderChanges ? t('changesSinceStart', { count: format.count(all), span: format.span(quarters * QUARTER_HOUR_S) }) : null;
  }, { title: 'problemLeaderChanges', remedy: 'problemLeaderChangesDo', page: 'charts' });
}

const UNARY = ({ grpc_type: type }) => type === 'unary';

/** Calls that were begun and are not answered, at a moment. */
function openCalls(sample) {
  const [started, handled] = [sample.sum('grpc_server_started_total', UNARY), sample.sum('grpc_server_handled_total', UNARY)];
  return started === null || handled === null ? 0 : started - handled;
}

function overloaded({ members }) {
  return ofEach(members, (member) => {
    const { sample } = member;
    if (!sample) return [];
    const facts = [];
    const lag = Math.max(member.applyLag ?? 0, member.point?.applyLag ?? 0);
    if (lag >= LIMITS.backlog) facts.push({ text: t('entriesNotApplied', { count: format.count(lag) }), level: 'error' });
    const waiting = member.point?.pendingProposals ?? 0;
    if (waiting >= LIMITS.backlog) facts.push(t('entriesWaiting', { count: format.count(waiting) }));
    // At both looks, so that no short rush counts.
    const open = Math.min(openCalls(member.samples[0]), openCalls(sample));
    if (open >= LIMITS.backlog) facts.push(t('callsOpen', { count: format.count(open) }));
    const failed = grown(member, 'etcd_server_proposals_failed_total');
    if (failed >= 1) facts.push(t('proposalsFailed', { count: format.count(failed), span: format.span(spanOf(member)) }));
    const slow = rate(member, 'etcd_server_slow_apply_total');
    if (slow >= SLOW_APPLIES) facts.push(t('slowApplies', { rate: format.rate(slow) }));
    const refused = grown(member, 'grpc_server_handled_total', ({ grpc_code: code }) => code === 'ResourceExhausted');
    // While the quota is used up, puts are refused with the same code.
    if (refused >= 1 && alarmsOf(members).length === 0) facts.push({ text: t('callsRefused', { count: format.count(refused), span: format.span(spanOf(member)) }), level: 'error' });
    return facts;
  }, { title: 'problemOverloaded', remedy: 'problemOverloadedDo', page: 'requests' });
}

function processor({ members }) {
  return ofEach(members, (member) => {
    const cores = member.sample?.sum('mainstay_processors') ?? member.sample?.sum('go_sched_gomaxprocs_threads');
    const recent = member.points.slice(-5).map((point) => point?.cpu).filter(format.isKnown);
    if (!cores || recent.length < 3) return null;
    const used = recent.reduce((sum, each) => sum + each, 0) / recent.length;
    return used / cores >= LIMITS.cpu ? t('coresUsed', { used: format.number(used), cores: format.number(cores) }) : null;
  }, { title: 'problemProcessor', remedy: 'problemProcessorDo', page: 'requests' });
}

function files({ members }) {
  return ofEach(members, (member) => {
    const [open, most] = [['process_open_fds', 'process_max_fds'], ['os_fd_used', 'os_fd_limit']].map((names) => names.map((name) => member.sample?.sum(name))).find((pair) => pair.every(Boolean)) ?? [];
    return open / most >= LIMITS.descriptors ? t('filesOpen', { open: format.count(open), most: format.count(most) }) : null;
  }, { title: 'problemFiles', remedy: 'problemFilesDo', page: 'requests', level: 'error' });
}

function slowReads({ members }) {
  return ofEach(members, (member) => {
    const [slow, failed] = ['etcd_server_slow_read_indexes_total', 'etcd_server_read_indexes_failed_total'].map((name) => grown(member, name) ?? 0);
    if (slow + failed < 1) return null;
    return { text: t('readsConfirmed', { slow: format.count(slow), failed: format.count(failed), span: format.span(spanOf(member)) }), level: failed >= 1 ? 'error' : 'warning' };
  }, { title: 'problemSlowReads', remedy: 'problemSlowReadsDo', page: 'charts' });
}

/** Members of one kind that have applied much less than any member has committed. They are not asked at the same moment. */
function lagging(members, isLearner, texts) {
  const told = members.filter((member) => member.isUp && member.status);
  const newest = told.reduce((best, member) => (Number(member.status.raftIndex ?? 0) > Number(best?.status.raftIndex ?? -1) ? member : best), null);
  return ofEach(members, (member) => {
    if (!member.status || member.isLearner !== isLearner) return null;
    const index = Number(newest.status.raftIndex ?? 0) - (newest.indexRate * (newest.statusAt - member.statusAt)) / 1000;
    const lag = Math.round(index - Number(member.status.raftAppliedIndex ?? 0));
    return lag >= LIMITS.behind ? t('entriesBehind', { count: format.count(lag) }) : null;
  }, { page: 'members', ...texts });
}

function behind({ members }) {
  return lagging(members, false, { title: 'problemBehind', remedy: 'problemBehindDo' });
}

function learnerBehind({ members }) {
  return lagging(members, true, { title: 'problemLearnerBehind', remedy: 'problemLearnerBehindDo' });
}

function expensive({ members }) {
  return ofEach(members, (member) => {
    const costly = recentOf(member, 'expensive_ranges').filter((range) => range.keys_max >= LIMITS.rangeKeys || range.bytes_total / Math.max(1, range.count) >= LIMITS.rangeBytes || range.seconds_max >= LIMITS.rangeTime);
    const facts = costly.sort((a, b) => b.bytes_total - a.bytes_total).map((range) => t('rangeAsked', {
      client: clientName(range.client), count: format.count(range.count), from: shortKey(range.key), to: shortKey(range.range_end),
      keys: format.count(range.keys_max), bytes: format.bytes(range.bytes_total), time: format.seconds(range.seconds_max),
    }));
    if (member.diagnosis?.expensive_ranges && !isWithheld(member)) return first(facts);
    // One that does not name them.
    const [sent, answers] = ['etcd_network_client_grpc_sent_bytes_total', 'grpc_server_msg_sent_total'].map((name) => grown(member, name));
    if (answers >= ANSWERS_MIN && sent / answers >= LIMITS.rangeBytes / 4) facts.push(t('answersWeigh', { count: format.count(answers), bytes: format.bytes(sent / answers) }));
    const times = member.sample && bucketsBetween(member.samples[0], member.sample, 'etcd_server_range_duration_seconds');
    const p99 = times?.counts.at(-1) >= ANSWERS_MIN ? quantile(0.99, times) : null;
    if (p99 >= LIMITS.rangeTime) facts.push(t('rangesTake', { time: format.seconds(p99) }));
    return facts;
  }, { title: 'problemExpensive', remedy: 'problemExpensiveDo', page: 'requests' });
}

function shortKey(quoted) {
  const text = quotedText(quoted ?? '');
  return text === '' ? t('emptyKey') : text.length > 120 ? `${text.slice(0, 120)}…` : text;
}

function largeValues({ members }) {
  return ofEach(members, (member) => {
    const large = recentOf(member, 'large_values').filter((value) => value.bytes >= LIMITS.valueBytes).sort((a, b) => b.bytes - a.bytes);
    const facts = first(large.map((value) => t('valuePut', { client: clientName(value.client), key: shortKey(value.key), bytes: format.bytes(value.bytes) })));
    const [bytes, puts] = ['etcd_debugging_mvcc_total_put_size_in_bytes', 'etcd_mvcc_put_total'].map((name) => grown(member, name));
    if (puts >= 1 && bytes / puts >= LIMITS.valueBytes) facts.push(t('putsWeigh', { count: format.count(puts), bytes: format.bytes(bytes / puts) }));
    return facts;
  }, { title: 'problemLarge', remedy: 'problemLargeDo', page: 'requests' });
}

function missingCompaction({ members }) {
  return ofEach(members, (member) => {
    const of = (name) => member.sample?.sum(`etcd_debugging_mvcc_${name}`) ?? null;
    const [current, compacted, keys] = [of('current_revision'), of('compact_revision'), of('keys_total') ?? 0];
    if (current === null || compacted === null) return null;
    const kept = current - Math.max(0, compacted);
    return kept >= LIMITS.revisions && kept >= REVISIONS_PER_KEY * keys ? t('revisionsOfKeys', { kept: format.count(kept), keys: format.count(keys) }) : null;
  }, { title: 'problemCompaction', remedy: 'problemCompactionDo', page: 'space' });
}

/** Sizes of databases count only where a file keeps what was freed, as etcd's does. */
function fragmentation({ members }) {
  return ofEach(members, (member) => {
    const [size, used] = [Number(member.status?.dbSize ?? 0), Number(member.status?.dbSizeInUse ?? 0)];
    if (isMainstay(member) || size < FRAGMENTATION_BYTES || 1 - used / size < LIMITS.fragmentation) return null;
    return t('spaceUnused', { unused: format.bytes(size - used), size: format.bytes(size) });
  }, { title: 'problemFragmentation', remedy: 'problemFragmentationDo', page: 'space' });
}

function authentication({ members }) {
  return ofEach(members, (member) => {
    const tokens = rate(member, 'grpc_server_handled_total', (labels) => labels.grpc_method === 'Authenticate');
    const others = rate(member, 'grpc_server_handled_total', UNARY) - tokens;
    if (tokens === null || tokens < LIMITS.authentications || others >= REQUESTS_PER_TOKEN * tokens) return [];
    const clients = (member.diagnosis?.clients ?? []).filter((client) => client.authentications >= 1).sort((a, b) => b.authentications - a.authentications).slice(0, 3);
    return [t('loginsFor', { logins: format.rate(tokens), others: format.rate(others) }),
      ...clients.map((client) => t('loginsOf', { client: clientName(client.address), logins: format.count(client.authentications), requests: format.count(client.requests) }))];
  }, { title: 'problemLogins', remedy: 'problemLoginsDo', page: 'requests' });
}

function crowded({ members }) {
  return ofEach(members, (member) => {
    if (member.diagnosis?.clients) {
      return first(member.diagnosis.clients.flatMap((client) => [
        client.watches / Math.max(1, client.connections) >= LIMITS.watches && t('watchesOn', { client: clientName(client.address), watches: format.count(client.watches), connections: format.count(client.connections) }),
        client.leases >= LIMITS.leases && t('leasesOf', { client: clientName(client.address), leases: format.count(client.leases) }),
      ].filter(Boolean)));
    }
    const { sample } = member;
    const of = (name) => sample?.sum(name) ?? null;
    const facts = [];
    const [watchers, streams] = [of('etcd_debugging_mvcc_watcher_total'), of('etcd_debugging_mvcc_watch_stream_total')];
    if (watchers !== null && streams !== null && watchers / Math.max(1, streams) >= LIMITS.watches) facts.push(t('watchesOnStreams', { watches: format.count(watchers), streams: format.count(streams) }));
    const renewals = ({ grpc_method: method }) => method === 'LeaseKeepAlive';
    const open = sample ? (sample.sum('grpc_server_started_total', renewals) ?? 0) - (sample.sum('grpc_server_handled_total', renewals) ?? 0) : 0;
    const leases = of('etcd_debugging_lease_granted_total') - of('etcd_debugging_lease_revoked_total');
    if (leases / Math.max(1, open) >= LIMITS.leases) facts.push(t('leasesOnStreams', { leases: format.count(leases), streams: format.count(Math.max(1, open)) }));
    return facts;
  }, { title: 'problemCrowded', remedy: 'problemCrowdedDo', page: 'requests' });
}

function slowWatchers({ members }) {
  return ofEach(members, (member) => {
    // A watch that reads history is slow for a moment; one that is so at several looks does not keep up.
    const looks = member.points.slice(-3).map((point) => point?.slowWatchers);
    if (looks.length < 3 || !looks.every((slow) => slow > 0)) return [];
    const clients = (member.diagnosis?.clients ?? []).filter((client) => client.slow_watches > 0).sort((a, b) => b.slow_watches - a.slow_watches);
    return [t('watchersBehind', { count: format.count(Math.min(...looks)), events: format.count(member.point.pendingEvents ?? 0) }),
      ...first(clients.map((client) => t('watchesBehindOf', { client: clientName(client.address), behind: format.count(client.slow_watches), watches: format.count(client.watches) })))];
  }, { title: 'problemSlowWatchers', remedy: 'problemSlowWatchersDo', page: 'requests' });
}

function unbalanced({ members }) {
  const rates = members.filter((member) => member.isUp && !member.isLearner).map((member) => [member, rate(member, 'grpc_server_started_total', UNARY)]).filter(([, each]) => each !== null);
  const all = rates.reduce((sum, [, each]) => sum + each, 0);
  const allowed = Math.min(LIMITS.imbalance / Math.max(1, rates.length), SHARE_MAX);
  const busiest = Math.max(0, ...rates.map(([, each]) => each));
  if (rates.length < 2 || all < LIMITS.imbalanceRate || busiest / all < allowed) return null;
  return ofEach(rates.map(([member]) => member), (member) => {
    const own = rates.find(([each]) => each === member)[1];
    return t('requestsServed', { rate: format.rate(own), share: format.percent(own / all) });
  }, { title: 'problemUnbalanced', remedy: 'problemUnbalancedDo', page: 'charts' });
}

function clocks({ members }) {
  const known = members.filter((member) => member.isUp && member.diagnosis?.clockBounds);
  const apart = (a, b) => Math.max(0, a[0] - b[1], b[0] - a[1]) / 1000;
  const most = Math.max(0, ...known.flatMap((a) => known.map((b) => apart(a.diagnosis.clockBounds, b.diagnosis.clockBounds))));
  return ofEach(members, (member) => {
    const off = member.diagnosis?.clockOffMs / 1000;
    if (!format.isKnown(off)) return null;
    const isAlone = known.length < 2 && Math.abs(off) > LIMITS.clock + HEADER_CLOCK_S;
    return isAlone || most > LIMITS.clock ? t(off < 0 ? 'clockBehind' : 'clockAhead', { span: format.seconds(Math.abs(off)) }) : null;
  }, { title: 'problemClock', remedy: 'problemClockDo', page: 'members' });
}

function versions({ members }) {
  const known = new Map();
  for (const member of members) if (member.isUp && member.status?.version) known.set(member.status.version, [...(known.get(member.status.version) ?? []), member.name]);
  if (known.size < 2) return null;
  return { level: 'warning', title: t('problemVersions'), facts: [...known].map(([version, names]) => t('factOf', { member: names.join(', '), text: version })), remedy: t('problemVersionsDo'), page: 'members' };
}

function turnedAway({ members }) {
  return ofEach(members, (member) => {
    const turned = ['mainstay_client_connections_shed_total', 'mainstay_client_connections_refused_total', 'mainstay_expensive_calls_refused_total'].reduce((sum, name) => sum + (grown(member, name) ?? 0), 0);
    return turned > 0 ? t('turnedAway', { count: format.count(turned), span: format.span(spanOf(member)) }) : null;
  }, { title: 'problemTurnedAway', remedy: 'problemTurnedAwayDo', page: 'requests' });
}

/** A prefix or client that takes most is no fault, and the first thing to know when there is one. */
function busiest({ members }) {
  return standingOut(members).map(({ subject, measure, name, amount, share, members: at }) => ({
    level: 'note',
    title: t(`problemBusy_${subject}_${measure}`, { name: subject === 'client' ? clientName(name) : shortKey(name) }),
    facts: [t('factOf', { member: at.join(', '), text: t('busyWith', { amount: AMOUNT[measure](amount), share: format.percent(share) }) })],
    remedy: t(`problemBusyDo_${subject}`),
    page: 'requests',
  }));
}

function learner({ members }) {
  return ofEach(members, (member) => (member.isLearner ? t('learnerNoVote') : null), { title: 'problemLearner', remedy: 'problemLearnerDo', page: 'members', level: 'note' });
}

function evenVoters({ members }) {
  const voters = members.filter((member) => !member.isLearner).length;
  if (voters === 0 || voters % 2 === 1) return null;
  return { level: 'note', title: t('problemEven', { voters }), facts: [], remedy: t('problemEvenDo', { fewer: voters - 1, more: voters + 1 }), page: 'members' };
}

/**
 * The doctor's rules by its names, in its order: what stops a cluster first. It has one more, `slow-answers`, which compares calls with bare
 * connections: a page opens none.
 */
export const RULES = {
  unreachable,
  'no-leader': noLeader,
  'different-clusters': differentClusters,
  'alarm-corrupt': alarmCorrupt,
  'alarm-nospace': alarmNoSpace,
  'quota-near': quota,
  'certificate-expiry': certificates,
  'tls-files-unusable': tlsFiles,
  'slow-disk': slowDisk,
  'fsync-stall': stalls,
  'slow-commit': slowCommit,
  'slow-peer-link': slowPeer,
  'leader-changes': leaderChanges,
  overloaded,
  cpu: processor,
  'file-descriptors': files,
  'slow-reads': slowReads,
  'member-behind': behind,
  'learner-behind': learnerBehind,
  'expensive-ranges': expensive,
  'large-values': largeValues,
  'missing-compaction': missingCompaction,
  fragmentation,
  'authentication-without-token-reuse': authentication,
  'crowded-connections': crowded,
  'slow-watchers': slowWatchers,
  'unbalanced-clients': unbalanced,
  'clock-drift': clocks,
  'version-skew': versions,
};

/** What only this page says. */
const OWN_RULES = [notAsked, turnedAway, busiest, learner, evenVoters];

/** All problems of a cluster `{ members, times, now }`, worst first. `rule` is the doctor's name of one, if it has one. */
export function findProblems(state) {
  const named = Object.entries(RULES).flatMap(([rule, find]) => [find(state) ?? []].flat().map((problem) => ({ ...problem, rule })));
  const own = OWN_RULES.flatMap((find) => find(state) ?? []);
  return [...named, ...own].sort((a, b) => ORDER[a.level] - ORDER[b.level]);
}
