// The chosen key: its value in several ways, its history, and changes of it.

import { explain } from './api.mjs';
import { escapeBytes } from './bytes.mjs';
import { hexId } from './cluster.mjs';
import { announce, ask } from './dialog.mjs';
import { h, replace, setText } from './dom.mjs';
import * as format from './format.mjs';
import { Editor, hasDraft } from './key-editor.mjs';
import { History } from './key-history.mjs';
import { Past } from './key-past.mjs';
import { get, remove } from './key-store.mjs';
import { addressOf, figures, keyText } from './parts.mjs';
import { isTooLongForJson, JSON_BYTES_MAX, PART_BYTES, partOf, show, viewsOf } from './values.mjs';
import { t } from './texts.mjs';

export class KeyView {
  /** `changes` of `{ removed, created }`: told when the list of keys is another one. */
  constructor(key, changes) {
    this.key = key;
    this.changes = changes;
    this.entry = null;
    this.editor = null;
    this.history = null;
    this.isOpen = true;
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.body = h('div', { class: 'page' }, h('p', { class: 'note' }, t('looking')));
    this.element = h('article', { class: 'page' }, h('h2', {}, keyText(key)), this.problem, this.body);
    this.load();
  }

  close() {
    this.isOpen = false;
    this.editor?.keep();
    this.history?.close();
  }

  async load() {
    setText(this.problem, '');
    try {
      this.entry = await get(this.key);
      if (this.isOpen) this.draw();
    } catch (error) {
      replace(this.body, h('button', { type: 'button', onclick: () => this.load() }, t('again')));
      setText(this.problem, explain(error));
    }
  }

  draw() {
    this.editor = null;
    this.history?.close();
    this.history = null;
    if (!this.entry) {
      this.historyPlace = h('div');
      replace(this.body, h('p', { class: 'empty' }, t('noSuchKey')),
        h('div', { class: 'line-up' }, h('button', { type: 'button', class: 'primary', onclick: () => this.edit() }, t('createKey')), h('button', { type: 'button', onclick: () => this.showPast() }, t('history'))),
        this.historyPlace);
    } else {
      const { entry } = this;
      const facts = figures(['modRevision', 'createRevision', 'version', 'lease', 'size']);
      facts.set('modRevision', format.count(entry.modRevision));
      facts.set('createRevision', format.count(entry.createRevision));
      facts.set('version', format.count(entry.version));
      facts.set('lease', entry.lease === '0' ? t('noLease') : hexId(entry.lease));
      facts.set('size', format.bytes(entry.value.length));
      this.historyPlace = h('div');
      replace(this.body, facts.element,
        h('div', { class: 'line-up' },
          h('button', { type: 'button', onclick: () => this.edit() }, t('edit')),
          h('button', { type: 'button', onclick: () => this.showHistory() }, t('history')),
          h('button', { type: 'button', onclick: () => this.load() }, t('readAgain')),
          h('button', { type: 'button', onclick: () => this.copy() }, t('copyKey')),
          h('button', { type: 'button', onclick: () => this.remove() }, t('remove')),
          h('a', { href: addressOf('watch', { key: escapeBytes(this.key) }) }, t('watchThis'))),
        new ValueView(entry.value).element, this.historyPlace);
    }
    if (hasDraft(this.key)) this.edit();
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(escapeBytes(this.key));
      announce(t('copied'));
    } catch {
      announce(t('notCopied'));
    }
  }

  showHistory() {
    this.openHistory(new History(this.entry));
  }

  /** The history of a key that is gone. */
  showPast() {
    this.openHistory(new Past(this.key));
  }

  openHistory(history) {
    this.history?.close();
    this.history = history;
    replace(this.historyPlace, history.element);
    history.element.querySelector('h3').focus();
  }

  edit() {
    if (this.editor) {
      this.editor.area.focus();
      return;
    }
    const isNew = this.entry === null;
    this.editor = new Editor(this.key, this.entry, {
      cancel: () => this.draw(),
      saved: async () => {
        this.editor = null;
        announce(t('saved'));
        if (isNew) this.changes.created();
        await this.load();
      },
    });
    replace(this.body, this.editor.element);
    this.editor.area.focus();
  }

  async remove() {
    const { entry } = this;
    const result = await ask({
      title: t('removeKey'),
      body: [h('p', {}, keyText(this.key)), h('p', {}, t('removeOnlyIf', { revision: format.count(entry.modRevision) })), h('p', {}, t('cannotUndo'))],
      button: t('remove'),
      isDanger: true,
      act: () => remove(this.key, entry.modRevision),
    });
    if (!result) return;
    if (result.done) {
      announce(t('removed'));
      this.entry = null;
      this.draw();
      this.changes.removed();
    } else {
      this.entry = result.theirs;
      this.draw();
      setText(this.problem, t(result.theirs ? 'notRemovedChanged' : 'notRemovedGone'));
    }
  }
}

/** A value with the ways to show it, in parts if it is large. */
class ValueView {
  constructor(value) {
    this.value = value;
    this.shown = PART_BYTES;
    this.views = viewsOf(value);
    [this.chosen] = this.views;
    this.tabs = h('div', { class: 'tabs', role: 'group', 'aria-label': t('shownAs') });
    this.area = h('pre', { class: 'value', tabindex: '0', role: 'region', 'aria-label': t('value'), dir: 'ltr' });
    this.rest = h('div', { class: 'line-up' });
    this.element = h('section', { 'aria-label': t('value') }, this.tabs, this.area, this.rest);
    this.draw();
  }

  draw() {
    replace(this.tabs, this.views.map((view) => h('button', { type: 'button', class: 'quiet', 'aria-pressed': String(view === this.chosen), onclick: () => this.choose(view) }, t(`view_${view}`))));
    this.area.classList.toggle('exact', this.chosen === 'hex');
    if (this.value.length === 0) {
      setText(this.area, '');
      replace(this.rest, h('p', { class: 'note' }, t('emptyValue')));
      return;
    }
    // JSON and objects make sense as a whole only: the text that they become is cut, not the bytes.
    const isWhole = this.chosen === 'json' || this.chosen === 'kubernetes';
    const text = show(isWhole ? this.value : partOf(this.value, this.shown), this.chosen);
    const isCut = isWhole ? text.length > this.shown : this.value.length > this.shown;
    setText(this.area, isWhole ? text.slice(0, this.shown) : text);
    replace(this.rest,
      isCut && h('p', { class: 'note' }, t('shownPart', { shown: format.bytes(this.shown), all: format.bytes(this.value.length) })),
      isCut && h('button', { type: 'button', onclick: () => this.showMore() }, t('showMore')),
      isTooLongForJson(this.value) && h('p', { class: 'note' }, t('jsonTooLong', { limit: format.bytes(JSON_BYTES_MAX) })),
      this.chosen === 'json' && h('p', { class: 'note' }, t('jsonNote')));
  }

  choose(view) {
    this.chosen = view;
    this.draw();
    this.tabs.querySelector('[aria-pressed="true"]').focus();
  }

  showMore() {
    this.shown *= 16;
    this.draw();
    this.area.focus();
  }
}
