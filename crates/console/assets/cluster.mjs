// What is known of the cluster's members, kept up to date by polling while the page is seen: metrics of each member every two
// seconds at most, its status every other time, and with longer and longer pauses while a member does not answer.

import { Failure, getMembers, getText, post, serverNow, session } from './api.mjs';
import { Sample } from './metrics.mjs';
import { pointOf } from './points.mjs';

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
  }

  get id() {
    return this.endpoint.id;
  }

  get name() {
    return this.endpoint.name || this.endpoint.url;
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

  /** A 64-bit id in hexadecimal, as etcd's tools write it. */
  get memberId() {
    if (this.endpoint.memberId) return this.endpoint.memberId.replace(/^0+(?=.)/, '');
    return this.status ? hexId(this.status.header?.member_id) : '';
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

class Cluster extends EventTarget {
  constructor() {
    super();
    this.members = [];
    this.self = null;
    /** Endpoints of other clusters, which are not asked. */
    this.foreign = [];
    this.version = '';
    /** Times of the points, in ms of `performance.now()`. */
    this.times = [];
    this.error = null;
    this.pace = SLOW_MS;
    this.wantsDiagnosis = false;
    this.timer = null;
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
      const member = known.get(`${endpoint.id} ${endpoint.url}`) ?? this.added(endpoint);
      member.endpoint = endpoint;
      return member;
    });
    this.error = null;
    if (this.members.length > 0) this.isReady();
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
    if (document.visibilityState !== 'visible') return;
    // Switching pages does not poll sooner than the fast pace allows.
    const since = performance.now() - (this.times.at(-1) ?? -Infinity);
    this.timer = setTimeout(() => this.poll(), Math.max(delay, FAST_MS - since));
  }

  async poll() {
    if (this.members.length === 0) return;
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
    const isDue = (member) => !member.isBusy && now >= member.nextAt;
    const results = await Promise.all(
      this.members.map((member) => (isDue(member) ? Promise.race([this.ask(member, withDiagnosis), patience()]) : null)),
    );
    this.note(now, results);
    this.schedule(this.pace);
  }

  note(now, points) {
    const gap = now - (this.times.at(-1) ?? now) > 3 * this.pace;
    // A page that was not seen for a while has a gap in its charts, not a line through it.
    for (const [time, isGap] of gap ? [[now - this.pace, true], [now, false]] : [[now, false]]) {
      this.times.push(time);
      this.members.forEach((member, at) => member.points.push(isGap ? null : points[at]));
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
      const [text, status] = await Promise.all([
        getText(member.endpoint, 'metrics', { quiet: true, signal }),
        this.round % 2 === 1 || !member.status || !wasUp ? this.statusOf(member, signal) : member.status,
      ]);
      if (withDiagnosis || (this.wantsDiagnosis && !member.diagnosis)) member.diagnosis = await diagnosisOf(member, signal);
      this.noteStatus(member, status);
      member.isUp = true;
      member.error = null;
      member.failures = 0;
      member.nextAt = 0;
      return this.pointFor(member, text);
    } catch (error) {
      member.isUp = false;
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

  pointFor(member, text) {
    const sample = new Sample(text, performance.now());
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

  /** Members in the order in which to ask them for data: the console's own first, those that answer before others, learners last. */
  inOrder() {
    const worth = (member) => (member.isUp === false ? 4 : 0) + (member.isLearner ? 2 : 0) + (this.isSelf(member) ? 0 : 1);
    return [...this.members].sort((a, b) => worth(a) - worth(b));
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
        if (!(error instanceof Failure) || !error.isUnreachable || error.status === 0) throw error;
        last = error;
      }
    }
    throw last;
  }

  /** Calls a method that changes nothing, at the first member that can be reached. */
  range(method, body, options) {
    return this.read((endpoint) => post(endpoint, method, body, options));
  }

  /** Calls a method that changes something, at one member, once. */
  async change(method, body) {
    await this.ready;
    const [member] = this.inOrder();
    return post(member.endpoint, method, body);
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
