// Health in parts: store, log, loop, disk, certificates.

import { h } from "../dom.js";
import { label } from "../format.js";
import { badge, facts, heading, notice, panel, resource, sentence, shown } from "../parts.js";

const TONES = { ok: "good", degraded: "warn", warning: "warn", failing: "bad", failed: "bad" };

export default function health(ctx) {
  const body = resource(ctx, {
    every: 3000,
    load: (signal) => ctx.api.get("health", {}, signal),
    show: (found) => h("div", {},
      notice(TONES[found.status ?? found.health] ?? "plain", `The broker is ${found.status ?? found.health ?? "there"}.`, [found.why ?? []].flat().join("; ")),
      h("div", { class: "columns" }, parts(found).map(([name, part]) => panel(label(name), { actions: [
        badge(TONES[part.status ?? part.state] ?? "plain", part.status ?? part.state ?? "")] },
      why(part), facts(Object.entries(part).filter(([key]) => !["name", "status", "state", "why"].includes(key))
        .map(([key, value]) => [label(key), shown(key, value)]), { class: "facts one" }))))),
  });
  return { element: h("div", {}, heading("Health"), body.element) };
}

function why(part) {
  const text = [part.why ?? []].flat().join("; ");
  return text ? h("p", {}, sentence(text)) : null;
}

function parts(found) {
  const all = found.parts ?? found;
  if (Array.isArray(all)) return all.map((one) => [one.name, one]);
  return Object.entries(all).filter(([, one]) => one && typeof one === "object" && !Array.isArray(one));
}
