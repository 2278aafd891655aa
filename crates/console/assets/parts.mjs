// Small parts that several pages share.

import { escapeBytes } from './bytes.mjs';
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
