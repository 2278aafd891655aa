// The autopilot, below the members: what it sees, what it has done, and what it leaves to a person.

import { hexId } from './cluster.mjs';
import { h, setText } from './dom.mjs';
import * as format from './format.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

/** The longest list of steps that is shown, newest first. */
const STEPS_MAX = 20;

export class AutopilotSection {
  constructor() {
    this.mode = h('p', { role: 'status' });
    this.advice = h('ul', { class: 'notice' });
    this.steps = new Table({
      caption: t('autopilotSteps'),
      keyOf: (step) => `${step.by} ${step.atMs} ${step.step} ${step.memberID}`,
      empty: t('autopilotNoSteps'),
      columns: [
        { label: t('autopilotTime'), cell: (step) => format.clockTime(Number(step.atMs ?? 0)) },
        { label: t('autopilotStep'), cell: (step) => step.step },
        { label: t('member'), cell: (step) => h('bdi', {}, step.name) },
        { label: t('autopilotOutcome'), sign: (step) => step.outcome, cell: (step) => h('span', { class: `state ${{ done: 'good', failed: 'error' }[step.outcome] ?? ''}` }, step.outcome) },
        { label: t('autopilotReason'), wide: true, sign: (step) => step.error ?? '', cell: (step) => [step.reason, step.error].filter(Boolean).join(': ') },
      ],
    });
    this.element = h('section', { 'aria-labelledby': 'autopilot-title', hidden: true }, h('h2', { id: 'autopilot-title' }, t('autopilot')), this.mode, this.advice, this.steps.element);
  }

  /** Shows the autopilots of these members, as they are polled. Nothing is shown if no member has one. */
  update(members) {
    const all = members.filter((member) => member.status?.autopilot);
    this.element.hidden = all.length === 0;
    if (all.length === 0) return;
    const leader = all.find((member) => member.isUp && member.status.autopilot.deciding)?.status.autopilot;
    const seconds = (ms) => format.span(Number(ms ?? 0) / 1000);
    setText(this.mode, leader ? t(leader.mode === 'on' ? 'autopilotActs' : 'autopilotDry', { after: seconds(leader.replaceAfterMs), interval: seconds(leader.intervalMs) }) : t('autopilotIdle'));
    const advice = leader?.advice ?? [];
    this.advice.hidden = advice.length === 0;
    if ([...this.advice.children].map((item) => item.textContent).join('\n') !== advice.join('\n')) {
      this.advice.replaceChildren(...advice.map((text) => h('li', {}, text)));
    }
    const nameOf = (id) => members.find((member) => member.memberId === hexId(id))?.name || hexId(id);
    const steps = all.flatMap((member) => (member.status.autopilot.steps ?? []).map((step) => ({ ...step, by: member.memberId, name: nameOf(step.memberID) })));
    this.steps.update(steps.sort((a, b) => Number(b.atMs) - Number(a.atMs)).slice(0, STEPS_MAX));
  }
}
