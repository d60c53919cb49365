// The configuration in force, where each value comes from, and what a reload takes up.

import { ask } from "../dialog.js";
import { button, h, put } from "../dom.js";
import { badge, empty, field, heading, mono, notice, panel, resource } from "../parts.js";
import { table } from "../table.js";

export default function configuration(ctx) {
  let rows = [];
  let words_ = (ctx.query.q ?? "").toLowerCase();
  let isSet = ctx.query.set === "true";
  const grid = table({ label: "Configuration", key: (one) => `${one.key} ${one.number ?? ""}`, columns: [
    { label: "Key", show: (one) => h("span", { class: "mono" }, one.key) },
    { label: "Value", kind: "mono", show: (one) => text(one.value) },
    { label: "From", show: (one) => (isGiven(one) ? badge("good", one.origin) : h("span", { class: "note" }, one.origin)) },
    { label: "A change", rank: 2, show: (one) => one.change },
  ] });
  const none = h("div");
  const draw = () => {
    const found = rows.filter((one) => (!words_ || one.key.toLowerCase().includes(words_) || text(one.value).toLowerCase().includes(words_))
      && (!isSet || isGiven(one)));
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

const isGiven = (one) => !one.origin.startsWith("default");

function text(value) {
  if (value === null || value === undefined || value === "") return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function flat(answer) {
  const keys = answer.values.map((one) => ({ ...one, change: one.holds ? `by reload: ${one.holds}` : "needs a restart" }));
  const tables = answer.tables.flatMap((table) => Object.entries(table.values).map(([key, one]) =>
    ({ key: `${table.header} ${key}`, value: one.value, origin: one.place, change: "" })));
  return [...keys, ...tables.map((one, index) => ({ ...one, number: index }))];
}

function outcome(answer) {
  const lists = [["In force now", answer.taken_up.map(change)], ["Needs a restart", answer.needs_restart.map(change)],
    ["Read again", answer.reloaded], ["Failed; the old content stays", Object.entries(answer.failed).map(([part, why]) => `${part}: ${why}`)],
    ["Still being read", answer.pending]].filter(([, items]) => items.length);
  if (!lists.length) return notice("good", "Reloaded: nothing had changed.");
  return panel("Reloaded", {}, lists.map(([name, items]) => h("div", {}, h("h3", {}, name),
    h("ul", { class: "plain" }, items.map((one) => h("li", {}, mono(one)))))));
}

const change = (one) => `${one.key}: ${text(one.before)} → ${text(one.value)}${one.holds ? ` (${one.holds})` : ""}`;
