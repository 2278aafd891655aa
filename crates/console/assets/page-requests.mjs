// Requests: what the members are busy with, slow ones with their stages, ranges that were expensive, values that were large, clients.

import { Elsewhere, getText, serverNow } from './api.mjs';
import { cluster, SLOW_MS } from './cluster.mjs';
import { h, replace, setText, svg } from './dom.mjs';
import * as format from './format.mjs';
import { isWithheld } from './heavy.mjs';
import { HeavyView } from './heavy-view.mjs';
import { clientName, quotedKey } from './parts.mjs';
import { STAGES } from './points.mjs';
import { repeat } from './rounds.mjs';
import { readRequests } from './slow-requests.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

export const pace = SLOW_MS;
export const diagnosis = true;

const REQUESTS_EVERY_MS = 5000;
const ROWS_MAX = 100;
/** Slow requests that are shown at first, so that what is below them is seen too. */
const SLOW_SHOWN = 15;
/** Colours of stages: those of one request, a write or a read, are all different. */
const COLOURS = {
  front: 7, auth: 4, queue: 1, read_index: 5, apply_wait: 4, append: 2, fsync: 0, replicate: 3, apply: 4, index: 0, values: 2, encode: 3, range: 6, answer: 6,
};
const colourOf = (stage) => COLOURS[stage];

export function open(place) {
  const page = new RequestsPage(place);
  const update = () => page.update();
  cluster.addEventListener('update', update);
  const rounds = repeat(() => page.load(), REQUESTS_EVERY_MS);
  cluster.addEventListener('members', rounds.now);
  page.update();
  return {
    close() {
      rounds.stop();
      cluster.removeEventListener('update', update);
      cluster.removeEventListener('members', rounds.now);
    },
  };
}

function isGone(error) {
  return error.isUnreachable || error instanceof Elsewhere;
}

/** How long ago a moment of a member was, by the server's clock and the member's difference from it. */
function ago(member, ms) {
  const now = serverNow();
  if (now === null || !Number.isFinite(ms)) return t('unknown');
  const seconds = (now + (member.diagnosis?.clockOffMs ?? 0) - ms) / 1000;
  return seconds < -5 ? t('unknown') : t('agoOf', { span: format.span(Math.max(0, seconds)) });
}

function list(values, text) {
  return values.length === 0 ? '' : text(values.join(', '));
}

class RequestsPage {
  constructor(place) {
    this.requests = [];
    this.shown = SLOW_SHOWN;
    this.more = h('button', { type: 'button', hidden: true, onclick: () => {
      this.shown = ROWS_MAX;
      this.drawSlow();
    } }, t('more'));
    this.load = this.load.bind(this);
    this.note = h('p', { class: 'note', role: 'status' });
    this.key = h('p', { class: 'stage-list', 'aria-hidden': 'true' });
    this.slow = new Table({
      caption: t('slowRequests'),
      keyOf: (row) => `${row.member.name} ${row.id}`,
      empty: t('looking'),
      columns: [
        { label: t('when'), number: true, cell: (row) => ago(row.member, row.endedMs) },
        { label: t('member'), cell: (row) => row.member.name },
        { label: t('method'), wide: true, sign: () => '', cell: (row) => [h('div', {}, row.method), row.content && h('div', { class: 'preview', dir: 'ltr' }, row.content.slice(0, 300)), row.error && h('div', { class: 'problem' }, row.error)] },
        { label: t('client'), sign: (row) => row.client, cell: (row) => h('bdi', {}, clientName(row.client)) },
        { label: t('took'), number: true, cell: (row) => format.seconds(row.seconds) },
        { label: t('stages'), wide: true, sign: (row) => String(this.longest), cell: (row) => stagesBar(row, this.longest) },
      ],
    });
    const perMember = (name, columns) => new Table({ caption: t(name), keyOf: (row) => `${row.member.name} ${row.key ?? row.address} ${row.range_end ?? ''} ${row.client ?? ''}`, empty: t('looking'), columns });
    const keyColumn = (label, value, to) => ({ label, wide: true, sign: () => '', cell: (row) => quotedKey(value(row) ?? '', to) });
    const clientColumn = { label: t('client'), sign: (row) => row.client, cell: (row) => h('bdi', {}, clientName(row.client)) };
    this.heavy = new HeavyView();
    this.ranges = perMember('expensiveRanges', [
      { label: t('member'), cell: (row) => row.member.name },
      keyColumn(t('fromKey'), (row) => row.key, 'prefix'),
      keyColumn(t('toKey'), (row) => row.range_end),
      clientColumn,
      { label: t('times'), number: true, cell: (row) => format.count(row.count) },
      { label: t('keysMax'), number: true, cell: (row) => t('keyCount', { count: format.count(row.keys_max) }) },
      { label: t('bytesTotal'), number: true, cell: (row) => format.bytes(row.bytes_total) },
      { label: t('longest'), number: true, cell: (row) => format.seconds(row.seconds_max) },
      { label: t('when'), number: true, cell: (row) => ago(row.member, row.last_unix_ms) },
    ]);
    this.values = perMember('largeValues', [
      { label: t('member'), cell: (row) => row.member.name },
      keyColumn(t('key'), (row) => row.key, 'key'),
      clientColumn,
      { label: t('size'), number: true, cell: (row) => format.bytes(row.bytes) },
      { label: t('when'), number: true, cell: (row) => ago(row.member, row.last_unix_ms) },
    ]);
    this.clients = perMember('heavyClients', [
      { label: t('client'), sign: (row) => row.address, cell: (row) => h('bdi', {}, clientName(row.address)) },
      { label: t('member'), cell: (row) => row.member.name },
      { label: t('requests'), number: true, cell: (row) => format.count(row.requests) },
      { label: t('connections'), number: true, cell: (row) => format.count(row.connections) },
      { label: t('watches'), number: true, cell: (row) => format.count(row.watches) },
      { label: t('watchesBehind'), number: true, sign: (row) => String(row.slow_watches), cell: (row) => watchesBehind(row) },
      { label: t('leasesHeld'), number: true, cell: (row) => format.count(row.leases) },
      { label: t('logins'), number: true, cell: (row) => format.count(row.authentications) },
    ]);
    const section = (name, table, ...before) => h('section', { 'aria-labelledby': `${name}-title` }, h('h2', { id: `${name}-title` }, t(name)), before, table.element);
    this.slow.element.append(this.more);
    place.append(this.note, this.heavy.element, section('slowRequests', this.slow, h('p', { class: 'note' }, t('slowNote')), this.key),
      section('expensiveRanges', this.ranges, h('p', { class: 'note' }, t('expensiveNote'))), section('largeValues', this.values), section('heavyClients', this.clients, h('p', { class: 'note' }, t('clientsNote'))));
  }

  async load() {
    const answers = await Promise.all(cluster.members.map(async (member) => {
      // Who does not answer is asked by the cluster's polls, and by nobody else.
      if (member.isUp === false) return { member, error: member.error };
      try {
        return { member, requests: readRequests(await getText(member.endpoint, 'debug/requests', { quiet: true })) };
      } catch (error) {
        return { member, error };
      }
    }));
    const untold = answers.filter(({ error }) => error && !isGone(error)).map(({ member }) => member.name);
    const gone = answers.filter(({ error }) => error && isGone(error)).map(({ member }) => member.name);
    setText(this.note, [list(untold, (names) => t('membersNotTelling', { names })), list(gone, (names) => t('membersGone', { names }))].filter(Boolean).join(' '));
    this.requests = answers.flatMap(({ member, requests = [] }) => requests.map((request) => ({ ...request, member })))
      .sort((a, b) => b.seconds - a.seconds).slice(0, ROWS_MAX);
    this.longest = Math.max(0, ...this.requests.map((request) => request.seconds));
    this.slow.setEmpty(t(cluster.members.length === 0 ? 'looking' : 'noSlowRequests'));
    this.drawSlow();
    this.drawKey();
  }

  drawSlow() {
    this.slow.update(this.requests.slice(0, this.shown));
    this.more.hidden = this.requests.length <= this.shown;
  }

  drawKey() {
    const seen = STAGES.filter((stage) => this.requests.some((request) => request.stages.some((each) => each.name === stage)));
    replace(this.key, seen.map((stage) => h('span', {}, svg('svg', { class: `swatch colour-${colourOf(stage)}`, width: 10, height: 10 }, svg('rect', { width: 10, height: 10 })), t(`stage_${stage}`))));
  }

  update() {
    const rows = (name) => cluster.members.flatMap((member) => (member.isUp && member.diagnosis?.[name] ? member.diagnosis[name].map((row) => ({ ...row, member })) : []));
    const isAsked = cluster.members.length > 0 && cluster.members.every((member) => member.isUp !== null);
    const isTold = cluster.members.some((member) => member.diagnosis);
    const isKept = cluster.members.some((member) => member.isUp && isWithheld(member));
    for (const table of [this.ranges, this.values, this.clients]) {
      table.setEmpty(t(!isAsked ? 'looking' : !isTold ? 'nothingTold' : isKept && table !== this.clients ? 'withheld' : 'nothingSeen'));
    }
    this.heavy.update();
    this.ranges.update(rows('expensive_ranges').sort((a, b) => b.bytes_total - a.bytes_total).slice(0, ROWS_MAX));
    this.values.update(rows('large_values').sort((a, b) => b.bytes - a.bytes).slice(0, ROWS_MAX));
    const behind = (row) => row.slow_watches ?? 0;
    this.clients.update(rows('clients').sort((a, b) => behind(b) - behind(a) || b.requests - a.requests).slice(0, ROWS_MAX));
    if (this.requests.length > 0) this.drawSlow();
  }
}

function watchesBehind(row) {
  if (row.slow_watches === undefined) return t('chartNone');
  return row.slow_watches > 0 ? h('span', { class: 'state warning' }, format.count(row.slow_watches)) : format.count(0);
}

/** The stages of a request side by side, as long as the request was beside the longest one. */
function stagesBar(row, longest) {
  if (row.stages.length === 0) return t('stagesNotTold');
  const text = row.stages.map((stage) => `${t(`stage_${stage.name}`)} ${format.seconds(stage.seconds)}`);
  let at = 0;
  const rects = row.stages.map((stage) => {
    const share = (100 * stage.seconds) / longest;
    const rect = svg('rect', { class: `colour-${colourOf(stage.name)}`, x: `${at}%`, width: `${share}%`, y: 0, height: '100%' }, svg('title', {}, `${t(`stage_${stage.name}`)} ${format.seconds(stage.seconds)}`));
    at += share;
    return rect;
  });
  const greatest = [...row.stages].sort((a, b) => b.seconds - a.seconds).slice(0, 3);
  return [
    svg('svg', { class: 'stages', role: 'img', 'aria-label': text.join(', ') }, rects),
    h('div', { class: 'stage-list', 'aria-hidden': 'true' }, greatest.map((stage) => h('span', {}, `${t(`stage_${stage.name}`)} ${format.seconds(stage.seconds)}`))),
  ];
}
