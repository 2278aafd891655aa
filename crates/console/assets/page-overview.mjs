// Overview: what is wrong and what to do, the cluster's figures, its members.

import { explain, serverNow, session } from './api.mjs';
import { cluster, FAST_MS } from './cluster.mjs';
import { h, replace, setText } from './dom.mjs';
import * as format from './format.mjs';
import { figures } from './parts.mjs';
import { certificateLeft, findProblems } from './problems.mjs';
import { KINDS, sumOf } from './points.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

export const pace = FAST_MS;
export const diagnosis = true;

/** A clock that differs more is worth a word. */
const CLOCK_OFF_MS = 30000;
/** To this the difference is rounded: answers tell the server's clock in whole seconds, and take a while. */
const CLOCK_STEP_MS = 10000;

export function open(place) {
  const clockNote = h('p', { class: 'notice mild', hidden: true });
  const problems = h('ul', { class: 'problems' });
  const count = h('p', { class: 'note', role: 'status' });
  const facts = figures(['members', 'leader', 'revision', 'keys', 'requests', 'disk', 'memory', 'clusterId'], { large: true });
  const table = membersTable();
  place.append(
    clockNote,
    h('section', { 'aria-labelledby': 'problems-title' }, h('div', { class: 'line-up apart' }, h('h2', { id: 'problems-title' }, t('problems')), count), problems),
    h('section', { 'aria-labelledby': 'figures-title' }, h('h2', { id: 'figures-title' }, t('clusterTitle')), facts.element),
    h('section', { 'aria-labelledby': 'members-title' }, h('h2', { id: 'members-title' }, t('page_members')), table.element),
  );

  function update() {
    const now = serverNow();
    showClock(clockNote, now);
    showProblems(problems, count, now);
    showFigures(facts);
    table.update(cluster.members);
  }
  cluster.addEventListener('update', update);
  cluster.addEventListener('members', update);
  update();
  return {
    close() {
      cluster.removeEventListener('update', update);
      cluster.removeEventListener('members', update);
    },
  };
}

function showClock(note, now) {
  const off = now === null ? null : Date.now() - now;
  note.hidden = off === null || Math.abs(off) < CLOCK_OFF_MS;
  if (note.hidden) return;
  const span = format.span((Math.round(Math.abs(off) / CLOCK_STEP_MS) * CLOCK_STEP_MS) / 1000);
  setText(note, t(off > 0 ? 'browserAhead' : 'browserBehind', { span }));
}

/** The problems that are drawn, by their titles: their elements stay while figures change, so that a link keeps its focus. */
const drawn = new WeakMap();

function showProblems(list, count, now) {
  const held = drawn.get(list) ?? new Map();
  drawn.set(list, held);
  const isKnown = cluster.members.length > 0 && cluster.members.every((member) => member.isUp !== null);
  if (!isKnown) {
    setText(count, t('membersAsked'));
    held.clear();
    replace(list);
    return;
  }
  const found = findProblems({ members: cluster.members, foreign: cluster.foreign, times: cluster.times, now });
  setText(count, found.length === 0 ? '' : t('problemCount', { count: found.length }));
  const items = found.map((problem) => {
    const key = `${problem.level} ${problem.title}`;
    const item = held.get(key) ?? problemItem(problem);
    held.set(key, item);
    const facts = problem.facts.join('\n');
    if (item.facts.dataset.sign !== facts) replace(item.facts, problem.facts.map((fact) => h('p', { class: 'facts-line' }, fact)));
    item.facts.dataset.sign = facts;
    return item.element;
  });
  for (const [key, { element }] of held) if (!items.includes(element)) held.delete(key);
  if (items.length === 0 && list.querySelector('.good')) return;
  if (items.length === 0) items.push(h('li', {}, h('span', { class: 'state good' }, t('levelGood')), h('p', { class: 'what' }, t('noProblems'))));
  if (items.length !== list.children.length || items.some((item, at) => item !== list.children[at])) place(list, items);
}

/** Brings a list to these items without taking those out that stay. */
function place(list, items) {
  for (const child of [...list.children]) if (!items.includes(child)) child.remove();
  items.forEach((item, at) => {
    if (list.children[at] !== item) list.insertBefore(item, list.children[at] ?? null);
  });
}

function problemItem({ level, title, rule, remedy, page }) {
  const facts = h('div', {});
  const element = h('li', {},
    h('span', { class: `state ${level}` }, t(`level_${level}`)),
    h('div', {},
      h('p', { class: 'what' }, title, rule && [' ', h('code', { class: 'rule', title: t('ruleName') }, rule)]),
      facts,
      h('p', {}, remedy, ' ', h('a', { href: `#/${page}`, 'aria-label': t('seePageFor', { page: t(`page_${page}`), problem: title }) }, t('seePage', { page: t(`page_${page}`) })))));
  return { element, facts };
}

function greatest(values) {
  const known = values.filter(format.isKnown);
  return known.length === 0 ? null : Math.max(...known);
}

function showFigures(facts) {
  const up = cluster.members.filter((member) => member.isUp);
  const sum = sumOf(up.map((member) => member.point));
  const rates = sum ? KINDS.map((kind) => sum.rates[kind]).filter(format.isKnown) : [];
  const isTold = up.length > 0;
  const told = (value, text) => (value === null || value === undefined ? t(isTold ? 'notTold' : 'unknown') : text(value));
  const status = up.find((member) => member.status)?.status;
  facts.set('members', cluster.members.length === 0 ? t('unknown') : t('membersOf', { up: up.length, all: cluster.members.length }));
  const isLeaderTold = up.some((member) => member.status || member.sample?.has('etcd_server_has_leader'));
  facts.set('leader', cluster.leader?.name ?? t(isLeaderTold ? 'noLeader' : isTold ? 'notTold' : 'unknown'));
  facts.set('revision', told(greatest(up.map((member) => Number(member.status?.header?.revision ?? NaN))), format.count));
  facts.set('keys', told(greatest(up.map((member) => member.sample?.sum('etcd_debugging_mvcc_keys_total') ?? null)), format.count));
  facts.set('requests', rates.length === 0 ? t('measuring') : format.rate(rates.reduce((all, each) => all + each, 0)));
  facts.set('disk', told(greatest(up.map((member) => member.point?.disk ?? null)), format.bytes));
  facts.set('memory', told(greatest(up.map((member) => member.point?.memory ?? null)), format.bytes));
  facts.set('clusterId', status?.header?.cluster_id ? BigInt(status.header.cluster_id).toString(16) : t('unknown'));
}

function membersTable() {
  const told = (member, value, text) => (!member.isUp ? t('chartNone') : value === null || value === undefined ? t('notToldShort') : text(value));
  return new Table({
    caption: t('page_members'),
    keyOf: (member) => `${member.id} ${member.endpoint.url}`,
    empty: t('membersAsked'),
    columns: [
      { label: t('member'), sign: (m) => `${m.name} ${m.zone}`, cell: (m) => h('div', {}, h('bdi', {}, m.name), m.zone !== '' && h('div', { class: 'note' }, t('zoneOf', { zone: m.zone }))) },
      { label: t('state'), sign: (m) => stateOf(m).join(), cell: (m) => state(m) },
      { label: t('role'), cell: (m) => role(m) },
      { label: t('version'), cell: (m) => told(m, m.status?.version, (version) => version) },
      { label: t('raftTerm'), number: true, cell: (m) => told(m, m.status, (status) => format.count(Number(status.raftTerm ?? 0))) },
      { label: t('raftIndex'), number: true, cell: (m) => told(m, m.status, (status) => format.count(Number(status.raftIndex ?? 0))) },
      { label: t('applyLag'), number: true, cell: (m) => told(m, m.applyLag, (lag) => t('entries', { count: format.count(lag) })) },
      { label: t('dbSize'), number: true, cell: (m) => told(m, m.status ? Number(m.status.dbSize ?? 0) : (m.point?.disk ?? null), format.bytes) },
      { label: t('memory'), number: true, cell: (m) => told(m, m.sample?.sum('process_resident_memory_bytes') ?? null, format.bytes) },
      { label: t('processor'), number: true, cell: (m) => (m.isUp && !format.isKnown(m.point?.cpu) && m.sample?.has('process_cpu_seconds_total') ? t('measuring') : told(m, m.point?.cpu, format.percent)) },
      { label: t('uptime'), number: true, cell: (m) => told(m, uptime(m), format.span) },
      { label: t('certificate'), number: true, cell: (m) => (m.endpoint.url.startsWith('http:') ? t('noTls') : told(m, certificateLeft(m, serverNow()), (left) => (left <= 0 ? t('certificateEnded') : format.span(left)))) },
    ],
  });
}

function uptime(member) {
  const [began, now] = [member.sample?.sum('process_start_time_seconds') ?? null, serverNow()];
  return began === null || now === null ? null : Math.max(0, now / 1000 - began);
}

function stateOf(member) {
  if (member.isUp === null) return ['', t('asked'), ''];
  if (!member.isUp) return member.isNotAsked ? ['warning', t('notAsked'), explain(member.error)] : ['error', t('down'), explain(member.error)];
  if (member.sample?.sum('etcd_server_has_leader') === 0) return ['error', t('noLeader'), ''];
  if (member.status === null) return ['warning', t(session.user ? 'statusDenied' : 'statusLogin'), ''];
  if ((member.status.errors ?? []).length > 0) return ['error', t('hasErrors'), ''];
  return ['good', t('up'), ''];
}

function state(member) {
  const [kind, text, why] = stateOf(member);
  return h('div', {}, h('span', { class: `state ${kind}` }, text), why && h('p', { class: 'note state-why' }, why));
}

function role(member) {
  if (member.isUp !== true) return member.isLearner ? t('learner') : t('chartNone');
  return t(member.isLeader ? 'leader' : member.isLearner ? 'learner' : 'follower');
}
