// The configuration in force, where each value comes from, and what a reload takes up.

import { ask } from "../dialog.js";
import { button, h, put } from "../dom.js";
import { words } from "../format.js";
import { badge, empty, field, heading, mono, notice, panel, resource } from "../parts.js";
import { table } from "../table.js";

export default function configuration(ctx) {
  let rows = [];
  let words_ = (ctx.query.q ?? "").toLowerCase();
  let isSet = ctx.query.set === "true";
  const grid = table({ label: "Configuration", key: (one) => one.key, columns: [
    { label: "Key", show: (one) => h("span", { class: "mono" }, one.key) },
    { label: "Value", kind: "mono", show: (one) => text(one.value) },
    { label: "From", show: (one) => (one.source && one.source !== "default" ? badge("good", one.source) : h("span", { class: "note" }, one.source ?? "")) },
    { label: "A change", rank: 2, show: (one) => one.change },
  ] });
  const none = h("div");
  const draw = () => {
    const found = rows.filter((one) => (!words_ || one.key.toLowerCase().includes(words_) || text(one.value).toLowerCase().includes(words_))
      && (!isSet || (one.source && one.source !== "default")));
    grid.update(found);
    grid.element.hidden = !found.length;
    put(none, found.length ? null : empty("No key matches."));
    ctx.remember({ q: words_, set: isSet });
  };
  const body = h("div", {}, grid.element, none);
  const all = resource(ctx, {
    load: (signal) => ctx.api.get("config", {}, signal),
    show: (answer) => {
      rows = flat(answer);
      draw();
      return body;
    },
  });
  const result = h("div", { role: "status" });
  const reload = button("Reload", async () => {
    const answer = await ask({ title: "Reload the configuration", action: "Reload",
      text: "The file is read again. What can change while the broker runs is in force at once; the answer says what needs a restart.",
      act: () => ctx.api.post("reload") });
    if (answer) { put(result, outcome(answer)); all.refresh(); }
  });
  const search = h("input", { type: "search", value: words_, data: { main: "" }, autocomplete: "off",
    on: { input: (event) => { words_ = event.target.value.toLowerCase(); draw(); } } });
  const set = h("input", { type: "checkbox", checked: isSet, on: { change: (event) => { isSet = event.target.checked; draw(); } } });
  return { element: h("div", {}, heading("Configuration", { actions: ctx.may("operator") ? [reload] : [] }), result,
    h("form", { class: "filters", role: "search", "aria-label": "Filter the configuration", on: { submit: (event) => event.preventDefault() } },
      field("Key or value", search, { class: "grow" }), field("Only what is set", set, { class: "check" })), all.element) };
}

function text(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function flat(answer) {
  const items = answer.items ?? answer.keys ?? answer.values ?? answer.config ?? answer;
  const all = Array.isArray(items) ? items : Object.entries(items).map(([key, one]) =>
    (one && typeof one === "object" && "value" in one ? { key, ...one } : { key, value: one }));
  return all.map((one) => ({ key: one.key ?? one.name, value: one.value, source: one.source ?? one.from ?? one.origin,
    change: one.change ?? (one.needs_restart === undefined && one.live === undefined ? "" : one.needs_restart ?? !one.live ? "needs a restart" : "by reload") }));
}

function outcome(answer) {
  const lists = Object.entries(answer).filter(([, value]) => Array.isArray(value));
  if (!lists.some(([, value]) => value.length)) return notice("good", "Reloaded: nothing had changed.");
  return panel("Reloaded", {}, lists.filter(([, value]) => value.length).map(([name, value]) => h("div", {},
    h("h3", {}, words(name)), h("ul", { class: "plain" }, value.map((one) => h("li", {}, mono(typeof one === "object" ? text(one) : String(one))))))));
}
