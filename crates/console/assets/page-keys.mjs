// Keys: the tree at the left, the chosen key at the right. The address names both, so that it can be kept and sent.

import { explain } from './api.mjs';
import { encodeText, equal, escapeBytes, startsWith, unescapeBytes } from './bytes.mjs';
import { announce, ask } from './dialog.mjs';
import { h, replace, setText } from './dom.mjs';
import * as format from './format.mjs';
import { get, removePrefix } from './key-store.mjs';
import { childrenOf, countOf, descend, pathOf } from './key-tree.mjs';
import { KeyView } from './key-view.mjs';
import { addressOf, keyText } from './parts.mjs';
import { setPageShortcuts } from './shortcuts.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

const PAGE = 50;
const DELIMITER = '/';

export function open(place, query) {
  const browser = new Browser(place);
  browser.navigate(query);
  setPageShortcuts([
    { key: '/', text: t('shortcutGoTo'), run: () => browser.input.focus() },
    { key: 'Backspace', text: t('shortcutUp'), run: () => browser.up() },
    { key: 'e', text: t('shortcutEdit'), run: () => browser.view?.edit() },
  ]);
  return { navigate: (next) => browser.navigate(next), close: () => browser.view?.close() };
}

class Browser {
  constructor(place) {
    this.prefix = null;
    this.key = null;
    this.delimiter = encodeText(DELIMITER);
    this.view = null;
    /** Counts listings, so that one that comes late is not shown. */
    this.turn = 0;
    this.input = h('input', { class: 'escaped', spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', 'aria-describedby': 'keys-hint' });
    this.delimiterInput = h('input', { class: 'escaped short', spellcheck: 'false', autocomplete: 'off', value: DELIMITER });
    this.crumbs = h('ol', { class: 'crumbs' });
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.status = h('p', { class: 'note', role: 'status' });
    this.more = h('button', { type: 'button', hidden: true, onclick: () => this.loadMore() }, t('more'));
    this.actions = h('div', { class: 'line-up' });
    this.table = this.makeTable();
    this.detail = h('section', { class: 'detail', 'aria-label': t('chosenKey') });
    this.panes = h('div', { class: 'keys-panes' },
      h('section', { class: 'listing', 'aria-label': t('keysBelow') }, h('nav', { 'aria-label': t('path') }, this.crumbs), this.problem, this.table.element, this.more, this.status, this.actions),
      this.detail);
    const form = h('form', { class: 'keys-bar', onsubmit: (event) => {
      event.preventDefault();
      this.goTo();
    } },
      h('label', { class: 'field' }, h('span', {}, t('keyOrPrefix')), this.input),
      h('label', { class: 'field delimiter' }, h('span', {}, t('delimiter')), this.delimiterInput),
      h('button', { type: 'submit', class: 'primary' }, t('go')));
    place.append(form, h('p', { class: 'note', id: 'keys-hint' }, t('escapeHint')), this.panes);
    this.delimiterInput.addEventListener('change', () => this.navigateTo({ prefix: this.prefix ?? new Uint8Array() }));
  }

  makeTable() {
    return new Table({
      caption: t('keysBelow'),
      isNarrow: true,
      keyOf: (child) => `${child.isFolder ? 'f' : 'k'}${escapeBytes(child.key)}`,
      empty: t('noKeys'),
      columns: [
        { label: t('name'), wide: true, sign: () => '', cell: (child) => this.name(child) },
        { label: t('keysHeld'), number: true, sign: (child) => `${child.isFolder} ${child.count} ${child.isCounting}`, cell: (child) => this.held(child) },
      ],
    });
  }

  name(child) {
    const shown = child.key.subarray(this.prefix.length);
    const to = child.isFolder ? { prefix: child.key } : { prefix: this.prefix, key: child.key };
    const link = h('a', { href: this.address(to), 'data-walk': true, onclick: (event) => {
      if (!child.isFolder || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.openFolder(child.key);
    } }, shown.length === 0 ? t('keyItself') : keyText(shown));
    return h('div', { class: 'child' }, link);
  }

  held(child) {
    if (!child.isFolder) return t('oneKey');
    if (child.count !== undefined) return t('keyCount', { count: format.count(child.count) });
    return h('button', { type: 'button', class: 'quiet', disabled: child.isCounting, 'aria-label': t('countBelow', { key: escapeBytes(child.key) }), onclick: () => this.count(child) }, t('count'));
  }

  async count(child) {
    child.isCounting = true;
    this.table.update(this.children);
    try {
      child.count = await countOf(child.key);
    } catch (error) {
      setText(this.problem, explain(error));
    }
    child.isCounting = false;
    this.table.update(this.children);
    // The button that had the focus is gone.
    if (document.activeElement === document.body) this.focusOn(child.key);
  }

  /** Delimiter as typed; `/` while it cannot be read. */
  readDelimiter() {
    return unescapeBytes(this.delimiterInput.value) ?? encodeText(DELIMITER);
  }

  address({ prefix, key = null }) {
    const query = {};
    if (prefix.length > 0) query.prefix = escapeBytes(prefix);
    if (key) query.key = escapeBytes(key);
    if (this.delimiterInput.value !== DELIMITER) query.delimiter = this.delimiterInput.value;
    return addressOf('keys', query);
  }

  navigateTo(to) {
    const address = this.address(to);
    if (address === location.hash) this.navigate(new URLSearchParams(address.split('?')[1]), { again: true });
    else location.hash = address.slice(1);
  }

  async openFolder(prefix) {
    try {
      this.navigateTo({ prefix: await descend(prefix, this.delimiter) });
    } catch (error) {
      setText(this.problem, explain(error));
    }
  }

  /** Shows what an address names. */
  navigate(query, { again = false } = {}) {
    const delimiter = query.get('delimiter') ?? DELIMITER;
    this.delimiterInput.value = delimiter;
    this.delimiter = this.readDelimiter();
    const prefix = unescapeBytes(query.get('prefix') ?? '') ?? new Uint8Array();
    const key = query.has('key') ? unescapeBytes(query.get('key')) : null;
    const isOther = again || this.prefix === null || !equal(prefix, this.prefix) || this.shownDelimiter !== delimiter;
    this.shownDelimiter = delimiter;
    const cameFrom = this.prefix;
    this.prefix = prefix;
    this.input.value = escapeBytes(key ?? prefix);
    if (isOther) this.list(cameFrom);
    this.choose(key);
  }

  choose(key) {
    const isSame = this.key !== null && key !== null && equal(key, this.key);
    if (isSame) return;
    this.view?.close();
    this.view = null;
    this.key = key;
    this.panes.classList.toggle('has-key', key !== null);
    if (!key) {
      replace(this.detail, h('p', { class: 'empty' }, t('chooseKey')));
      return;
    }
    this.view = new KeyView(key, { removed: () => this.reload(), created: () => this.reload() });
    replace(this.detail, h('a', { class: 'back', href: this.address({ prefix: this.prefix }) }, t('backToList')), this.view.element);
  }

  reload() {
    this.list(null);
  }

  async list(cameFrom) {
    this.turn += 1;
    const mine = this.turn;
    const { prefix } = this;
    const hadFocus = this.panes.contains(document.activeElement) && document.activeElement.closest('.listing');
    this.crumb();
    this.children = [];
    setText(this.problem, '');
    setText(this.status, t('looking'));
    this.more.hidden = true;
    replace(this.actions);
    try {
      const began = performance.now();
      // All rows are new, as their texts depend on the prefix. They are shown as they are found.
      let isFirst = true;
      const draw = (children) => {
        if (mine !== this.turn) return;
        if (isFirst) this.table.update([]);
        isFirst = false;
        this.show([...children], null);
      };
      const { children, next, calls } = await childrenOf(prefix, this.delimiter, { most: PAGE, found: draw });
      if (mine !== this.turn) return;
      if (isFirst) this.table.update([]);
      this.show(children, next);
      setText(this.status, t('foundIn', { count: format.count(children.length), calls: format.count(calls), time: format.seconds((performance.now() - began) / 1000) }));
      this.showActions();
      if (hadFocus) this.focusOn(cameFrom && startsWith(cameFrom, prefix) ? cameFrom : null);
    } catch (error) {
      if (mine !== this.turn) return;
      this.table.update([]);
      setText(this.status, '');
      setText(this.problem, explain(error));
      // Who may read a part of the keys only has to say which.
      if (error.isDenied) this.input.focus();
    }
  }

  show(children, next) {
    this.children = children;
    this.next = next;
    this.more.hidden = next === null;
    this.table.update(children);
  }

  async loadMore() {
    const mine = this.turn;
    this.more.disabled = true;
    try {
      const known = this.children.length;
      const { children, next } = await childrenOf(this.prefix, this.delimiter, { from: this.next, most: PAGE });
      if (mine !== this.turn) return;
      this.show([...this.children, ...children], next);
      if (children.length > 0) this.focusOn(this.children[known].key);
      setText(this.status, t('shownSoFar', { count: format.count(this.children.length) }));
    } catch (error) {
      setText(this.problem, explain(error));
    } finally {
      this.more.disabled = false;
    }
  }

  /** Moves the focus to a child, or to the first one. */
  focusOn(key) {
    const rows = [...this.table.rows.values()];
    const held = (key && rows.find(({ row }) => equal(row.key, key) || (row.isFolder && startsWith(key, row.key)))) ?? rows[0];
    held?.element.querySelector('[data-walk]')?.focus();
  }

  crumb() {
    const path = pathOf(this.prefix, this.delimiter);
    replace(this.crumbs, path.map((each, at) => {
      const text = at === 0 ? t('allKeys') : keyText(each.subarray(path[at - 1].length));
      return h('li', {}, at === path.length - 1 ? h('span', { 'aria-current': 'location' }, text) : h('a', { href: this.address({ prefix: each }) }, text));
    }));
  }

  up() {
    if (this.key) {
      this.navigateTo({ prefix: this.prefix });
      return;
    }
    const path = pathOf(this.prefix, this.delimiter);
    if (path.length > 1) this.navigateTo({ prefix: path.at(-2) });
  }

  showActions() {
    replace(this.actions,
      h('button', { type: 'button', class: 'quiet', onclick: () => this.newKey() }, t('newKey')),
      h('a', { href: addressOf('watch', { prefix: escapeBytes(this.prefix) }) }, t('watchThese')),
      this.prefix.length > 0 && h('button', { type: 'button', class: 'quiet', onclick: () => this.removeAll() }, t('removeAllBelow')));
  }

  async newKey() {
    const input = h('input', { name: 'key', class: 'escaped', value: escapeBytes(this.prefix), spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off' });
    const key = await ask({
      title: t('newKey'),
      body: [h('label', { class: 'field' }, h('span', {}, t('key')), input), h('p', { class: 'note' }, t('escapeHint'))],
      button: t('goOn'),
      act: ({ key: typed }) => {
        const bytes = unescapeBytes(typed);
        if (bytes === null || bytes.length === 0) throw Object.assign(new Error(), { forUser: t('badEscape') });
        return bytes;
      },
    });
    if (key) this.navigateTo({ prefix: this.prefix, key });
  }

  async removeAll() {
    const { prefix } = this;
    let count;
    try {
      count = await countOf(prefix);
    } catch (error) {
      setText(this.problem, explain(error));
      return;
    }
    const removed = await ask({
      title: t('removeAllBelow'),
      body: [h('p', {}, t('removeAllWhat', { count: format.count(count) })), h('p', {}, keyText(prefix)), h('p', {}, t('cannotUndo'))],
      button: t('removeCount', { count: format.count(count) }),
      isDanger: true,
      word: String(count),
      act: () => removePrefix(prefix).then((done) => ({ done })),
    });
    if (!removed) return;
    announce(t('removedCount', { count: format.count(removed.done) }));
    this.reload();
  }

  /** Goes to what was typed: a key of exactly that name, or else all that begin so. */
  async goTo() {
    const bytes = unescapeBytes(this.input.value);
    if (bytes === null) {
      setText(this.problem, t('badEscape'));
      return;
    }
    setText(this.problem, '');
    if (bytes.length === 0) {
      this.navigateTo({ prefix: bytes });
      return;
    }
    try {
      const found = await get(bytes);
      const path = pathOf(bytes, this.delimiter);
      if (found) this.navigateTo({ prefix: equal(path.at(-1), bytes) ? path.at(-2) : path.at(-1), key: bytes });
      else this.navigateTo({ prefix: bytes });
    } catch (error) {
      // Who may not read the key itself may be allowed to read what is below.
      if (error.isDenied) this.navigateTo({ prefix: bytes });
      else setText(this.problem, explain(error));
    }
  }
}
