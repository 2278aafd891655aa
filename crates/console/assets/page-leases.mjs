// Leases: time left, and the keys that go with each.

import { explain } from './api.mjs';
import { escapeBytes, fromBase64 } from './bytes.mjs';
import { cluster, hexId } from './cluster.mjs';
import { announce, ask } from './dialog.mjs';
import { h, setText } from './dom.mjs';
import * as format from './format.mjs';
import { addressOf, keyText } from './parts.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

const PAGE = 50;
const AGAIN_MS = 5000;
const KEYS_SHOWN = 5;

export function open(place) {
  const page = new LeasesPage(place);
  const load = () => page.load();
  cluster.addEventListener('members', load);
  const ticks = setInterval(() => page.draw(), 1000);
  const timer = setInterval(() => document.visibilityState === 'visible' && page.refresh({ quiet: true }), AGAIN_MS);
  load();
  return {
    close() {
      clearInterval(ticks);
      clearInterval(timer);
      cluster.removeEventListener('members', load);
    },
  };
}

class LeasesPage {
  constructor(place) {
    this.ids = [];
    this.shown = PAGE;
    this.details = new Map();
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.note = h('p', { class: 'note', role: 'status' });
    this.more = h('button', { type: 'button', hidden: true, onclick: () => this.showMore() }, t('more'));
    this.table = new Table({
      caption: t('page_leases'),
      keyOf: (lease) => lease.id,
      empty: t('looking'),
      columns: [
        { label: 'ID', cell: (lease) => hexId(lease.id) },
        { label: t('timeLeft'), number: true, cell: (lease) => this.left(lease) },
        { label: t('timeGranted'), number: true, cell: (lease) => (lease.granted === undefined ? t('unknown') : format.span(lease.granted)) },
        { label: t('keyNumber'), number: true, cell: (lease) => (lease.keys ? t('keyCount', { count: format.count(lease.keys.length) }) : t('unknown')) },
        { label: t('page_keys'), wide: true, sign: (lease) => `${lease.all} ${lease.keys?.map((key) => key.join()).join(';')}`, cell: (lease) => this.keys(lease) },
        { label: t('actions'), sign: () => '', cell: (lease) => h('button', { type: 'button', class: 'quiet', 'aria-label': t('actionOn', { action: t('revoke'), member: hexId(lease.id) }), onclick: () => this.revoke(lease) }, t('revoke')) },
      ],
    });
    place.append(h('div', { class: 'line-up apart' }, this.note, h('button', { type: 'button', onclick: () => this.load() }, t('readAgain'))), this.problem, this.table.element, this.more);
  }

  async load() {
    if (cluster.members.length === 0) return;
    setText(this.problem, '');
    try {
      const answer = await cluster.range('lease/leases', {});
      this.ids = (answer.leases ?? []).map((lease) => lease.ID);
    } catch (error) {
      setText(this.problem, explain(error));
      this.table.setEmpty('');
      return;
    }
    this.table.setEmpty(t('noLeases'));
    this.isLoaded = true;
    setText(this.note, t('leaseCount', { count: format.count(this.ids.length) }));
    this.more.hidden = this.ids.length <= this.shown;
    this.draw();
    await this.refresh();
  }

  /** Asks for the leases that are shown, a few at a time. */
  async refresh(options = {}) {
    if (!this.isLoaded || this.isBusy) return;
    this.isBusy = true;
    const wanted = this.ids.slice(0, this.shown);
    try {
      for (let at = 0; at < wanted.length; at += 5) {
        await Promise.all(wanted.slice(at, at + 5).map((id) => this.ask(id, options)));
        this.draw();
      }
    } catch (error) {
      setText(this.problem, explain(error));
    } finally {
      this.isBusy = false;
    }
  }

  async ask(id, options) {
    let answer;
    try {
      answer = await cluster.range('lease/timetolive', { ID: id, keys: true }, options);
    } catch (error) {
      if (!/lease not found/.test(error.message)) throw error;
      answer = { TTL: '-1' };
    }
    const left = Number(answer.TTL ?? 0);
    if (left < 0) {
      this.ids = this.ids.filter((each) => each !== id);
      this.details.delete(id);
      return;
    }
    // Time left is counted by this page's steady clock from the member's answer on, whatever the time of day is here or there.
    this.details.set(id, { ...this.details.get(id), ends: performance.now() + left * 1000, granted: Number(answer.grantedTTL ?? 0), keys: (answer.keys ?? []).map(fromBase64) });
  }

  draw() {
    this.table.update(this.ids.slice(0, this.shown).map((id) => ({ id, ...this.details.get(id) })));
  }

  left(lease) {
    if (lease.ends === undefined) return t('asked');
    return format.span(Math.max(0, (lease.ends - performance.now()) / 1000));
  }

  keys(lease) {
    if (!lease.keys) return '';
    const most = lease.all ? 1000 : KEYS_SHOWN;
    const links = lease.keys.slice(0, most).map((key) => h('li', {}, h('a', { href: addressOf('keys', { key: escapeBytes(key) }) }, keyText(key, { most: 200 }))));
    const rest = lease.keys.length - links.length;
    return h('div', {}, h('ul', {}, links), rest > 0 && h('button', { type: 'button', class: 'link', onclick: () => {
      this.details.get(lease.id).all = true;
      this.draw();
    } }, t('moreKeys', { count: format.count(rest) })));
  }

  showMore() {
    this.shown += PAGE;
    this.more.hidden = this.ids.length <= this.shown;
    this.draw();
    this.refresh();
  }

  async revoke(lease) {
    const done = await ask({
      title: t('revokeLease'),
      body: [h('p', { class: 'mono' }, hexId(lease.id)), h('p', {}, t('revokeWhat', { count: format.count(this.details.get(lease.id)?.keys?.length ?? 0) })), h('p', {}, t('cannotUndo'))],
      button: t('revoke'),
      isDanger: true,
      act: () => cluster.change('lease/revoke', { ID: lease.id }),
    });
    if (!done) return;
    announce(t('revoked'));
    await this.load();
  }
}
