// Subscriptions: all of them, and who would get a message of a topic.

import { h, put } from "../dom.js";
import { list } from "../list.js";
import { badge, field, heading, mono, panel, resource, settled } from "../parts.js";
import { table } from "../table.js";
import { clientLink } from "./clients.js";

export default function subscriptions(ctx) {
  const all = list(ctx, {
    path: "subscriptions", label: "Subscriptions", key: (one) => `${one.client}\u0000${one.filter}\u0000${one.group ?? ""}`,
    columns: [
      { label: "Client", show: (one) => clientLink(one.client, one.online) },
      { label: "Filter", kind: "mono", show: (one) => mono(one.filter) },
      { label: "QoS", show: (one) => one.qos },
      { label: "Shared by", rank: 2, show: (one) => (one.group === null ? "" : mono(one.group)) },
    ],
    filters: [
      { name: "q", label: "Filter or client id", isMain: true, class: "grow", placeholder: "any part" },
      { name: "shared", label: "Kind", options: [["", "all"], ["true", "shared"], ["false", "not shared"]] },
    ],
    none: "Nobody subscribes to anything.",
  });
  return { element: h("div", {}, heading("Subscriptions"), h("div", { class: "stack" }, matches(ctx), all.element)) };
}

function matches(ctx) {
  let topic = ctx.query.topic ?? "";
  const result = h("div");
  let stop = null;
  const look = settled(() => {
    stop?.abort();
    stop = new AbortController();
    ctx.signal.addEventListener("abort", () => stop.abort(), { once: true });
    ctx.remember({ topic });
    if (topic === "") { put(result); return; }
    put(result, resource({ ...ctx, signal: stop.signal }, {
      load: (signal) => ctx.api.get("subscriptions/match", { topic }, signal),
      show: (found) => {
        const items = found.items;
        if (!items.length) return h("p", { class: "empty" }, "Nobody would get it: no subscription matches.");
        const grid = table({ label: `Who would get ${topic}`, key: (one) => `${one.client}\u0000${one.filter}\u0000${one.group ?? ""}`, columns: [
          { label: "Client", show: (one) => clientLink(one.client, one.online) },
          { label: "By filter", kind: "mono", show: (one) => mono(one.filter) },
          { label: "QoS", show: (one) => one.qos },
          { label: "Shared by", rank: 2, show: (one) => (one.group === null ? "" : mono(one.group)) },
          { label: "Rules", show: (one) => (one.permitted ? badge("good", "allowed") : badge("bad", "denied")) },
        ] });
        grid.update(items);
        const more = found.total > items.length ? `, of which ${items.length} are shown` : "";
        return h("div", {}, h("p", { class: "hint" }, `${found.total ?? items.length} would get it${more}.`), grid.element);
      },
    }).element);
  }, ctx.signal);
  const input = h("input", { type: "search", value: topic, placeholder: "plant/7/temperature", autocomplete: "off", spellcheck: "false",
    class: "mono", on: { input: (event) => { topic = event.target.value; look(); } } });
  if (topic) look();
  return panel("Who would get this topic?", {}, h("div", { class: "row-form" }, field("Topic", input, { class: "grow" })), result);
}
