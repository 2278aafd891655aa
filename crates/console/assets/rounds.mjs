// Work that a page does again and again while it is seen.

/**
 * Does `work` now and then every `everyMs`, with `{ quiet: true }`. A round that is due while another one is under way is left out, so
 * that a member which hangs does not collect calls. Returns `{ now, stop }`; `now` does a round at once, if none is under way.
 */
export function repeat(work, everyMs) {
  let isBusy = false;
  async function round(options) {
    if (isBusy) return;
    isBusy = true;
    try {
      await work(options);
    } finally {
      isBusy = false;
    }
  }
  const timer = setInterval(() => document.visibilityState === 'visible' && round({ quiet: true }), everyMs);
  const now = () => round({});
  now();
  return { now, stop: () => clearInterval(timer) };
}
