// Health in parts: store, log, loop, disk, certificates.

import { h } from "../dom.js";
import { label } from "../format.js";
import { badge, facts, heading, notice, panel, resource, sentence, shown } from "../parts.js";

const TONES = { ok: "good", degraded: "warn", failing: "bad" };
const SENTENCES = { ok: "All parts work.", degraded: "The broker works, but not all of it as it should.", failing: "The broker fails." };

export default function health(ctx) {
  const body = resource(ctx, {
    every: 3000,
    load: (signal) => ctx.api.get("health", {}, signal),
    show: (found) => h("div", {},
      notice(TONES[found.status] ?? "plain", SENTENCES[found.status] ?? found.status),
      h("div", { class: "columns" }, found.parts.map((part) => panel(label(part.name), { actions: [badge(TONES[part.status] ?? "plain", part.status)] },
        part.why ? h("p", {}, sentence(part.why)) : null,
        facts(Object.entries(part.figures).map(([key, value]) => [label(key), shown(key, value)]), { class: "facts one" }))))),
  });
  return { element: h("div", {}, heading("Health"), body.element) };
}
