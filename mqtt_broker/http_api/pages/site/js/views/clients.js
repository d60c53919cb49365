// Clients: who is connected, and who is away with a session; or one of them.

import { h } from "../dom.js";
import { ago, bytes, count, duration, mqttVersion, words } from "../format.js";
import { list } from "../list.js";
import { heading, mono } from "../parts.js";
import { address } from "../router.js";
import client from "./client.js";

/** A link to a client, with a dot for connected. */
export function clientLink(id, online) {
  return h("a", { class: "row", href: address(["clients", id]) },
    online === undefined ? null : h("span", { class: online ? "dot" : "dot off", role: "img", "aria-label": online ? "online" : "away" }),
    mono(id));
}

const hot = (value, text) => (value > 0 ? h("span", { class: "hot" }, text) : text);

const COLUMNS = [
  { label: "Client", sort: "id", show: (one) => clientLink(one.id, one.online) },
  { label: "User", rank: 2, kind: "mono", show: (one) => mono(one.user || "–") },
  { label: "Address", rank: 3, kind: "mono", show: (one) => one.address || "–" },
  { label: "Version", rank: 3, show: (one) => mqttVersion(one.version) },
  { label: "Connected", sort: "connected_at", rank: 2,
    show: (one) => (one.online ? ago(one.connected_at) : one.disconnected_at === null ? "away"
      : `away for ${duration(Math.round(Math.max(1, Date.now() / 1000 - one.disconnected_at)))}`) },
  { label: "Idle", sort: "idle", kind: "number", rank: 3, show: (one) => (one.idle_s === null ? "–" : duration(Math.round(one.idle_s))) },
  { label: "In", sort: "messages_in", kind: "number", rank: 2, show: (one) => count(one.messages_in), title: "Messages from the client" },
  { label: "Out", sort: "messages_out", kind: "number", rank: 2, show: (one) => count(one.messages_out), title: "Messages to the client" },
  { label: "Queued", sort: "backlog", kind: "number", show: (one) => count(one.queued), title: "Messages that wait for the client" },
  { label: "Unread", sort: "unread", kind: "number", rank: 3, show: (one) => bytes(one.unread_bytes), title: "Bytes that the client has not read yet" },
  { label: "Dropped", sort: "drops", kind: "number", show: (one) => hot(one.dropped, count(one.dropped)) },
  { label: "Held", rank: 3, show: (one) => one.held.map(words).join(", ") },
];

const ORDERS = [
  { name: "q", label: "Id, user or address", isMain: true, class: "grow", placeholder: "any part" },
  { name: "online", label: "State", options: [["", "all"], ["true", "online"], ["false", "away"]] },
  { name: "backlog_min", label: "Queued at least", type: "number", class: "small" },
  { name: "drops_min", label: "Dropped at least", type: "number", class: "small" },
  { name: "idle_min_s", label: "Idle at least (s)", type: "number", class: "small" },
];

export default function clients(ctx) {
  if (ctx.parts.length > 1) return client(ctx, ctx.parts[1]);
  const found = list(ctx, {
    path: "clients", label: "Clients", columns: COLUMNS, key: (one) => one.id, filters: ORDERS, sort: "id",
    none: "No client is connected, and none has a session.", noneHint: "Connect one with any MQTT client, or with the test client here.",
    hint: "Arrow keys go from row to row, Enter opens",
  });
  return { element: h("div", {}, heading("Clients"), found.element) };
}
