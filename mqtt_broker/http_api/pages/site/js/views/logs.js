// The broker's log: its last lines, and the level of what it writes.

import { ask, done } from "../dialog.js";
import { button, h, put } from "../dom.js";
import { moment } from "../format.js";
import { empty, failure, field, heading, panel, settled } from "../parts.js";
import { poll } from "../poll.js";

const LEVELS = ["debug", "info", "warning", "error"];

export default function logs(ctx) {
  const state = { level: ctx.query.level ?? "", q: ctx.query.q ?? "" };
  const list = h("ul");
  const box = h("div", { class: "feed", tabindex: "0", role: "region", "aria-label": "Lines of the log, newest first" }, list);
  const problem = h("div");
  let last = "";
  const again = settled(() => { ctx.remember(state); control.refresh(); }, ctx.signal);
  const control = poll(ctx.signal, 2000, async (signal) => {
    const { items: lines } = await ctx.api.get("logs", { ...state, limit: 500 }, signal);
    const text = JSON.stringify(lines);
    problem.replaceChildren();
    if (text === last) return;
    last = text;
    if (!lines.length) put(list, h("li", {}, empty("No line matches.")));
    else put(list, lines.slice().reverse().map(line));
  }, (error) => { if (!error.isAway) { put(problem, failure(error)); box.hidden = error.isAbsent; } });

  const search = h("input", { type: "search", value: state.q, data: { main: "" }, autocomplete: "off", spellcheck: "false",
    on: { input: (event) => { state.q = event.target.value; again(); } } });
  const level = h("select", { on: { change: (event) => { state.level = event.target.value; again(); } } },
    [["", "all"], ...LEVELS.map((one) => [one, `${one} and above`])].map(([key, label]) => h("option", { value: key, selected: key === state.level }, label)));
  const actions = ctx.may("operator") ? [button("Change log level", () => change(ctx))] : [];
  return { element: h("div", {}, heading("Logs", { actions }),
    h("form", { class: "filters", role: "search", "aria-label": "Filter the log", on: { submit: (event) => event.preventDefault() } },
      field("Text", search, { class: "grow" }), field("Level", level)), problem, panel("Last lines", {}, box)) };
}

function line(one) {
  const { level, text } = one;
  return h("li", { class: level }, h("time", {}, moment(one.at)), h("pre", {}, level === "info" ? "" : h("span", { class: "word" }, `${level} `), text));
}

async function change(ctx) {
  const now = await ctx.api.get("log-level").catch(() => ({}));
  const answer = await ask({ title: "Log level", action: "Change", text: "It holds until the broker is restarted or reloads its configuration.",
    fields: [{ name: "level", label: "Write lines of this level and above", options: LEVELS.map((one) => [one, one]), value: now.level ?? "info" }],
    act: (values) => ctx.api.send("PUT", "log-level", { body: { level: values.level } }) });
  if (answer) done("Log level changed");
}
