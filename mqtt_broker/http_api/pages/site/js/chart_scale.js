// The scales of line charts. They follow those of the simulator's report, iot_sim/report/charts.py;
// a test compares both on thousands of values. docs/decisions/0059 says why there are two.

export const TICKS_MAX = 5;
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** A round distance of ticks, so that at most TICKS_MAX reach the largest value. */
export function valueStep(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most / TICKS_MAX));
  for (const many of [1, 2, 2.5, 5]) {
    if (most <= many * power * TICKS_MAX * (1 + 1e-9)) return many * power;
  }
  return 10 * power;
}

/** The same for sizes in bytes, whose round numbers are those of powers of 1024. */
export function byteStep(most) {
  const unit = most >= 1 ? 1024 ** Math.floor(Math.log2(most) / 10) : 1;
  return valueStep(most / unit) * unit;
}

/** A distance of ticks in seconds as clocks have them, with at most seven ticks. */
export function timeStep(seconds) {
  for (const step of CLOCK_STEPS) if (seconds <= step * 6) return step;
  return 86400 * Math.ceil(seconds / (6 * 86400));
}

/** At most `most` values, each the largest of those it replaces; null is a gap. */
export function downsample(values, most) {
  const size = Math.ceil(values.length / most);
  if (size <= 1) return values.slice();
  const out = [];
  for (let start = 0; start < values.length; start += size) {
    const there = values.slice(start, start + size).filter((one) => one !== null && one !== undefined);
    out.push(there.length ? Math.max(...there) : null);
  }
  return out;
}

/** The pieces of a line: runs of points [x, y], interrupted where a value is missing. */
export function runs(values, x, y) {
  const out = [[]];
  values.forEach((value, index) => {
    if (value === null || value === undefined) out.push([]);
    else out.at(-1).push([x(index), y(value)]);
  });
  return out.filter((points) => points.length);
}

/**
 * Put newer samples behind those that are kept. Both are { start_at, step_s, series }; what overlaps is
 * taken from the newer, a hole between them is filled with null, and at most `most` samples are kept.
 */
export function joined(kept, newer, most) {
  const step = newer.step_s;
  const names = Object.keys(newer.series);
  const length = newer.series[names[0]]?.length ?? 0;
  if (!kept || kept.step_s !== step || length === 0) return newer;
  const shift = Math.round((newer.start_at - kept.start_at) / step);
  if (shift < 0) return newer;
  const series = {};
  let start = kept.start_at;
  for (const name of names) {
    const values = (kept.series[name] ?? []).slice(0, shift);
    while (values.length < shift) values.push(null);
    values.push(...newer.series[name]);
    const cut = Math.max(0, values.length - most);
    series[name] = values.slice(cut);
    start = kept.start_at + cut * step;
  }
  return { ...newer, start_at: start, series };
}
