// Events: connects, disconnects, refusals and drops, newest first.

import { h } from "../dom.js";
import { count, moment, words } from "../format.js";
import { list } from "../list.js";
import { badge, heading, mono } from "../parts.js";
import { clientLink } from "./clients.js";

const TONES = { dropped: "bad", refused: "bad", not_connected: "bad", events_lost: "bad", connected: "good", acknowledged: "good", given: "good" };

/** Good, bad or plain, by the kind of an event. */
export const tone = (kind) => TONES[kind] ?? "plain";

/** The kinds of events, as the filter offers them. */
const KINDS = [["", "all"], ["connected", "connected"], ["disconnected", "disconnected"], ["taken_over", "taken over"], ["not_connected", "not connected"],
  ["session_ended", "session ended"], ["dropped", "dropped"], ["refused", "refused"], ["events_lost", "events lost"]];
const SINCE = [["10m", "last 10 minutes"], ["1h", "last hour"], ["1d", "last day"]];

/** What an event says beside its time, kind and client. */
function detail(one) {
  return [
    one.count > 1 ? `${count(one.count)} times` : null, one.topic ? mono(one.topic) : null, one.qos === null ? null : `QoS ${one.qos}`,
    one.reason ? words(one.reason) : null, one.reason_code ? `reason code ${one.reason_code}` : null,
    one.publisher ? [" from ", mono(one.publisher)] : null, one.address ? ["at ", mono(one.address)] : null,
    one.message ? ["message ", mono(one.message)] : null,
    one.until - one.at >= 1 ? `until ${moment(one.until)}` : null,
    one.received_at !== null && Math.abs(one.at - one.received_at) >= 1 ? `received ${moment(one.received_at)}` : null,
  ].filter(Boolean).flatMap((part, index) => (index ? [" · ", part] : [part]));
}

/** An event as a line of a list. */
export function eventLine(one) {
  return h("li", { class: tone(one.kind) },
    h("time", {}, moment(one.at, undefined, { millis: true })), badge(tone(one.kind), words(one.kind)), " ",
    one.client ? [clientLink(one.client), " "] : null, h("span", {}, detail(one)));
}

export default function events(ctx) {
  const found = list(ctx, {
    path: "events", label: "Events", every: 3000, key: keyOf,
    columns: [
      { label: "Time", show: (one) => h("time", {}, moment(one.at, undefined, { millis: true })) },
      { label: "Kind", show: (one) => badge(tone(one.kind), words(one.kind)) },
      { label: "Client", show: (one) => (one.client ? clientLink(one.client) : "–") },
      { label: "Details", kind: "wide", show: (one) => h("span", {}, detail(one)) },
    ],
    filters: [
      { name: "client", label: "Client id", isMain: true, class: "grow", placeholder: "exact" },
      { name: "kind", label: "Kind", options: KINDS },
      { name: "since", label: "Since", options: SINCE, start: "1d" },
    ],
    none: "No events yet.", noneHint: "Connects, disconnects, refusals and drops are shown here.",
  });
  return { element: h("div", {}, heading("Events"), found.element) };
}

/** Events have no key of their own: those of one moment are told apart by what they say. */
const keyOf = (one) => JSON.stringify(one);
