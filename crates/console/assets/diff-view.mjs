// A difference of two texts as it is drawn.

import { h } from './dom.mjs';
import * as format from './format.mjs';
import { t } from './texts.mjs';

const LINES_MAX = 400;

/** Steps of a difference as lines. Signs stand before each line, so that colour is not needed. */
export function differenceView(steps) {
  if (steps.every(([kind]) => kind === 'skipped')) return h('p', { class: 'note' }, t('sameValue'));
  const sign = { plus: '+ ', minus: '− ', same: '  ' };
  const rows = steps.slice(0, LINES_MAX).map(([kind, line]) => h('div', { class: kind },
    kind === 'skipped' ? t('sameLines', { count: format.count(line) }) : [
      h('span', { 'aria-hidden': 'true' }, sign[kind]),
      kind !== 'same' && h('span', { class: 'unseen' }, t(`line_${kind}`)),
      line.length > 2000 ? `${line.slice(0, 2000)}…` : line,
    ]));
  if (steps.length > LINES_MAX) rows.push(h('div', { class: 'skipped' }, t('moreLines', { count: format.count(steps.length - LINES_MAX) })));
  return h('div', { class: 'diff mono', tabindex: '0', role: 'region', 'aria-label': t('difference'), dir: 'ltr' }, rows);
}
