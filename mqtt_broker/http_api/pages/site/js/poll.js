// Repeated requests: none while the page is hidden, further and further apart while the broker is away,
// and seldom if the answer takes long: what costs the broker much is asked for less often.

const SLOWEST_MS = 30_000;
const SHARE = 20; // the wait is at least so many times as long as the answer took

/** The wait before try `failures`: doubled each time, and spread so that pages do not come at once. */
export function backoff(failures, random = Math.random()) {
  return Math.min(SLOWEST_MS, 1000 * 2 ** Math.min(failures - 1, 10)) * (0.75 + random / 2);
}

/** The wait after an answer that took `took` ms, where `every` ms are wanted; 0: no next one. */
export function pause(every, took, share = SHARE) {
  return every ? Math.max(every, Math.min(SLOWEST_MS, took * share)) : 0;
}

/**
 * Call `work(signal)` now and every `every` ms until `signal` is aborted. `onError` hears what failed.
 * A request that is refused (4xx) is not repeated until `refresh` is called. 0: only by `refresh`.
 */
export function poll(signal, every, work, onError, share = SHARE) {
  let timer = 0;
  let failures = 0;
  let running = null;

  async function run() {
    clearTimeout(timer);
    running?.abort();
    if (signal.aborted) return;
    const mine = new AbortController();
    running = mine;
    const stop = () => mine.abort();
    signal.addEventListener("abort", stop, { once: true });
    let next = 0;
    const began = performance.now();
    try {
      await work(mine.signal);
      failures = 0;
      next = pause(every, performance.now() - began, share);
    } catch (error) {
      if (mine.signal.aborted) return;
      failures += 1;
      onError(error);
      next = error.isAway || error.status >= 500 || error.status === 429 ? backoff(failures) : 0;
      if (error.status === undefined) console.error(error);
    } finally {
      signal.removeEventListener("abort", stop);
      if (running === mine) running = null;
    }
    if (next && !signal.aborted && !mine.signal.aborted) schedule(next);
  }

  function schedule(ms) {
    clearTimeout(timer);
    timer = setTimeout(() => { if (!document.hidden) run(); }, ms);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else if (every || failures) run();
  }, { signal });
  window.addEventListener("fleetmq-retry", () => { if (failures) run(); }, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  run();
  return { refresh: run };
}
