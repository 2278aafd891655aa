// Bytes as base64 and as text. Keys and values are any bytes, so their text has to be unambiguous, and has to lead back to exactly
// the bytes that it was made from.

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const encoder = new TextEncoder();

/** What has no look of its own, changes the order of what stands beside it, or looks like a space: it is shown as its code. */
const HIDDEN = /^[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}]$/u;

export function toBase64(bytes) {
  if (bytes.toBase64) return bytes.toBase64();
  let text = '';
  for (let at = 0; at < bytes.length; at += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(text);
}

export function fromBase64(text) {
  if (!text) return new Uint8Array();
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

export function encodeText(text) {
  return encoder.encode(text);
}

/** The bytes as text, or `null` if they are no UTF-8. */
export function decodeText(bytes) {
  try {
    return utf8.decode(bytes);
  } catch {
    return null;
  }
}

function hexByte(byte) {
  return byte.toString(16).padStart(2, '0');
}

/** Length of the UTF-8 sequence that begins at `at`, or 0 if none does. */
function sequenceLength(bytes, at) {
  const first = bytes[at];
  const length = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
  if (length === 0 || at + length > bytes.length) return 0;
  return decodeText(bytes.subarray(at, at + length)) === null ? 0 : length;
}

/**
 * Writes bytes so that different bytes never look the same: a backslash is `\\`, and what is no text or cannot be seen is `\xff`
 * for each byte. With `lines`, line feeds and tabs stay as they are, as an editor of values wants it. A space at either end is
 * written as its code.
 */
export function escapeBytes(bytes, { lines = false } = {}) {
  let out = '';
  for (let at = 0; at < bytes.length; ) {
    const length = sequenceLength(bytes, at);
    const part = bytes.subarray(at, at + Math.max(length, 1));
    const char = length === 0 ? null : utf8.decode(part);
    const atEnd = !lines && (at === 0 || at === bytes.length - 1);
    if (char === '\\') out += '\\\\';
    else if (char === ' ' && !atEnd) out += ' ';
    else if (lines && (char === '\n' || char === '\t')) out += char;
    else if (char !== null && !HIDDEN.test(char)) out += char;
    else for (const byte of part) out += `\\x${hexByte(byte)}`;
    at += part.length;
  }
  return out;
}

/** Reads what `escapeBytes` wrote, or `null` if a backslash is followed by what means nothing. */
export function unescapeBytes(text) {
  const parts = [];
  let rest = text;
  while (rest !== '') {
    const at = rest.indexOf('\\');
    if (at < 0) {
      parts.push(encodeText(rest));
      break;
    }
    parts.push(encodeText(rest.slice(0, at)));
    const found = /^\\(?:\\|n|r|t|0(?![0-9])|x([0-9a-fA-F]{2}))/.exec(rest.slice(at, at + 4));
    if (!found) return null;
    const simple = { '\\\\': 0x5c, '\\n': 0x0a, '\\r': 0x0d, '\\t': 0x09, '\\0': 0x00 }[found[0]];
    parts.push(Uint8Array.of(simple ?? parseInt(found[1], 16)));
    rest = rest.slice(at + found[0].length);
  }
  return concat(parts);
}

/** The bytes of a key as members quote it, `"a\\xff"`, or `null` if it is not quoted so. */
export function unquote(text) {
  const found = /^"(.*)"$/s.exec(text);
  return found && unescapeBytes(found[1].replace(/\\(['"\\])/g, (whole, char) => (char === '\\' ? whole : char)));
}

export function concat(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

export function equal(a, b) {
  return a.length === b.length && a.every((byte, at) => byte === b[at]);
}

export function startsWith(bytes, prefix) {
  return bytes.length >= prefix.length && prefix.every((byte, at) => byte === bytes[at]);
}

/** Index of `wanted` in `bytes` from `from` on, or -1. */
export function indexOf(bytes, wanted, from = 0) {
  for (let at = from; at + wanted.length <= bytes.length; at += 1) {
    if (startsWith(bytes.subarray(at), wanted)) return at;
  }
  return -1;
}

/** First key behind all that begin with `prefix`; a single zero byte, etcd's word for "to the end", if there is none. */
export function endOfPrefix(prefix) {
  for (let at = prefix.length - 1; at >= 0; at -= 1) {
    if (prefix[at] < 0xff) {
      const end = prefix.slice(0, at + 1);
      end[at] += 1;
      return end;
    }
  }
  return Uint8Array.of(0);
}

/** The key right behind `key`. */
export function nextKey(key) {
  return concat([key, Uint8Array.of(0)]);
}

/** A dump as of `hexdump -C`: offset, sixteen bytes, the same as text. */
export function hexDump(bytes) {
  const rows = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const hex = part.map(hexByte).join(' ').padEnd(47);
    const text = part.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : '.')).join('');
    rows.push(`${at.toString(16).padStart(8, '0')}  ${hex}  ${text}`);
  }
  return rows.join('\n');
}

/** Bytes as pairs of digits, sixteen a line, as an editor shows them. */
export function toHex(bytes) {
  const rows = [];
  for (let at = 0; at < bytes.length; at += 16) rows.push([...bytes.subarray(at, at + 16)].map(hexByte).join(' '));
  return rows.join('\n');
}

/** Reads pairs of digits, or `null`. */
export function fromHex(text) {
  const digits = text.replace(/\s+/g, '');
  if (digits.length % 2 !== 0 || /[^0-9a-fA-F]/.test(digits)) return null;
  return Uint8Array.from({ length: digits.length / 2 }, (_, at) => parseInt(digits.slice(2 * at, 2 * at + 2), 16));
}
