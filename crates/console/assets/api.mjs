// Calls to members through the server that serves this page: the header that keeps other pages out, the session, errors, and the
// clock. Everything else asks members through here.

import { t } from './texts.mjs';

const HEADER = { 'X-Mainstay-Console': '1' };

/** An answer that is no success. `code` is that of gRPC, 0 if there is none. */
export class Failure extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** The member or the console's server could not be reached, so nobody knows if the call was done. */
  get isUnreachable() {
    return this.status === 0 || this.status === 502 || this.status === 504;
  }

  get isDenied() {
    return this.code === 7 || this.status === 403;
  }

  get isUnimplemented() {
    return this.status === 404 || this.status === 501;
  }

  /** The session is missing or has ended. A refused password is not meant. */
  get needsLogin() {
    return this.code === 16 || this.status === 401 || /user name is empty|invalid auth token|revision of auth store is old/.test(this.message);
  }
}

/** What to tell a person about an error, in a sentence. */
export function explain(error) {
  if (!(error instanceof Failure)) return t('errorUnexpected', { message: error.message });
  if (error.status === 0) return t('errorConsole');
  if (error.isUnreachable) return t('errorMember', { message: error.message });
  if (error.needsLogin) return t('errorLogin');
  if (error.isDenied) return t(session.user ? 'errorDenied' : 'errorDeniedNobody', { user: session.user, message: error.message });
  if (error.isUnimplemented) return t('errorUnimplemented', { message: error.message });
  return t('errorAnswer', { message: error.message });
}

/** Who is logged in. The token is in memory only: a page that is loaded again asks for the password again. */
export const session = {
  user: '',
  token: '',
  /** Asks the user for name and password; set by the page. Resolves to true when logged in, false if the user did not want to. */
  ask: async () => false,
  changed: new EventTarget(),
};

let asking = null;

/** One question for all calls that found the session missing at the same time. */
function askOnce() {
  asking ??= session.ask(session.user).finally(() => {
    asking = null;
  });
  return asking;
}

/** Resolves to true when there is another session than the one with this token, which was refused. */
export async function requireLogin(token) {
  // Another call may have logged in while this one was under way: then it is sent again without a question.
  return session.token !== token || askOnce();
}

export function logOut() {
  session.user = '';
  session.token = '';
  session.changed.dispatchEvent(new Event('change'));
}

/** Logs in at a member. */
export async function logIn(endpoint, name, password) {
  const answer = await post(endpoint, 'auth/authenticate', { name, password }, { anonymous: true });
  session.user = name;
  session.token = answer.token ?? '';
  session.changed.dispatchEvent(new Event('change'));
}

/** The server's clock in ms since 1970, less `performance.now()` at that time; `null` until an answer told. */
let clock = null;

function noteClock(response) {
  const date = Date.parse(response.headers.get('date') ?? '');
  // The header has whole seconds: half of one is the mean error.
  if (!Number.isNaN(date)) clock = date + 500 - performance.now();
}

/** Now by the server's clock, in ms since 1970; `null` if no answer has told it. */
export function serverNow() {
  return clock === null ? null : clock + performance.now();
}

async function failure(response) {
  const text = await response.text().catch(() => '');
  try {
    const { code = 0, message = text } = JSON.parse(text);
    return new Failure(response.status, code, message);
  } catch {
    return new Failure(response.status, 0, text.trim().slice(0, 300) || `HTTP ${response.status}`);
  }
}

/** The failure that a broken connection is. A member that takes too long is not the console's server that is gone. */
function broken(error) {
  if (error.name === 'AbortError') return error;
  return error.name === 'TimeoutError' ? new Failure(504, 0, t('timedOut')) : new Failure(0, 0, error.message);
}

/** Sends a request and returns the response, if it is a success; else throws a `Failure`. */
async function send(url, options, { anonymous = false, quiet = false } = {}) {
  for (;;) {
    const token = session.token;
    const headers = { ...HEADER, ...options.headers };
    if (token && !anonymous) headers.Authorization = token;
    let response;
    try {
      response = await fetch(url, { ...options, headers, cache: 'no-store' });
    } catch (error) {
      throw broken(error);
    }
    noteClock(response);
    if (response.ok) return response;
    const found = await failure(response);
    if (anonymous || quiet || !found.needsLogin) throw found;
    if (!(await requireLogin(token))) throw found;
  }
}

function path(endpoint, rest) {
  return `/api/endpoint/${encodeURIComponent(endpoint.id)}/${rest}`;
}

function posted(body) {
  return { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } };
}

/** Calls a method of the JSON gateway: `post(endpoint, 'kv/range', { key })`. */
export async function post(endpoint, method, body, options = {}) {
  const response = await send(path(endpoint, `v3/${method}`), { ...posted(body), signal: options.signal }, options);
  return readJson(response);
}

async function readJson(response) {
  try {
    return await response.json();
  } catch (error) {
    throw broken(error);
  }
}

/** Fetches a page of a member as text, such as `metrics`. */
export async function getText(endpoint, rest, options = {}) {
  const response = await send(path(endpoint, rest), { signal: options.signal }, options);
  try {
    return await response.text();
  } catch (error) {
    throw broken(error);
  }
}

export async function getMembers(options) {
  return readJson(await send('/api/members', {}, options));
}

/** Calls `each` for every answer of a stream, until it ends. Throws what the member ended it with. */
export async function stream(endpoint, method, body, each, options = {}) {
  const response = await send(path(endpoint, `v3/${method}`), { ...posted(body), signal: options.signal }, options);
  options.opened?.();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (error) {
      throw broken(error);
    }
    if (chunk.done) return;
    const lines = chunk.value.split('\n');
    // A line of megabytes comes in many pieces: they are joined once, at its end.
    parts.push(lines[0]);
    for (const next of lines.slice(1)) {
      const line = parts.join('');
      parts = [next];
      if (line.trim() !== '') deliver(JSON.parse(line), each);
    }
  }
}

function deliver(message, each) {
  if (message.error) {
    const { code = message.error.grpc_code ?? 0, message: text = '' } = message.error;
    throw new Failure(500, code, text);
  }
  each(message.result ?? message);
}
