// The parts that views are made of: panels, facts, notices, and what loads by itself.

import { ApiError, advice } from "./api.js";
import { button, h, put, setText } from "./dom.js";
import * as format from "./format.js";
import { poll } from "./poll.js";

/** A panel with a heading, actions beside it, and what it shows. */
export function panel(title, { actions = [], level = 2, note = "", class: extra = "" } = {}, ...children) {
  return h("section", { class: `panel ${extra}` },
    h("div", { class: "panel-head" },
      h(`h${level}`, {}, title, note ? h("span", { class: "note" }, note) : null),
      actions.length ? h("div", { class: "actions" }, actions) : null),
    children);
}

/** The heading of a view, with its actions. */
export function heading(title, { actions = [], note = null, marks = null } = {}) {
  return h("header", { class: "view-head" },
    h("h1", { tabindex: "-1" }, title), marks,
    note ? h("p", { class: "note" }, note) : null,
    actions.length ? h("div", { class: "actions" }, actions) : null);
}

/** Names and values; values are texts or elements, null is left out. */
export function facts(pairs, props = {}) {
  return h("dl", { class: "facts", ...props },
    pairs.filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Any value of the API as text or elements: the shape of what is read may grow. */
export function shown(name, value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (name.endsWith("_at") || name === "at" || name === "until") return format.moment(value);
    if (/(^|_)bytes(_max)?$/.test(name)) return format.bytes(value);
    if (name.endsWith("_per_s")) return format.rate(value);
    if (/_s(_max)?$/.test(name)) return format.duration(value);
    return Number.isInteger(value) ? format.count(value) : format.short(value);
  }
  if (Array.isArray(value)) {
    if (value.length === 0) return "none";
    if (value.every((one) => typeof one !== "object")) return value.join(", ");
    return h("ul", { class: "plain" }, value.map((one) => h("li", {}, shown("", one))));
  }
  if (typeof value === "object") {
    return facts(Object.entries(value).map(([key, one]) => [format.label(key), shown(key, one)]));
  }
  return String(value);
}

/** A notice: what happened, and what to do about it. */
export function notice(kind, text, hint = "", ...actions) {
  return h("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "note" },
    h("p", {}, text), hint ? h("p", { class: "hint" }, hint) : null,
    actions.length ? h("div", { class: "actions" }, actions) : null);
}

/** A failed request as a notice. */
export function failure(error, retry = null) {
  if (error instanceof ApiError && error.isAbsent) {
    return notice("plain", "This broker does not offer this.", "Its version has no such resource in the API.");
  }
  return notice("bad", sentence(error.message || String(error)), advice(error),
    ...(retry ? [button("Try again", retry)] : []));
}

/** A text as a sentence. */
export function sentence(text) {
  const whole = text.trim();
  const first = whole.charAt(0).toUpperCase() + whole.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

/** A sentence of the broker, with the names that it quotes in `...` set apart. */
export function quoted(text) {
  return sentence(text).split("`").map((part, index) => (index % 2 ? mono(part) : format.visible(part)));
}

/** Nothing to show, and why. */
export function empty(text, hint = "") {
  return h("div", { class: "empty" }, h("p", {}, text), hint ? h("p", { class: "hint" }, hint) : null);
}

/** A state in a word and a colour: good, warn, bad or plain. */
export function badge(kind, text) {
  return h("span", { class: `badge ${kind}` }, text);
}

/** An id, topic or name: text of clients, with its characters told apart and none unseen. */
export function mono(text) {
  return h("bdi", { class: "mono" }, text === "" || text === null || text === undefined ? h("em", {}, "empty") : format.visible(text));
}

/**
 * What is loaded: shows that it loads, what came, or what failed; and goes on every `every` ms.
 * `show(data)` returns an element once, and may return the same one again after changing it.
 */
export function resource(ctx, { load, show, every = 0, label = "" }) {
  const problem = h("div");
  const body = h("div", { class: "resource-body" });
  const element = h("div", { class: "resource", "aria-busy": "true" }, problem, body);
  let current = null;
  const waiting = setTimeout(() => {
    if (!current && !problem.firstChild) put(body, h("p", { class: "waiting" }, label || "Loading …"));
  }, 200);
  ctx.signal.addEventListener("abort", () => clearTimeout(waiting), { once: true });
  const control = poll(ctx.signal, every, async (signal) => {
    const data = await load(signal);
    if (signal.aborted) return;
    clearTimeout(waiting);
    const next = show(data);
    if (next !== current || body.firstChild !== next) put(body, (current = next));
    problem.replaceChildren();
    element.classList.remove("stale");
    element.removeAttribute("aria-busy");
  }, (error) => {
    clearTimeout(waiting);
    element.removeAttribute("aria-busy");
    if (current && error.isAway) {
      element.classList.add("stale"); // the banner says the rest
      return;
    }
    put(problem, failure(error, () => control.refresh()));
    if (!current) body.replaceChildren();
  });
  return { element, refresh: control.refresh };
}

/** A field with its label; `control` is an input, select or textarea. */
let fields = 0;
export function field(label, control, { hint = "", class: extra = "" } = {}) {
  fields += 1;
  control.id = control.id || `field-${fields}`;
  const about = hint ? h("span", { class: "hint", id: `${control.id}-hint` }, hint) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  return h("div", { class: `field ${extra}` }, h("label", { for: control.id }, label), control, about);
}

/** A choice of a few words; `options` are [value, label]. */
export function choice(options, value, change, props = {}) {
  return h("select", { ...props, on: { change: (event) => change(event.target.value) } },
    options.map(([key, label]) => h("option", { value: key, selected: key === value }, label)));
}

/** Wait until nobody has typed for a moment. */
export function settled(work, signal, ms = 250) {
  let timer = 0;
  signal?.addEventListener("abort", () => clearTimeout(timer), { once: true });
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...args), ms);
  };
}

/** Tabs whose panels are made when they are first opened. */
export function tabs(label, items, start = items[0].key, opened = () => {}) {
  const body = h("div", { class: "tab-body", role: "tabpanel", tabindex: "0" });
  const made = new Map();
  const buttons = items.map((item) => h("button", {
    type: "button", role: "tab", class: "tab", id: `tab-${item.key}`, data: { key: item.key },
    on: { click: () => open(item.key) },
  }, item.label));
  const row = h("div", { class: "tabs", role: "tablist", "aria-label": label, on: { keydown: move } }, buttons);

  function open(key) {
    const item = items.find((one) => one.key === key) ?? items[0];
    for (const one of buttons) {
      const is = one.dataset.key === item.key;
      one.setAttribute("aria-selected", String(is));
      one.tabIndex = is ? 0 : -1;
    }
    if (!made.has(item.key)) made.set(item.key, item.make());
    body.setAttribute("aria-labelledby", `tab-${item.key}`);
    put(body, made.get(item.key));
    opened(item.key);
  }

  function move(event) {
    const at = buttons.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (at < 0 || !step) return;
    event.preventDefault();
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.focus();
    open(next.dataset.key);
  }

  open(start);
  return h("div", { class: "tabbed" }, row, body);
}

/** A text that changes in place. */
export function changing(tag = "span", props = {}) {
  const element = h(tag, props);
  return [element, (text) => setText(element, text)];
}
