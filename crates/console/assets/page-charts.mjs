// Charts: the last ten minutes of each member, or of all together.

import { cluster, FAST_MS } from './cluster.mjs';
import { Chart, LINES_MAX } from './chart.mjs';
import { h } from './dom.mjs';
import * as format from './format.mjs';
import { batchOf, KINDS, quantileOf, STAGES, sumOf } from './points.mjs';
import { t } from './texts.mjs';

export const pace = FAST_MS;
export const diagnosis = true;

/** A chart of one figure of a member: a line for each member, and one for all if its sum means something. */
function ofMembers(name, options, value, { sums = false } = {}) {
  return { name, options, value, sums };
}

/** A chart of several figures of the chosen member, or of all together: a line for each. `histogram` begins the names of those it is made of. */
function ofParts(name, options, parts, histogram = null) {
  return { name, options, parts, histogram };
}

const time = { format: format.seconds };
/** Both charts of stages show the same stages, each in one colour. */
const stageTime = { ...time, colours: new Map() };

/** The stages that take the most time at one in a hundred requests, in the order of a request. */
function longestStages(points) {
  const greatest = new Map(STAGES.map((stage) => [stage, Math.max(...points.map((point) => (point ? quantileOf(point, `stage:${stage}`, 0.99) : null) ?? -1))]));
  const seen = STAGES.filter((stage) => greatest.get(stage) >= 0);
  const kept = new Set([...seen].sort((a, b) => greatest.get(b) - greatest.get(a)).slice(0, LINES_MAX));
  return seen.filter((stage) => kept.has(stage));
}

function stageLines(share) {
  return (points) => longestStages(points).map((stage) => ({ name: t(`stage_${stage}`), values: points.map((point) => point && quantileOf(point, `stage:${stage}`, share)) }));
}

function quantileLines(name) {
  return (points) => [0.5, 0.99].map((share) => ({ name: `p${share * 100}`, values: points.map((point) => point && quantileOf(point, name, share)) }));
}

const CHARTS = [
  ofParts('requests', { format: format.rate }, (points) => KINDS.map((kind) => ({ name: t(`kind_${kind}`), values: points.map((point) => point?.rates[kind] ?? null) })).filter((line) => line.values.some((value) => value > 0) || line.name === t('kind_put') || line.name === t('kind_range'))),
  ofParts('stages50', stageTime, stageLines(0.5), 'stage:'),
  ofParts('stages99', stageTime, stageLines(0.99), 'stage:'),
  ofParts('request', time, quantileLines('request'), 'request'),
  ofParts('fsync', time, quantileLines('fsync'), 'fsync'),
  ofMembers('batch', { format: (value) => t('entries', { count: format.number(value) }) }, batchOf),
  ofParts('apply', time, quantileLines('apply'), 'apply'),
  ofMembers('applyLag', { format: format.count }, (point) => point.applyLag),
  ofMembers('pending', { format: format.count }, (point) => point.pendingProposals),
  ofParts('rtt', time, quantileLines('rtt'), 'rtt'),
  ofMembers('events', { format: format.rate }, (point) => point.events, { sums: true }),
  ofMembers('watchLag', { format: format.count }, (point) => point.pendingEvents),
  ofMembers('slowWatchers', { format: format.count }, (point) => point.slowWatchers),
  ofMembers('watchers', { format: format.count }, (point) => point.watchers, { sums: true }),
  ofMembers('processor', { format: format.percent }, (point) => point.cpu, { sums: true }),
  ofMembers('memory', { format: format.bytes, isBytes: true }, (point) => point.memory, { sums: true }),
  ofMembers('disk', { format: format.bytes, isBytes: true }, (point) => point.disk, { sums: true }),
  ofMembers('connections', { format: format.count }, (point) => point.connections, { sums: true }),
  ofMembers('files', { format: format.count }, (point) => point.files, { sums: true }),
  ofMembers('sent', { format: format.bytesRate, isBytes: true }, (point) => point.sent, { sums: true }),
  ofMembers('received', { format: format.bytesRate, isBytes: true }, (point) => point.received, { sums: true }),
  ofMembers('leaderChanges', { format: format.count }, (point) => point.leaderChanges),
];

export function open(place, query) {
  let chosen = query.get('member') ?? '';
  const select = h('select', { onchange: () => {
    chosen = select.value;
    history.replaceState(null, '', chosen ? `#/charts?${new URLSearchParams({ member: chosen })}` : '#/charts');
    update();
  } });
  const charts = CHARTS.map((each) => ({ ...each, chart: new Chart({ title: t(`chart_${each.name}`), note: t(`chartNote_${each.name}`), missing: t('measuring'), ...each.options }) }));
  place.append(
    h('div', { class: 'line-up' }, h('label', { class: 'line-up' }, h('span', {}, t('chartsOf')), select)),
    h('div', { class: 'charts' }, charts.map(({ chart }) => chart.element)));

  function choices() {
    const wanted = ['', ...cluster.members.map((member) => member.name)];
    if ([...select.options].map((option) => option.value).join('\n') === wanted.join('\n')) return;
    select.replaceChildren(...wanted.map((name) => h('option', { value: name }, name === '' ? t('allMembers') : name)));
    if (!wanted.includes(chosen)) chosen = '';
    select.value = chosen;
  }

  function update() {
    choices();
    const members = cluster.members.filter((member) => chosen === '' || member.name === chosen);
    const together = cluster.times.map((_, at) => sumOf(members.map((member) => member.points[at])));
    for (const { chart, parts, value, sums, histogram } of charts) {
      const lines = parts ? parts(together) : memberLines(members, value, sums);
      // Two polls are needed for a rate, one that counted something for a quantile.
      const isTold = lines.some((line) => line.values.some(format.isKnown));
      const isCounted = histogram !== null && together.some((point) => Object.entries(point?.histograms ?? {}).some(([each, buckets]) => each.startsWith(histogram) && buckets));
      if (!isTold) chart.missing.textContent = t(isCounted ? 'nothingCounted' : cluster.times.length > 8 ? 'nothingTold' : 'measuring');
      chart.update(cluster.times, lines);
    }
  }
  cluster.addEventListener('update', update);
  update();
  return {
    close() {
      cluster.removeEventListener('update', update);
      for (const { chart } of charts) chart.close();
    },
  };
}

function memberLines(members, value, sums) {
  const lines = members.slice(0, LINES_MAX - 1).map((member) => ({ name: member.name, values: member.points.map((point) => (point ? value(point) : null)) }));
  if (!sums || members.length < 2) return lines;
  const all = cluster.times.map((_, at) => {
    const known = members.map((member) => (member.points[at] ? value(member.points[at]) : null)).filter(format.isKnown);
    return known.length === 0 ? null : known.reduce((sum, each) => sum + each, 0);
  });
  return [...lines, { name: t('sumOfAll'), values: all }];
}
