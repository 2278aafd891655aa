// Charts of lines over time, in SVG, each with a table of its figures and a summary that is read out.

import { h, newId, replace, setText, svg } from './dom.mjs';
import { t } from './texts.mjs';
import { isKnown, span } from './format.mjs';

const HEIGHT = 148;
const MARGIN = { top: 8, right: 4, bottom: 18, left: 4 };
/** Lines that have a colour of their own; a chart shows no more. */
export const LINES_MAX = 8;
const TABLE_ROWS = 20;

/** The next number of the form 1, 2 or 5 times a power of the base: the top of an axis. Sizes in bytes go by powers of two. */
function roundUp(value, isBytes) {
  if (!(value > 0)) return 1;
  if (isBytes) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value * 0.999);
}

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
    this.isBytes = isBytes;
    this.colours = colours;
    this.times = [];
    this.lines = [];
    this.cursor = null;
    this.width = 0;
    this.titleId = newId('chart');
    this.plot = svg('svg', { class: 'plot', role: 'img', tabindex: '0', height: HEIGHT });
    this.readout = h('p', { class: 'readout', 'aria-live': 'off' });
    this.legend = h('ul', { class: 'legend' });
    this.missing = h('p', { class: 'empty' }, missing);
    this.tableArea = h('div', { class: 'scroll chart-table', hidden: true, tabindex: '0', role: 'region', 'aria-label': t('chartTableOf', { title }) });
    this.toggle = h('button', { type: 'button', class: 'quiet', 'aria-expanded': 'false', 'aria-label': t('chartTableOf', { title }), onclick: () => this.toggleTable() }, t('chartTable'));
    this.title = title;
    this.element = h('figure', { class: 'chart', 'aria-labelledby': this.titleId },
      h('figcaption', {}, h('h3', { id: this.titleId }, title), this.toggle, note && h('p', { class: 'note' }, note)),
      this.missing, this.plot, this.readout, this.legend, this.tableArea);
    this.plot.addEventListener('pointermove', (event) => this.point(event.offsetX));
    this.plot.addEventListener('pointerleave', () => this.moveTo(null));
    this.plot.addEventListener('blur', () => this.moveTo(null));
    this.plot.addEventListener('keydown', (event) => this.key(event));
    this.observer = new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.draw();
    });
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
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
    this.draw();
    this.drawTable();
  }

  /** Names of lines keep the colour that they got first, whichever lines come and go. */
  colourOf(name) {
    const used = new Set(this.lines.filter((line) => line.name !== name).map((line) => this.colours.get(line.name)));
    const own = this.colours.get(name);
    // A line that was away meanwhile may find its colour taken.
    if (own === undefined || used.has(own)) this.colours.set(name, Array.from({ length: LINES_MAX }, (_, at) => at).find((at) => !used.has(at)));
    return this.colours.get(name);
  }

  draw() {
    const isEmpty = this.lines.length === 0;
    this.missing.hidden = !isEmpty;
    this.plot.classList.toggle('hidden', isEmpty);
    this.legend.hidden = isEmpty;
    this.toggle.hidden = isEmpty;
    if (isEmpty || this.width <= 0) return;
    const { times, width } = this;
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    const known = this.lines.flatMap((line) => line.values.filter(isKnown));
    const top = roundUp(Math.max(...known), this.isBytes);
    // A minute at least, so that the first points are not drawn as if they were a trend.
    const to = times.at(-1);
    const from = Math.min(times[0], to - 60000);
    this.x = (time) => MARGIN.left + (inner.width * (time - from)) / (to - from);
    this.y = (value) => MARGIN.top + inner.height * (1 - value / top);
    this.plot.setAttribute('width', width);
    this.plot.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    const grid = [0, 0.5, 1].map((share) => {
      const y = Math.round(this.y(top * share)) + 0.5;
      return [
        svg('line', { class: share === 0 ? 'axis' : 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
        // Half of one thing is none.
        (share === 1 || (share > 0 && this.format(top * share) !== this.format(top))) && svg('text', { class: 'tick', x: MARGIN.left, y: y + 12 }, this.format(top * share)),
      ];
    });
    const ago = (to - from) / 1000;
    const axis = [
      svg('text', { class: 'tick', x: MARGIN.left, y: HEIGHT - 4 }, t('chartAgo', { span: span(ago) })),
      svg('text', { class: 'tick end', x: width - MARGIN.right, y: HEIGHT - 4 }, t('chartNow')),
    ];
    const paths = this.lines.map((line) => svg('path', { class: `line colour-${this.colourOf(line.name)}`, d: this.path(line.values) }));
    this.mark = svg('line', { class: 'cursor', y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, x1: -9, x2: -9 });
    replace(this.plot, grid, axis, paths, this.mark);
    this.plot.setAttribute('aria-label', this.summary());
    this.drawLegend();
    this.moveTo(this.cursor);
  }

  path(values) {
    let out = '';
    let isOpen = false;
    values.forEach((value, at) => {
      if (!isKnown(value)) {
        isOpen = false;
        return;
      }
      const [x, y] = [this.x(this.times[at]).toFixed(1), this.y(value).toFixed(1)];
      // A point between two gaps would be a line without length.
      const isAlone = !isOpen && !isKnown(values[at + 1]);
      out += isAlone ? `M${x} ${y}h1.5` : `${isOpen ? 'L' : 'M'}${x} ${y}`;
      isOpen = true;
    });
    return out;
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

  drawLegend() {
    this.entries ??= new Map();
    const rows = this.lines.map((line) => {
      const entry = this.entries.get(line.name) ?? this.entry(line.name);
      entry.key.setAttribute('class', `key colour-${this.colourOf(line.name)}`);
      const at = this.cursor;
      const value = at === null ? last(line.values) : line.values[at];
      setText(entry.value, isKnown(value) ? this.format(value) : t('chartNone'));
      return entry.element;
    });
    if (rows.length !== this.legend.children.length || rows.some((row, at) => row !== this.legend.children[at])) replace(this.legend, rows);
  }

  entry(name) {
    const key = svg('svg', { class: 'key', width: 10, height: 10, 'aria-hidden': 'true' }, svg('path', { class: 'line', d: 'M0 5h10' }));
    const value = h('span', { class: 'reading' });
    const entry = { key, value, element: h('li', {}, key, h('span', { class: 'name' }, name), value) };
    this.entries.set(name, entry);
    return entry;
  }

  point(x) {
    if (this.lines.length === 0) return;
    let best = 0;
    this.times.forEach((time, at) => {
      if (Math.abs(this.x(time) - x) < Math.abs(this.x(this.times[best]) - x)) best = at;
    });
    this.moveTo(best);
  }

  key(event) {
    const end = this.times.length - 1;
    const at = this.cursor ?? end;
    const to = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(end, at + 1), Home: 0, End: end, Escape: null }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.readout.setAttribute('aria-live', 'polite');
    this.moveTo(to);
  }

  moveTo(at) {
    this.cursor = at !== null && at < this.times.length ? at : null;
    if (this.mark) {
      const x = this.cursor === null ? -9 : this.x(this.times[this.cursor]);
      this.mark.setAttribute('x1', x);
      this.mark.setAttribute('x2', x);
    }
    setText(this.readout, this.cursor === null ? '' : t('chartAt', { span: span((this.times.at(-1) - this.times[this.cursor]) / 1000) }));
    if (this.lines.length > 0) this.drawLegend();
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
