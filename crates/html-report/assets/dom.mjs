// Elements made from values. Everything that comes from a member is set as text, never parsed as markup: this module has no way to
// parse any.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name in PROPERTIES) element[PROPERTIES[name]] = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

/** Names of `h` that are set as properties of the element, since attributes of the same name mean something else. */
const PROPERTIES = { value: 'value', checked: 'checked' };

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Makes an element: `h('a', { href: '#/keys', class: 'link' }, 'Keys')`. A property that begins with `on` is a listener. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Replaces all that is in `element`. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Sets a text only where it differs, so that what a reader has marked or focused stays. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let last = 0;

/** A new id for `for`, `aria-labelledby` and the like. */
export function newId(prefix) {
  last += 1;
  return `${prefix}-${last}`;
}
