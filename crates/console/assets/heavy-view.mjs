// The tables of what the members are busy with: prefixes, users and clients, by requests, bytes or time.

import { cluster } from './cluster.mjs';
import { h, replace, setText } from './dom.mjs';
import * as format from './format.mjs';
import { AMOUNT, heaviest, MEASURES, silentMembers, SUBJECTS } from './heavy.mjs';
import { clientName, quotedKey } from './parts.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

/** Rows of a table that are shown at first. */
const SHOWN = 5;
const SHOWN_MAX = 100;
/** A smaller share that may be others' is not worth a word. */
const ERROR_SHARE = 0.01;

function nameOf(row) {
  if (row.subject === 'prefix') return quotedKey(row.name, 'prefix');
  return h('bdi', {}, row.subject === 'client' ? clientName(row.name) : row.name);
}

function amount(row, measure) {
  const told = row[measure];
  if (!told) return t('chartNone');
  const text = AMOUNT[measure](told.amount);
  return told.error > ERROR_SHARE * told.amount ? [h('div', {}, text), h('div', { class: 'note' }, t('tooHighBy', { amount: AMOUNT[measure](told.error) }))] : [text];
}

export class HeavyView {
  constructor() {
    this.measure = 'requests';
    this.shown = Object.fromEntries(SUBJECTS.map((subject) => [subject, SHOWN]));
    this.tabs = h('div', { class: 'tabs', role: 'group', 'aria-label': t('orderBy') });
    this.note = h('p', { class: 'notice mild', hidden: true });
    this.untold = h('p', { class: 'note', hidden: true });
    this.parts = SUBJECTS.map((subject) => {
      const table = this.table(subject);
      const more = h('button', { type: 'button', hidden: true, 'aria-label': t('moreOf', { what: t(`heavy_${subject}`) }), onclick: () => {
        this.shown[subject] = SHOWN_MAX;
        this.update();
      } }, t('more'));
      return { subject, table, more };
    });
    this.element = h('section', { class: 'heavy', 'aria-labelledby': 'heavy-title' },
      h('div', { class: 'line-up apart' }, h('h2', { id: 'heavy-title' }, t('heavy')), this.tabs),
      h('p', { class: 'note' }, t('heavyNote')), this.note, this.untold,
      this.parts.map(({ subject, table, more }) => h('section', { 'aria-labelledby': `heavy-${subject}` }, h('h3', { id: `heavy-${subject}` }, t(`heavy_${subject}`)), table.element, more)));
    this.drawTabs();
  }

  table(subject) {
    return new Table({
      caption: t(`heavy_${subject}`),
      keyOf: (row) => row.name,
      empty: t('looking'),
      columns: [
        { label: t(`heavyName_${subject}`), wide: true, sign: () => '', cell: nameOf },
        ...MEASURES.map((measure) => ({
          label: t(`measure_${measure}`), number: true, sign: (row) => `${row[measure]?.amount} ${row[measure]?.error}`, cell: (row) => amount(row, measure),
        })),
        { label: t('atMembers'), cell: (row) => [...row.members].join(', ') },
      ],
    });
  }

  drawTabs() {
    replace(this.tabs, MEASURES.map((measure) => h('button', { type: 'button', class: 'quiet', 'aria-pressed': String(measure === this.measure), onclick: () => {
      this.measure = measure;
      this.drawTabs();
      this.tabs.querySelector('[aria-pressed="true"]').focus();
      this.update();
    } }, t(`by_${measure}`))));
  }

  update() {
    const { members } = cluster;
    const isAsked = members.length > 0 && members.every((member) => member.isUp !== null);
    const { untold, withheld } = silentMembers(members);
    const names = (list) => list.map((member) => member.name).join(', ');
    this.note.hidden = withheld.length === 0;
    setText(this.note, withheld.length === 0 ? '' : t('namesWithheld', { names: names(withheld) }));
    this.untold.hidden = !isAsked || untold.length === 0;
    setText(this.untold, untold.length === 0 ? '' : t('heavyNotTold', { names: names(untold) }));
    for (const { subject, table, more } of this.parts) {
      const rows = heaviest(members, subject, this.measure);
      const isKept = withheld.length > 0 && subject !== 'client';
      const isTold = members.some((member) => member.diagnosis?.heavy);
      table.setEmpty(t(!isAsked ? 'looking' : isKept ? 'withheld' : !isTold ? 'nothingTold' : subject === 'user' ? 'nobodyLoggedIn' : 'nothingLately'));
      table.update(rows.slice(0, this.shown[subject]));
      more.hidden = rows.length <= this.shown[subject];
    }
  }
}
