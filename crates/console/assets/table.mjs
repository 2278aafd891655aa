// Tables that keep their rows when figures change, so that focus and selection stay, and that can be walked with the arrow keys.

import { h, replace, setText } from './dom.mjs';

/**
 * A table. A column is `{ label, cell(row), number, wide, sign(row) }`: `cell` returns a text, or an element, which is made again only when
 * what `sign` returns has changed. `keyOf` names a row. `caption` is read out, and not shown. On a phone each row is a list of its cells,
 * unless the table `isNarrow`; roles are spelled out, as browsers forget them then.
 */
export class Table {
  constructor({ caption, columns, keyOf, empty, open = null, isNarrow = false }) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.open = open;
    this.rows = new Map();
    this.head = h('tr', { role: 'row' }, columns.map((column) => h('th', { scope: 'col', role: 'columnheader', class: column.number ? 'number' : null }, column.label)));
    this.body = h('tbody', { role: 'rowgroup' });
    this.empty = h('p', { class: 'empty', hidden: true }, empty ?? '');
    this.element = h(
      'div',
      { class: isNarrow ? 'table-area' : 'table-area stacks' },
      h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
        h('table', { role: 'table' }, h('caption', { class: 'unseen' }, caption), h('thead', { role: 'rowgroup' }, this.head), this.body)),
      this.empty,
    );
    this.body.addEventListener('keydown', (event) => this.walk(event));
    this.body.addEventListener('focusin', (event) => this.enter(event.target));
  }

  setEmpty(text) {
    setText(this.empty, text);
  }

  update(rows) {
    const seen = new Set();
    let before = null;
    for (const row of rows) {
      const key = this.keyOf(row);
      seen.add(key);
      const held = this.rows.get(key) ?? this.make(key);
      held.row = row;
      this.fill(held);
      const place = before ? before.nextSibling : this.body.firstChild;
      if (place !== held.element) this.body.insertBefore(held.element, place);
      before = held.element;
    }
    for (const [key, held] of this.rows) {
      if (seen.has(key)) continue;
      held.element.remove();
      this.rows.delete(key);
    }
    this.empty.hidden = rows.length > 0;
    this.element.firstChild.hidden = rows.length === 0;
    this.enter(null);
  }

  make(key) {
    const cells = this.columns.map((column) => h('td', { role: 'cell', class: [column.number && 'number', column.wide && 'wide'].filter(Boolean).join(' ') || null, 'data-label': column.label }));
    const element = h('tr', { role: 'row' }, cells);
    const held = { element, cells, signs: [], row: null };
    if (this.open) {
      element.classList.add('opens');
      element.addEventListener('click', (event) => {
        if (!event.target.closest('a, button, input, select, label') && String(getSelection()) === '') this.open(held.row);
      });
    }
    this.rows.set(key, held);
    return held;
  }

  fill(held) {
    this.columns.forEach((column, at) => {
      const sign = column.sign?.(held.row);
      if (sign !== undefined && held.signs[at] === sign) return;
      const content = column.cell(held.row);
      if (content instanceof Node || Array.isArray(content)) replace(held.cells[at], content);
      else setText(held.cells[at], content ?? '');
      held.signs[at] = sign;
    });
  }

  /** What of a row takes the focus: its first control, or else the row. */
  stop(element) {
    return element.querySelector('[data-walk], a, button') ?? element;
  }

  /** Moves the one place in the table that the tab key stops at. */
  enter(target) {
    const rows = [...this.body.children];
    const current = rows.find((row) => target && row.contains(target)) ?? rows.find((row) => row.dataset.current !== undefined) ?? rows[0];
    for (const row of rows) {
      if (row === current) row.dataset.current = '';
      else delete row.dataset.current;
      const stop = this.stop(row);
      if (stop === row) row.tabIndex = row === current ? 0 : -1;
      else if (row.hasAttribute('tabindex')) row.removeAttribute('tabindex');
    }
  }

  walk(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches('input, select, textarea')) return;
    const rows = [...this.body.children];
    const at = rows.findIndex((row) => row.contains(event.target));
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1, PageDown: at + 10, PageUp: at - 10 };
    if (event.key in moves && at >= 0) {
      event.preventDefault();
      const next = rows[Math.min(rows.length - 1, Math.max(0, moves[event.key]))];
      this.stop(next).focus();
    } else if (event.key === 'Enter' && this.open && event.target === rows[at]) {
      event.preventDefault();
      this.open([...this.rows.values()].find((held) => held.element === rows[at]).row);
    }
  }
}
