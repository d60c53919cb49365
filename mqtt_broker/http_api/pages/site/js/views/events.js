// Events: connects, disconnects, refusals and drops, newest first.

import { h } from "../dom.js";
import { moment, words } from "../format.js";
import { list } from "../list.js";
import { badge, heading, mono } from "../parts.js";
import { clientLink } from "./clients.js";

const BAD = /drop|refus|denied|fail|error|lost|kick|ban/;
const GOOD = /^connect|^deliver|^acknowledg|^accept/;

/** Good, bad or plain, by the kind of an event. */
export function tone(kind) {
  return BAD.test(kind ?? "") ? "bad" : GOOD.test(kind ?? "") ? "good" : "plain";
}

/** What an event says beside its time, kind and client. */
export function detail(one) {
  if (one.text ?? one.sentence) return one.text ?? one.sentence;
  return Object.entries(one)
    .filter(([name, value]) => !["at", "kind", "client", "id"].includes(name) && value !== null && value !== "" && value !== false)
    .map(([name, value]) => `${words(name)} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}

/** An event as a line of a list. */
export function eventLine(one) {
  return h("li", { class: tone(one.kind) },
    h("time", {}, moment(one.at, undefined, { millis: true })), badge(tone(one.kind), words(one.kind ?? "event")), " ",
    one.client ? [clientLink(one.client), " "] : null, h("span", { class: "mono" }, detail(one)));
}

export default function events(ctx) {
  let number = 0;
  const names = new Map(); // events have no key of their own: those of one moment are told apart by their text
  const key = (one) => {
    const text = JSON.stringify(one);
    if (!names.has(text)) names.set(text, (number += 1));
    if (names.size > 5000) names.clear();
    return names.get(text);
  };
  const found = list(ctx, {
    path: "events", label: "Events", every: 3000, key,
    columns: [
      { label: "Time", show: (one) => h("time", {}, moment(one.at, undefined, { millis: true })) },
      { label: "Kind", show: (one) => badge(tone(one.kind), words(one.kind ?? "event")) },
      { label: "Client", show: (one) => (one.client === undefined || one.client === null ? "–" : clientLink(one.client)) },
      { label: "Details", kind: "wide", show: (one) => mono(detail(one) || "–") },
    ],
    filters: [
      { name: "client", label: "Client id", isMain: true, class: "grow", placeholder: "exact" },
      { name: "kind", label: "Kind", placeholder: "such as dropped" },
      { name: "since", label: "Since", placeholder: "10m" },
    ],
    none: "No events yet.", noneHint: "Connects, disconnects, refusals and drops are shown here.",
  });
  return { element: h("div", {}, heading("Events"), found.element) };
}
