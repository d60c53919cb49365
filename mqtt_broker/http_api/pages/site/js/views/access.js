// Users, roles and rules, and the question which rule decides.

import { pathPart } from "../api.js";
import { ask, done } from "../dialog.js";
import { button, h, put } from "../dom.js";
import { visible } from "../format.js";
import { list } from "../list.js";
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

const names = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
const lines = (text) => text.split("\n").map((one) => one.trim()).filter(Boolean);
const joined = (items) => (items.length ? items.join(", ") : "–");

const USERS = {
  path: "users", one: "user", label: "Users", key: (one) => one.name, isPaged: true,
  none: "No users are kept where the broker can change them.", noneHint: "Users of a password file or of SQL tables are shown here.",
  columns: [
    { label: "User", show: (one) => mono(one.name) },
    { label: "Roles", kind: "wide", show: (one) => joined(one.roles) },
    { label: "State", show: (one) => (one.is_enabled ? badge("good", "enabled") : badge("warn", "disabled")) },
    { label: "Logs in with", rank: 2, show: (one) => joined([one.has_password ? "password" : "", one.has_scram ? "SCRAM" : ""].filter(Boolean)) },
    { label: "Kept in", rank: 2, show: (one) => one.source },
  ],
  fields: (one) => [
    one ? null : { name: "name", label: "User", required: true, autocomplete: "username" },
    { name: "password", label: one ? "New password" : "Password", type: "password", required: !one, autocomplete: "new-password",
      hint: one ? "Empty: it stays." : "" },
    { name: "roles", label: "Roles", value: one ? one.roles.join(", ") : "", hint: "Names, separated by commas." },
  ],
  body: (values, one) => ({ ...(one ? {} : { name: values.name }), ...(values.password ? { password: values.password } : {}),
    roles: names(values.roles) }),
};

const ROLES = {
  path: "roles", one: "role", label: "Roles", key: (one) => one.role, none: "No user has a role.",
  columns: [
    { label: "Role", show: (one) => mono(one.role) },
    { label: "Users", kind: "wide", show: (one) => joined(one.users) },
  ],
  fields: (one) => [
    one ? null : { name: "role", label: "Role", required: true },
    { name: "users", label: "Users", type: "textarea", value: one ? one.users.join(", ") : "", hint: "Names, separated by commas; all others lose it." },
  ],
  body: (values, one) => ({ ...(one ? {} : { role: values.role }), users: names(values.users) }),
};

const RULES = {
  path: "rules", one: "rule", label: "Rules", key: (one) => one.id, none: "There are no rules: who is logged in may do everything.",
  columns: [
    { label: "Rule", show: (one) => mono(one.place || one.id) },
    { label: "Effect", show: (one) => badge(one.permit === "allow" ? "good" : "bad", one.permit) },
    { label: "Action", show: (one) => one.action },
    { label: "Topics", kind: "wide", show: (one) => mono(joined(one.topics)) },
    { label: "For", kind: "wide", rank: 2, show: (one) => whom(one) },
  ],
  fields: (one) => [
    { name: "permit", label: "Effect", value: one?.permit ?? "allow", options: [["allow", "allow"], ["deny", "deny"]] },
    { name: "action", label: "Action", value: one?.action ?? "all", options: [["all", "publish and subscribe"], ["publish", "publish"], ["subscribe", "subscribe"]] },
    { name: "topics", label: "Topic Filters", type: "textarea", value: one ? one.topics.join("\n") : "", hint: "One a line." },
    { name: "users", label: "Users", value: one ? one.users.join(", ") : "" },
    { name: "roles", label: "Roles", value: one ? one.roles.join(", ") : "", hint: "Without users, roles, clients and addresses it is for everybody." },
    { name: "clients", label: "Client ids", value: one ? one.clients.join(", ") : "" },
    { name: "addresses", label: "Addresses", value: one ? one.addresses.join(", ") : "" },
  ],
  body: (values) => ({ permit: values.permit, action: values.action, topics: lines(values.topics), users: names(values.users),
    roles: names(values.roles), clients: names(values.clients), addresses: names(values.addresses) }),
};

function whom(one) {
  const found = [["users", one.users], ["roles", one.roles], ["clients", one.clients], ["addresses", one.addresses]]
    .filter(([, items]) => items.length).map(([name, items]) => `${name} ${items.join(", ")}`);
  return [...found, one.anonymous ? "anonymous clients" : ""].filter(Boolean).join("; ") || "everybody";
}

/** What the broker keeps of one kind: read by those who may, changed by admins. */
function kept(ctx, kind) {
  const mayEdit = ctx.may("admin");
  const columns = [...kind.columns, { label: "", show: (one) => (mayEdit ? h("span", { class: "actions" },
    button("Change", () => edit(one), { kind: "quiet", "aria-label": `Change ${kind.key(one)}` }),
    button("Delete", () => remove(one), { kind: "quiet", "aria-label": `Delete ${kind.key(one)}` })) : "") }];
  const found = kind.isPaged ? list(ctx, { path: kind.path, label: kind.label, columns, key: kind.key, none: kind.none, noneHint: kind.noneHint,
    filters: [{ name: "q", label: "Name", isMain: true, class: "grow", placeholder: "any part" }], every: 10000 })
    : whole(ctx, kind, columns);

  async function edit(one = null) {
    const answer = await ask({ title: one ? `Change ${kind.one} ${visible(kind.key(one))}` : `New ${kind.one}`, action: one ? "Change" : "Create",
      fields: kind.fields(one).filter(Boolean), text: "It is in force at once.",
      act: (values) => {
        const body = kind.body(values, one);
        return one ? ctx.api.send("PATCH", `${kind.path}/${pathPart(kind.key(one))}`, { body }) : ctx.api.post(kind.path, body);
      } });
    if (answer) { done("Saved"); found.refresh(); }
  }

  async function remove(one) {
    if (await ask({ title: `Delete ${kind.one} ${visible(kind.key(one))}`, action: "Delete", isDanger: true, text: "It is gone at once.",
      act: () => ctx.api.send("DELETE", `${kind.path}/${pathPart(kind.key(one))}`) })) { done("Deleted"); found.refresh(); }
  }

  return h("div", { class: "stack" },
    mayEdit ? h("div", { class: "actions" }, button(`New ${kind.one}`, () => edit(), { kind: "primary" }))
      : notice("plain", "Changes need the role admin."), found.element);
}

function whole(ctx, kind, columns) {
  const grid = table({ label: kind.label, key: kind.key, columns });
  return resource(ctx, {
    every: 10000,
    load: (signal) => ctx.api.get(kind.path, {}, signal),
    show: (answer) => {
      grid.update(answer.items);
      return answer.items.length ? grid.element : empty(kind.none);
    },
  });
}
