// Watch: the changes of a key or a prefix as they happen.

import { explain } from './api.mjs';
import { encodeText, escapeBytes, indexOf, toBase64, unescapeBytes } from './bytes.mjs';
import { h, setText } from './dom.mjs';
import { field } from './dialog.mjs';
import * as format from './format.mjs';
import { prefixRange } from './key-tree.mjs';
import { addressOf, keyText } from './parts.mjs';
import { setPageShortcuts } from './shortcuts.mjs';
import { Table } from './table.mjs';
import { EVENTS_MAX, Watcher } from './watcher.mjs';
import { t } from './texts.mjs';

const DRAW_EVERY_MS = 250;
/** Rows drawn at most: more cannot be read while they come. */
const ROWS_MAX = 200;
const PREVIEW_BYTES = 120;

export function open(place, query) {
  const page = new WatchPage(place);
  page.navigate(query);
  setPageShortcuts([
    { key: 'p', text: t('shortcutPause'), run: () => page.pause() },
    { key: '/', text: t('shortcutFilter'), run: () => page.filter.focus() },
  ]);
  return { navigate: (next) => page.navigate(next), close: () => page.close() };
}

class WatchPage {
  constructor(place) {
    this.watcher = null;
    this.isPaused = false;
    this.shown = [];
    this.input = h('input', { class: 'escaped', spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', required: false });
    this.scope = h('select', {}, h('option', { value: 'prefix' }, t('scopePrefix')), h('option', { value: 'key' }, t('scopeKey')));
    this.revision = h('input', { class: 'escaped', inputmode: 'numeric', pattern: '[0-9]*', autocomplete: 'off' });
    this.filter = h('input', { class: 'escaped', spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', oninput: () => this.draw() });
    this.kinds = Object.fromEntries(['create', 'put', 'delete'].map((kind) => [kind, h('input', { type: 'checkbox', checked: true, onchange: () => this.draw() })]));
    this.state = h('p', { class: 'watch-state state', role: 'status' });
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.counts = h('p', { class: 'note' });
    this.pauseButton = h('button', { type: 'button', 'aria-pressed': 'false', onclick: () => this.pause() }, t('pause'));
    this.table = this.makeTable();
    const form = h('form', { class: 'watch-form', onsubmit: (event) => {
      event.preventDefault();
      this.submit();
    } },
      field(t('keyOrPrefix'), this.input, t('escapeHint')), field(t('scope'), this.scope), field(t('fromRevision'), this.revision, t('fromRevisionHint')),
      h('button', { type: 'submit', class: 'primary' }, t('watch')));
    place.append(form,
      h('section', { 'aria-label': t('events') },
        h('div', { class: 'line-up apart' }, this.state, h('div', { class: 'line-up' }, this.pauseButton,
          h('button', { type: 'button', onclick: () => this.clear() }, t('clear')), h('button', { type: 'button', onclick: () => this.stop() }, t('stop')))),
        this.problem,
        h('div', { class: 'line-up' }, field(t('filterKeys'), this.filter),
          h('fieldset', { class: 'kinds line-up' }, h('legend', { class: 'unseen' }, t('kindsShown')), Object.entries(this.kinds).map(([kind, box]) => h('label', { class: 'check' }, box, h('span', {}, t(`event_${kind}`)))))),
        this.counts, this.table.element));
    this.timer = setInterval(() => this.draw(), DRAW_EVERY_MS);
    this.say('', t('watchIdle'));
  }

  makeTable() {
    return new Table({
      caption: t('events'),
      keyOf: (event) => event.number,
      empty: '',
      columns: [
        { label: t('revision'), number: true, sign: () => '', cell: (event) => format.count(event.revision) },
        { label: t('kind'), sign: () => '', cell: (event) => h('span', { class: `event-kind ${event.kind}` }, t(`event_${event.kind}`)) },
        { label: t('key'), wide: true, sign: () => '', cell: (event) => h('a', { href: addressOf('keys', { key: escapeBytes(event.key) }) }, keyText(event.key, { most: 200 })) },
        { label: t('value'), wide: true, sign: () => '', cell: (event) => h('span', { class: 'preview', dir: 'ltr' }, event.kind === 'delete' ? '' : preview(event)) },
        { label: t('size'), number: true, sign: () => '', cell: (event) => (event.kind === 'delete' ? t('chartNone') : format.bytes(event.valueBytes)) },
        { label: t('seenAt'), number: true, sign: () => '', cell: (event) => format.clockTime(event.at) },
      ],
    });
  }

  navigate(query) {
    if (!query.has('prefix') && !query.has('key')) return;
    this.scope.value = query.has('key') ? 'key' : 'prefix';
    this.input.value = query.get(this.scope.value);
    this.revision.value = query.get('revision') ?? '';
    this.start();
  }

  submit() {
    const query = { [this.scope.value]: this.input.value };
    if (this.revision.value) query.revision = this.revision.value;
    const address = addressOf('watch', query);
    if (address === location.hash) this.start();
    else location.hash = address.slice(1);
  }

  start() {
    const bytes = unescapeBytes(this.input.value);
    setText(this.problem, '');
    if (bytes === null || (this.scope.value === 'key' && bytes.length === 0)) {
      setText(this.problem, t('badEscape'));
      this.input.focus();
      return;
    }
    if (!/^[0-9]*$/.test(this.revision.value)) {
      setText(this.problem, t('badRevision'));
      this.revision.focus();
      return;
    }
    this.watcher?.stop();
    this.table.update([]);
    this.setPaused(false);
    const range = this.scope.value === 'key' ? { key: toBase64(bytes) } : prefixRange(bytes);
    this.watcher = new Watcher(range, Number(this.revision.value || 0), (state) => this.hear(state));
    this.lastDrawn = -1;
  }

  hear(state) {
    switch (state.kind) {
      case 'connecting':
        this.say('', t('watchConnecting', { member: state.member }));
        break;
      case 'live':
        this.say('good', t('watchLive', { member: state.member }));
        break;
      case 'denied':
        this.say('error', t('watchEnded'));
        setText(this.problem, explain(state.error));
        break;
      case 'compacted':
        setText(this.problem, t('watchCompacted', { from: format.count(state.from), to: format.count(state.to) }));
        break;
      default:
        this.say('error', t('watchLost', { member: state.member, seconds: format.seconds(state.wait / 1000) }));
    }
  }

  say(kind, text) {
    this.state.className = `watch-state state ${kind}`;
    setText(this.state, text);
  }

  setPaused(isPaused) {
    this.isPaused = isPaused;
    this.pauseButton.setAttribute('aria-pressed', String(isPaused));
    setText(this.pauseButton, t(isPaused ? 'goOn' : 'pause'));
    this.lastDrawn = -1;
  }

  pause() {
    // What is shown stays while paused; what comes is kept, as far as there is room.
    this.frozen = this.isPaused ? null : [...(this.watcher?.events ?? [])];
    this.pausedAt = this.watcher?.received ?? 0;
    this.setPaused(!this.isPaused);
    this.draw();
  }

  clear() {
    this.watcher?.clear();
    this.frozen = this.isPaused ? [] : null;
    this.lastDrawn = -1;
    this.draw();
  }

  stop() {
    this.watcher?.stop();
    if (this.watcher) this.say('', t('watchStopped'));
  }

  draw() {
    if (!this.watcher) return;
    const { received, dropped, events } = this.watcher;
    const wanted = unescapeBytes(this.filter.value) ?? encodeText(this.filter.value);
    const sign = `${received} ${this.isPaused} ${this.filter.value} ${Object.values(this.kinds).map((box) => box.checked)} ${events.length}`;
    if (sign === this.lastDrawn) return;
    this.lastDrawn = sign;
    const held = this.isPaused && this.frozen ? this.frozen : events;
    const passed = held.filter((event) => this.kinds[event.kind].checked && (wanted.length === 0 || indexOf(event.key, wanted) >= 0));
    this.table.update(passed.slice(-ROWS_MAX).reverse());
    const hidden = passed.length - Math.min(passed.length, ROWS_MAX);
    const parts = [t('eventsReceived', { count: format.count(received) })];
    if (this.isPaused) parts.push(t('eventsMeanwhile', { count: format.count(received - this.pausedAt) }));
    if (passed.length < held.length) parts.push(t('eventsFiltered', { count: format.count(held.length - passed.length) }));
    if (hidden > 0) parts.push(t('eventsHidden', { count: format.count(hidden), rows: ROWS_MAX }));
    if (dropped > 0) parts.push(t('eventsDropped', { count: format.count(dropped), most: format.count(EVENTS_MAX) }));
    setText(this.counts, parts.join(' '));
  }

  close() {
    clearInterval(this.timer);
    this.watcher?.stop();
  }
}

function preview(event) {
  const shown = event.value.subarray(0, PREVIEW_BYTES);
  const text = escapeBytes(shown);
  return event.valueBytes > shown.length ? `${text}…` : text;
}
