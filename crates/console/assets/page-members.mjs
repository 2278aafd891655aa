// Members: add, promote, move the leadership, remove. Each question says what quorum is left before anything is done.

import { explain, getText } from './api.mjs';
import { AutopilotSection } from './autopilot.mjs';
import { cluster, FAST_MS, hexId } from './cluster.mjs';
import { announce, ask, field, mistake } from './dialog.mjs';
import { h, setText } from './dom.mjs';
import * as format from './format.mjs';
import { quorumOf, quorumText } from './problems.mjs';
import { repeat } from './rounds.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

export const pace = FAST_MS;
export const diagnosis = true;

export function open(place) {
  const page = new MembersPage(place);
  const update = () => page.update();
  cluster.addEventListener('update', update);
  const rounds = repeat((options) => page.load(options), 5000);
  return {
    close() {
      rounds.stop();
      cluster.removeEventListener('update', update);
    },
  };
}

/** Voters that are there, that answer, and that are not asked. A member without an answer yet is not counted as answering. */
function votes(members) {
  const voters = members.filter((member) => !member.isLearner);
  return { voters: voters.length, up: voters.filter((member) => member.isUp).length, notAsked: voters.filter((member) => member.isNotAsked).length };
}

/** The votes with `count` more such members, or fewer. */
function changed({ voters, up, notAsked }, count, { isUp = false, isNotAsked = false } = {}) {
  return { voters: voters + count, up: up + (isUp ? count : 0), notAsked: notAsked + (isNotAsked ? count : 0) };
}

/** What a change of the voters leaves: a sentence, and if it is safe as far as is known. */
function effect({ voters, up, notAsked }) {
  const quorum = quorumOf(voters);
  const left = up - quorum;
  const isSafe = up + notAsked >= quorum;
  const text = t(left >= 0 ? 'effectLeft' : isSafe ? 'effectUnknown' : 'effectLost', { voters, up, quorum, left, notAsked });
  return { text, isSafe, left };
}

class MembersPage {
  constructor(place) {
    this.list = null;
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.quorum = h('p', { role: 'status' });
    this.table = this.makeTable();
    this.autopilot = new AutopilotSection();
    this.health = new Table({
      caption: t('checks'),
      keyOf: (row) => row.id,
      empty: t('membersAsked'),
      columns: [
        { label: t('member'), cell: (row) => row.name },
        { label: 'livez', sign: (row) => row.livez, cell: (row) => check(row.livez) },
        { label: 'readyz', sign: (row) => row.readyz, cell: (row) => check(row.readyz) },
        { label: t('checkSays'), wide: true, cell: (row) => row.why },
      ],
    });
    place.append(
      h('div', { class: 'line-up apart' }, this.quorum, h('button', { type: 'button', onclick: () => this.add() }, t('addMember'))),
      this.problem, this.table.element, this.autopilot.element,
      h('section', { 'aria-labelledby': 'checks-title' }, h('div', { class: 'line-up apart' }, h('h2', { id: 'checks-title' }, t('checks')), h('button', { type: 'button', class: 'quiet', onclick: () => this.check() }, t('checkNow'))), this.health.element));
    this.check();
  }

  makeTable() {
    return new Table({
      caption: t('page_members'),
      keyOf: (member) => member.ID,
      empty: t('membersAsked'),
      columns: [
        { label: t('member'), sign: (m) => m.name, cell: (m) => h('bdi', {}, m.name || t('notStarted')) },
        { label: 'ID', cell: (m) => hexId(m.ID) },
        { label: t('role'), cell: (m) => this.role(m) },
        { label: t('state'), sign: (m) => `${this.polled(m)?.isUp} ${this.elsewhere(m)}`, cell: (m) => this.state(m) },
        { label: t('clientUrls'), wide: true, cell: (m) => (m.clientURLs ?? []).join(' ') },
        { label: t('peerUrls'), wide: true, cell: (m) => (m.peerURLs ?? []).join(' ') },
        { label: t('raftIndex'), number: true, cell: (m) => this.number(m, (status) => format.count(Number(status.raftIndex ?? 0))) },
        { label: t('actions'), sign: (m) => `${this.role(m)} ${this.polled(m)?.isUp}`, cell: (m) => this.actions(m) },
      ],
    });
  }

  /** The member as it is polled; a member that has not started has no address to poll. */
  polled(member) {
    return cluster.members.find((each) => each.memberId === hexId(member.ID)) ?? null;
  }

  role(member) {
    if (member.isLearner) return t('learner');
    return t(cluster.leader?.memberId === hexId(member.ID) ? 'leader' : 'follower');
  }

  state(member) {
    const isUp = this.polled(member)?.isUp;
    const [kind, text] = isUp === true ? ['good', 'up'] : !member.name ? ['warning', 'notStarted'] : this.polled(member)?.isNotAsked ? ['warning', 'notAsked'] : isUp === false ? ['error', 'down'] : ['', 'asked'];
    const why = this.elsewhere(member);
    return h('div', {}, h('span', { class: `state ${kind}` }, t(text)), why && h('p', { class: 'note state-why' }, why));
  }

  /** What answers at the member's URL instead of it, or why it is not asked; '' if neither is so. */
  elsewhere(member) {
    const polled = this.polled(member);
    return polled?.isElsewhere || polled?.isNotAsked ? explain(polled.error) : '';
  }

  number(member, text) {
    const status = this.polled(member)?.status;
    return status && this.polled(member).isUp ? text(status) : t('chartNone');
  }

  async load(options = {}) {
    try {
      this.list = (await cluster.range('cluster/member/list', {}, options)).members ?? [];
      setText(this.problem, '');
    } catch (error) {
      setText(this.problem, explain(error));
    }
    this.update();
  }

  /** The members as listed, each with what polling says of it. */
  states() {
    return (this.list ?? []).map((member) => this.stateOf(member));
  }

  stateOf(member) {
    const polled = this.polled(member);
    // A member without a name has not started, so it does not answer.
    return { id: member.ID, isLearner: member.isLearner === true, isUp: polled?.isUp === true, isNotAsked: polled?.isNotAsked === true && Boolean(member.name) };
  }

  update() {
    if (!this.list) return;
    this.table.update(this.list);
    this.autopilot.update(cluster.members);
    setText(this.quorum, quorumText(votes(this.states())));
  }

  actions(member) {
    const name = member.name || hexId(member.ID);
    const button = (text, run) => h('button', { type: 'button', class: 'quiet', 'aria-label': t('actionOn', { action: t(text), member: name }), onclick: run }, t(text));
    const isLeader = cluster.leader?.memberId === hexId(member.ID);
    return h('div', { class: 'buttons' },
      member.isLearner && button('promote', () => this.promote(member, name)),
      !member.isLearner && !isLeader && this.polled(member)?.isUp && button('moveLeader', () => this.moveLeader(member, name)),
      button('removeMember', () => this.remove(member, name)));
  }

  async add() {
    const isLearner = h('input', { type: 'checkbox', name: 'learner', checked: true, onchange: () => tell() });
    const told = h('p', { class: 'notice mild' });
    const now = votes(this.states());
    // A new voter counts at once, and does not answer until it has started.
    const tell = () => {
      const after = effect(isLearner.checked ? now : changed(now, 1));
      setText(told, `${t(isLearner.checked ? 'addLearnerEffect' : 'addVoterEffect')} ${after.text}`);
      told.className = after.left >= 0 ? 'notice mild' : 'notice';
    };
    tell();
    const urls = h('input', { name: 'urls', class: 'escaped', placeholder: 'https://10.0.0.4:2380', required: true, autocomplete: 'off', spellcheck: 'false' });
    const done = await ask({
      title: t('addMember'),
      body: [field(t('peerUrls'), urls, t('peerUrlsHint')), h('label', { class: 'check' }, isLearner, h('span', {}, t('asLearner'))), told],
      button: t('addMember'),
      act: async () => {
        const peerURLs = urls.value.split(/[\s,]+/).filter(Boolean);
        if (peerURLs.length === 0 || peerURLs.some((url) => !/^https?:\/\/[^/]+$/.test(url))) throw mistake(t('badUrls'));
        if (!isLearner.checked && !effect(changed(now, 1)).isSafe) throw mistake(t('notSafe'));
        return cluster.change('cluster/member/add', { peerURLs, isLearner: isLearner.checked });
      },
    });
    if (!done) return;
    announce(t('memberAdded', { id: hexId(done.member?.ID) }));
    await this.load();
    await ask({
      title: t('memberAddedTitle'),
      body: [h('p', {}, t('memberAddedNext')), h('pre', { class: 'value', tabindex: '0' }, startLine(done))],
      cancel: t('close'),
    });
  }

  async promote(member, name) {
    const after = effect(changed(votes(this.states()), 1, this.stateOf(member)));
    await this.confirm({ title: t('promote'), name, text: t('promoteWhat'), after, method: 'cluster/member/promote', body: { ID: member.ID } });
  }

  async moveLeader(member, name) {
    const { leader } = cluster;
    const done = leader && await ask({
      title: t('moveLeader'),
      body: [h('p', {}, t('moveLeaderWhat', { from: leader.name, to: name })), h('p', { class: 'note' }, t('moveLeaderEffect'))],
      button: t('moveLeader'),
      // Only the leader can hand over.
      act: () => cluster.changeAt(leader, 'maintenance/transfer-leadership', { targetID: member.ID }),
    });
    if (done) announce(t('leaderMoved', { to: name }));
    cluster.schedule(0);
  }

  async remove(member, name) {
    const now = votes(this.states());
    const isVoter = !member.isLearner;
    const after = effect(isVoter ? changed(now, -1, this.stateOf(member)) : now);
    const isLast = isVoter && now.voters === 1;
    await this.confirm({
      title: t('removeMember'), name, text: t('removeMemberWhat'), after: isLast ? { text: t('lastVoter'), isSafe: false } : after,
      method: 'cluster/member/remove', body: { ID: member.ID }, word: name, isDanger: true,
    });
  }

  /** Asks, with what is left afterwards. What would leave no quorum is not offered. */
  async confirm({ title, name, text, after, method, body, word = null, isDanger = false }) {
    const done = await ask({
      title: t('actionOn', { action: title, member: name }),
      body: [
        h('p', {}, text),
        h('p', { class: after.isSafe && after.left > 0 ? 'notice mild' : 'notice' }, after.text),
        !after.isSafe && h('p', {}, t('notSafe')),
      ],
      button: after.isSafe ? title : null,
      word: after.isSafe ? word : null,
      isDanger,
      act: () => cluster.change(method, body),
    });
    if (!done) return;
    announce(t('memberChanged'));
    await this.load();
  }

  async check() {
    if (this.isChecking) return;
    this.isChecking = true;
    await cluster.ready;
    this.health.update(await Promise.all(cluster.members.map(healthOf)));
    this.isChecking = false;
  }
}

async function healthOf(member) {
  const row = { id: member.id, name: member.name, why: '' };
  let failed = member.isElsewhere || member.isNotAsked ? member.error : null;
  for (const name of ['livez', 'readyz']) {
    try {
      // A member that does not answer once is not waited for twice.
      if (failed?.isUnreachable || failed?.forUser) throw failed;
      await getText(member.endpoint, name, { quiet: true });
      row[name] = 'good';
    } catch (error) {
      failed = error;
      row[name] = error.isUnimplemented || member.isNotAsked ? 'none' : 'bad';
      row.why = error.isUnimplemented ? t('notTold') : (error.forUser ?? error.message);
    }
  }
  return row;
}

function check(outcome) {
  const [kind, text] = { good: ['good', 'checkGood'], bad: ['error', 'checkBad'], none: ['', 'notTold'] }[outcome];
  return h('span', { class: `state ${kind}` }, t(text));
}

/** A word of a command line for a POSIX shell. Names and URLs come from others, and may be anything. */
function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** The command that the new member has to be started with. */
function startLine(answer) {
  const id = answer.member?.ID;
  const cluster_ = (answer.members ?? []).flatMap((member) => (member.peerURLs ?? []).map((url) => `${member.ID === id ? 'NAME' : member.name}=${url}`)).join(',');
  return `mainstay --name NAME \\\n  --initial-cluster-state existing \\\n  --initial-cluster ${shellWord(cluster_)} \\\n  --initial-advertise-peer-urls ${shellWord((answer.member?.peerURLs ?? []).join(','))}`;
}
