// Which language the page speaks, and its texts. `texts-en.mjs` and `texts-zh.mjs` have the same names; a test compares them.

import { TEXTS as en } from './texts-en.mjs';
import { TEXTS as zh } from './texts-zh.mjs';
import { remember, remembered } from './settings.mjs';

const TABLES = { en, 'zh-CN': zh };

function choose() {
  const chosen = remembered('language');
  if (chosen in TABLES) return chosen;
  return (navigator.languages ?? [navigator.language]).some((each, at) => at === 0 && /^zh\b/i.test(each)) ? 'zh-CN' : 'en';
}

let current = choose();

/** The language, as `lang` and `Intl` want it. */
export function language() {
  return current;
}

export function languages() {
  return Object.keys(TABLES).map((code) => ({ code, name: TABLES[code].languageName }));
}

export function setLanguage(code) {
  current = code;
  remember('language', code);
}

/**
 * The text of that name, with each `{name}` replaced by the value of that name. Behind `¦` is what is said where `count` is one, in a
 * language that says it otherwise.
 */
export function t(name, values = {}) {
  const text = TABLES[current][name];
  if (text === undefined) throw new Error(`no text ${name}`);
  const [many, one = many] = text.split('¦');
  return (String(values.count) === '1' ? one : many).replace(/\{(\w+)\}/g, (_, key) => String(values[key]));
}
