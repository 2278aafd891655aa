// Lines over an axis, with a legend that tells what they are and their values at the cursor.

import { h, replace, setText, svg } from './dom.mjs';
import { Frame, isKnown, MARGIN } from './frame.mjs';

const HEIGHT = 148;
/** Lines that have a colour and dashes of their own. */
export const LINES_MAX = 8;
/** A logarithmic axis with more texts has the powers of ten only. */
const LOG_TICKS_MAX = 5;
/** Height of the texts of two lines that are beside each other. */
const TICK_PX_MIN = 26;

const STEPS = [1, 2, 5, 10];

function powerBelow(value) {
  return 10 ** Math.floor(Math.log10(value));
}

/** The next number of the form 1, 2 or 5 times a power of the base: the top of an axis. Sizes in bytes go by powers of two. */
function roundUp(value, isBytes) {
  if (!(value > 0)) return 1;
  if (isBytes) return 2 ** Math.ceil(Math.log2(value));
  const power = powerBelow(value);
  return STEPS.map((each) => each * power).find((each) => each >= value * 0.999);
}

function roundDown(value) {
  const power = powerBelow(value);
  return STEPS.map((each) => each * power).findLast((each) => each <= value * 1.001);
}

/** All numbers of the form 1, 2 or 5 times a power of ten, or the powers alone. */
function logTicks(low, high) {
  const all = [];
  for (let power = powerBelow(low); power <= high; power *= 10) all.push(...STEPS.slice(0, 3).map((each) => each * power));
  const inside = all.filter((each) => each >= low * 0.999 && each <= high * 1.001);
  return inside.length <= LOG_TICKS_MAX ? inside : inside.filter((each) => Math.abs(Math.log10(each) % 1) < 1e-6);
}

/**
 * A plot: `element` and `legend`. `format` writes a value with its unit, `none` stands for a value that is not there. `resting(line)` is
 * the value that the legend has without a cursor; by default it has none. `spanMin` is the least width of the x axis. Plots that
 * share `colours`, names to numbers, give lines of the same name the same colour. What else there is, `Frame` says.
 */
export class Plot extends Frame {
  constructor({ format, none, resting = null, isBytes = false, isLog = false, spanMin = 0, colours = new Map(), ...frame }) {
    super({ height: HEIGHT, ...frame });
    Object.assign(this, { format, none, resting, isBytes, isLog, spanMin, colours, xs: [], lines: [], entries: new Map() });
    this.legend = h('ul', { class: 'legend' });
  }

  /** `xs` rise; `lines` of `{ name, values, colour }`, a value for each x or `null`. */
  update(xs, lines) {
    Object.assign(this, { xs, lines });
    this.draw();
  }

  stops() {
    return this.lines.length === 0 ? 0 : this.xs.length;
  }

  range() {
    const to = this.xs.at(-1);
    return [Math.min(this.xs[0], to - this.spanMin), to];
  }

  /** A line has the colour that it was given, or keeps the one that its name got first, whichever lines come and go, as long as it is free. */
  colourOf({ name, colour }) {
    if (colour !== undefined) return colour % LINES_MAX;
    const used = new Set(this.lines.filter((line) => line.name !== name).map((line) => this.colours.get(line.name)));
    const own = this.colours.get(name);
    // A line that was away meanwhile may find its colour taken.
    if (own === undefined || used.has(own)) this.colours.set(name, Array.from({ length: LINES_MAX }, (_, at) => at).find((at) => !used.has(at)) ?? 0);
    return this.colours.get(name);
  }

  body() {
    const isSeen = (at) => this.xs[at] >= this.from && this.xs[at] <= this.to;
    const known = this.lines.flatMap((line) => line.values.filter((value, at) => isKnown(value) && isSeen(at)));
    const inner = this.height - MARGIN.top - MARGIN.bottom;
    const place = (share) => MARGIN.top + inner * (1 - share);
    const ticks = this.isLog ? this.logAxis(known, place) : this.linearAxis(known, place);
    const at = ({ value }) => Math.round(this.y(value)) + 0.5;
    const bottom = Math.max(...ticks.map(at));
    return [
      ticks.map((tick) => svg('line', { class: tick.isAxis ? 'axis' : 'grid', x1: MARGIN.left, x2: this.width - MARGIN.right, y1: at(tick), y2: at(tick) })),
      this.lines.map((line) => svg('path', { class: `line colour-${this.colourOf(line)}`, d: this.path(line.values) })),
      // A text is below its line; that of the axis is above it, and takes the place of one that is too near.
      ticks.filter((tick) => tick.text && (tick.isAxis || !ticks.some((each) => each.isAxis && each.text) || bottom - at(tick) > TICK_PX_MIN))
        .map((tick) => svg('text', { class: 'tick start', x: MARGIN.left, y: tick.isAxis ? at(tick) - 3 : at(tick) + 12 }, tick.text)),
    ];
  }

  linearAxis(known, place) {
    const top = roundUp(Math.max(0, ...known), this.isBytes);
    this.y = (value) => place(value / top);
    // Zero needs no text, and half of one thing is none.
    const text = (share) => share === 1 || (share > 0 && this.format(top * share) !== this.format(top)) ? this.format(top * share) : null;
    return [0, 0.5, 1].map((share) => ({ value: top * share, isAxis: share === 0, text: text(share) }));
  }

  /** Zero has no place on it, and is drawn at the bottom. */
  logAxis(known, place) {
    const above = known.filter((value) => value > 0);
    const low = above.length > 0 ? roundDown(Math.min(...above)) : 1;
    const high = Math.max(low * 2, above.length > 0 ? roundUp(Math.max(...above), false) : 1);
    this.y = (value) => place(Math.log(Math.max(value, low) / low) / Math.log(high / low));
    const ticks = logTicks(low, high).map((value) => ({ value, isAxis: value < low * 1.001, text: this.format(value) }));
    return ticks.some((tick) => tick.isAxis) ? ticks : [{ value: low, isAxis: true, text: this.format(low) }, ...ticks];
  }

  path(values) {
    let out = '';
    let isOpen = false;
    values.forEach((value, at) => {
      if (!isKnown(value)) {
        isOpen = false;
        return;
      }
      const [x, y] = [this.x(this.xs[at]).toFixed(1), this.y(value).toFixed(1)];
      // A point between two gaps would be a line without length.
      const isAlone = !isOpen && !isKnown(values[at + 1]);
      out += isAlone ? `M${x} ${y}h1.5` : `${isOpen ? 'L' : 'M'}${x} ${y}`;
      isOpen = true;
    });
    return out;
  }

  xOf(at) {
    return this.xs[at];
  }

  nearest(x) {
    let best = 0;
    this.xs.forEach((value, at) => {
      if (Math.abs(this.x(value) - x) < Math.abs(this.x(this.xs[best]) - x)) best = at;
    });
    return best;
  }

  moveTo(at) {
    super.moveTo(at);
    if (this.lines.length > 0) this.drawLegend();
  }

  drawLegend() {
    const rows = this.lines.map((line) => {
      const entry = this.entries.get(line.name) ?? this.entry(line.name);
      entry.key.setAttribute('class', `key colour-${this.colourOf(line)}`);
      const value = this.cursor === null ? this.resting?.(line) : line.values[this.cursor];
      setText(entry.value, isKnown(value) ? this.format(value) : value === undefined ? '' : this.none);
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
}
