// Line charts as SVG, drawn by this page: grid, axes, lines, and a reading where the pointer or a key is.

import { h, put, s, setText } from "./dom.js";
import { clock } from "./format.js";
import { downsample, runs, timeStep, valueStep } from "./chart_scale.js";

const HEIGHT = 150;
const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;

/**
 * A chart. `lines` are { name, label, style }; `show` formats a value, `step` spaces the ticks. `update({ start_at, step_s, series })`
 * draws it. With the chart focused, the arrow keys move the reading.
 */
export function chart(ctx, { title, lines, show, step: stepOf = valueStep }) {
  const drawing = s("svg", { role: "img", "aria-label": title, height: HEIGHT, class: "chart" });
  const readings = lines.map(() => h("b"));
  const when = h("span", { class: "when" });
  const legend = h("div", { class: "legend" },
    lines.map((line, index) => h("span", {}, h("i", { class: line.style }), line.label, " ", readings[index])), when);
  const box = h("div", { class: "chart-box", tabindex: "0", role: "group",
    "aria-label": `${title}: left and right arrow keys read values` }, drawing);
  const element = h("figure", { class: "panel chart-panel" },
    h("figcaption", {}, h("h2", {}, title), legend), box);
  let data = null;
  let at = null; // the sample that is read; null: the last one
  let width = 0;

  function draw() {
    if (!data || !width) return;
    const picked = lines.map((line) => data.series[line.name] ?? []);
    const length = Math.max(0, ...picked.map((values) => values.length));
    const right = width - RIGHT;
    const bottom = HEIGHT - BOTTOM;
    const most = Math.max(0, ...picked.flat().filter((one) => one !== null));
    const step = stepOf(most);
    const top = step * Math.max(1, Math.ceil(most / step - 1e-9));
    const last = Math.max(1, (length - 1) * data.step_s);
    const y = (value) => bottom - (bottom - TOP) * Math.min(1, value / top);
    const x = (second) => LEFT + (right - LEFT) * second / last;
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    drawing.setAttribute("aria-label", `${title}. ${spoken(picked)}`);
    put(drawing, grid(top, step, y, right), clocks(last, x), picked.map((values, index) => {
      const few = downsample(values, Math.max(60, Math.floor(right - LEFT)));
      const size = values.length > 1 ? (values.length - 1) * data.step_s / Math.max(1, few.length - 1) : 0;
      return runs(few, (place) => x(place * size), y).map((points) => shapes(points, lines[index].style, bottom, lines.length));
    }), reading(picked, x, y, bottom, length));
    read(picked, length);
  }

  function grid(top, step, y, right) {
    const out = [];
    for (let tick = 0; tick <= Math.round(top / step); tick += 1) {
      const place = y(tick * step).toFixed(1);
      out.push(s("line", { class: "grid", x1: LEFT, x2: right, y1: place, y2: place }),
        s("text", { class: "tick", x: LEFT - 6, y: Number(place) + 4, "text-anchor": "end" }, tick ? show(tick * step) : "0"));
    }
    return out;
  }

  function clocks(last, x) {
    const step = timeStep(last);
    const out = [];
    const zone = new Date(data.start_at * 1000).getTimezoneOffset() * 60;
    const local = data.start_at - zone;
    for (let at = Math.ceil(local / step) * step; at <= local + last; at += step) {
      const place = x(at - local);
      if (place < LEFT + 14 || place > width - RIGHT - 14) continue;
      out.push(s("text", { class: "tick", x: place.toFixed(1), y: HEIGHT - 5, "text-anchor": "middle" },
        step < 60 ? clock(at + zone) : clock(at + zone).slice(0, 5)));
    }
    return out;
  }

  function shapes(points, style, bottom, many) {
    const text = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
    const area = many === 1 && points.length > 1
      ? s("polygon", { class: style,
        points: `${points[0][0].toFixed(1)},${bottom} ${text} ${points.at(-1)[0].toFixed(1)},${bottom}` })
      : null;
    return [area, s("polyline", { class: style, points: text })].filter(Boolean);
  }

  function reading(picked, x, y, bottom, length) {
    if (at === null || length === 0) return [];
    const place = x(at * data.step_s).toFixed(1);
    return [s("line", { class: "cursor", x1: place, x2: place, y1: TOP, y2: bottom }),
      ...picked.map((values, index) => (values[at] === null || values[at] === undefined ? null
        : s("circle", { class: lines[index].style, cx: place, cy: y(values[at]).toFixed(1), r: 3 })))];
  }

  function read(picked, length) {
    const place = at ?? length - 1;
    picked.forEach((values, index) => {
      const value = values[place];
      setText(readings[index], value === null || value === undefined ? "–" : show(value));
    });
    setText(when, at === null ? "" : clock(data.start_at + place * data.step_s));
  }

  function spoken(picked) {
    return lines.map((line, index) => {
      const there = picked[index].filter((one) => one !== null && one !== undefined);
      if (!there.length) return `${line.label}: no values`;
      return `${line.label}: now ${show(there.at(-1))}, highest ${show(Math.max(...there))}`;
    }).join("; ");
  }

  function point(event) {
    if (!data) return;
    const length = Math.max(0, ...lines.map((line) => (data.series[line.name] ?? []).length));
    const box = drawing.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / Math.max(1, width - RIGHT - LEFT);
    at = Math.round(Math.max(0, Math.min(1, share)) * (length - 1));
    draw();
  }

  const leave = () => { at = null; draw(); };
  drawing.addEventListener("pointermove", point);
  drawing.addEventListener("pointerleave", leave);
  box.addEventListener("blur", leave);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !data) return;
    event.preventDefault();
    const length = Math.max(0, ...lines.map((line) => (data.series[line.name] ?? []).length));
    at = Math.max(0, Math.min(length - 1, (at ?? length - 1) + step * (event.shiftKey ? 12 : 1)));
    draw();
  });
  const sized = new ResizeObserver(([entry]) => {
    const next = Math.floor(entry.contentRect.width);
    if (next === width) return;
    width = next;
    requestAnimationFrame(draw);
  });
  sized.observe(box);
  ctx.signal.addEventListener("abort", () => sized.disconnect(), { once: true });
  return {
    element,
    update(next) {
      data = next;
      element.hidden = !lines.some((line) => line.name in data.series); // an older broker may not keep it
      draw();
    },
  };
}

/** A line without axes, beside a number. */
export function spark(values, style = "a") {
  const few = downsample(values, 60);
  const most = Math.max(1e-9, ...few.filter((one) => one !== null));
  const lines = runs(few, (index) => (index * 100) / Math.max(1, few.length - 1), (value) => 22 - (20 * value) / most);
  return s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    lines.map((points) => s("polyline", { class: style,
      points: points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ") })));
}
