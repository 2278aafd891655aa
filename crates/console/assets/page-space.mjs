// Space: how much the data takes and may take, what compactions did, alarms.

import { explain, serverNow } from './api.mjs';
import { cluster, FAST_MS, hexId } from './cluster.mjs';
import { announce, ask, field, mistake } from './dialog.mjs';
import { h, replace } from './dom.mjs';
import * as format from './format.mjs';
import { bar, figures } from './parts.mjs';
import { isMainstay, quotaOf } from './problems.mjs';
import { repeat } from './rounds.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

export const diagnosis = true;
export const pace = FAST_MS;

/** A member of etcd copies its whole database. */
const DEFRAGMENT_MS = 600000;

export function open(place) {
  const page = new SpacePage(place);
  const update = () => page.update();
  const rounds = repeat((options) => page.loadAlarms(options), 10000);
  cluster.addEventListener('update', update);
  cluster.addEventListener('members', rounds.now);
  update();
  return {
    close() {
      rounds.stop();
      cluster.removeEventListener('update', update);
      cluster.removeEventListener('members', rounds.now);
    },
  };
}

/** The mean of a histogram, in its own unit; `null` if it counted nothing. */
function mean(sample, family) {
  const [sum, count] = [sample?.sum(`${family}_sum`) ?? null, sample?.sum(`${family}_count`) ?? null];
  return sum === null || !(count > 0) ? null : sum / count;
}

class SpacePage {
  constructor(place) {
    this.alarms = h('div');
    this.facts = figures(['revision', 'compactRevision', 'revisionsKept', 'keys'], { large: true });
    const told = (member, value, text) => (!member.isUp ? t('chartNone') : value === null || value === undefined ? t('notTold') : text(value));
    const metric = (name, text) => (member) => told(member, member.sample?.sum(name) ?? null, text);
    const byMember = { keyOf: (member) => `${member.id} ${member.endpoint.url}`, empty: t('membersAsked') };
    const name = { label: t('member'), cell: (member) => member.name };
    const milliseconds = (value) => format.seconds(value / 1000);
    this.tables = [
      ['spaceUse', null, new Table({
        ...byMember,
        caption: t('spaceUse'),
        columns: [
          name,
          { label: t('dbSize'), number: true, cell: (m) => told(m, quotaOf(m).disk || null, format.bytes) },
          { label: t('inUse'), number: true, cell: (m) => told(m, m.sample?.sum('etcd_mvcc_db_total_size_in_use_in_bytes') ?? null, format.bytes) },
          { label: t('quota'), number: true, cell: (m) => told(m, quotaOf(m).quota || null, format.bytes) },
          { label: t('shareOfQuota'), wide: true, sign: (m) => share(m), cell: (m) => fill(m) },
        ],
      })],
      ['compactions', null, new Table({
        ...byMember,
        caption: t('compactions'),
        columns: [
          name,
          { label: t('compactRevision'), number: true, cell: metric('etcd_debugging_mvcc_compact_revision', (value) => (value < 1 ? t('never') : format.count(value))) },
          { label: t('lastCompaction'), number: true, cell: (m) => lastCompaction(m, told) },
          { label: t('revisionsRemoved'), number: true, cell: metric('etcd_debugging_mvcc_db_compaction_keys_total', format.count) },
          { label: t('compactionTime'), number: true, cell: (m) => told(m, mean(m.sample, 'etcd_debugging_mvcc_db_compaction_total_duration_milliseconds'), milliseconds) },
          { label: t('compactionPause'), number: true, cell: (m) => told(m, mean(m.sample, 'etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds'), milliseconds) },
          { label: t('longReads'), number: true, cell: metric('mainstay_long_reads', format.count) },
          { label: t('oldestRead'), number: true, cell: metric('mainstay_long_reads_oldest_seconds', format.seconds) },
        ],
      })],
      ['log', t('logNote'), new Table({
        ...byMember,
        caption: t('log'),
        columns: [
          name,
          { label: t('segments'), number: true, cell: (m) => told(m, m.diagnosis?.log?.segments, format.count) },
          { label: t('segmentBytes'), number: true, cell: (m) => told(m, m.diagnosis?.log?.file_bytes, format.bytes) },
          { label: t('segmentUsed'), number: true, cell: (m) => told(m, m.diagnosis?.log?.used_bytes, format.bytes) },
          { label: t('logWritten'), number: true, cell: metric('etcd_disk_wal_write_bytes_total', format.bytes) },
          { label: t('logPrepared'), number: true, cell: metric('mainstay_log_prepared_bytes_total', format.bytes) },
          { label: t('logEntries'), number: true, cell: metric('mainstay_log_entries_total', format.count) },
          { label: t('segmentWaits'), number: true, cell: metric('mainstay_log_segment_waits_total', format.count) },
          { label: t('defragment'), sign: (m) => `${m.isUp} ${isMainstay(m)}`, cell: (m) => this.defragment(m) },
        ],
      })],
    ];
    place.append(
      this.alarms,
      h('section', { 'aria-labelledby': 'revisions-title' },
        h('div', { class: 'line-up apart' }, h('h2', { id: 'revisions-title' }, t('revisions')), h('button', { type: 'button', onclick: () => this.compact() }, t('compact'))), this.facts.element),
      ...this.tables.map(([title, note, table]) => h('section', { 'aria-labelledby': `${title}-title` }, h('h2', { id: `${title}-title` }, t(title)), note && h('p', { class: 'note' }, note), table.element)));
  }

  update() {
    const up = cluster.members.filter((member) => member.isUp);
    const most = (read) => {
      const known = up.map(read).filter(format.isKnown);
      return known.length === 0 ? null : Math.max(...known);
    };
    const told = (value) => (value === null ? t(up.length > 0 ? 'notTold' : 'unknown') : format.count(value));
    this.revision = most((member) => Number(member.status?.header?.revision ?? NaN));
    this.compacted = most((member) => member.sample?.sum('etcd_debugging_mvcc_compact_revision') ?? null);
    this.facts.set('revision', told(this.revision));
    // A store that was never compacted has -1 there.
    this.facts.set('compactRevision', this.compacted !== null && this.compacted < 1 ? t('never') : told(this.compacted));
    this.facts.set('revisionsKept', told(this.revision === null || this.compacted === null ? null : this.revision - Math.max(0, this.compacted)));
    this.facts.set('keys', told(most((member) => member.sample?.sum('etcd_debugging_mvcc_keys_total') ?? null)));
    for (const [, , table] of this.tables) table.update(cluster.members);
  }

  async loadAlarms(options = {}) {
    if (cluster.members.length === 0) return;
    let raised;
    try {
      raised = (await cluster.range('maintenance/alarm', { action: 'GET' }, options)).alarms ?? [];
    } catch (error) {
      replace(this.alarms, h('p', { class: 'problem' }, explain(error)));
      return;
    }
    const sign = JSON.stringify(raised);
    if (sign === this.shownAlarms) return;
    this.shownAlarms = sign;
    replace(this.alarms, raised.map((alarm) => h('div', { class: 'notice line-up apart' },
      h('p', {}, t('alarmOf', { alarm: alarm.alarm, member: cluster.members.find((member) => member.memberId === hexId(alarm.memberID))?.name ?? hexId(alarm.memberID) })),
      h('button', { type: 'button', onclick: () => this.disarm(alarm) }, t('disarm')))));
  }

  async disarm(alarm) {
    const done = await ask({
      title: t('disarm'),
      body: [h('p', {}, t(alarm.alarm === 'CORRUPT' ? 'disarmCorrupt' : 'disarmWhat', { alarm: alarm.alarm }))],
      button: t('disarm'),
      isDanger: alarm.alarm === 'CORRUPT',
      act: () => cluster.change('maintenance/alarm', { action: 'DEACTIVATE', memberID: alarm.memberID, alarm: alarm.alarm }),
    });
    if (done) await this.loadAlarms();
  }

  async compact() {
    const input = h('input', { name: 'revision', inputmode: 'numeric', value: this.revision ?? '', autocomplete: 'off' });
    const done = await ask({
      title: t('compact'),
      body: [h('p', {}, t('compactWhat')), field(t('compactTo'), input, this.compacted === null ? null : t('compactRange', { from: Math.max(0, this.compacted) + 1, to: this.revision ?? '' })), h('p', {}, t('cannotUndo'))],
      button: t('compact'),
      isDanger: true,
      act: ({ revision }) => {
        if (!/^[1-9][0-9]*$/.test(revision)) throw mistake(t('badRevision'));
        return cluster.change('kv/compaction', { revision });
      },
    });
    if (done) announce(t('compacted'));
    cluster.schedule(0);
  }

  /** Members of etcd keep what was freed until they are defragmented. */
  defragment(member) {
    if (!member.isUp || isMainstay(member)) return t(member.isUp ? 'notNeeded' : 'chartNone');
    return h('button', { type: 'button', class: 'quiet', 'aria-label': t('actionOn', { action: t('defragment'), member: member.name }), onclick: async () => {
      const done = await ask({
        title: t('actionOn', { action: t('defragment'), member: member.name }),
        body: [h('p', {}, t('defragmentWhat')), member.isLeader && h('p', { class: 'notice' }, t('defragmentLeader'))],
        button: t('defragment'),
        isDanger: member.isLeader,
        act: () => cluster.changeAt(member, 'maintenance/defragment', {}, { ms: DEFRAGMENT_MS }),
      });
      if (done) announce(t('defragmented'));
    } }, t('defragment'));
  }
}

function share(member) {
  const { share: part } = quotaOf(member);
  return !member.isUp ? t('chartNone') : part === null ? t('notTold') : format.percent(part);
}

function fill(member) {
  const { quota, counted, inUse, share: part } = quotaOf(member);
  if (!member.isUp || part === null) return [share(member)];
  const text = share(member);
  return [h('p', {}, text), bar(t('fillOf', { share: text }), [{ kind: 'used', share: inUse / quota }, { kind: 'kept', share: Math.max(0, counted - inUse) / quota }])];
}

function lastCompaction(member, told) {
  const at = member.sample?.sum('etcd_debugging_mvcc_db_compaction_last') ?? null;
  if (at === 0 || member.sample?.sum('etcd_debugging_mvcc_compact_revision') < 1) return t('never');
  const now = serverNow();
  return told(member, at, (value) => (now === null ? t('unknown') : t('agoOf', { span: format.span(Math.max(0, now / 1000 - value)) })));
}
