// Work that a page does again and again while it is seen.

/**
 * Does `work` now and then every `everyMs`, with `{ quiet: true }`. A round that is due while another one is under way is left out, so
 * that a member which hangs does not collect calls. Returns `{ now, stop }`; `now` does a round at once, or right after the one that is
 * under way: that one may have asked before what changed.
 */
export function repeat(work, everyMs) {
  let isBusy = false;
  let isWanted = false;
  let isStopped = false;
  async function round(options) {
    if (isBusy) return;
    isBusy = true;
    try {
      await work(options);
    } finally {
      isBusy = false;
      // However often it was wanted meanwhile, one more round sees it all.
      if (isWanted && !isStopped) now();
    }
  }
  function now() {
    isWanted = isBusy;
    return round({});
  }
  const timer = setInterval(() => document.visibilityState === 'visible' && round({ quiet: true }), everyMs);
  now();
  return {
    now,
    stop() {
      isStopped = true;
      clearInterval(timer);
    },
  };
}
