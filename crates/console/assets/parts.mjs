// Small parts that several pages share.

import { escapeBytes, unquote } from './bytes.mjs';
import { h, setText, svg } from './dom.mjs';
import { t } from './texts.mjs';

/** Figures with their names, `figure_<name>` each; `set` changes one. */
export function figures(names, { large = false } = {}) {
  const values = new Map(names.map((name) => [name, h('dd', { class: name.endsWith('Id') ? 'id' : null }, t('unknown'))]));
  return {
    element: h('dl', { class: `facts${large ? ' large' : ''}` }, names.map((name) => h('div', {}, h('dt', {}, t(`figure_${name}`)), values.get(name)))),
    set: (name, text) => setText(values.get(name), text),
  };
}

/** A key as it is shown everywhere. A long one is cut, unless all of it is wanted. */
export function keyText(bytes, { most = 512 } = {}) {
  const isCut = bytes.length > most;
  const text = escapeBytes(isCut ? bytes.subarray(0, most) : bytes);
  return h('bdi', { class: 'key-text', dir: 'ltr' }, text === '' ? t('emptyKey') : text, isCut && `… ${t('moreBytes', { count: bytes.length - most })}`);
}

/** The text of a key as members quote it. */
export function quotedText(quoted) {
  const bytes = unquote(quoted);
  return bytes === null ? quoted : escapeBytes(bytes);
}

/** A quoted key as an element, which leads to the keys below it if `to` is `prefix`, to itself if it is `key`. */
export function quotedKey(quoted, to = '') {
  const bytes = unquote(quoted);
  if (bytes === null) return h('bdi', { class: 'key-text', dir: 'ltr' }, quoted);
  const text = keyText(bytes, { most: 256 });
  return to === '' || bytes.length === 0 ? text : h('a', { href: addressOf('keys', { [to]: escapeBytes(bytes) }) }, text);
}

/** A client's address as it is shown; those of Unix sockets have none. */
export function clientName(address) {
  if (address === 'others') return t('otherClients');
  return address === '0.0.0.0' || address === '::' || address === 'unix' ? t('unixClients') : address;
}

/** A bar that is filled to a share. */
export function bar(label, parts) {
  let at = 0;
  const rects = parts.map(({ kind, share }) => {
    const rect = svg('rect', { class: kind, x: `${at * 100}%`, y: 0, width: `${Math.max(0, Math.min(1 - at, share)) * 100}%`, height: '100%' });
    at += share;
    return rect;
  });
  return svg('svg', { class: 'fill', role: 'img', 'aria-label': label }, svg('rect', { class: 'whole', width: '100%', height: '100%' }), rects);
}

/** An address of another page with a query of escaped keys. */
export function addressOf(page, query) {
  return `#/${page}?${new URLSearchParams(query)}`;
}
