// What is known of the cluster's members, kept up to date by polling while the page is seen: metrics of each member every two
// seconds at most, its status every other time, and with longer and longer pauses while a member does not answer.

import { Elsewhere, Failure, NotAsked, getMembers, getText, post, postChange, serverNow, session } from './api.mjs';
import { Sample } from './metrics.mjs';
import { pointOf } from './points.mjs';
import { t } from './texts.mjs';

/** Pace of pages that draw figures, and of those that only show which members are there. */
export const FAST_MS = 2000;
export const SLOW_MS = 10000;

/** Points kept for charts: ten minutes at the fast pace. */
const POINTS_MAX = 300;
/** Samples that quantiles are computed over. */
const WINDOW = 6;
const BACKOFF_MAX_MS = 30000;
const MEMBERS_EVERY_MS = 10000;
const DIAGNOSIS_EVERY_MS = 10000;

/** One member, through one endpoint. */
class Member {
  constructor(endpoint) {
    this.endpoint = endpoint;
    /** `null` until the first answer. */
    this.isUp = null;
    this.error = null;
    this.status = null;
    /** When the status was told, in ms of `performance.now()`, and how fast the raft index grew until then, in entries a second. */
    this.statusAt = 0;
    this.indexRate = 0;
    this.diagnosis = null;
    this.samples = [];
    /** Points, one for each of `cluster.times`. */
    this.points = [];
    this.failures = 0;
    this.nextAt = 0;
    this.isBusy = false;
    /** Another member, or another cluster, answers at this URL, until this one does. It counts as not answering. */
    this.isElsewhere = false;
    if (endpoint.notAsked) Object.assign(this, { isUp: false, error: new NotAsked(endpoint.notAsked) });
  }

  /** The id of its endpoint; that of the member, if it has no address to ask it at. */
  get id() {
    return this.endpoint.id ?? `member ${this.endpoint.memberId}`;
  }

  get name() {
    return this.endpoint.name || this.endpoint.url || this.listedId;
  }

  /** It is listed and has no address to ask it at. It counts as a member that does not answer; `error` says why. */
  get isNotAsked() {
    return this.error instanceof NotAsked;
  }

  get sample() {
    return this.isUp ? (this.samples.at(-1) ?? null) : null;
  }

  get point() {
    // A poll that took too long has none; the one before it is still true.
    return this.points.slice(-3).findLast(Boolean) ?? null;
  }

  /** The zone that the member states; '' if it states none. */
  get zone() {
    return this.status?.zone ?? '';
  }

  get isLearner() {
    return this.endpoint.learner || this.status?.isLearner === true;
  }

  /** Its id in the list of members, in hexadecimal as etcd's tools write it; '' if the list does not have it. */
  get listedId() {
    return plainId(this.endpoint.memberId);
  }

  /** The id that is listed, else the one that it told. What tells another one than is listed does not count as answering. */
  get memberId() {
    return this.listedId || (this.status ? hexId(this.status.header?.member_id) : '');
  }

  get isLeader() {
    if (!this.isUp) return false;
    // Without a right to the status, the metrics tell.
    if (!this.status) return this.sample?.sum('etcd_server_is_leader') === 1;
    return hexId(this.status.leader) === this.memberId && this.memberId !== '';
  }

  /** Entries that are committed and that this member's state does not have yet. */
  get applyLag() {
    if (!this.status) return null;
    return Math.max(0, Number(this.status.raftIndex ?? 0) - Number(this.status.raftAppliedIndex ?? 0));
  }
}

/** A decimal 64-bit number of the gateway as etcd's tools write ids. */
export function hexId(decimal) {
  return BigInt(decimal ?? 0).toString(16);
}

/** An id in hexadecimal without leading zeros; '' for none. */
function plainId(hex) {
  return (hex ?? '').replace(/^0+/, '');
}

class Cluster extends EventTarget {
  constructor() {
    super();
    this.members = [];
    this.self = null;
    /** Endpoints of other clusters, which are not asked. */
    this.foreign = [];
    this.version = '';
    /** Id of the cluster that this page is about, as answers have it: that of the first answer. */
    this.clusterId = null;
    /** Times of the points, in ms of `performance.now()`. */
    this.times = [];
    this.error = null;
    this.pace = SLOW_MS;
    this.wantsDiagnosis = false;
    this.timer = null;
    /** A poll is under way; another one was wanted since it began. */
    this.isPolling = false;
    this.isWanted = false;
    this.membersAt = -Infinity;
    this.diagnosisAt = -Infinity;
    this.round = 0;
    /** Resolved when the members are known: what is asked sooner waits. */
    this.ready = new Promise((resolve) => {
      this.isReady = resolve;
    });
    document.addEventListener('visibilitychange', () => this.schedule(0));
    // Somebody else may see other things.
    session.changed.addEventListener('change', () => {
      this.membersAt = -Infinity;
      this.diagnosisAt = -Infinity;
      for (const member of this.members) member.diagnosis = null;
      this.schedule(0);
    });
    session.changed.addEventListener('left', () => {
      for (const member of this.members) Object.assign(member, { status: null, diagnosis: null });
    });
  }

  /** Fetches the list of members. */
  async load(options) {
    const list = await getMembers(options);
    this.membersAt = performance.now();
    this.self = list.self;
    this.foreign = list.foreign ?? [];
    this.version = list.version ?? '';
    const known = new Map(this.members.map((member) => [`${member.id} ${member.endpoint.url}`, member]));
    this.members = (list.endpoints ?? []).map((endpoint) => {
      const added = this.added(endpoint);
      const member = known.get(`${added.id} ${endpoint.url}`);
      if (!member || member.error?.why !== added.error?.why) return added;
      member.endpoint = endpoint;
      return member;
    });
    this.error = null;
    if (this.inOrder().length > 0) this.isReady();
  }

  added(endpoint) {
    const member = new Member(endpoint);
    member.points = this.times.map(() => null);
    return member;
  }

  /** Sets how often members are polled, and if the pages for a diagnosis are. */
  setPace(pace, { diagnosis = false } = {}) {
    this.pace = pace;
    this.wantsDiagnosis = diagnosis;
    this.schedule(0);
  }

  schedule(delay) {
    clearTimeout(this.timer);
    if (delay === 0) this.isWanted = this.isPolling;
    if (document.visibilityState !== 'visible') return;
    // Switching pages does not poll sooner than the fast pace allows.
    const since = performance.now() - (this.times.at(-1) ?? -Infinity);
    this.timer = setTimeout(() => this.poll(), Math.max(delay, FAST_MS - since));
  }

  async poll() {
    if (this.members.length === 0 || this.isPolling) return;
    this.isPolling = true;
    try {
      await this.pollOnce();
    } finally {
      // What was wanted meanwhile does not wait for the pace.
      const isWanted = this.isWanted;
      this.isPolling = false;
      this.isWanted = false;
      this.schedule(isWanted ? 0 : this.pace);
    }
  }

  async pollOnce() {
    const now = performance.now();
    this.round += 1;
    if (now - this.membersAt > MEMBERS_EVERY_MS) {
      this.membersAt = now;
      this.load({ quiet: true }).catch((error) => {
        this.error = error;
      });
    }
    const withDiagnosis = this.wantsDiagnosis && now - this.diagnosisAt > DIAGNOSIS_EVERY_MS;
    if (withDiagnosis) this.diagnosisAt = now;
    const isDue = (member) => !member.isBusy && !member.isNotAsked && now >= member.nextAt;
    // The list may be another one by the end of the poll.
    const points = new Map(await Promise.all(
      this.members.map(async (member) => [member, isDue(member) ? await Promise.race([this.ask(member, withDiagnosis), patience()]) : null]),
    ));
    this.note(now, points);
  }

  note(now, points) {
    const gap = now - (this.times.at(-1) ?? now) > 3 * this.pace;
    // A page that was not seen for a while has a gap in its charts, not a line through it.
    for (const [time, isGap] of gap ? [[now - this.pace, true], [now, false]] : [[now, false]]) {
      this.times.push(time);
      for (const member of this.members) member.points.push(isGap ? null : (points.get(member) ?? null));
    }
    const over = this.times.length - POINTS_MAX;
    if (over > 0) {
      this.times.splice(0, over);
      for (const member of this.members) member.points.splice(0, over);
    }
    this.dispatchEvent(new Event('update'));
  }

  /** Asks a member for its figures; returns the point, or `null` if it does not answer. */
  async ask(member, withDiagnosis) {
    member.isBusy = true;
    const wasUp = member.isUp;
    const signal = AbortSignal.timeout(8000);
    try {
      const metrics = getText(member.endpoint, 'metrics', { quiet: true, signal });
      // A member that may hang is not to take up two of the browser's connections.
      if (wasUp === false) await metrics;
      const [text, status] = await Promise.all([metrics, this.round % 2 === 1 || !member.status || !wasUp ? this.statusOf(member, signal) : member.status]);
      const sample = new Sample(text, performance.now());
      this.identify(member, status, sample);
      member.isElsewhere = false;
      if (withDiagnosis || (this.wantsDiagnosis && !member.diagnosis)) member.diagnosis = await diagnosisOf(member, signal);
      this.noteStatus(member, status);
      member.isUp = true;
      member.error = null;
      member.failures = 0;
      member.nextAt = 0;
      return this.pointFor(member, sample);
    } catch (error) {
      member.isUp = false;
      // What does not answer now is still what it was.
      member.isElsewhere ||= error instanceof Elsewhere;
      member.error = error instanceof Failure ? error : new Failure(0, 0, error.message);
      member.failures += 1;
      member.nextAt = performance.now() + Math.min(BACKOFF_MAX_MS, FAST_MS * 2 ** (member.failures - 1)) - 100;
      member.samples = [];
      return null;
    } finally {
      member.isBusy = false;
    }
  }

  noteStatus(member, status) {
    if (status === member.status) return;
    const now = performance.now();
    const [before, after] = [member.status, status].map((each) => Number(each?.raftIndex ?? NaN));
    const passed = (now - member.statusAt) / 1000;
    member.indexRate = after >= before && passed > 0 ? (after - before) / passed : 0;
    member.status = status;
    member.statusAt = now;
  }

  /** Throws `Elsewhere` unless it is this member, of this cluster, that answered. */
  identify(member, status, sample = null) {
    this.claim(member, status);
    // Without a right to the status, the metrics tell.
    const told = [hexId(status?.header?.member_id), sample?.all('etcd_server_id')[0]?.labels.server_id].map(plainId);
    const other = member.listedId && told.find((id) => id !== '' && id !== member.listedId);
    if (other) throw new Elsewhere(t('otherMember', { member: member.name, other: this.members.find((each) => each.listedId === other)?.name ?? other }));
  }

  /** Throws `Elsewhere` if an answer came from another cluster than the one that this page is about. */
  claim(member, answer) {
    const id = answer?.header?.cluster_id ?? '0';
    if (id === '0') return;
    this.clusterId ??= id;
    if (id !== this.clusterId) throw new Elsewhere(t('otherCluster', { member: member.name, id: hexId(id), shown: hexId(this.clusterId) }));
  }

  pointFor(member, sample) {
    const before = member.samples.at(-1);
    const point = pointOf(sample, before, member.samples[0]);
    point.connections = connectionsOf(member.diagnosis);
    member.samples.push(sample);
    if (member.samples.length > WINDOW) member.samples.shift();
    return point;
  }

  async statusOf(member, signal) {
    try {
      return await post(member.endpoint, 'maintenance/status', {}, { quiet: true, signal });
    } catch (error) {
      // A user without rights sees the metrics and no status.
      if (error instanceof Failure && (error.isDenied || error.needsLogin || error.isUnimplemented)) return null;
      throw error;
    }
  }

  /**
   * An answer of the member that tells which cluster it belongs to. The status may be refused to a user who may change keys; the list of
   * members need not be. Throws a `Failure` if neither tells: what is at this address may be another cluster, and nothing is changed there.
   */
  async identityOf(member) {
    const tells = (answer) => (answer?.header?.cluster_id ?? '0') !== '0';
    const status = await this.statusOf(member);
    if (tells(status)) return status;
    try {
      const list = await post(member.endpoint, 'cluster/member/list', {});
      if (tells(list)) return list;
    } catch (error) {
      if (!(error instanceof Failure && (error.isDenied || error.isUnimplemented))) throw error;
    }
    const failure = new Failure(403, 0, '');
    failure.forUser = t('clusterNotTold', { member: member.name });
    throw failure;
  }

  /**
   * Members in the order in which to ask them for data: the console's own first, those that answer before others, learners last. Those that
   * have no address are left out.
   */
  inOrder() {
    const worth = (member) => (member.isElsewhere ? 8 : 0) + (member.isUp === false ? 4 : 0) + (member.isLearner ? 2 : 0) + (this.isSelf(member) ? 0 : 1);
    return this.members.filter((member) => !member.isNotAsked).sort((a, b) => worth(a) - worth(b));
  }

  isSelf(member) {
    return this.self !== null && member.endpoint.memberId === this.self;
  }

  get leader() {
    return this.members.find((member) => member.isLeader) ?? null;
  }

  /** Does `work` at the first member that can be reached. For reads only: a write that got no answer may have been done. */
  async read(work) {
    await this.ready;
    let last;
    for (const member of this.inOrder()) {
      try {
        return await work(member.endpoint, member);
      } catch (error) {
        const isElsewhere = error instanceof Elsewhere;
        if (!isElsewhere && (!(error instanceof Failure) || !error.isUnreachable || error.status === 0)) throw error;
        last = error;
      }
    }
    throw last;
  }

  /** Calls a method that changes nothing, at the first member that can be reached. */
  range(method, body, options) {
    return this.read(async (endpoint, member) => {
      const answer = await post(endpoint, method, body, options);
      this.claim(member, answer);
      return answer;
    });
  }

  /** Calls a method that changes something, at one member, once. */
  async change(method, body) {
    await this.ready;
    const [member] = this.inOrder();
    // Another cluster may be at this address by now than the one whose keys and members the user has seen.
    this.claim(member, await this.identityOf(member));
    return postChange(member.endpoint, method, body);
  }

  /** Calls a method that changes something at this very member, if it is the one that answers there. */
  async changeAt(member, method, body, options) {
    if (member.isNotAsked) throw member.error;
    this.identify(member, await this.identityOf(member));
    return postChange(member.endpoint, method, body, options);
  }
}

/** A member that takes longer has no point this time, and does not hold up those of others. */
function patience() {
  return new Promise((resolve) => setTimeout(() => resolve(null), 1500));
}

async function diagnosisOf(member, signal) {
  try {
    const asked = performance.now();
    const page = JSON.parse(await getText(member.endpoint, 'debug/mainstay', { quiet: true, signal }));
    const answered = performance.now();
    // The difference of a member's clock from that of the server of this page.
    const now = serverNow();
    const clock = page.clock_unix_ns > 0 ? page.clock_unix_ns / 1e6 : null;
    page.clockOffMs = now === null || clock === null ? null : clock - now;
    // The least and the most that it may be ahead of `performance.now()`, so that members' clocks can be compared exactly.
    page.clockBounds = clock === null ? null : [clock - answered, clock - asked];
    return page;
  } catch (error) {
    if (error instanceof Failure && error.isUnreachable) throw error;
    return null;
  }
}

function connectionsOf(diagnosis) {
  if (!Array.isArray(diagnosis?.clients)) return null;
  return diagnosis.clients.reduce((sum, client) => sum + (client.connections ?? 0), 0);
}

export const cluster = new Cluster();
