// What a value is, and how to show it: as text, JSON, hexadecimal digits, or the messages that Kubernetes stores.

import { decodeText, equal, escapeBytes, hexDump } from './bytes.mjs';
import { difference } from './diff.mjs';
import { CUT, dumpObject, isKubernetes } from './kubernetes.mjs';

/** Depth to which JSON is indented; more is shown as it is stored. */
const JSON_DEPTH_MAX = 200;
/** Bytes of a value up to which it is shown as JSON. A browser takes a second and more to indent some MiB, and does nothing else meanwhile. */
export const JSON_BYTES_MAX = 256 << 10;
/** Characters of a line that is compared; a longer one is compared in pieces, so that a change far behind its beginning is seen. */
const LINE_MAX = 1000;

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
    JSON.parse(text);
  } catch {
    return null;
  }
  return indented(text);
}

/**
 * JSON with a line for each value, every token as it is stored: numbers beyond 2^53, `1.0`, and a name that is there twice stay what they
 * are. `null` if it is too deep.
 */
function indented(json) {
  const out = [];
  let depth = 0;
  let before = '';
  for (const [token] of json.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const isEnd = token === '}' || token === ']';
    if (isEnd) depth -= 1;
    if (token === ',' || token === ':') out.push(token === ',' ? ',' : ': ');
    else if (out.length === 0 || before === ':' || (isEnd && (before === '{' || before === '['))) out.push(token);
    else out.push('\n', '  '.repeat(depth), token);
    if (token === '{' || token === '[') depth += 1;
    if (depth > JSON_DEPTH_MAX) return null;
    before = token;
  }
  return out.join('');
}

/** True if the bytes begin as JSON does, and are too many to be tried as JSON. */
export function isTooLongForJson(bytes) {
  return bytes.length > JSON_BYTES_MAX && /^\s*[{[]/.test(decodeText(partOf(bytes, PART_BYTES)) ?? '');
}

/** Ways to show these bytes, the best first. */
export function viewsOf(bytes) {
  const views = [];
  if (isKubernetes(bytes)) views.push('kubernetes');
  if (bytes.length <= JSON_BYTES_MAX && asJson(bytes) !== null) views.push('json');
  if (isPlainText(bytes)) views.push('text');
  return [...views, 'escaped', 'hex'];
}

/** The bytes in one of these ways. */
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

function inLines(text) {
  return text.split('\n').flatMap((line) => (line.length <= LINE_MAX ? line : line.match(new RegExp(`.{1,${LINE_MAX}}`, 'gsu'))));
}

/** The lines that a value is compared by. */
export function linesOf(bytes, view = viewsOf(bytes)[0]) {
  return inLines(show(bytes, view));
}

/** What makes `after` from `before`, as `difference` has it. Bytes that differ never look the same. */
export function valueDifference(before, after) {
  const views = [before, after].map(viewsOf);
  const view = views[0].find((each) => views[1].includes(each));
  const lines = [before, after].map((bytes) => linesOf(bytes, view));
  const isHidden = lines[0].length === lines[1].length && lines[0].every((line, at) => line === lines[1][at]) && !equal(before, after);
  // An object that is cut says nothing of the rest.
  const isCut = view === 'kubernetes' && lines.some((each) => each.at(-1) === CUT);
  return difference(...(isHidden || isCut ? [before, after].map((bytes) => linesOf(bytes, 'escaped')) : lines));
}
