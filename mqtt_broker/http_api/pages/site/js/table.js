// Tables whose rows change in place: focus, selection and scroll position stay where they are.

import { h, put } from "./dom.js";

/**
 * A table. Each column has `label` and `show(item)`, which returns a text or an element, and may have
 * `sort` (its name for the server), `kind` ("number", "mono", "wide") and `rank` (2 and 3 are left out on
 * narrow screens). `key(item)` tells rows apart. `onSort(sort)` hears the order that is asked for.
 */
export function table({ label, columns, key, sort = "", onSort = null, hint = "" }) {
  const heads = columns.map((column) => head(column, () => sort, (next) => { sort = next; mark(); onSort(next); }));
  const body = h("tbody");
  const grid = h("table", { class: "data" },
    h("caption", { class: "unseen" }, label, hint ? `. ${hint}` : ""),
    h("thead", {}, h("tr", {}, heads)), body);
  const element = h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": label }, grid);
  const rows = new Map(); // key -> { row, cells, texts }

  function mark() {
    columns.forEach((column, index) => {
      if (!column.sort) return;
      const order = sort === column.sort ? "ascending" : sort === `-${column.sort}` ? "descending" : null;
      if (order) heads[index].setAttribute("aria-sort", order);
      else heads[index].removeAttribute("aria-sort");
    });
  }

  function update(items) {
    const wanted = new Set();
    let place = body.firstChild;
    for (const item of items) {
      const name = key(item);
      if (wanted.has(name)) continue;
      wanted.add(name);
      let found = rows.get(name);
      if (!found) rows.set(name, (found = make(item)));
      else change(found, item);
      if (found.row === place) place = place.nextSibling;
      else body.insertBefore(found.row, place);
    }
    for (const [name, { row }] of rows) {
      if (!wanted.has(name)) {
        row.remove();
        rows.delete(name);
      }
    }
    rove(body);
  }

  function make(item) {
    const cells = columns.map((column, index) => h(index ? "td" : "th",
      { class: styles(column), scope: index ? null : "row" }));
    const found = { row: h("tr", {}, cells), cells, texts: [] };
    change(found, item);
    return found;
  }

  function change({ cells, texts }, item) {
    columns.forEach((column, index) => {
      const next = column.show(item);
      const text = next instanceof Node ? next.outerHTML : String(next ?? "");
      if (texts[index] === text) return;
      texts[index] = text;
      if (cells[index].contains(document.activeElement) && next instanceof Node && index === 0) return;
      put(cells[index], next ?? "");
    });
  }

  body.addEventListener("keydown", (event) => step(event, body));
  mark();
  return { element, update, body };
}

function styles(column) {
  return [column.kind, column.rank ? `rank-${column.rank}` : null].filter(Boolean).join(" ") || null;
}

function head(column, sort, choose) {
  const props = { class: styles(column), scope: "col", title: column.title };
  if (!column.label) return h("th", props, h("span", { class: "unseen" }, "Actions"));
  if (!column.sort) return h("th", props, column.label);
  const first = column.kind === "number" ? `-${column.sort}` : column.sort;
  const other = first === column.sort ? `-${column.sort}` : column.sort;
  return h("th", props, h("button", {
    type: "button", class: "sort", on: { click: () => choose(sort() === first ? other : first) },
  }, column.label));
}

/** Let one row of the table be a stop of Tab; arrow keys go to the others. */
function rove(body) {
  const links = [...body.querySelectorAll("tr > :first-child :is(a, button)")];
  if (!links.length || links.some((link) => link.tabIndex === 0 && link === document.activeElement)) return;
  links.forEach((link, index) => { link.tabIndex = index === 0 ? 0 : -1; });
}

const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

function step(event, body) {
  const by = STEPS[event.key];
  if (by === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  const links = [...body.querySelectorAll("tr > :first-child :is(a, button)")];
  const at = links.findIndex((link) => link.closest("tr") === document.activeElement?.closest("tr"));
  if (at < 0) return;
  event.preventDefault();
  const next = links[Math.max(0, Math.min(links.length - 1, at + by))];
  for (const link of links) link.tabIndex = link === next ? 0 : -1;
  next.focus();
}
