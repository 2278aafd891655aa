// A watch that goes on: after a member is lost it continues at the next revision, at another member if there is one, and says so. What it
// holds is bounded by number and by bytes; what it drops it counts.

import { Failure, requireLogin, session, stream } from './api.mjs';
import { fromBase64 } from './bytes.mjs';
import { cluster } from './cluster.mjs';

export const EVENTS_MAX = 1000;
const BYTES_MAX = 8 << 20;
/** Time for a member to begin a watch. */
const BEGIN_MS = 10000;
/** Bytes of a value that are kept. */
const VALUE_KEPT = 4096;
const PAUSE_MAX_MS = 30000;

/** Events of `watch` as the page uses them. */
function eventOf(event, number) {
  const { kv, prev_kv: before } = event;
  const value = fromBase64(kv.value);
  return {
    number,
    kind: event.type === 'DELETE' ? 'delete' : kv.version === '1' || Number(kv.version) === 1 ? 'create' : 'put',
    key: fromBase64(kv.key),
    value: value.slice(0, VALUE_KEPT),
    valueBytes: value.length,
    previousBytes: before ? fromBase64(before.value).length : null,
    revision: Number(kv.mod_revision),
    lease: kv.lease ?? '0',
    at: Date.now(),
  };
}

export class Watcher {
  /**
   * `range` is the `key` and `range_end` of the request. `told` is called with a state: `{ kind, member, error, wait }`; kinds are
   * `connecting`, `live`, `lost`, `denied`, `compacted`.
   */
  constructor(range, startRevision, told) {
    this.range = range;
    this.next = startRevision;
    this.told = told;
    this.events = [];
    this.bytes = 0;
    this.received = 0;
    this.dropped = 0;
    this.lostFrom = null;
    this.abort = new AbortController();
    this.failures = 0;
    this.run();
  }

  stop() {
    this.abort.abort();
    clearTimeout(this.timer);
    this.wake?.();
  }

  clear() {
    this.events = [];
    this.bytes = 0;
  }

  async run() {
    const { signal } = this.abort;
    await cluster.ready;
    while (!signal.aborted) {
      const candidates = cluster.inOrder();
      // One member after the other, so that a member which accepts watches and breaks them does not hold up the rest.
      const member = candidates[this.failures % Math.max(1, candidates.length)];
      let failure = new Failure(0, 0, '');
      if (member) {
        this.told({ kind: 'connecting', member: member.name });
        const { token } = session;
        try {
          await this.follow(member, signal);
        } catch (error) {
          if (signal.aborted) return;
          failure = error;
          // A watch is refused in its stream, which no call asks a password for.
          if (error.needsLogin && (await requireLogin(token))) continue;
        }
      }
      if (signal.aborted) return;
      if (failure instanceof Failure && (failure.isDenied || failure.needsLogin)) {
        this.told({ kind: 'denied', error: failure });
        return;
      }
      this.failures += 1;
      const wait = Math.min(PAUSE_MAX_MS, 500 * 2 ** (this.failures - 1));
      this.told({ kind: 'lost', member: member?.name ?? '', error: failure, wait });
      await new Promise((resolve) => {
        this.wake = resolve;
        this.timer = setTimeout(resolve, wait);
      });
    }
  }

  /** Watches at one member until it ends. */
  async follow(member, signal) {
    const create = { ...this.range, prev_kv: true, progress_notify: true };
    if (this.next > 0) create.start_revision = String(this.next);
    // The stream of a member that is compacted past is ended here, to begin again.
    const own = new AbortController();
    const end = () => own.abort();
    signal.addEventListener('abort', end);
    // A member that hangs ends no stream: it is left when it does not begin the watch, and when polls find that it answers no more.
    const giveUp = () => own.abort(new DOMException('', 'TimeoutError'));
    const beginning = setTimeout(giveUp, BEGIN_MS);
    this.began = () => clearTimeout(beginning);
    let wasUp = member.isUp;
    const look = () => {
      // It may not have been polled when the watch began.
      if (wasUp !== false && member.isUp === false) giveUp();
      wasUp = member.isUp;
    };
    cluster.addEventListener('update', look);
    try {
      await stream(member.endpoint, 'watch', { create_request: create }, (answer) => this.take(answer, member, own), { signal: own.signal });
    } catch (error) {
      if (error.name !== 'AbortError' || signal.aborted) throw error;
    } finally {
      this.began();
      cluster.removeEventListener('update', look);
      // A stream whose answers were refused goes on otherwise.
      own.abort();
      signal.removeEventListener('abort', end);
    }
  }

  take(answer, member, own) {
    cluster.claim(member, answer);
    const compacted = Number(answer.compact_revision ?? 0);
    if (compacted > 0) {
      this.told({ kind: 'compacted', from: this.next, to: compacted });
      this.lostFrom = [this.next, compacted];
      this.next = compacted + 1;
      this.failures = 0;
      own.abort();
      return;
    }
    if (answer.canceled) {
      const reason = (answer.cancel_reason ?? '').replace(/^rpc error: code = \w+ desc = /, '');
      throw new Failure(/permission denied/.test(reason) ? 403 : 500, 0, reason);
    }
    if (answer.created) {
      this.failures = 0;
      this.began();
      if (this.next === 0) this.next = Number(answer.header?.revision ?? 0) + 1;
      this.told({ kind: 'live', member: member.name });
    }
    for (const event of answer.events ?? []) this.keep(event);
    // Also a note of progress says how far the watch has come.
    const revision = Number(answer.header?.revision ?? 0);
    if ((answer.events ?? []).length > 0 || !answer.created) this.next = Math.max(this.next, (answer.events ?? []).length > 0 ? Number(answer.events.at(-1).kv.mod_revision) + 1 : revision + 1);
  }

  keep(event) {
    this.received += 1;
    const kept = eventOf(event, this.received);
    this.events.push(kept);
    this.bytes += kept.value.length + kept.key.length;
    while (this.events.length > EVENTS_MAX || this.bytes > BYTES_MAX) {
      const [oldest] = this.events;
      this.bytes -= oldest.value.length + oldest.key.length;
      this.events.shift();
      this.dropped += 1;
    }
  }
}
