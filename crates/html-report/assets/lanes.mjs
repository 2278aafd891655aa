// Spans of time in lanes, such as faults and states of members.

import { svg } from './dom.mjs';
import { Frame, MARGIN } from './frame.mjs';

const NAME_PX = 16;
const BAR_PX = 12;
const LABEL_PX = 17;
/** Width of a letter of a label, at most. */
const LETTER_PX = 6.6;
/** Which part of a bar's height a tone takes, from and to, so that spans of one lane are seen beside each other. */
const PARTS = { strong: [0, 0.4], warning: [0.65, 1] };

/**
 * `spans` of `{ lane, tone, label, from, to, also }`. Spans with a label are one below the other where they would cover each other;
 * those without lie in one bar. `also` has the names of the lanes in which the span is outlined.
 */
export class Lanes extends Frame {
  constructor({ spans, range, ...frame }) {
    super({ height: 0, ...frame });
    this.spans = spans;
    this.whole = range;
    this.names = [...new Set(spans.map((span) => span.lane))];
  }

  stops() {
    return this.spans.length;
  }

  range() {
    return this.whole;
  }

  body() {
    this.placed = [];
    let y = MARGIN.top;
    const lanes = this.names.map((name) => {
      const own = this.spans.filter((span) => span.lane === name);
      const top = y + NAME_PX;
      const rows = own.some((span) => span.label !== '') ? this.stack(own, top) : this.bar(own, top);
      const outlines = this.spans.filter((span) => span.also.includes(name)).map((span) => this.rect(span, 'outline', top - 1, BAR_PX + 2));
      y = top + rows.height + 4;
      return [svg('text', { class: 'lane', x: MARGIN.left, y: top - 4 }, name), rows.elements, outlines];
    });
    this.height = y + MARGIN.bottom;
    return lanes;
  }

  rect(span, kind, y, height) {
    return svg('rect', { class: kind, x: this.x(span.from), y, width: Math.max(1.5, this.x(span.to) - this.x(span.from)), height });
  }

  put(span, y, height) {
    this.placed.push({ span, y, height });
    return this.rect(span, `span tone-${span.tone}`, y, height);
  }

  bar(spans, top) {
    const elements = spans.map((span) => {
      const [begin, end] = PARTS[span.tone] ?? [0, 1];
      return this.put(span, top + begin * BAR_PX, (end - begin) * BAR_PX);
    });
    return { elements, height: BAR_PX };
  }

  /** Each span with its label behind its beginning; one without a label belongs to the one before it. */
  stack(spans, top) {
    const ends = [];
    let row = 0;
    const elements = spans.map((span) => {
      const width = span.label.length * LETTER_PX;
      const begin = Math.min(this.x(span.from), this.width - MARGIN.right - width);
      if (span.label !== '') {
        row = ends.findIndex((end) => end < begin - 4);
        if (row < 0) row = ends.length;
      }
      ends[row] = Math.max(this.x(span.to), begin + width, ends[row] ?? 0);
      const y = top + row * LABEL_PX;
      const label = span.label !== '' && svg('text', { class: 'label', x: Math.max(begin, MARGIN.left) + 4, y: y + 11 }, span.label);
      return [this.put(span, y, LABEL_PX - 3), label];
    });
    // Labels are above all bars.
    return { elements: [elements.map(([rect]) => rect), elements.map(([, label]) => label)], height: Math.max(1, ends.length) * LABEL_PX };
  }

  xOf(at) {
    return this.spans[at].from;
  }

  /** The span drawn last of those at the place, or the nearest in time. */
  nearest(x, y) {
    const isAt = ({ span, y: top, height }) => x >= this.x(span.from) - 2 && x <= this.x(span.to) + 2 && y >= top && y <= top + height;
    const found = this.placed.findLast(isAt);
    return found ? this.spans.indexOf(found.span) : this.cursor;
  }
}
