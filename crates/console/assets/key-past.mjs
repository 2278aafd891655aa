// What a key held before it was deleted: its changes since the last compaction, as a watch from then on tells them.

import { explain } from './api.mjs';
import { equal, toBase64 } from './bytes.mjs';
import { differenceView } from './diff-view.mjs';
import { difference } from './diff.mjs';
import { h, replace, setText } from './dom.mjs';
import * as format from './format.mjs';
import { linesOf, valueDifference } from './values.mjs';
import { t } from './texts.mjs';
import { Watcher } from './watcher.mjs';

const DRAW_EVERY_MS = 250;
/** Changes that are drawn, the newest. */
const DRAWN_MAX = 100;

export class Past {
  /** Changes of `key` before revision `until`, where its present life began; 0 if it has none. Then the watch stays open. */
  constructor(key, until = 0) {
    this.until = until;
    this.from = 1;
    this.isWhole = false;
    this.drawn = -1;
    this.list = h('ol', { class: 'versions' });
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.note = h('p', { class: 'note', role: 'status' });
    this.element = h('section', { 'aria-label': t('past') }, h('h3', { tabindex: '-1' }, t('past')), this.note, this.problem, this.list);
    this.watcher = new Watcher({ key: toBase64(key) }, 1, (state) => this.hear(state));
    this.timer = setInterval(() => this.draw(), DRAW_EVERY_MS);
    this.draw();
  }

  close() {
    clearInterval(this.timer);
    this.watcher.stop();
  }

  hear(state) {
    if (state.kind === 'compacted') this.from = state.to + 1;
    setText(this.problem, state.error ? explain(state.error) : '');
    this.drawn = -1;
  }

  draw() {
    const { watcher, until } = this;
    const last = watcher.events.at(-1);
    if (until > 0 && last?.revision >= until && !this.isWhole) {
      this.isWhole = true;
      this.close();
      this.drawn = -1;
    }
    if (this.drawn === watcher.received) return;
    this.drawn = watcher.received;
    const events = watcher.events.filter((event) => until === 0 || event.revision < until);
    const values = { count: format.count(watcher.dropped + events.length), from: format.count(this.from) };
    const text = this.isWhole && events.length === 0 ? t('pastNone') : t(this.isWhole ? 'pastWhole' : events.length === 0 ? 'pastLooking' : 'pastFound', { ...values, revision: values.from });
    setText(this.note, [text, this.from > 1 && t('pastCompacted'), events.length + watcher.dropped > DRAWN_MAX && t('pastDropped', { count: format.count(events.length + watcher.dropped - DRAWN_MAX) })].filter(Boolean).join(' '));
    replace(this.list, events.map((event, at) => [event, events[at - 1]]).slice(-DRAWN_MAX).reverse().map(([event, before]) => this.item(event, before)));
  }

  item(event, before) {
    const head = h('p', { class: 'line-up' },
      h('strong', {}, t('revisionOf', { revision: format.count(event.revision) })),
      h('span', { class: `event-kind ${event.kind}` }, t(`event_${event.kind}`)),
      event.kind !== 'delete' && h('span', { class: 'note' }, format.bytes(event.valueBytes)));
    if (event.kind === 'delete') return h('li', {}, head);
    const older = before && before.kind !== 'delete' && event.kind !== 'create' ? before.value : null;
    const isCut = event.valueBytes > event.value.length;
    // Of values that are cut, nobody knows if the rest is the same.
    const isPart = older !== null && (isCut || before.valueBytes > before.value.length) && equal(older, event.value);
    return h('li', {}, head,
      isPart ? h('p', { class: 'note' }, t('samePart')) : differenceView(older ? valueDifference(older, event.value) : difference([], linesOf(event.value))),
      isCut && h('p', { class: 'note' }, t('shownPart', { shown: format.bytes(event.value.length), all: format.bytes(event.valueBytes) })));
  }
}
