// Users, roles and rules, and the question which rule decides.

import { ask, done } from "../dialog.js";
import { button, h, put } from "../dom.js";
import { label, words } from "../format.js";
import { badge, empty, facts, failure, field, heading, mono, notice, panel, resource, sentence, tabs } from "../parts.js";
import { table } from "../table.js";

const ACTIONS = [["publish", "publish to"], ["subscribe", "subscribe to"]];

export default function access(ctx) {
  const parts = tabs("Access", [
    { key: "explain", label: "Which rule decides?", make: () => explain(ctx) },
    { key: "users", label: "Users", make: () => kept(ctx, USERS) },
    { key: "roles", label: "Roles", make: () => kept(ctx, ROLES) },
    { key: "rules", label: "Rules", make: () => kept(ctx, RULES) },
  ], ctx.query.tab, (key) => ctx.remember({ tab: key === "explain" ? "" : key }));
  return { element: h("div", {}, heading("Users and rules"), parts) };
}

function explain(ctx) {
  const input = (name, props = {}) => h("input", { type: "text", class: "mono", autocomplete: "off", spellcheck: "false",
    value: ctx.query[name] ?? "", ...props });
  const controls = { client: input("client", { data: { main: "" } }), user: input("user"), address: input("address"),
    action: h("select", {}, ACTIONS.map(([key, label]) => h("option", { value: key, selected: key === ctx.query.action }, label))),
    topic: input("topic", { required: true }) };
  const result = h("div", { "aria-live": "polite" });
  async function look(event) {
    event?.preventDefault();
    const body = Object.fromEntries(Object.entries(controls).map(([name, one]) => [name, one.value]));
    ctx.remember(body);
    try {
      put(result, decision(await ctx.api.post("rules/explain", { ...body, user: body.user || null }, { signal: ctx.signal })));
    } catch (error) {
      if (!ctx.signal.aborted) put(result, failure(error));
    }
  }
  return h("div", { class: "stack" }, panel("Ask the running broker", {}, h("form", { class: "grid-form", on: { submit: look } },
    field("Client id", controls.client), field("User", controls.user), field("Address", controls.address),
    field("May it", controls.action), field("Topic or filter", controls.topic),
    h("div", { class: "actions full" }, h("button", { type: "submit", class: "button primary" }, "Explain")))), result);
}

function decision(found) {
  return panel("Answer", {}, h("p", {}, badge(found.is_allowed ? "good" : "bad", found.is_allowed ? "allowed" : "denied")),
    h("p", { class: "sentence" }, sentence(found.why)),
    facts([["Rule", mono(found.rule || "none applies")], ["It says", found.text ? mono(found.text) : null],
      ["Roles", found.roles.length ? found.roles.join(", ") : "none"]]));
}

const USERS = {
  path: "users", one: "user", label: "Users", key: (one) => one.name ?? one.username, editRole: "admin",
  none: "No users are kept where the broker can change them.",
  columns: [
    { label: "User", show: (one) => mono(one.name ?? one.username) },
    { label: "Roles", show: (one) => list(one.roles ?? one.role) },
    { label: "Details", kind: "wide", rank: 2, show: (one) => rest(one, ["name", "username", "roles", "role"]) },
  ],
  fields: (one) => [
    { name: "name", label: "User", required: true, value: one?.name ?? one?.username, isKey: true },
    { name: "password", label: one ? "New password" : "Password", type: "password", required: !one, autocomplete: "new-password",
      hint: one ? "Empty: it stays." : "" },
    { name: "roles", label: "Roles", value: list(one?.roles ?? ""), hint: "Names, separated by commas." },
  ],
};

const ROLES = {
  path: "roles", one: "role", label: "Roles", key: (one) => one.name, editRole: "admin", none: "There are no roles.",
  columns: [
    { label: "Role", show: (one) => mono(one.name) },
    { label: "Details", kind: "wide", show: (one) => rest(one, ["name"]) },
  ],
  fields: (one) => [{ name: "name", label: "Role", required: true, value: one?.name, isKey: true }],
};

const RULES = {
  path: "rules", one: "rule", label: "Rules", key: (one) => String(one.id ?? one.name ?? one.number), editRole: "admin",
  none: "There are no rules: who is logged in may do everything.",
  columns: [
    { label: "Rule", show: (one) => mono(String(one.id ?? one.name ?? one.number)) },
    { label: "Effect", show: (one) => (one.allow === undefined ? badge("plain", one.effect ?? one.decision ?? "rule")
      : badge(one.allow ? "good" : "bad", one.allow ? "allow" : "deny")) },
    { label: "Details", kind: "wide", show: (one) => rest(one, ["id", "name", "number", "allow", "effect", "decision"]) },
  ],
  fields: () => [],
};

const list = (value) => [value ?? []].flat().join(", ");

const rest = (one, left) => Object.entries(one)
  .filter(([name, value]) => !left.includes(name) && value !== null && value !== "" && value !== false && !(Array.isArray(value) && !value.length))
  .map(([name, value]) => `${words(name)}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ");

/** What the broker keeps of one kind: read by everybody, changed by those who may. */
function kept(ctx, kind) {
  const mayEdit = ctx.may(kind.editRole);
  const name = (one) => encodeURIComponent(kind.key(one));
  const grid = table({ label: kind.label, key: kind.key, columns: [...kind.columns,
    { label: "", show: (one) => (mayEdit ? h("span", { class: "actions" },
      kind.fields(one).length > 1 ? button("Change", () => edit(one), { kind: "quiet", "aria-label": `Change ${kind.key(one)}` }) : null,
      button("Delete", () => remove(one), { kind: "quiet", "aria-label": `Delete ${kind.key(one)}` })) : "") }] });
  const found = resource(ctx, {
    every: 10000,
    load: (signal) => ctx.api.get(kind.path, {}, signal),
    show: (answer) => {
      const items = answer.items ?? answer[kind.path] ?? [];
      grid.update(items);
      return items.length ? grid.element : empty(kind.none);
    },
  });

  async function edit(one = null) {
    const fields = kind.fields(one).filter((each) => !(one && each.isKey));
    const answer = await ask({ title: one ? `Change ${kind.one} ${kind.key(one)}` : `New ${kind.one}`, action: one ? "Change" : "Create", fields,
      text: "It is in force at once.",
      act: (values) => {
        const body = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "" && value !== null));
        if (body.roles !== undefined) body.roles = body.roles.split(",").map((each) => each.trim()).filter(Boolean);
        else if ("roles" in values) body.roles = [];
        return one ? ctx.api.send("PATCH", `${kind.path}/${name(one)}`, { body }) : ctx.api.post(kind.path, body);
      } });
    if (answer) { done("Saved"); found.refresh(); }
  }

  async function remove(one) {
    if (await ask({ title: `Delete ${kind.one} ${kind.key(one)}`, action: "Delete", isDanger: true, text: "It is gone at once.",
      act: () => ctx.api.send("DELETE", `${kind.path}/${name(one)}`) })) { done("Deleted"); found.refresh(); }
  }

  const canAdd = mayEdit && kind.fields(null).length > 1;
  return h("div", { class: "stack" }, canAdd ? h("div", { class: "actions" }, button(`New ${kind.one}`, () => edit(), { kind: "primary" })) : null,
    mayEdit ? null : notice("plain", "Your role may read this, but not change it."), found.element);
}
