// What the members are busy with: the prefixes, users and clients that take most, by the sketches in the page `debug/mainstay`. An amount
// there is never too low, and too high by no more than its `error`.

import * as format from './format.mjs';

/** What the lists are about, and what they are ordered by, as members name it. */
export const SUBJECTS = ['prefix', 'user', 'client'];
export const MEASURES = ['requests', 'bytes', 'seconds'];
/** How an amount a second of each is written. */
export const AMOUNT = { requests: format.rate, bytes: format.bytesRate, seconds: (value) => `${format.seconds(value)}/s` };
/** Names in a member's list. One that is shorter names all that there are. */
const TOLD = 20;
/** From where on a name stands out: share of all, requests a second (as for the doctor's balance), bytes a second. */
const SHARE = 0.5;
const LEAST = { requests: 50, bytes: 1 << 18 };

function listOf(member, subject, measure) {
  const list = member.isUp ? member.diagnosis?.heavy?.[subject]?.[measure] : null;
  return Array.isArray(list) ? list : [];
}

/** Members that tell nothing of it, and those that keep back the names of prefixes and users, as users are switched on. */
export function silentMembers(members) {
  const asked = members.filter((member) => member.isUp);
  return {
    untold: asked.filter((member) => !member.diagnosis?.heavy),
    withheld: asked.filter((member) => isWithheld(member)),
  };
}

/** True if a member does not name keys and users, as nobody is logged in who may know them. */
export function isWithheld(member) {
  const heavy = member.diagnosis?.heavy;
  return Boolean(heavy) && !('prefix' in heavy);
}

/**
 * The names of a subject, summed over the members: `{ name, members, requests, bytes, seconds }`, each of which is `{ amount, error }`, or
 * missing where no member has the name among its first. Those that take most of `measure` come first.
 */
export function heaviest(members, subject, measure) {
  const rows = new Map();
  for (const member of members) {
    for (const each of MEASURES) {
      for (const { name, per_second: amount, error } of listOf(member, subject, each)) {
        const row = rows.get(name) ?? { subject, name, members: new Set() };
        rows.set(name, row);
        row.members.add(member.name);
        row[each] = { amount: (row[each]?.amount ?? 0) + Number(amount), error: (row[each]?.error ?? 0) + Number(error) };
      }
    }
  }
  const of = (row) => row[measure]?.amount ?? -1;
  return [...rows.values()].sort((a, b) => of(b) - of(a) || (a.name < b.name ? -1 : 1));
}

/** All requests or bytes a second: the sum of a list that is complete, or else at least this. */
function totalOf(members, measure) {
  return members.reduce((sum, member) => sum + Math.max(0, ...['client', 'prefix'].map((subject) => {
    const list = listOf(member, subject, measure);
    const all = list.reduce((all_, { per_second: amount }) => all_ + Number(amount), 0);
    const { rates = {}, sent = 0, received = 0 } = member.point ?? {};
    const counted = measure === 'bytes' ? sent + received : Object.values(rates).reduce((all_, rate) => all_ + (rate ?? 0), 0);
    return list.length < TOLD ? all : Math.max(all, counted);
  })), 0);
}

/**
 * The prefix and the client that take most of all requests or bytes, as `{ subject, measure, name, amount, share }`, where that is certain and
 * there are others beside them.
 */
export function standingOut(members) {
  const found = [];
  for (const [subject, others] of [['prefix', 1], ['client', 2]]) {
    for (const measure of Object.keys(LEAST)) {
      const rows = heaviest(members, subject, measure).filter((row) => row[measure]);
      const [first] = rows;
      if (rows.length <= others) continue;
      const { amount, error } = first[measure];
      const share = Math.min(1, (amount - error) / totalOf(members, measure));
      if (amount - error >= LEAST[measure] && share >= SHARE) found.push({ subject, measure, name: first.name, amount, share, members: [...first.members] });
    }
  }
  return found;
}
