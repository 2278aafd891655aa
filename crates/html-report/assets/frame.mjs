// What all charts have: a size, an x axis, a cursor that the pointer and the keys move, and a part that is chosen by dragging. What is
// drawn in it is the affair of those who extend it; texts are the caller's.

import { replace, svg } from './dom.mjs';

export const MARGIN = { top: 8, right: 4, bottom: 18, left: 4 };
/** A shorter drag is a click. */
const DRAG_PX_MIN = 6;

export function isKnown(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

/**
 * `ticks(from, to, width)` returns the texts below the x axis, each `{ at, text, anchor }`. `onMove(at)` is told at which stop the cursor
 * is, or `null`. `onSelect(from, to)` is told which part was dragged over; without it nothing can be.
 *
 * Who extends it has `stops()`, the number of places for the cursor; `range()`, the first and the last x; `body()`, the elements;
 * `nearest(x, y)`, the stop at a place; and `xOf(at)`, where a stop is.
 */
export class Frame {
  constructor({ height, ticks, onMove = () => {}, onSelect = null }) {
    Object.assign(this, { height, ticks, onMove, onSelect, width: 0, cursor: null, view: null, shades: [], marks: [], dragged: null });
    this.element = svg('svg', { class: onSelect ? 'plot zooms' : 'plot', role: 'img', tabindex: '0' });
    const listen = (name, hear) => this.element.addEventListener(name, hear);
    listen('pointermove', (event) => (this.dragged === null ? this.point(event) : this.drag(event)));
    listen('pointerleave', () => this.moveTo(null));
    listen('blur', () => this.moveTo(null));
    listen('keydown', (event) => this.key(event));
    listen('pointerdown', (event) => {
      if (onSelect && event.button === 0 && this.stops() > 0) this.dragged = this.place(event).x;
    });
    listen('pointerup', (event) => this.drop(event));
    listen('pointercancel', () => this.endDrag());
    this.observer = new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.draw();
    });
  }

  /** Is as wide as this element from now on. */
  fit(box) {
    this.observer.observe(box);
  }

  close() {
    this.observer.disconnect();
  }

  draw() {
    if (this.stops() === 0 || this.width <= 0) return;
    const { width } = this;
    const [from, to] = this.view ?? this.range();
    Object.assign(this, { from, to });
    const inner = width - MARGIN.left - MARGIN.right;
    this.x = (value) => MARGIN.left + (inner * (value - from)) / (to - from || 1);
    const body = this.body();
    const bottom = this.height - MARGIN.bottom;
    const across = (value, kind) => svg('line', { class: kind, x1: this.x(value), x2: this.x(value), y1: MARGIN.top, y2: bottom });
    this.mark = svg('line', { class: 'cursor', y1: MARGIN.top, y2: bottom, x1: -9, x2: -9 });
    this.chosen = svg('rect', { class: 'chosen', y: MARGIN.top, height: bottom - MARGIN.top, width: 0 });
    this.element.setAttribute('width', width);
    this.element.setAttribute('height', this.height);
    this.element.setAttribute('viewBox', `0 0 ${width} ${this.height}`);
    replace(this.element,
      this.shades.map((shade) => svg('rect', { class: 'shade', x: this.x(shade.from), y: MARGIN.top, width: Math.max(1, this.x(shade.to) - this.x(shade.from)), height: bottom - MARGIN.top })),
      body,
      this.ticks(from, to, width).map(({ at, text, anchor }) => svg('text', { class: `tick ${anchor}`, x: this.x(at), y: this.height - 4 }, text)),
      this.marks.map((at) => across(at, 'mark')), this.chosen, this.mark);
    this.moveTo(this.cursor);
  }

  moveTo(at) {
    this.cursor = at !== null && at < this.stops() ? at : null;
    if (this.mark) {
      const x = this.cursor === null ? -9 : this.x(this.xOf(this.cursor));
      this.mark.setAttribute('x1', x);
      this.mark.setAttribute('x2', x);
    }
    this.onMove(this.cursor);
  }

  /** A place in the chart; events of a part of it count from the part. */
  place(event) {
    const box = this.element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  point(event) {
    if (this.stops() === 0 || !this.x) return;
    const { x, y } = this.place(event);
    this.moveTo(this.nearest(x, y));
  }

  key(event) {
    const end = this.stops() - 1;
    const at = this.cursor ?? end;
    const to = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(end, at + 1), Home: 0, End: end, Escape: null }[event.key];
    if (to === undefined || end < 0) return;
    event.preventDefault();
    this.moveTo(to);
  }

  drag(event) {
    const { x } = this.place(event);
    if (!this.chosen) return;
    this.chosen.setAttribute('x', Math.min(x, this.dragged));
    this.chosen.setAttribute('width', Math.abs(x - this.dragged));
    if (Math.abs(x - this.dragged) >= DRAG_PX_MIN) this.element.setPointerCapture(event.pointerId);
  }

  drop(event) {
    if (this.dragged === null) return;
    const [x, begun] = [this.place(event).x, this.dragged];
    this.endDrag();
    if (Math.abs(x - begun) < DRAG_PX_MIN) return;
    const share = (px) => Math.min(1, Math.max(0, (px - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right)));
    const value = (px) => this.from + share(px) * (this.to - this.from);
    this.onSelect(value(Math.min(x, begun)), value(Math.max(x, begun)));
  }

  endDrag() {
    this.dragged = null;
    this.chosen?.setAttribute('width', 0);
  }
}
