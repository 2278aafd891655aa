// The versions of a key, newest first, each with its difference from the one before, back to what was compacted.

import { explain } from './api.mjs';
import { differenceView } from './diff-view.mjs';
import { difference } from './diff.mjs';
import { h, replace, setText } from './dom.mjs';
import * as format from './format.mjs';
import { Past } from './key-past.mjs';
import { olderVersions } from './key-store.mjs';
import { linesOf, valueDifference } from './values.mjs';
import { t } from './texts.mjs';

const PAGE = 10;
/** Values above this are not compared. */
const COMPARED_BYTES_MAX = 1 << 20;

export class History {
  constructor(newest) {
    this.past = null;
    this.versions = [newest];
    this.end = null;
    this.list = h('ol', { class: 'versions' });
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.more = h('button', { type: 'button', onclick: () => this.load() }, t('olderVersions'));
    this.note = h('p', { class: 'note', role: 'status' });
    this.before = h('div', { class: 'line-up', hidden: true }, h('button', { type: 'button', onclick: () => this.showPast() }, t('historyPast')), h('p', { class: 'note' }, t('historyPastWhat')));
    this.pastPlace = h('div');
    this.element = h('section', { 'aria-label': t('history') }, h('h3', { tabindex: '-1' }, t('history')), this.list, this.problem, this.note, this.more, this.before, this.pastPlace);
    this.load();
  }

  close() {
    this.past?.close();
  }

  showPast() {
    this.before.hidden = true;
    this.past = new Past(this.versions[0].key, this.versions[0].createRevision);
    replace(this.pastPlace, this.past.element);
    this.past.element.querySelector('h3').focus();
  }

  async load() {
    this.more.disabled = true;
    setText(this.problem, '');
    try {
      const { versions, end } = await olderVersions(this.versions.at(-1), PAGE);
      this.versions.push(...versions);
      this.end = end;
    } catch (error) {
      setText(this.problem, explain(error));
    }
    this.more.disabled = false;
    this.more.hidden = this.end !== null;
    this.before.hidden = this.end !== 'created' || this.past !== null;
    setText(this.note, this.end ? t(`history_${this.end}`) : t('versionsShown', { count: format.count(this.versions.length) }));
    this.draw();
  }

  draw() {
    const known = this.list.children.length;
    // The oldest that was drawn lacked the version before it.
    if (known > 0) this.list.lastChild.remove();
    this.versions.slice(Math.max(0, known - 1)).forEach((version, at) => {
      const place = Math.max(0, known - 1) + at;
      this.list.append(this.item(version, this.versions[place + 1] ?? null));
    });
  }

  item(version, older) {
    const head = h('p', { class: 'line-up' },
      h('strong', {}, t('revisionOf', { revision: format.count(version.modRevision) })),
      h('span', { class: 'note' }, t('versionOf', { version: format.count(version.version) })),
      h('span', { class: 'note' }, format.bytes(version.value.length)));
    const li = h('li', {}, head);
    if (older && Math.max(version.value.length, older.value.length) > COMPARED_BYTES_MAX) li.append(h('p', { class: 'note' }, t('tooLargeToCompare')));
    else if (older) li.append(differenceView(valueDifference(older.value, version.value)));
    else if (this.end === 'created') li.append(h('p', { class: 'note' }, t('createdHere')), differenceView(difference([], linesOf(version.value.subarray(0, 65536)))));
    return li;
  }
}
