// Draws the charts of a report: each from the table beside it, which is what readers without scripts see.

import { h, setText } from './dom.mjs';
import { isKnown } from './frame.mjs';
import { Lanes } from './lanes.mjs';
import { Plot } from './plot.mjs';

const GAP = '\u00a0';
const NONE = '–';
const TICK_PX = 84;
const PERCENT_PX = 52;
/** Steps between two texts of an axis of seconds. */
const STEPS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400];
/** Times of a longer run are written as those of a clock. */
const CLOCK_FROM_S = 120;
const PERCENTS = [0, 50, 90, 99, 99.9, 99.99, 99.999, 99.9999];

const digits = new Intl.NumberFormat('en', { maximumSignificantDigits: 4 });

function number(text) {
  const value = Number.parseFloat(text);
  return Number.isFinite(value) ? value : null;
}

/** A time since the beginning, as one of an axis that ends at `end`. */
function clock(seconds, step, end) {
  if (end < CLOCK_FROM_S) return `${digits.format(seconds)}${GAP}s`;
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, (seconds % 60).toFixed(step < 1 ? 1 : 0)];
  const two = (text) => String(text).padStart(step < 1 && text === rest ? 4 : 2, '0');
  return hours > 0 ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Texts below the axis; the first and the last do not leave it. */
function anchored(places, from, to, width) {
  const edge = ((to - from) / width) * 24;
  return places.map(({ at, text }) => ({ at, text, anchor: at < from + edge ? 'start' : at > to - edge ? 'end' : 'middle' }));
}

const AXES = {
  seconds: {
    place: (value) => value,
    ticks: (from, to, width) => {
      const step = STEPS_S.find((each) => (to - from) / each <= width / TICK_PX) ?? 172800;
      const first = Math.ceil(from / step - 1e-6);
      const places = Array.from({ length: Math.max(0, Math.floor(to / step + 1e-6) - first + 1) }, (_, at) => (first + at) * step);
      return anchored(places.map((at) => ({ at, text: clock(at, step, to) })), from, to, width);
    },
  },
  // By nines: each tenth of what is left has the same width.
  percent: {
    place: (value) => -Math.log10(Math.max(1 - value / 100, 1e-9)),
    ticks: (from, to, width) => {
      const places = PERCENTS.map((percent) => ({ at: AXES.percent.place(percent), text: `${percent}${GAP}%` }));
      const pxOf = (at) => ((at - from) / (to - from)) * width;
      const kept = [];
      for (const place of places.filter(({ at }) => at >= from && at <= to)) {
        if (kept.length === 0 || pxOf(place.at) - pxOf(kept.at(-1).at) >= PERCENT_PX) kept.push(place);
      }
      return anchored(kept, from, to, width);
    },
  },
};

const zoomed = [];
const wholes = [];

/** Shows this part in all charts over the same time; `null`: all that any of them has. */
function zoom(view) {
  const ranges = zoomed.filter((frame) => frame.stops() > 0).map((frame) => frame.range());
  const whole = [Math.min(...ranges.map(([from]) => from)), Math.max(...ranges.map(([, to]) => to))];
  for (const frame of zoomed) {
    frame.view = view ?? whole;
    frame.draw();
  }
  for (const button of wholes) button.hidden = view === null;
}

function finish(figure, frame) {
  if (figure.dataset.zooms !== undefined) {
    zoomed.push(frame);
    const button = h('button', { type: 'button', class: 'quiet', hidden: true, onclick: () => zoom(null) }, 'Whole run');
    wholes.push(button);
    figure.querySelector('figcaption').append(button);
  }
  const table = figure.querySelector('details');
  table.open = false;
  frame.fit(figure);
  return table;
}

/** What dragging does, where it does something. */
function selection(figure) {
  return figure.dataset.zooms === undefined ? null : (from, to) => zoom([from, to]);
}

function title(figure) {
  return figure.querySelector('figcaption b').textContent;
}

function drawLines(figure) {
  const { unit, scale, axis } = figure.dataset;
  const table = figure.querySelector('table');
  const heads = [...table.tHead.rows[0].cells].slice(1);
  const rows = [...table.tBodies[0].rows];
  const xs = rows.map((row) => AXES[axis].place(number(row.cells[0].textContent)));
  const lines = heads.map((head, at) => ({
    name: head.textContent, colour: Number(head.dataset.colour), values: rows.map((row) => number(row.cells[at + 1].textContent)),
  }));
  const format = (value) => `${digits.format(value)}${GAP}${unit}`;
  const readout = h('p', { class: 'readout' });
  const plot = new Plot({
    format, none: NONE, isLog: scale === 'log', ticks: AXES[axis].ticks, onSelect: selection(figure),
    onMove: (at) => setText(readout, at === null ? '' : rows[at].cells[0].textContent),
  });
  if (figure.dataset.zooms !== undefined) Object.assign(plot, { shades, marks });
  const said = lines.filter((line) => line.values.some(isKnown)).map((line) => {
    const known = line.values.filter(isKnown);
    return `${line.name}: from ${format(Math.min(...known))} to ${format(Math.max(...known))}.`;
  });
  plot.element.setAttribute('aria-label', `${title(figure)}. ${said.join(' ')}`);
  const place = finish(figure, plot);
  place.before(plot.element, readout, plot.legend);
  plot.update(xs, lines);
}

function spansOf(table) {
  return [...table.tBodies[0].rows].map((row) => {
    const [lane, what, from, to, detail] = [...row.cells].map((cell) => cell.textContent);
    const { tone, kind, also, shades: isShade } = row.dataset;
    return { lane, tone, kind: kind ?? what, label: kind ? what : '', what, from: number(from), to: number(to), detail, also: also ? also.split(' ') : [], isShade: isShade !== undefined };
  });
}

function drawLanes(figure) {
  const spans = spansOf(figure.querySelector('table'));
  const end = Number(figure.dataset.end);
  const reading = h('p', { class: 'note reading' }, NONE);
  const told = (span) => `${span.lane}: ${span.what}, ${clock(span.from, 0.1, end)} to ${clock(span.to, 0.1, end)}${span.detail ? `: ${span.detail}` : ''}`;
  const lanes = new Lanes({
    spans, range: [0, end], ticks: AXES.seconds.ticks, onSelect: selection(figure),
    onMove: (at) => setText(reading, at === null ? NONE : told(spans[at])),
  });
  lanes.marks = marks;
  const kinds = new Map(spans.map((span) => [span.kind, span.tone]));
  const legend = h('ul', { class: 'legend' }, [...kinds].map(([kind, tone]) => h('li', {}, h('span', { class: `patch tone-${tone}` }), h('span', { class: 'name' }, kind))));
  lanes.element.setAttribute('aria-label', `${title(figure)}: ${spans.length} spans in ${lanes.names.length} lanes. The arrow keys walk through them.`);
  lanes.element.addEventListener('keydown', () => reading.setAttribute('aria-live', 'polite'));
  finish(figure, lanes).before(lanes.element, reading, legend);
}

const charts = [...document.querySelectorAll('figure[data-chart]')];
// Spans that are shaded, and times that are marked, in all charts over the same time.
const shades = charts.filter((figure) => figure.dataset.chart === 'lanes').flatMap((figure) => spansOf(figure.querySelector('table')).filter((span) => span.isShade));
const marks = [...document.querySelectorAll('tr[data-mark]')].map((row) => Number(row.dataset.mark));
for (const figure of charts) (figure.dataset.chart === 'lanes' ? drawLanes : drawLines)(figure);
zoom(null);
