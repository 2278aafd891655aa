// The frame around each page: navigation, the state of the members, user, language, theme.

import { logOut, session } from './api.mjs';
import { cluster } from './cluster.mjs';
import { h, replace, setText } from './dom.mjs';
import { askForLogin } from './login.mjs';
import { applyTheme, theme, THEMES } from './settings.mjs';
import { listen, setPageShortcuts, showHelp } from './shortcuts.mjs';
import { language, languages, setLanguage, t } from './texts.mjs';

/** All pages, in the order of the navigation. The first is the one that is shown first. */
export const PAGES = [
  { name: 'overview', letter: 'o' },
  { name: 'charts', letter: 'c' },
  { name: 'keys', letter: 'k' },
  { name: 'watch', letter: 'w' },
  { name: 'leases', letter: 'l' },
  { name: 'members', letter: 'm' },
  { name: 'requests', letter: 'r' },
  { name: 'space', letter: 's' },
  { name: 'users', letter: 'u' },
];

export class Shell {
  constructor({ rebuild }) {
    this.links = new Map(PAGES.map((page) => [page.name, h('a', { href: `#/${page.name}` }, t(`page_${page.name}`))]));
    this.state = h('p', { class: 'cluster-state', role: 'status' });
    this.user = h('div', { class: 'user' });
    this.problem = h('p', { class: 'problem banner', role: 'alert', hidden: true });
    this.main = h('main', { id: 'main', tabindex: '-1' });
    this.menu = h('button', { type: 'button', class: 'menu quiet', 'aria-expanded': 'false', 'aria-controls': 'navigation', onclick: () => this.toggleMenu() }, t('menu'));
    this.nav = h('nav', { id: 'navigation', 'aria-label': t('navigation') }, h('ul', {}, [...this.links.values()].map((link) => h('li', {}, link))));
    this.side = h('header', { class: 'side' },
      h('div', { class: 'top' }, h('a', { href: '#/overview', class: 'brand' }, 'Mainstay'), this.menu),
      h('div', { class: 'drawer' }, this.nav, h('div', { class: 'foot' }, this.state, this.user, this.settings(rebuild))));
    const skip = h('a', { href: '#main', class: 'skip', onclick: (event) => {
      event.preventDefault();
      this.main.focus();
    } }, t('skip'));
    this.elements = [skip, this.side, h('div', { class: 'content' }, this.problem, this.main), h('div', { id: 'announcements', role: 'status', 'aria-live': 'polite' })];
    this.stopListening = listen({ pages: PAGES, go: (name) => { location.hash = `#/${name}`; }, always: new Map() });
    this.onUpdate = () => this.showState();
    this.onSession = () => this.showUser();
    cluster.addEventListener('update', this.onUpdate);
    cluster.addEventListener('members', this.onUpdate);
    session.changed.addEventListener('change', this.onSession);
    this.showState();
    this.showUser();
  }

  close() {
    this.stopListening();
    cluster.removeEventListener('update', this.onUpdate);
    cluster.removeEventListener('members', this.onUpdate);
    session.changed.removeEventListener('change', this.onSession);
  }

  settings(rebuild) {
    const language_ = h('select', { 'aria-label': t('language'), onchange: (event) => {
      setLanguage(event.target.value);
      rebuild();
    } }, languages().map(({ code, name }) => h('option', { value: code, lang: code, selected: code === language() }, name)));
    const theme_ = h('select', { 'aria-label': t('theme'), onchange: (event) => applyTheme(event.target.value) },
      THEMES.map((each) => h('option', { value: each, selected: each === theme() }, t(`theme_${each}`))));
    const help = h('button', { type: 'button', class: 'quiet', onclick: () => showHelp(PAGES) }, t('shortcuts'), ' ', h('kbd', { 'aria-hidden': 'true' }, '?'));
    return h('div', { class: 'settings' }, language_, theme_, help);
  }

  toggleMenu(open = !this.side.classList.contains('open')) {
    this.side.classList.toggle('open', open);
    this.menu.setAttribute('aria-expanded', String(open));
  }

  /** Marks the page in the navigation. */
  select(name) {
    this.toggleMenu(false);
    setPageShortcuts();
    for (const [each, link] of this.links) {
      if (each === name) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    }
    document.title = `${t(`page_${name}`)} · Mainstay`;
    scrollTo(0, 0);
  }

  complain(text) {
    this.problem.hidden = text === '';
    setText(this.problem, text);
  }

  showState() {
    const { members } = cluster;
    const up = members.filter((member) => member.isUp).length;
    const isKnown = members.length > 0 && members.every((member) => member.isUp !== null);
    // Of those that are not asked nobody knows if they are up.
    const asked = members.filter((member) => !member.isNotAsked).length;
    this.state.dataset.kind = !isKnown || asked === 0 ? '' : up === asked ? 'good' : up * 2 > asked ? 'warning' : 'error';
    setText(this.state, isKnown ? t('membersUp', { up, all: members.length }) : t('membersAsked'));
    if (members.length > 0) this.complain(cluster.error?.status === 0 ? t('errorConsole') : '');
  }

  showUser() {
    const button = session.user
      ? h('button', { type: 'button', class: 'quiet', onclick: () => logOut() }, t('logOut'))
      : h('button', { type: 'button', class: 'quiet', onclick: () => askForLogin() }, t('logIn'));
    replace(this.user, session.user && h('span', { class: 'who' }, h('bdi', {}, session.user)), button);
  }
}
