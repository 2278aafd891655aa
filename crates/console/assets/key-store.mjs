// One key: reading it now and in the past, and changing it only if it is still what the user has seen.

import { Failure } from './api.mjs';
import { fromBase64, toBase64 } from './bytes.mjs';
import { cluster } from './cluster.mjs';
import { prefixRange } from './key-tree.mjs';

/** A key-value as the page uses it; `modRevision` 0 says that there is none. */
function entry(kv) {
  return {
    key: fromBase64(kv.key),
    value: fromBase64(kv.value),
    createRevision: Number(kv.create_revision),
    modRevision: Number(kv.mod_revision),
    version: Number(kv.version),
    lease: kv.lease ?? '0',
  };
}

/** Reads a key; `null` if there is none. `revision` 0 is now. */
export async function get(key, revision = 0) {
  const body = { key: toBase64(key) };
  if (revision > 0) body.revision = String(revision);
  const answer = await cluster.range('kv/range', body);
  const [kv] = answer.kvs ?? [];
  return kv ? entry(kv) : null;
}

/** Versions of a key, from one on backwards; `end` says why there are no more: `created` or `compacted`, or is `null`. */
export async function olderVersions(from, most) {
  const versions = [];
  let at = from;
  while (versions.length < most) {
    if (at.version === 1 || at.modRevision === at.createRevision) return { versions, end: 'created' };
    let older;
    try {
      older = await get(at.key, at.modRevision - 1);
    } catch (error) {
      if (error instanceof Failure && /compacted/.test(error.message)) return { versions, end: 'compacted' };
      throw error;
    }
    if (!older) return { versions, end: 'created' };
    versions.push(older);
    at = older;
  }
  return { versions, end: null };
}

function unchanged(key, modRevision) {
  return { key: toBase64(key), target: 'MOD', result: 'EQUAL', mod_revision: String(modRevision) };
}

async function swap(key, modRevision, request) {
  const answer = await cluster.change('kv/txn', {
    compare: [unchanged(key, modRevision)],
    success: [request],
    failure: [{ request_range: { key: toBase64(key) } }],
  });
  if (answer.succeeded) return { done: true, revision: Number(answer.header.revision) };
  const [kv] = answer.responses?.[0]?.response_range?.kvs ?? [];
  return { done: false, theirs: kv ? entry(kv) : null };
}

/** Writes a value if the key was last changed at `modRevision`; else returns `{ done: false, theirs }`. Its lease stays. */
export function put(key, value, modRevision) {
  const put_ = { key: toBase64(key), value: toBase64(value) };
  if (modRevision > 0) put_.ignore_lease = true;
  return swap(key, modRevision, { request_put: put_ });
}

/** Deletes a key if it was last changed at `modRevision`. */
export function remove(key, modRevision) {
  return swap(key, modRevision, { request_delete_range: { key: toBase64(key) } });
}

/** Deletes all keys of a prefix; returns how many there were. */
export async function removePrefix(prefix) {
  const answer = await cluster.change('kv/deleterange', prefixRange(prefix));
  return Number(answer.deleted ?? 0);
}
