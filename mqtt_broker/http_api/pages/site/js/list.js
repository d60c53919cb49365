// A list of the API in pages: filters, order and position stand in the address, so that it can be shared.

import { button, h, put, say } from "./dom.js";
import { count } from "./format.js";
import { empty, failure, field, settled } from "./parts.js";
import { poll } from "./poll.js";
import { table } from "./table.js";

const SHARE = 100; // sorting 15,000 clients takes the broker a tenth of a second: not more than 1 % of its time
const LIMITS = [25, 50, 100, 250, 500];

/**
 * A list at `path`. `filters` are { name, label, type, placeholder, options, hint }; the address has their
 * values. `columns` and `key` are those of the table. `none` says why there may be nothing.
 */
export function list(ctx, { path, label, columns, key, filters = [], sort = "", every = 5000, none, noneHint = "",
  fixed = {}, items = (answer) => answer.items, onItems = () => {}, actions = [], hint = "", prefix = "" }) {
  const named = (name) => prefix + name;
  const state = { values: {}, sort: ctx.query[named("sort")] ?? sort, limit: Number(ctx.query[named("limit")]) || 50 };
  for (const filter of filters) state.values[filter.name] = ctx.query[named(filter.name)] ?? filter.start ?? "";
  const cursors = [""]; // of the pages up to this one
  const grid = table({ label, columns, key, sort: state.sort, hint, onSort: (next) => { state.sort = next; again(); } });
  const problem = h("div");
  const nothing = h("div");
  const where = h("span", { class: "where" });
  const back = button("Previous", () => { cursors.pop(); control.refresh(); }, { disabled: true });
  const forth = button("Next", () => { if (following) { cursors.push(following); control.refresh(); } }, { disabled: true });
  const size = h("select", { "aria-label": "Rows on a page", on: {
    change: (event) => { state.limit = Number(event.target.value); again(); } } },
    LIMITS.map((one) => h("option", { value: one, selected: one === state.limit }, `${one} rows`)));
  const pager = h("nav", { class: "pager", "aria-label": `Pages of ${label}` }, where, size, back, forth);
  const body = h("div", { class: "list-body", "aria-busy": "true" }, grid.element, nothing);
  let following = null;
  let total = null;
  let asked = "";

  const again = () => {
    cursors.length = 1;
    ctx.remember(Object.fromEntries([
      ...Object.entries(state.values).map(([name, value]) => [named(name), value]),
      [named("sort"), state.sort === sort ? "" : state.sort], [named("limit"), state.limit === 50 ? "" : state.limit],
    ]));
    control.refresh();
  };
  const typed = settled(again, ctx.signal);

  const control = poll(ctx.signal, every, async (signal) => {
    const query = { ...state.values, ...fixed, sort: state.sort, limit: state.limit, cursor: cursors.at(-1) };
    const words = JSON.stringify(query);
    const answer = await ctx.api.get(path, query, signal);
    if (signal.aborted) return;
    const found = items(answer);
    if (found.length === 0 && cursors.length > 1) { // the page has gone meanwhile
      cursors.pop();
      control.refresh();
      return;
    }
    following = answer.next ?? null;
    total = answer.total ?? null;
    grid.update(found);
    onItems(answer);
    const first = (cursors.length - 1) * state.limit;
    const of = total === null ? "" : ` of ${count(total)}`;
    where.textContent = found.length ? `${count(first + 1)}–${count(first + found.length)}${of}` : "";
    if (asked && asked !== words) say(found.length ? `${label}: ${where.textContent}` : `${label}: nothing found`);
    asked = words;
    back.disabled = cursors.length === 1;
    forth.disabled = following === null;
    const isFiltered = Object.values(state.values).some(Boolean);
    put(nothing, found.length ? null
      : isFiltered ? empty("Nothing matches these filters.", "Change or clear them.") : empty(none, noneHint));
    grid.element.hidden = found.length === 0;
    pager.hidden = found.length === 0 && cursors.length === 1;
    problem.replaceChildren();
    body.removeAttribute("aria-busy");
    body.classList.remove("stale");
  }, (error) => {
    body.removeAttribute("aria-busy");
    if (error.isAway && grid.body.firstChild) body.classList.add("stale");
    else {
      put(problem, failure(error, () => control.refresh()));
      if (error.isAbsent) grid.element.hidden = pager.hidden = true;
    }
  }, SHARE);

  const controls = filters.map((filter) => field(filter.label, control_of(filter, state, typed, again),
    { class: filter.class ?? "" }));
  const bar = filters.length || actions.length
    ? h("form", { class: "filters", role: "search", "aria-label": `Filter ${label}`,
      on: { submit: (event) => { event.preventDefault(); again(); } } }, controls,
    actions.length ? h("div", { class: "actions" }, actions) : null)
    : null;
  return { element: h("div", { class: "list" }, bar, problem, body, pager), refresh: control.refresh, state };
}

function control_of(filter, state, typed, again) {
  const keep = (value) => { state.values[filter.name] = value; };
  if (filter.options) {
    return h("select", { on: { change: (event) => { keep(event.target.value); again(); } } },
      filter.options.map(([value, label]) => h("option",
        { value, selected: value === state.values[filter.name] }, label)));
  }
  return h("input", {
    type: filter.type ?? "search", value: state.values[filter.name], placeholder: filter.placeholder,
    autocomplete: "off", spellcheck: "false", min: filter.type === "number" ? "0" : null,
    data: filter.isMain ? { main: "" } : {},
    on: { input: (event) => { keep(event.target.value.trim()); typed(); } },
  });
}
