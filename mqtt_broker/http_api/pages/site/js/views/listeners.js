// Listeners and certificates: where clients connect, and until when they trust it.

import { pathPart } from "../api.js";
import { ask, done } from "../dialog.js";
import { button, h } from "../dom.js";
import { count, duration, moment } from "../format.js";
import { badge, empty, heading, mono, panel, resource } from "../parts.js";
import { table } from "../table.js";

const SPEAKS = { mqtt: "MQTT", mqtts: "MQTT over TLS", ws: "WebSocket", wss: "WebSocket over TLS" };
const KEPT = { gone: () => badge("warn", "until the next start"), changed: () => badge("warn", "changed until the next start") };
const WEEK = 7 * 86400;

export default function listeners(ctx) {
  const grid = table({ label: "Listeners", key: (one) => one.name, columns: [
    { label: "Listener", show: (one) => mono(one.name) },
    { label: "Address", kind: "mono", show: (one) => one.address },
    { label: "Speaks", show: (one) => SPEAKS[one.scheme] ?? one.scheme },
    { label: "Connections", kind: "number", show: (one) => count(one.connections) },
    { label: "At most", kind: "number", rank: 2, show: (one) => (one.max_connections ? count(one.max_connections) : "–") },
    { label: "Kept", rank: 2, show: (one) => KEPT[one.after_restart]?.() ?? "" },
    { label: "", show: (one) => (ctx.may("admin") ? button("Close", () => close(one), { kind: "quiet", "aria-label": `Close listener ${one.name}` }) : "") },
  ] });
  const found = resource(ctx, {
    every: 5000,
    load: (signal) => ctx.api.get("listeners", {}, signal),
    show: (answer) => {
      const items = answer.items;
      grid.update(items);
      return items.length ? grid.element : empty("There are no listeners.");
    },
  });

  async function close(one) {
    if (await ask({ title: `Close listener ${one.name}`, action: "Close it", isDanger: true,
      text: "It accepts nobody any more, until the broker is started again or it is added again.",
      act: () => ctx.api.send("DELETE", `listeners/${pathPart(one.name)}`) })) { done("Listener closed"); found.refresh(); }
  }

  async function add() {
    const answer = await ask({ title: "Add a listener", action: "Listen", text: "It lasts until the broker stops; write it into the configuration to keep it.",
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "host", label: "Address", value: "127.0.0.1", required: true },
        { name: "port", label: "Port", type: "number", min: 0, max: 65535, value: 8083, hint: "0: a free one" },
        { name: "websocket", label: "WebSocket", type: "checkbox" },
      ],
      act: (values) => ctx.api.post("listeners", values) });
    if (answer) { done("Listener added"); found.refresh(); }
  }

  const certificates = resource(ctx, {
    every: 60000,
    load: (signal) => ctx.api.get("certificates", {}, signal),
    show: (answer) => {
      const items = answer.items;
      if (!items.length) return empty("No listener uses TLS.");
      const certs = table({ label: "Certificates", key: (one) => `${one.listener} ${one.key} ${one.serial}`, columns: [
        { label: "Of", show: (one) => h("span", {}, mono(one.listener), ` ${one.key}`) },
        { label: "Subject", kind: "mono", show: (one) => one.subject },
        { label: "Ends", show: (one) => ends(one.ends_at) },
        { label: "File", kind: "mono", rank: 2, show: (one) => one.file },
      ] });
      certs.update(items);
      return certs.element;
    },
  });
  return { element: h("div", {}, heading("Listeners", { actions: ctx.may("admin") ? [button("Add a listener", add)] : [] }),
    h("div", { class: "stack" }, found.element, panel("Certificates", {}, certificates.element))) };
}

function ends(at) {
  const left = at - Date.now() / 1000;
  return h("span", {}, moment(at), " ", left < 0 ? badge("bad", "has ended") : left < WEEK ? badge("warn", `in ${duration(left)}`) : "");
}
