// Differences of two texts, line by line (Myers' algorithm, bounded: texts that differ in more are shown as all removed, all added).

const EDITS_MAX = 600;
const CONTEXT = 3;

/** Steps `[kind, line]` that make `after` from `before`; kinds are `same`, `minus` and `plus`. */
function steps(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let [endA, endB] = [before.length, after.length];
  while (endA > start && endB > start && before[endA - 1] === after[endB - 1]) {
    endA -= 1;
    endB -= 1;
  }
  const [a, b] = [before.slice(start, endA), after.slice(start, endB)];
  return [
    ...before.slice(0, start).map((line) => ['same', line]),
    ...(middle(a, b) ?? [...a.map((line) => ['minus', line]), ...b.map((line) => ['plus', line])]),
    ...before.slice(endA).map((line) => ['same', line]),
  ];
}

/** The shortest edit, or `null` if it has too many steps. */
function middle(a, b) {
  const most = Math.min(a.length + b.length, EDITS_MAX);
  const offset = most + 1;
  let reach = new Int32Array(2 * most + 3);
  const trace = [];
  for (let edits = 0; edits <= most; edits += 1) {
    trace.push(reach.slice());
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && reach[offset + k - 1] < reach[offset + k + 1]);
      let x = down ? reach[offset + k + 1] : reach[offset + k - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      reach[offset + k] = x;
      if (x >= a.length && x - k >= b.length) return back(a, b, trace, offset);
    }
  }
  return null;
}

function back(a, b, trace, offset) {
  const out = [];
  let [x, y] = [a.length, b.length];
  for (let edits = trace.length - 1; edits >= 0; edits -= 1) {
    const reach = trace[edits];
    const k = x - y;
    const down = k === -edits || (k !== edits && reach[offset + k - 1] < reach[offset + k + 1]);
    const from = edits === 0 ? 0 : down ? k + 1 : k - 1;
    const startX = edits === 0 ? 0 : reach[offset + from];
    const startY = edits === 0 ? 0 : startX - from;
    while (x > startX && y > startY) {
      out.push(['same', a[x - 1]]);
      x -= 1;
      y -= 1;
    }
    if (edits > 0) {
      if (down) out.push(['plus', b[startY]]);
      else out.push(['minus', a[startX]]);
      [x, y] = [startX, startY];
    }
  }
  return out.reverse();
}

/** The same, with long runs of equal lines left out: such a run is `['skipped', number]`. */
export function difference(before, after) {
  const all = steps(before, after);
  const near = new Uint8Array(all.length);
  all.forEach(([kind], at) => {
    if (kind !== 'same') near.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
  });
  const out = [];
  all.forEach((step, at) => {
    if (near[at]) out.push(step);
    else if (out.at(-1)?.[0] === 'skipped') out.at(-1)[1] += 1;
    else out.push(['skipped', 1]);
  });
  return out;
}
