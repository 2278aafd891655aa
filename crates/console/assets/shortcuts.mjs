// Shortcuts of the keyboard. Those of a single character can be switched off (WCAG 2.1.4), as they get in the way of speech input.

import { ask } from './dialog.mjs';
import { h } from './dom.mjs';
import { remember, remembered } from './settings.mjs';
import { t } from './texts.mjs';

/** Shortcuts that a page adds while it is shown: key to `{ text, run }`. */
let ofPage = new Map();

export function setPageShortcuts(list = []) {
  ofPage = new Map(list.map((each) => [each.key, each]));
}

function areOn() {
  return remembered('shortcuts') !== 'off';
}

/** Listens; `pages` of `{ name, letter }` are reached by `g` and the letter. Returns what ends it. */
export function listen({ pages, go, always }) {
  let prefixAt = -Infinity;
  function key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !areOn() || event.defaultPrevented) return;
    if (event.target.matches?.('input, select, textarea, [contenteditable]') || document.querySelector('dialog[open]')) return;
    const isSecond = performance.now() - prefixAt < 1500;
    prefixAt = -Infinity;
    if (isSecond) {
      const page = pages.find((each) => each.letter === event.key);
      if (page) {
        event.preventDefault();
        go(page.name);
      }
    } else if (event.key === 'g') {
      prefixAt = performance.now();
    } else if (event.key === '?') {
      event.preventDefault();
      showHelp(pages);
    } else {
      const found = ofPage.get(event.key) ?? always.get(event.key);
      if (!found) return;
      event.preventDefault();
      found.run(event);
    }
  }
  document.addEventListener('keydown', key);
  return () => document.removeEventListener('keydown', key);
}

function row(keys, text) {
  return h('tr', {}, h('td', {}, keys.map((each, at) => [at > 0 && ' ', h('kbd', {}, each)])), h('td', {}, text));
}

export function showHelp(pages) {
  const isOn = h('input', { type: 'checkbox', checked: areOn(), onchange: (event) => remember('shortcuts', event.target.checked ? 'on' : 'off') });
  return ask({
    title: t('shortcuts'),
    body: [
      h('table', { class: 'shortcuts' },
        h('caption', { class: 'unseen' }, t('shortcuts')),
        h('thead', { class: 'unseen' }, h('tr', {}, h('th', { scope: 'col' }, t('shortcutKeys')), h('th', { scope: 'col' }, t('shortcutWhat')))),
        h('tbody', {},
          pages.map((page) => row(['g', page.letter], t(`page_${page.name}`))),
          row(['?'], t('shortcutHelp')),
          row(['↑', '↓'], t('shortcutWalk')),
          row(['Enter'], t('shortcutOpen')),
          row(['Esc'], t('shortcutClose')),
          row(['←', '→'], t('shortcutChart')),
          [...ofPage.values()].map((each) => row([each.key === ' ' ? t('keySpace') : each.key], each.text)))),
      h('label', { class: 'check' }, isOn, h('span', {}, t('shortcutsOn'))),
    ],
    cancel: t('close'),
  });
}
