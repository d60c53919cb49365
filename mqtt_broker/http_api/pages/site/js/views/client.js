// One client, whole: its session, subscriptions, what is under way and queued, its events, and what can be done.

import { pathPart } from "../api.js";
import { ask, done } from "../dialog.js";
import { button, h, put } from "../dom.js";
import { ago, bytes, count, duration, label, moment, mqttVersion, rate, seconds, visible, words } from "../format.js";
import { list } from "../list.js";
import { badge, facts, heading, mono, panel, resource, shown, tabs } from "../parts.js";
import { address } from "../router.js";
import { eventLine } from "./events.js";

const REASONS = [
  ["152", "152 Administrative action"], ["135", "135 Not authorized"], ["137", "137 Server busy"], ["139", "139 Server shutting down"],
  ["150", "150 Message rate too high"], ["151", "151 Quota exceeded"], ["156", "156 Use another server"],
];

export default function client(ctx, id) {
  const path = `clients/${pathPart(id)}`;
  const head = h("div", { class: "actions" });
  const body = h("div");
  const about = resource(ctx, {
    every: 3000,
    load: (signal) => ctx.api.get(path, {}, signal),
    show(found) {
      put(head, found.online ? badge("good", "online") : badge("plain", "away"),
        found.held.map((reason) => badge("warn", `held: ${words(reason)}`)));
      put(body, described(found));
      return body;
    },
  });
  const act = (title, text, action, send, options = {}) => button(title, async () => {
    const answer = await ask({ title: `${title}: ${id === "" ? "(empty id)" : visible(id)}`, text, action, isDanger: true, act: send, ...options });
    if (answer) { done(`${title}: done`); about.refresh(); }
  }, { kind: "plain risky" });
  const actions = ctx.may("operator") ? [
    act("Kick", "The connection is closed. The client may connect again at once.", "Kick", (values) =>
      ctx.api.post(`${path}/kick`, { reason_code: Number(values.reason), remove_session: values.session }), { fields: [
      { name: "reason", label: "Reason code", options: REASONS },
      { name: "session", label: "Remove its session, too", type: "checkbox", hint: "Its subscriptions and queued messages are lost." }] }),
    act("Ban", "The client is disconnected and refused from now on.", "Ban", (values) => {
      const span = values.span.trim() === "" ? 0 : seconds(values.span);
      if (span === null) throw new Error(`${values.span} is not a duration: write 30m, 2h or 7d.`);
      return ctx.api.post("bans", { kind: "client", value: id, for_s: span, why: values.why });
    }, { fields: [
      { name: "span", label: "For how long", value: "1h", hint: "Such as 30m, 2h, 7d; empty: until it is lifted." },
      { name: "why", label: "Why", hint: "For those who read the list of bans." }] }),
    act("Clear queue", "Messages that wait for this client are deleted. It never gets them.", "Delete messages", () => ctx.api.post(`${path}/clear-queue`)),
    act("Expire session", "The session ends: subscriptions and queued messages are deleted. A connected client is disconnected.", "End session",
      () => ctx.api.post(`${path}/expire`)),
  ] : [];

  const parts = tabs("What is known about the client", [
    { key: "session", label: "Session", make: () => about.element },
    { key: "subscriptions", label: "Subscriptions", make: () => part(ctx, `${path}/subscriptions`, "Subscriptions", SUBSCRIPTIONS,
      "It subscribes to nothing.") },
    { key: "inflight", label: "In flight", make: () => part(ctx, `${path}/inflight`, "In flight", MESSAGES,
      "Nothing waits for an acknowledgement.") },
    { key: "queue", label: "Queue", make: () => part(ctx, `${path}/queue`, "Queue", MESSAGES, "Nothing is queued.") },
    { key: "events", label: "Events", make: () => events(ctx, path) },
  ], ctx.query.tab, (key) => ctx.remember({ tab: key === "session" ? "" : key }));

  return {
    title: id,
    element: h("div", {},
      h("p", { class: "hint" }, h("a", { href: address(["clients"]) }, "Clients")),
      heading(mono(id), { marks: head, actions: [
        h("a", { class: "button", href: address(["why"], { client: id }) }, "Why did it not get …"),
        h("a", { class: "button", href: address(["traces"], { client: id }) }, "Trace"), actions] }),
      parts),
  };
}

function described(found) {
  const now = Date.now() / 1000;
  const connection = facts([
    ["User", mono(found.user || "–")], ["Address", mono(found.address || "–")], ["Listener", found.listener ? mono(found.listener) : null],
    ["Protocol", `MQTT ${mqttVersion(found.version)}`],
    ["Connected", found.online ? `${moment(found.connected_at)} (${ago(found.connected_at, now)})` : "no"],
    ["Away since", found.online ? null : found.disconnected_at ? moment(found.disconnected_at) : "not known"],
    ["Keep alive", found.keep_alive_s ? duration(found.keep_alive_s) : "off"],
    ["Idle", found.idle_s === null ? null : duration(Math.round(found.idle_s))],
    ["Receive Maximum", count(found.receive_maximum)],
    ["Largest packet it takes", found.packet_bytes_max ? bytes(found.packet_bytes_max) : "any"],
  ]);
  const session = facts([
    ["Since", moment(found.created_at)], ["Clean start", found.clean_start ? "yes" : "no"],
    ["Expires", expiry(found)], ["On disk", found.stored ? "yes" : "no"],
    ["Subscriptions", count(found.subscriptions)], ["In flight", count(found.inflight)],
    ["Queued", `${count(found.queued)} (${bytes(found.queued_bytes)})`],
    ["Unread", bytes(found.unread_bytes)],
    ["Dropped", found.dropped ? h("span", { class: "hot" }, count(found.dropped)) : "0"],
  ]);
  const traffic = facts([
    ["Messages in", count(found.messages_in)], ["Messages out", count(found.messages_out)],
    ["Bytes in", bytes(found.bytes_in)], ["Bytes out", bytes(found.bytes_out)],
    ...Object.entries(found.rates).map(([name, value]) => [`${label(name)} now`,
      name.includes("bytes") ? `${bytes(value)}/s` : rate(value)]),
  ]);
  return h("div", { class: "columns" },
    panel("Connection", {}, connection), panel("Session", {}, session), panel("Traffic", {}, traffic),
    found.will ? panel("Will", {}, facts(Object.entries(found.will).map(([name, value]) =>
      [label(name), typeof value === "string" ? mono(value) : shown(name, value)]))) : null,
    Object.keys(found.limits).length ? panel("Limits", {}, facts(Object.entries(found.limits).map(([name, value]) =>
      [label(name), shown(name, value)]))) : null);
}

function expiry(found) {
  if (found.session_expires_at) return moment(found.session_expires_at);
  const value = found.session_expiry_s;
  if (value === 0) return "with the connection";
  return value >= 0xffffffff ? "never" : `${duration(value)} after the connection`;
}

const SUBSCRIPTIONS = [
  { label: "Filter", kind: "mono", show: (one) => mono(one.filter) },
  { label: "QoS", show: (one) => one.qos },
  { label: "Shared by", show: (one) => (one.group === null ? "" : mono(one.group)) },
  { label: "Options", kind: "wide", rank: 2, show: (one) => [one.no_local ? "no local" : "", one.retain_as_published ? "retain as published" : "",
    one.retain_handling ? `retain handling ${one.retain_handling}` : "", one.identifier ? `identifier ${one.identifier}` : ""].filter(Boolean).join(", ") },
];

const MESSAGES = [
  { label: "Topic", kind: "mono", show: (one) => mono(one.topic) },
  { label: "QoS", show: (one) => one.qos },
  { label: "Packet id or place", kind: "number", rank: 2, show: (one) => count(one.place) },
  { label: "Payload", kind: "number", show: (one) => bytes(one.payload_bytes) },
  { label: "From", kind: "mono", rank: 2, show: (one) => mono(one.publisher) },
  { label: "Received", rank: 2, show: (one) => moment(one.received_at) },
  { label: "Expires", rank: 3, show: (one) => (one.expires_at === null ? "never" : moment(one.expires_at)) },
];

function part(ctx, path, label, columns, none) {
  const key = (one) => one.filter ?? `${one.place}`;
  return list(ctx, { path, label, columns, key, none, every: 5000, prefix: `${label.toLowerCase().replaceAll(" ", "")}_` }).element;
}

function events(ctx, path) {
  return resource(ctx, {
    every: 5000,
    load: (signal) => ctx.api.get(`${path}/events`, {}, signal),
    show: (found) => {
      const { items } = found;
      return items.length ? h("ul", { class: "timeline" }, items.map((one) => eventLine(one)))
        : h("p", { class: "empty" }, "No events are kept of this client.");
    },
  }).element;
}
