// Slow subscribers: the time from a publish to its acknowledgement, by client and topic.

import { h } from "../dom.js";
import { ago, count, duration } from "../format.js";
import { list } from "../list.js";
import { heading, mono } from "../parts.js";
import { address } from "../router.js";
import { clientLink } from "./clients.js";

export default function slow(ctx) {
  const found = list(ctx, {
    path: "slow", label: "Slow subscribers", every: 3000, key: (one) => `${one.client}\u0000${one.topic}`,
    columns: [
      { label: "Client", show: (one) => clientLink(one.client) },
      { label: "Topic", show: (one) => h("a", { href: address(["why"], { client: one.client, topic: one.topic }), title: "Why" },
        mono(one.topic)) },
      { label: "Slowest", kind: "number", show: (one) => duration(one.slowest_s) },
      { label: "Half within", kind: "number", show: (one) => duration(one.p50_s) },
      { label: "99 % within", kind: "number", show: (one) => duration(one.p99_s) },
      { label: "Mean of the late", rank: 2, kind: "number", show: (one) => duration(one.average_s) },
      { label: "Late acknowledgements", kind: "number", rank: 2, show: (one) => count(one.count) },
      { label: "Last", kind: "number", rank: 2, show: (one) => ago(one.last_at) },
    ],
    none: "No subscriber is slow.", noneHint: "Those who take long to acknowledge QoS 1 and 2 are ranked here.",
  });
  return { element: h("div", {}, heading("Slow subscribers", { note: "From the publish to the acknowledgement." }), found.element) };
}
