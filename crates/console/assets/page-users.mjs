// Users, roles, and what each role grants.

import { explain, Failure, session } from './api.mjs';
import { endOfPrefix, equal, fromBase64, nextKey, toBase64, unescapeBytes } from './bytes.mjs';
import { cluster } from './cluster.mjs';
import { announce, ask, field, mistake } from './dialog.mjs';
import { h, setText } from './dom.mjs';
import { keyText } from './parts.mjs';
import { Table } from './table.mjs';
import { t } from './texts.mjs';

export function open(place) {
  const page = new UsersPage(place);
  const load = () => page.load();
  cluster.addEventListener('members', load);
  session.changed.addEventListener('change', load);
  load();
  return {
    close() {
      cluster.removeEventListener('members', load);
      session.changed.removeEventListener('change', load);
    },
  };
}

class UsersPage {
  constructor(place) {
    this.state = h('p', { role: 'status' }, t('looking'));
    this.problem = h('p', { class: 'problem', role: 'alert' });
    this.users = new Table({
      caption: t('users'), keyOf: (user) => user.name, empty: t('looking'),
      columns: [
        { label: t('userName'), wide: true, sign: () => '', cell: (user) => h('bdi', {}, user.name) },
        { label: t('roles'), wide: true, sign: (user) => user.roles.join('\n'), cell: (user) => h('ul', { class: 'line-up' }, user.roles.map((role) => h('li', {}, h('bdi', {}, role), ' ', this.button('takeAway', `${role}, ${user.name}`, () => this.change('takeAway', t('takeRoleWhat', { user: user.name, role }), 'auth/user/revoke', { name: user.name, role }))))) },
        { label: t('actions'), sign: () => '', cell: (user) => h('div', { class: 'buttons' },
          this.button('grantRole', user.name, () => this.grantRole(user)), this.button('setPassword', user.name, () => this.setPassword(user)),
          this.button('remove', user.name, () => this.change('removeUser', t('removeUserWhat', { user: user.name }), 'auth/user/delete', { name: user.name }))) },
      ],
    });
    this.roles = new Table({
      caption: t('roles'), keyOf: (role) => role.name, empty: t('looking'),
      columns: [
        { label: t('role'), wide: true, sign: () => '', cell: (role) => h('bdi', {}, role.name) },
        { label: t('grants'), wide: true, sign: (role) => JSON.stringify(role.perms), cell: (role) => this.grants(role) },
        { label: t('actions'), sign: () => '', cell: (role) => h('div', { class: 'buttons' },
          this.button('grant', role.name, () => this.grant(role)),
          this.button('remove', role.name, () => this.change('removeRole', t('removeRoleWhat', { role: role.name }), 'auth/role/delete', { role: role.name }))) },
      ],
    });
    const section = (name, table, add) => h('section', { 'aria-labelledby': `${name}-title` }, h('div', { class: 'line-up apart' }, h('h2', { id: `${name}-title` }, t(name)), add), table.element);
    place.append(this.state, this.problem,
      section('users', this.users, h('button', { type: 'button', onclick: () => this.addUser() }, t('addUser'))),
      section('roles', this.roles, h('button', { type: 'button', onclick: () => this.addRole() }, t('addRole'))));
  }

  button(text, of, run) {
    return h('button', { type: 'button', class: 'quiet', 'aria-label': t('actionOn', { action: t(text), member: of }), onclick: run }, t(text));
  }

  grants(role) {
    if (role.name === 'root') return t('grantsAll');
    return h('ul', {}, role.perms.map((perm) => h('li', { class: 'line-up' },
      h('span', {}, t(`perm_${perm.permType ?? 'READ'}`)), h('span', {}, ...rangeText(perm)),
      this.button('takeAway', role.name, () => this.change('takeAway', t('takeGrantWhat', { role: role.name }), 'auth/role/revoke', { role: role.name, key: perm.key ?? '', range_end: perm.range_end ?? '' })))));
  }

  async load() {
    if (cluster.members.length === 0) return;
    setText(this.problem, '');
    try {
      setText(this.state, await this.authState());
      const names = (await cluster.range('auth/user/list', {})).users ?? [];
      const users = [];
      for (const name of names) users.push({ name, roles: (await cluster.range('auth/user/get', { name })).roles ?? [] });
      this.users.setEmpty(t('noUsers'));
      this.users.update(users);
      const roles = [];
      for (const name of (await cluster.range('auth/role/list', {})).roles ?? []) roles.push({ name, perms: (await cluster.range('auth/role/get', { role: name })).perm ?? [] });
      this.roles.setEmpty(t('noRoles'));
      this.roles.update(roles);
      this.roleNames = roles.map((role) => role.name);
    } catch (error) {
      setText(this.problem, explain(error));
      for (const table of [this.users, this.roles]) table.setEmpty('');
    }
  }

  async authState() {
    try {
      const { enabled } = await cluster.range('auth/status', {});
      return t(enabled ? 'authOn' : 'authOff');
    } catch (error) {
      // etcd has no such call before 3.5.
      if (error instanceof Failure && (error.isUnimplemented || error.isDenied)) return t('authUnknown');
      throw error;
    }
  }

  /** Asks, calls, and shows what is there now. */
  async change(title, text, method, body) {
    const done = await ask({ title: t(title), body: [h('p', {}, text)], button: t(title), isDanger: true, act: () => cluster.change(method, body) });
    if (done) this.changed();
  }

  changed() {
    announce(t('changed'));
    this.load();
  }

  async form(title, body, act) {
    if (await ask({ title: t(title), body, button: t(title), act })) this.changed();
  }

  addUser() {
    return this.form('addUser', [
      field(t('userName'), h('input', { name: 'name', required: true, autocomplete: 'off', spellcheck: 'false', autocapitalize: 'off' })),
      field(t('password'), h('input', { name: 'password', type: 'password', required: true, autocomplete: 'new-password' })),
    ], ({ name, password }) => cluster.change('auth/user/add', { name, password }));
  }

  setPassword(user) {
    return this.form('setPassword', [h('p', {}, user.name), field(t('password'), h('input', { name: 'password', type: 'password', required: true, autocomplete: 'new-password' }))],
      ({ password }) => cluster.change('auth/user/changepw', { name: user.name, password }));
  }

  grantRole(user) {
    const free = (this.roleNames ?? []).filter((role) => !user.roles.includes(role));
    return this.form('grantRole', [h('p', {}, user.name), field(t('role'), h('select', { name: 'role' }, free.map((role) => h('option', { value: role }, role))))],
      ({ role }) => {
        if (!role) throw mistake(t('noRoles'));
        return cluster.change('auth/user/grant', { user: user.name, role });
      });
  }

  addRole() {
    return this.form('addRole', [field(t('role'), h('input', { name: 'name', required: true, autocomplete: 'off', spellcheck: 'false', autocapitalize: 'off' }))], ({ name }) => cluster.change('auth/role/add', { name }));
  }

  grant(role) {
    return this.form('grant', [
      h('p', {}, role.name),
      field(t('keyOrPrefix'), h('input', { name: 'key', class: 'escaped', autocomplete: 'off', spellcheck: 'false', autocapitalize: 'off' }), t('escapeHint')),
      field(t('scope'), h('select', { name: 'scope' }, h('option', { value: 'prefix' }, t('scopePrefix')), h('option', { value: 'key' }, t('scopeKey')))),
      field(t('right'), h('select', { name: 'right' }, ['READ', 'WRITE', 'READWRITE'].map((right) => h('option', { value: right }, t(`perm_${right}`))))),
    ], ({ key: typed, scope, right }) => {
      const key = unescapeBytes(typed);
      if (key === null || (scope === 'key' && key.length === 0)) throw mistake(t('badEscape'));
      const perm = { permType: right, key: toBase64(key.length > 0 ? key : Uint8Array.of(0)) };
      if (scope === 'prefix') perm.range_end = toBase64(endOfPrefix(key));
      return cluster.change('auth/role/grant', { name: role.name, perm });
    });
  }
}

/** The keys of a grant in words: one key, a prefix, or a range. */
function rangeText(perm) {
  const [key, end] = [fromBase64(perm.key), fromBase64(perm.range_end)];
  if (end.length === 0 || equal(end, nextKey(key))) return [keyText(key)];
  const isAll = equal(end, Uint8Array.of(0));
  if (isAll && (key.length === 0 || equal(key, Uint8Array.of(0)))) return [t('allKeys')];
  if (equal(end, endOfPrefix(key))) return [t('prefixOf'), ' ', keyText(key)];
  return [keyText(key), ' … ', isAll ? t('toTheEnd') : keyText(end)];
}
