// Charts of lines over time: a plot, each with a table of its figures and a summary that is read out.

import { h, newId, replace, setText } from './dom.mjs';
import { t } from './texts.mjs';
import { isKnown, span } from './format.mjs';
import { LINES_MAX, Plot } from './plot.mjs';

export { LINES_MAX };
const TABLE_ROWS = 20;
/** The least time that is shown, in ms, so that the first points are not drawn as if they were a trend. */
const SPAN_MIN = 60000;

function last(values) {
  for (let at = values.length - 1; at >= Math.max(0, values.length - 3); at -= 1) if (isKnown(values[at])) return values[at];
  return null;
}

/**
 * A chart. `format` writes a value with its unit; `missing` is shown while no line has a value. `note` says what is drawn, in a
 * line below the title. Charts that share `colours`, names to numbers, give lines of the same name the same colour.
 */
export class Chart {
  constructor({ title, note = '', format, isBytes = false, missing, colours = new Map() }) {
    this.format = format;
    this.times = [];
    this.lines = [];
    this.titleId = newId('chart');
    this.plot = new Plot({
      format, isBytes, colours, none: t('chartNone'), spanMin: SPAN_MIN, resting: (line) => last(line.values), onMove: (at) => this.tellTime(at),
      ticks: (from, to) => [{ at: from, text: t('chartAgo', { span: span((to - from) / 1000) }), anchor: 'start' }, { at: to, text: t('chartNow'), anchor: 'end' }],
    });
    this.readout = h('p', { class: 'readout', 'aria-live': 'off' });
    this.missing = h('p', { class: 'empty' }, missing);
    this.tableArea = h('div', { class: 'scroll chart-table', hidden: true, tabindex: '0', role: 'region', 'aria-label': t('chartTableOf', { title }) });
    this.toggle = h('button', { type: 'button', class: 'quiet', 'aria-expanded': 'false', 'aria-label': t('chartTableOf', { title }), onclick: () => this.toggleTable() }, t('chartTable'));
    this.title = title;
    this.element = h('figure', { class: 'chart', 'aria-labelledby': this.titleId },
      h('figcaption', {}, h('h3', { id: this.titleId }, title), this.toggle, note && h('p', { class: 'note' }, note)),
      this.missing, this.plot.element, this.readout, this.plot.legend, this.tableArea);
    this.plot.element.addEventListener('keydown', () => this.readout.setAttribute('aria-live', 'polite'));
    this.plot.fit(this.element);
  }

  close() {
    this.plot.close();
  }

  toggleTable() {
    this.tableArea.hidden = !this.tableArea.hidden;
    this.toggle.setAttribute('aria-expanded', String(!this.tableArea.hidden));
    this.drawTable();
  }

  /** `times` in ms; `lines` of `{ name, values }`, a value for each time or `null`. */
  update(times, lines) {
    this.times = times;
    this.lines = lines.filter((line) => line.values.some(isKnown)).slice(0, LINES_MAX);
    const isEmpty = this.lines.length === 0;
    this.missing.hidden = !isEmpty;
    this.plot.element.classList.toggle('hidden', isEmpty);
    this.plot.legend.hidden = isEmpty;
    this.toggle.hidden = isEmpty;
    this.plot.update(times, this.lines);
    if (!isEmpty) this.plot.element.setAttribute('aria-label', this.summary());
    this.drawTable();
  }

  summary() {
    const parts = this.lines.map((line) => {
      const known = line.values.filter(isKnown);
      const now = last(line.values);
      return t('chartLine', {
        name: line.name,
        now: now === null ? t('unknown') : this.format(now),
        least: this.format(Math.min(...known)),
        most: this.format(Math.max(...known)),
      });
    });
    return `${this.title}. ${parts.join(' ')}`;
  }

  tellTime(at) {
    setText(this.readout, at === null ? '' : t('chartAt', { span: span((this.times.at(-1) - this.times[at]) / 1000) }));
  }

  drawTable() {
    if (this.tableArea.hidden) return;
    const step = Math.max(1, Math.floor(this.times.length / TABLE_ROWS));
    const picked = this.times.map((_, at) => at).reverse().filter((_, at) => at % step === 0);
    const now = this.times.at(-1);
    replace(this.tableArea, h('table', {},
      h('caption', { class: 'unseen' }, this.title),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, t('chartAgoHead')), this.lines.map((line) => h('th', { scope: 'col', class: 'number' }, line.name)))),
      h('tbody', {}, picked.map((at) => h('tr', {}, h('th', { scope: 'row' }, span((now - this.times[at]) / 1000)),
        this.lines.map((line) => h('td', { class: 'number' }, isKnown(line.values[at]) ? this.format(line.values[at]) : t('chartNone'))))))));
  }
}
