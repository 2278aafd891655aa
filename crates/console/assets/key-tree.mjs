// Keys as a tree. The children of a prefix are found without reading what is below them: after each child, the next range begins behind
// all that the child holds. So a level costs as many ranges as it has children, however many keys there are.

import { concat, endOfPrefix, fromBase64, indexOf, nextKey, startsWith, toBase64 } from './bytes.mjs';
import { cluster } from './cluster.mjs';

/** Keys in one answer; many where the children are keys, one where each holds many. */
const BATCH_MAX = 64;

/** The body of a range over a prefix. All keys are those from the least key on: an empty key is not allowed. */
export function prefixRange(prefix) {
  return { key: toBase64(prefix.length > 0 ? prefix : Uint8Array.of(0)), range_end: toBase64(endOfPrefix(prefix)) };
}

/** The child of `prefix` that a key belongs to. */
function childOf(prefix, delimiter, kv) {
  const key = fromBase64(kv.key);
  const at = delimiter.length > 0 ? indexOf(key, delimiter, prefix.length) : -1;
  if (at < 0) return { isFolder: false, key, version: Number(kv.version), modRevision: Number(kv.mod_revision) };
  return { isFolder: true, key: key.slice(0, at + delimiter.length) };
}

/**
 * Finds up to `most` children of a prefix, from the key `from` on. Returns `{ children, next, calls }`; `next` is where the following
 * page begins, `null` if there is none. `found` is told of the children so far after each answer.
 */
export async function childrenOf(prefix, delimiter, { from = prefix, most = 50, found = () => {} } = {}) {
  const children = [];
  const end = toBase64(endOfPrefix(prefix));
  let at = from.length > 0 ? from : Uint8Array.of(0);
  let batch = 8;
  let calls = 0;
  while (children.length < most) {
    const answer = await cluster.range('kv/range', { key: toBase64(at), range_end: end, limit: String(batch), keys_only: true });
    calls += 1;
    const kvs = answer.kvs ?? [];
    let added = 0;
    for (const kv of kvs) {
      const held = children.at(-1);
      if (held?.isFolder && startsWith(fromBase64(kv.key), held.key)) continue;
      if (children.length === most) return { children, next: fromBase64(kv.key), calls };
      children.push(childOf(prefix, delimiter, kv));
      added += 1;
    }
    if (added > 0) found(children);
    const newest = children.at(-1);
    if (!answer.more || !newest) return { children, next: null, calls };
    at = newest.isFolder ? endOfPrefix(newest.key) : nextKey(newest.key);
    // Nothing is behind a folder of keys that begin with 0xff only.
    if (newest.isFolder && at.length === 1 && at[0] === 0) return { children, next: null, calls };
    batch = added === kvs.length ? Math.min(batch * 2, BATCH_MAX) : Math.max(1, Math.floor(batch / 4));
  }
  // Whether anything is left is asked for, so that no page is offered that is empty.
  const rest = await cluster.range('kv/range', { key: toBase64(at), range_end: end, limit: '1', keys_only: true });
  return { children, next: (rest.kvs ?? []).length > 0 ? at : null, calls: calls + 1 };
}

/** The number of keys below a prefix. */
export async function countOf(prefix) {
  const answer = await cluster.range('kv/range', { ...prefixRange(prefix), count_only: true });
  return Number(answer.count ?? 0);
}

/** Follows folders that have one child only, which is a folder, so that a long path is one step. */
export async function descend(prefix, delimiter) {
  let at = prefix;
  for (let step = 0; step < 8; step += 1) {
    const { children, next } = await childrenOf(at, delimiter, { most: 2 });
    if (children.length !== 1 || next !== null || !children[0].isFolder) return at;
    at = children[0].key;
  }
  return at;
}

/** The prefixes on the way to a prefix, the empty one first. */
export function pathOf(prefix, delimiter) {
  const path = [new Uint8Array()];
  if (delimiter.length === 0) return prefix.length > 0 ? [...path, prefix] : path;
  let at = 0;
  for (;;) {
    const found = indexOf(prefix, delimiter, at);
    if (found < 0) break;
    at = found + delimiter.length;
    path.push(prefix.slice(0, at));
  }
  if (at < prefix.length) path.push(concat([prefix]));
  return path;
}
