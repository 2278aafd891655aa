// Calls to members through the server that serves this page: the header that keeps other pages out, the session, errors, and the
// clock. Everything else asks members through here.

import { t } from './texts.mjs';

const HEADER = { 'X-Mainstay-Console': '1' };

/** Time for an answer to a read, its body included, and to a change, which other members have to agree to. Streams have none. */
const READ_MS = 10000;
const CHANGE_MS = 60000;

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

/** An answer of another member, or of another cluster, than the one that was meant. `forUser` says which. */
export class Elsewhere extends Failure {
  constructor(forUser) {
    super(421, 0, forUser);
    this.forUser = forUser;
  }
}

/** A member that has no address to ask it at. `why` is the word for it in the list of members. */
export class NotAsked extends Failure {
  constructor(why) {
    super(421, 0, why);
    this.why = why;
  }

  get forUser() {
    return t('notAskedBecause', { why: t(`notAsked_${this.why}`) });
  }
}

/** What to tell a person about an error, in a sentence. */
export function explain(error) {
  if (error.forUser) return error.forUser;
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

/** Ends the session. Event `left`: what the user saw and typed is to be taken off the page. */
export function logOut() {
  session.user = '';
  session.token = '';
  session.changed.dispatchEvent(new Event('left'));
  session.changed.dispatchEvent(new Event('change'));
}

/** Logs in at a member. */
export async function logIn(endpoint, name, password) {
  const answer = await post(endpoint, 'auth/authenticate', { name, password }, { anonymous: true });
  const isOther = session.user !== '' && session.user !== name;
  session.user = name;
  session.token = answer.token ?? '';
  if (isOther) session.changed.dispatchEvent(new Event('left'));
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
function broken(error, signal) {
  if (error.name === 'TimeoutError' || signal?.reason?.name === 'TimeoutError') return new Failure(504, 0, t('timedOut'));
  return error.name === 'AbortError' ? error : new Failure(0, 0, error.message);
}

/** The caller's signal and a limit of time together. */
function limited(signal, ms) {
  const limit = AbortSignal.timeout(ms);
  return signal ? AbortSignal.any([signal, limit]) : limit;
}

/** Sends a request and returns the response, if it is a success; else throws a `Failure`. */
async function send(url, request, { anonymous = false } = {}) {
  const headers = { ...HEADER, ...request.headers };
  if (session.token && !anonymous) headers.Authorization = session.token;
  let response;
  try {
    response = await fetch(url, { ...request, headers, cache: 'no-store' });
  } catch (error) {
    throw broken(error, request.signal);
  }
  noteClock(response);
  if (response.ok) return response;
  throw await failure(response);
}

/** Does a call again after a login, if it found the session missing. */
async function withSession(call, { anonymous = false, quiet = false } = {}) {
  for (;;) {
    const { token, user } = session;
    try {
      return await call();
    } catch (error) {
      if (anonymous || quiet || !(error instanceof Failure) || !error.needsLogin || !(await requireLogin(token))) throw error;
      // What one user wanted is not done in another one's name.
      if (user !== '' && session.user !== user) throw error;
    }
  }
}

function path(endpoint, rest) {
  return `/api/endpoint/${encodeURIComponent(endpoint.id)}/${rest}`;
}

function posted(body) {
  return { method: 'POST', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } };
}

/** Sends a request whose answer has to be there, with its body, within `options.ms`. A question for a password does not count. */
function answered(url, request, options, read) {
  return withSession(async () => {
    const signal = limited(options.signal, options.ms ?? READ_MS);
    const response = await send(url, { ...request, signal }, options);
    try {
      return await read(response);
    } catch (error) {
      throw broken(error, signal);
    }
  }, options);
}

/** Calls a method of the JSON gateway: `post(endpoint, 'kv/range', { key })`. */
export function post(endpoint, method, body, options = {}) {
  return answered(path(endpoint, `v3/${method}`), posted(body), options, (response) => response.json());
}

/** Calls a method that changes something. Without an answer nobody knows whether it did: that is said. */
export async function postChange(endpoint, method, body, options = {}) {
  try {
    return await post(endpoint, method, body, { ms: CHANGE_MS, ...options });
  } catch (error) {
    if (error.isUnreachable) error.forUser = `${t('notKnownIfDone')} ${explain(error)}`;
    throw error;
  }
}

/** Fetches a page of a member as text, such as `metrics`. */
export function getText(endpoint, rest, options = {}) {
  return answered(path(endpoint, rest), {}, options, (response) => response.text());
}

export function getMembers(options = {}) {
  return answered('/api/members', {}, options, (response) => response.json());
}

/** Calls `each` for every answer of a stream, until it ends. Throws what the member ended it with. */
export async function stream(endpoint, method, body, each, options = {}) {
  const response = await withSession(() => send(path(endpoint, `v3/${method}`), { ...posted(body), signal: options.signal }, options), options);
  options.opened?.();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (error) {
      throw broken(error, options.signal);
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
