// Where the page begins: theme, session, the frame, and the page that the URL's fragment names.

import { explain, session } from './api.mjs';
import { cluster, SLOW_MS } from './cluster.mjs';
import { h, replace } from './dom.mjs';
import { askForLogin } from './login.mjs';
import { PAGES, Shell } from './shell.mjs';
import { applyTheme } from './settings.mjs';
import { language, t } from './texts.mjs';

/** The page that is shown: `{ name, query, close }`. */
let shown = null;
let shell = null;
/** Counts page changes, so that a module that arrives late is not shown over a later page. */
let turn = 0;

/** Reads `#/keys?prefix=a` as a page's name and its query. */
function route() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?', 2);
  return { name: PAGES.some((page) => page.name === path) ? path : PAGES[0].name, query: new URLSearchParams(query) };
}

async function show({ focus = true } = {}) {
  const { name, query } = route();
  if (shown?.name === name && shown.navigate) {
    shown.navigate(query);
    return;
  }
  turn += 1;
  const mine = turn;
  shown?.close?.();
  shown = null;
  shell.select(name);
  let module;
  try {
    module = await import(`/assets/page-${name}.mjs`);
  } catch (error) {
    replace(shell.main, h('p', { class: 'problem', role: 'alert' }, t('errorPage', { message: error.message })));
    return;
  }
  if (mine !== turn) return;
  const place = h('div', { class: `page page-${name}` });
  replace(shell.main, h('h1', { tabindex: '-1' }, t(`page_${name}`)), place);
  // A key browser needs no figures of members: its page is polled slowly.
  cluster.setPace(module.pace ?? SLOW_MS, { diagnosis: module.diagnosis ?? false });
  shown = { name, ...module.open(place, query) };
  if (focus) shell.main.querySelector('h1').focus({ preventScroll: true });
}

/** Builds everything again, after another language was chosen. */
function build() {
  document.documentElement.lang = language();
  shown?.close?.();
  shown = null;
  shell?.close();
  shell = new Shell({ rebuild: build });
  document.body.replaceChildren(...shell.elements);
  show({ focus: false });
}

async function start() {
  applyTheme();
  session.ask = askForLogin;
  build();
  addEventListener('hashchange', () => show());
  session.changed.addEventListener('left', () => {
    shown?.close?.();
    shown = null;
    shell.main.replaceChildren();
    show({ focus: false });
  });
  try {
    await cluster.load();
    cluster.schedule(0);
    cluster.dispatchEvent(new Event('members'));
  } catch (error) {
    cluster.error = error;
    shell.complain(explain(error));
    setTimeout(start.again, 3000);
  }
}

/** Asks for the members again until the console's server answers. */
start.again = async () => {
  try {
    await cluster.load({ quiet: true });
    shell.complain('');
    cluster.schedule(0);
    cluster.dispatchEvent(new Event('members'));
  } catch (error) {
    shell.complain(explain(error));
    setTimeout(start.again, 5000);
  }
};

start();
