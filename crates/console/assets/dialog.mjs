// Dialogs: questions before something is changed, the login, the list of shortcuts.

import { h, newId } from './dom.mjs';
import { explain } from './api.mjs';
import { t } from './texts.mjs';

/**
 * Shows a dialog and resolves to what `act` returned, or to `undefined` if the user did not want to. While `act` fails, the dialog
 * stays open with what was typed, and says why. `act` is given the form's values by name.
 *
 * Cancelling while `act` is under way does not stop it: the dialog goes, and its outcome is said on the page once it is known.
 *
 * `word`, if given, has to be typed before the button works: for what cannot be taken back.
 */
export function ask({ title, body = [], button, isDanger = false, word = null, act = () => true, cancel = t('cancel') }) {
  return new Promise((resolve) => {
    const titleId = newId('dialog');
    const problem = h('p', { class: 'problem', role: 'alert' });
    const done = button && h('button', { type: 'submit', class: isDanger ? 'danger' : 'primary' }, button);
    const typed = word !== null && h('input', { name: 'word', autocomplete: 'off', spellcheck: 'false', oninput: () => check() });
    const stop = h('button', { type: 'button', onclick: () => close(undefined) }, cancel);
    const form = h('form', { method: 'dialog' },
      h('h2', { id: titleId }, title),
      h('div', { class: 'dialog-body' }, body, typed && h('label', { class: 'field' }, h('span', {}, t('typeToConfirm', { word })), typed), problem),
      h('div', { class: 'buttons' }, stop, done));
    const dialog = h('dialog', { 'aria-labelledby': titleId }, form);
    const before = document.activeElement;
    let isBusy = false;
    let isOpen = true;

    function check() {
      stop.textContent = isBusy ? t('stopWaiting') : cancel;
      if (done) done.disabled = isBusy || (typed && typed.value !== word);
    }
    function close(result) {
      if (!isOpen) return;
      isOpen = false;
      dialog.close();
      dialog.remove();
      if (before?.isConnected) before.focus();
      resolve(result);
    }
    dialog.addEventListener('cancel', (event) => {
      event.preventDefault();
      close(undefined);
    });
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      if (isBusy || !done || done.disabled) return;
      isBusy = true;
      problem.textContent = '';
      check();
      try {
        const values = Object.fromEntries(new FormData(form));
        const result = await act(values, form);
        if (!isOpen) announceLate(title, result?.done === false ? t('lateNotDone') : t('lateDone'));
        close(result ?? true);
      } catch (error) {
        if (isOpen) problem.textContent = explain(error);
        else announceLate(title, explain(error));
      } finally {
        isBusy = false;
        check();
      }
    });
    check();
    document.body.append(dialog);
    dialog.showModal();
    (form.querySelector('[autofocus]') ?? form.querySelector('input, select, textarea') ?? form.querySelector('.buttons button'))?.focus();
  });
}

/** A mistake in what was typed, as a text for the user. */
export function mistake(text) {
  const error = new Error(text);
  error.forUser = text;
  return error;
}

/** A field with its label. */
export function field(label, input, hint = null) {
  if (!hint) return h('label', { class: 'field' }, h('span', {}, label), input);
  const id = newId('hint');
  input.setAttribute('aria-describedby', id);
  return h('div', { class: 'field' }, h('label', {}, h('span', {}, label), input), h('small', { id }, hint));
}

/** Says in a corner that something was done; read out politely. Returns the element. */
export function announce(text, ms = 6000) {
  const place = document.getElementById('announcements');
  const note = h('p', {}, text);
  place.append(note);
  setTimeout(() => note.remove(), ms);
  return note;
}

/** The outcome of what nobody waited for. It stays until it is closed, or for ten minutes. */
function announceLate(title, outcome) {
  const note = announce(t('lateOutcome', { title, outcome }), 600000);
  note.append(' ', h('button', { type: 'button', class: 'quiet', onclick: () => note.remove() }, t('close')));
}
