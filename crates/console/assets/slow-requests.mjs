// The page `/debug/requests` of a member, line by line:
// `2026-01-02T03:04:05.678Z 12.3ms /etcdserverpb.KV/Put from 10.0.0.1 front=50µs fsync=11ms key:"a" … error=…`.

import { STAGES } from './points.mjs';

const UNITS = { ns: 1e-9, µs: 1e-6, us: 1e-6, ms: 1e-3, s: 1 };
const LINE = /^(\S+T\S+Z) ([0-9.]+)(ns|µs|us|ms|s) (\S+) from (\S+)((?: [a-z_]+=[0-9.]+(?:ns|µs|us|ms|s))*)(?: (.*))?$/;

/** The requests of a page, newest first, as `{ id, endedMs, seconds, method, client, stages, content, error }`. */
export function readRequests(text) {
  return text.split('\n').flatMap((line) => {
    const found = LINE.exec(line);
    if (!found) return [];
    const [, ended, number, unit, path, client, parts, rest = ''] = found;
    const stages = [...parts.matchAll(/ ([a-z_]+)=([0-9.]+)(ns|µs|us|ms|s)/g)]
      .filter(([, name]) => STAGES.includes(name))
      .map(([, name, value, its]) => ({ name, seconds: Number(value) * UNITS[its] }));
    // Text of keys may hold anything; the error comes last.
    const at = rest.lastIndexOf('error=');
    return [{
      id: `${ended} ${client} ${path} ${number}`,
      endedMs: Date.parse(ended.replace(/\.(\d{3})\d*Z$/, '.$1Z')),
      seconds: Number(number) * UNITS[unit],
      method: path.split('/').slice(1).join('/').replace(/^etcdserverpb\./, ''),
      client,
      stages,
      content: (at < 0 ? rest : rest.slice(0, at)).trim(),
      error: at < 0 ? '' : rest.slice(at + 6),
    }];
  });
}
