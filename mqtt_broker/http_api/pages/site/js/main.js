// The frame of the page: who is logged in, navigation, keys, the banner while the broker is away, and
// the view that the address names.

import { Api } from "./api.js";
import { button, glyph, h, put, say } from "./dom.js";
import { show } from "./dialog.js";
import { failure, notice } from "./parts.js";
import { loginForm } from "./login.js";
import { address, parse } from "./router.js";
import { GROUPS, VIEWS } from "./views.js";

const ROLES = ["viewer", "operator", "admin"];

const api = new Api({ onState: (isAway) => banner.set(isAway), onLogin: () => login() });
const page = document.getElementById("page");
let me = { name: "", role: "admin" };
let leave = null; // ends the view that is open
let main = null;
let isLoginShown = false;

// The banner while the broker does not answer.

const banner = (() => {
  const text = h("span");
  const element = h("div", { class: "banner", role: "alert", hidden: true }, text,
    button("Try now", () => window.dispatchEvent(new Event("fleetmq-retry")), { kind: "quiet" }));
  let since = 0;
  let timer = 0;
  function tell() {
    const seconds = Math.round((Date.now() - since) / 1000);
    text.textContent = seconds < 3
      ? "The broker does not answer. Trying again."
      : `The broker has not answered for ${seconds} s. The values below are the last ones. Trying again.`;
  }
  return {
    element,
    set(isAway) {
      if (isAway && element.hidden) {
        since = Date.now();
        element.hidden = false;
        tell();
        timer = setInterval(tell, 5000);
      } else if (!isAway && !element.hidden) {
        element.hidden = true;
        clearInterval(timer);
        say("The broker answers again.");
        window.dispatchEvent(new Event("fleetmq-retry"));
      }
    },
  };
})();

// Colours: those of the system, or the ones chosen here.

const THEMES = ["auto", "light", "dark"];
const SIGNS = { auto: "auto", light: "sun", dark: "moon" };

function themeButton() {
  const now = () => document.documentElement.dataset.theme ?? "auto";
  const name = () => `Colours: ${now() === "auto" ? "as the system" : now()}`;
  const made = button("", () => {
    const next = THEMES[(THEMES.indexOf(now()) + 1) % THEMES.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === "auto") localStorage.removeItem("fleetmq-theme");
      else localStorage.setItem("fleetmq-theme", next);
    } catch {
      // Storage is switched off: it holds until the page is left.
    }
    put(made, glyph(SIGNS[next]));
    made.setAttribute("aria-label", name());
    made.title = name();
    say(name());
  }, { kind: "quiet sign", "aria-label": name(), title: name() });
  put(made, glyph(SIGNS[now()]));
  return made;
}

// The frame.

function frame() {
  const links = new Map();
  const nav = h("nav", { class: "nav", id: "nav", "aria-label": "Views" }, GROUPS.map(([group, views]) =>
    h("div", { class: "nav-group" }, group ? h("h2", {}, group) : null, h("ul", {}, views.map((view) => {
      const link = h("a", { href: address([view.name]) }, view.label);
      links.set(view.name, link);
      return h("li", {}, link);
    })))), me.isLogin ? button("Log out", logout, { class: "button narrow-only" }) : null);
  const menu = button("", () => toggle(), { kind: "quiet sign menu", "aria-label": "Views", "aria-expanded": "false",
    "aria-controls": "nav" });
  put(menu, glyph("menu"));
  const state = h("a", { class: "pill", href: address(["health"]) }, "…");
  const find = h("input", { type: "search", class: "jump", placeholder: "Client id or view", "aria-label": "Go to a client or view",
    autocomplete: "off", spellcheck: "false", list: "jump-views" });
  const jump = h("form", { class: "jump-form", role: "search", "aria-label": "Go to", on: { submit: (event) => { event.preventDefault(); go(find); } } },
    glyph("search"), find, h("kbd", { "aria-hidden": "true" }, "/"),
    h("datalist", { id: "jump-views" }, [...VIEWS.values()].map((view) => h("option", { value: view.label }))));
  main = h("main", { id: "main", tabindex: "-1" });
  put(page,
    h("header", { class: "bar" }, menu,
      h("a", { class: "brand", href: address(["overview"]) }, h("img", { src: "site/icon.svg", alt: "", width: 22, height: 22 }), "FleetMQ"),
      h("span", { class: "node", id: "node" }), jump, state,
      h("span", { class: "who" }, me.key === "none" ? null : h("span", { class: "me" }, me.name, " ", h("span", { class: "note" }, me.role)),
        me.isLogin ? button("Log out", logout, { kind: "quiet" }) : null),
      button("", keys, { kind: "quiet sign wide-only", "aria-label": "Keys", title: "Keys (?)", icon: "keys" }), themeButton()),
    banner.element,
    h("div", { class: "frame" }, nav, main),
    h("div", { id: "toasts", class: "toasts", role: "status", "aria-live": "polite" }));

  function toggle(open = !nav.classList.contains("open")) {
    nav.classList.toggle("open", open);
    menu.setAttribute("aria-expanded", String(open));
    if (open) nav.querySelector("a").focus();
  }
  nav.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && nav.classList.contains("open")) { toggle(false); menu.focus(); }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...links.values()];
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
  });
  main.addEventListener("pointerdown", () => toggle(false));
  return { links, close: () => toggle(false), state };
}

let shell = null;

function go(find) {
  const text = find.value;
  const view = [...VIEWS.values()].find((one) => one.label.toLowerCase() === text.trim().toLowerCase());
  if (view) location.hash = address([view.name]);
  else if (text) location.hash = address(["clients"], { q: text });
  find.value = "";
  find.blur();
}

// The view of the address.

async function open() {
  if (isLoginShown || !main) return;
  leave?.abort();
  const here = new AbortController();
  leave = here;
  const { parts, query } = parse(location.hash);
  const name = parts[0] ?? "overview";
  const view = VIEWS.get(name);
  for (const [other, link] of shell.links) {
    if (other === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  shell.close();
  const ctx = { api, me, parts, query, signal: here.signal, may, remember };
  document.title = `${view?.label ?? "Not found"} · FleetMQ`;
  try {
    if (!view) throw new Error(`there is no view ${JSON.stringify(name)}`);
    const made = (await view.load()).default(ctx);
    if (here.signal.aborted) return;
    put(main, made.element ?? made);
    if (made.title) document.title = `${made.title} · FleetMQ`;
  } catch (error) {
    if (here.signal.aborted) return;
    put(main, view ? failure(error, open) : notice("bad", `There is no view ${JSON.stringify(name)}.`, "Choose one beside."));
  }
  window.scrollTo(0, 0);
  main.querySelector("h1")?.focus({ preventScroll: true });
}

/** Keep values of the view in its address, without a step in the history. */
function remember(values) {
  const { parts, query } = parse(location.hash);
  const next = address(parts.length ? parts : ["overview"], { ...query, ...values });
  history.replaceState(null, "", next);
}

/** Whether the role of who is logged in allows what needs `role`. */
function may(role) {
  return ROLES.indexOf(me.role) >= ROLES.indexOf(role);
}

// Who is logged in.

async function login() {
  if (isLoginShown) return;
  isLoginShown = true;
  leave?.abort();
  put(page, loginForm(api, (found) => { isLoginShown = false; enter(found); }), banner.element);
  page.querySelector("input")?.focus();
}

async function logout() {
  await api.post("logout", {}).catch(() => {});
  api.csrf = "";
  login();
}

function enter(found) {
  me = { ...found, isLogin: Boolean(found.csrf) };
  api.csrf = found.csrf ?? "";
  shell = frame();
  watch();
  open();
}

let watching = null;

/** The state of the broker in the bar, once in ten seconds. */
function watch() {
  watching?.abort();
  const mine = new AbortController();
  watching = mine;
  const tell = async () => {
    if (document.hidden || isLoginShown) return;
    try {
      const found = await api.get("overview", {}, mine.signal);
      const kind = { ok: "good", degraded: "warn", failing: "bad" }[found.health] ?? "plain";
      shell.state.className = `pill ${kind}`;
      shell.state.textContent = { ok: "Healthy", degraded: "Degraded", failing: "Failing" }[found.health] ?? "Unknown";
      shell.state.title = (found.why ?? []).join("; ");
      document.getElementById("node").textContent = [found.node, found.version].filter(Boolean).join(" · ");
    } catch (error) {
      if (mine.signal.aborted) return;
      shell.state.className = `pill ${error.isAway ? "bad" : "plain"}`;
      shell.state.textContent = error.isAway ? "Away" : "Unknown";
    }
  };
  const timer = setInterval(tell, 10_000);
  mine.signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  document.addEventListener("visibilitychange", tell, { signal: mine.signal });
  window.addEventListener("fleetmq-retry", tell, { signal: mine.signal });
  tell();
}

async function start() {
  try {
    enter(await api.get("me"));
  } catch (error) {
    if (error.status === 401) login();
    else if (error.isAbsent) enter({ name: "", role: "admin", key: "none" });
    else {
      put(page, h("main", { id: "main", class: "alone" }, h("h1", {}, "FleetMQ"), failure(error, start)));
      if (error.isAway) setTimeout(start, 3000);
    }
  }
}

// Keys.

let isGoing = false; // `g` was pressed

function keys() {
  const row = (key, text) => h("tr", {}, h("th", { scope: "row" }, key.split(" ").map((one) => h("kbd", {}, one))), h("td", {}, text));
  show("Keys", h("table", { class: "keys" }, h("tbody", {},
    row("/", "Go to a client or view"), row("f", "Filter the list"), row("?", "This list"), row("↑ ↓", "Rows of a table, views of the navigation"),
    row("Enter", "Open"), row("← →", "Read a chart; close and open branches of a tree"), row("Esc", "Close a dialog or the navigation"),
    [...VIEWS.values()].map((view) => row(`g ${view.key}`, view.label)))));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isLoginShown || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (isGoing) {
    isGoing = false;
    const view = [...VIEWS.values()].find((one) => one.key === event.key);
    if (view) { event.preventDefault(); location.hash = address([view.name]); }
    return;
  }
  const act = {
    "/": () => page.querySelector(".jump")?.focus(),
    "f": () => main?.querySelector("[data-main], .filters input")?.focus(),
    "?": keys,
    "g": () => { isGoing = true; setTimeout(() => { isGoing = false; }, 1500); },
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});

window.addEventListener("hashchange", open);
start();
