// What the browser remembers of this page: language, theme, shortcuts. Nothing of the cluster, and no token.

const PREFIX = 'mainstay-console.';

/** The setting, or '' if there is none or the browser keeps nothing. */
export function remembered(name) {
  try {
    return localStorage.getItem(PREFIX + name) ?? '';
  } catch {
    return '';
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(PREFIX + name, value);
  } catch {
    // A browser that keeps nothing: the setting holds until the page is left.
  }
}

/** Themes in the order of the switch; `system` follows the system's. */
export const THEMES = ['system', 'light', 'dark'];

export function theme() {
  const chosen = remembered('theme');
  return THEMES.includes(chosen) ? chosen : 'system';
}

export function applyTheme(chosen = theme()) {
  remember('theme', chosen);
  if (chosen === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}
