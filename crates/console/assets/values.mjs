// What a value is, and how to show it: as text, JSON, hexadecimal digits, or the messages that Kubernetes stores.

import { decodeText, escapeBytes, hexDump } from './bytes.mjs';
import { dumpObject, isKubernetes } from './kubernetes.mjs';

/** Bytes of a value that are shown without being asked for more. */
export const PART_BYTES = 16384;

/** Text that an editor gives back as it was: without what browsers change, or what cannot be seen. */
export function isPlainText(bytes) {
  const text = decodeText(bytes);
  return text !== null && !/[^\P{C}\n\t]/u.test(text);
}

function asJson(bytes) {
  const text = decodeText(bytes);
  if (text === null || !/^\s*[{[]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** Ways to show these bytes, the best first. */
export function viewsOf(bytes) {
  const views = [];
  if (isKubernetes(bytes)) views.push('kubernetes');
  if (bytes.length < 4 << 20 && asJson(bytes) !== null) views.push('json');
  if (isPlainText(bytes)) views.push('text');
  return [...views, 'escaped', 'hex'];
}

/** The bytes in one of these ways. JSON numbers too large for a browser would be rounded; `text` shows what is stored. */
export function show(bytes, view) {
  switch (view) {
    case 'kubernetes':
      return dumpObject(bytes);
    case 'json':
      return asJson(bytes);
    case 'text':
      return decodeText(bytes);
    case 'hex':
      return hexDump(bytes);
    default:
      return escapeBytes(bytes, { lines: true });
  }
}

/** The part of the bytes that `length` reaches, not ending inside of a character. */
export function partOf(bytes, length) {
  if (bytes.length <= length) return bytes;
  let end = length;
  while (end > length - 4 && (bytes[end] & 0xc0) === 0x80) end -= 1;
  return bytes.subarray(0, end);
}

/** The lines that two versions of a value are compared by. */
export function linesOf(bytes) {
  const [best] = viewsOf(bytes);
  return show(bytes, best).split('\n');
}
