// The editor of a value. What is saved are exactly the bytes that the text stands for, and only if nobody else changed the key meanwhile.

import { encodeText, equal, escapeBytes, fromHex, toHex, unescapeBytes, decodeText } from './bytes.mjs';
import { ask } from './dialog.mjs';
import { difference } from './diff.mjs';
import { h, newId, replace, setText } from './dom.mjs';
import { session } from './api.mjs';
import * as format from './format.mjs';
import { differenceView } from './diff-view.mjs';
import { put } from './key-store.mjs';
import { keyText } from './parts.mjs';
import { isPlainText, linesOf, valueDifference } from './values.mjs';
import { t } from './texts.mjs';

/** Values up to this length are edited. An editor of more would bring a browser to a halt. */
const BYTES_MAX = 2 << 20;

/** What was typed and not saved, by key: it is there again when the key is shown again. Nothing of it is stored. */
const drafts = new Map();

export function hasDraft(key) {
  return drafts.has(escapeBytes(key));
}

session.changed.addEventListener('left', () => drafts.clear());

addEventListener('beforeunload', (event) => {
  if (drafts.size > 0) event.preventDefault();
});

/** The ways to edit bytes: each writes them as a text, and reads that text, or returns `null` if it stands for none. */
const MODES = {
  text: { write: decodeText, read: encodeText, fits: isPlainText },
  escaped: { write: (bytes) => escapeBytes(bytes, { lines: true }), read: unescapeBytes, fits: () => true },
  hex: { write: toHex, read: fromHex, fits: () => true },
};

export class Editor {
  constructor(key, entry, { cancel, saved }) {
    this.key = key;
    this.id = escapeBytes(key);
    this.saved = saved;
    /** The version that the change is made of; a key that is not there has modification revision 0. */
    this.base = { value: entry?.value ?? new Uint8Array(), modRevision: entry?.modRevision ?? 0 };
    this.mode = MODES.text.fits(this.base.value) ? 'text' : 'escaped';
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.conflict = h('div');
    this.tabs = new Map(Object.keys(MODES).map((mode) => [mode, h('button', { type: 'button', class: 'quiet', onclick: () => this.turnTo(mode) }, t(`view_${mode}`))]));
    const id = newId('edit');
    this.area = h('textarea', { id, rows: 16, spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', wrap: 'soft', oninput: () => this.changed() });
    this.count = h('p', { class: 'note' });
    this.save_ = h('button', { type: 'button', class: 'primary', onclick: () => this.save() }, t('save'));
    this.element = h('section', { 'aria-label': t('edit') },
      this.conflict,
      h('div', { class: 'line-up apart' }, h('label', { for: id }, t('value')), h('div', { class: 'tabs', role: 'group', 'aria-label': t('editAs') }, [...this.tabs.values()])),
      this.area, this.problem, this.count,
      h('div', { class: 'buttons' }, h('button', { type: 'button', onclick: () => {
        drafts.delete(this.id);
        cancel();
      } }, t('cancel')), this.save_));
    const draft = drafts.get(this.id);
    if (draft) ({ mode: this.mode, base: this.base } = draft);
    this.area.value = draft ? draft.text : MODES[this.mode].write(this.base.value);
    this.changed();
    // Somebody else's change, made while the draft was put aside.
    if (draft && entry && entry.modRevision !== this.base.modRevision) this.showConflict(entry);
    if (this.base.value.length > BYTES_MAX) {
      this.area.disabled = true;
      this.save_.disabled = true;
      setText(this.problem, t('tooLargeToEdit', { most: format.bytes(BYTES_MAX) }));
    }
  }

  read() {
    return MODES[this.mode].read(this.area.value);
  }

  /** Offers the ways that can show these bytes. */
  drawTabs(bytes) {
    for (const [mode, tab] of this.tabs) {
      tab.setAttribute('aria-pressed', String(mode === this.mode));
      tab.disabled = bytes !== null && !MODES[mode].fits(bytes);
    }
  }

  /** Shows the same bytes in another way. */
  turnTo(mode) {
    const bytes = this.read();
    if (bytes === null) {
      setText(this.problem, t(`bad_${this.mode}`));
      return;
    }
    if (!MODES[mode].fits(bytes)) return;
    this.mode = mode;
    this.area.value = MODES[mode].write(bytes);
    this.changed();
    this.area.focus();
  }

  changed() {
    const bytes = this.read();
    this.drawTabs(bytes);
    setText(this.problem, bytes === null ? t(`bad_${this.mode}`) : '');
    setText(this.count, bytes === null ? '' : format.bytes(bytes.length));
    if (bytes !== null && equal(bytes, this.base.value)) drafts.delete(this.id);
    else this.keep();
  }

  /** Puts aside what was typed. */
  keep() {
    const bytes = this.read();
    if (bytes !== null && equal(bytes, this.base.value)) return;
    drafts.set(this.id, { mode: this.mode, text: this.area.value, base: this.base });
  }

  async save() {
    const bytes = this.read();
    if (bytes === null) {
      setText(this.problem, t(`bad_${this.mode}`));
      this.area.focus();
      return;
    }
    const isNew = this.base.modRevision === 0;
    if (!isNew && equal(bytes, this.base.value)) {
      setText(this.problem, t('nothingChanged'));
      return;
    }
    const wasJson = /^\s*[{[]/.test(decodeText(this.base.value) ?? '') && isJson(this.base.value);
    const result = await ask({
      title: t(isNew ? 'createKey' : 'saveChange'),
      body: [
        h('p', {}, keyText(this.key)),
        wasJson && !isJson(bytes) && h('p', { class: 'notice mild' }, t('noLongerJson')),
        differenceView(isNew ? difference([], linesOf(bytes)) : valueDifference(this.base.value, bytes)),
        h('p', { class: 'note' }, t(isNew ? 'createOnlyIf' : 'saveOnlyIf', { revision: format.count(this.base.modRevision) })),
      ],
      button: t(isNew ? 'createKey' : 'save'),
      act: () => put(this.key, bytes, this.base.modRevision),
    });
    if (!result) return;
    if (result.done) {
      drafts.delete(this.id);
      this.saved();
    } else this.showConflict(result.theirs);
  }

  /** The key was changed by somebody else: what it is now, and what can be done. */
  showConflict(theirs) {
    const now = theirs ?? { value: new Uint8Array(), modRevision: 0 };
    const rebase = (takeTheirs) => {
      this.base = { value: now.value, modRevision: now.modRevision };
      if (takeTheirs) {
        this.mode = MODES.text.fits(now.value) ? 'text' : 'escaped';
        this.area.value = MODES[this.mode].write(now.value);
      }
      replace(this.conflict);
      this.changed();
      this.area.focus();
    };
    const title = h('h3', { tabindex: '-1' }, t(theirs ? 'conflict' : 'conflictGone'));
    replace(this.conflict, h('div', { class: 'notice conflict page', role: 'group' },
      title,
      h('p', {}, t(theirs ? 'conflictWhat' : 'conflictGoneWhat', { seen: format.count(this.base.modRevision), now: format.count(now.modRevision) })),
      theirs && differenceView(valueDifference(this.base.value, now.value)),
      h('div', { class: 'line-up' },
        h('button', { type: 'button', onclick: () => rebase(false) }, t('conflictKeepMine')),
        theirs && h('button', { type: 'button', onclick: () => rebase(true) }, t('conflictTakeTheirs')))));
    title.focus();
  }
}

function isJson(bytes) {
  try {
    JSON.parse(decodeText(bytes));
    return true;
  } catch {
    return false;
  }
}
