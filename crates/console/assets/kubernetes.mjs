// Objects as Kubernetes stores them: `k8s\0`, then a protobuf message `runtime.Unknown` around the object's own. What the fields of the
// object mean depends on its kind and is not known here, except for its metadata; the rest is shown by field numbers.

import { decodeText, escapeBytes } from './bytes.mjs';

const MAGIC = [0x6b, 0x38, 0x73, 0x00];
const DEPTH_MAX = 12;
const LINES_MAX = 4000;
/** The last line of an object that has more. */
export const CUT = '…';

/** Names of the fields of `meta/v1.ObjectMeta`, which is field 1 of nearly every object. */
const METADATA = {
  1: 'name', 2: 'generateName', 3: 'namespace', 4: 'selfLink', 5: 'uid', 6: 'resourceVersion', 7: 'generation', 8: 'creationTimestamp',
  9: 'deletionTimestamp', 10: 'deletionGracePeriodSeconds', 11: 'labels', 12: 'annotations', 13: 'ownerReferences', 14: 'finalizers',
  17: 'managedFields',
};
const OBJECT = { 1: 'metadata', 2: 'spec', 3: 'status' };

export function isKubernetes(bytes) {
  return MAGIC.every((byte, at) => bytes[at] === byte);
}

/** The fields of a message: `[number, wire type, value]` each, or `null` if the bytes are none. */
function fields(bytes) {
  const found = [];
  let at = 0;
  function varint() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (at >= bytes.length) return null;
      const byte = bytes[at];
      at += 1;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return null;
  }
  while (at < bytes.length) {
    const tag = varint();
    if (tag === null || tag >> 3n === 0n || tag >> 3n > 536870911n) return null;
    const kind = Number(tag & 7n);
    let value;
    if (kind === 0) {
      value = varint();
      if (value === null) return null;
    } else if (kind === 2) {
      const length = varint();
      if (length === null || BigInt(at) + length > BigInt(bytes.length)) return null;
      value = bytes.subarray(at, at + Number(length));
      at += Number(length);
    } else if (kind === 1 || kind === 5) {
      const length = kind === 1 ? 8 : 4;
      if (at + length > bytes.length) return null;
      value = bytes.subarray(at, at + length);
      at += length;
    } else return null;
    found.push([Number(tag >> 3n), kind, value]);
  }
  return found;
}

function quoted(bytes) {
  const text = decodeText(bytes);
  return text === null ? `bytes ${escapeBytes(bytes)}` : JSON.stringify(text).replace(/[^\P{C}]/gu, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);
}

/** Text that may as well be a message is text if all of it can be seen. */
function isText(bytes) {
  const text = decodeText(bytes);
  return text !== null && !/[^\P{C}\n\t]/u.test(text);
}

function field(found, number) {
  return found?.find(([each]) => each === number)?.[2] ?? new Uint8Array();
}

function dump(bytes, names, indent, depth, out) {
  const found = depth < DEPTH_MAX ? fields(bytes) : null;
  if (found === null) return false;
  for (const [number, kind, value] of found) {
    if (out.length >= LINES_MAX) return true;
    const name = names?.[number] ?? String(number);
    if (kind === 0) out.push(`${indent}${name}: ${value}`);
    else if (kind !== 2) out.push(`${indent}${name}: ${escapeBytes(value)}`);
    else if (value.length === 0) out.push(`${indent}${name}: ""`);
    else if (names === METADATA && (number === 11 || number === 12)) pair(value, name, indent, out);
    else if (names === METADATA && number === 8) out.push(`${indent}${name}: ${moment(value)}`);
    else if (isText(value)) out.push(`${indent}${name}: ${quoted(value)}`);
    else {
      const inner = [];
      const isMetadata = names === OBJECT && number === 1;
      if (dump(value, isMetadata ? METADATA : null, `${indent}  `, depth + 1, inner)) out.push(`${indent}${name}:`, ...inner);
      else out.push(`${indent}${name}: ${quoted(value)}`);
    }
  }
  return true;
}

/** An entry of a map: its key and its value. */
function pair(bytes, name, indent, out) {
  const found = fields(bytes);
  out.push(`${indent}${name}: ${quoted(field(found, 1))} = ${quoted(field(found, 2))}`);
}

function moment(bytes) {
  const value = field(fields(bytes), 1);
  return typeof value === 'bigint' && value < 1n << 40n ? new Date(Number(value) * 1000).toISOString() : quoted(bytes);
}

/** The object as lines of text. */
export function dumpObject(bytes) {
  const unknown = fields(bytes.subarray(4));
  const type = fields(field(unknown, 1));
  const raw = field(unknown, 2);
  const out = [`apiVersion: ${quoted(field(type, 1))}`, `kind: ${quoted(field(type, 2))}`];
  for (const [number, name] of [[3, 'contentEncoding'], [4, 'contentType']]) {
    const value = field(unknown, number);
    if (value.length > 0) out.push(`${name}: ${quoted(value)}`);
  }
  if (unknown === null || !dump(raw, OBJECT, '', 0, out)) out.push(`raw: ${quoted(raw)}`);
  if (out.length >= LINES_MAX) out.push(CUT);
  return out.join('\n');
}
