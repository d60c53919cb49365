// The busiest topics, live.

import { h } from "../dom.js";
import { ago, bytes, count, rate } from "../format.js";
import { list } from "../list.js";
import { heading, mono } from "../parts.js";
import { address } from "../router.js";

export default function topics(ctx) {
  const found = list(ctx, {
    path: "topics", label: "Topics", every: 2000, key: (one) => one.topic,
    columns: [
      { label: "Topic", show: (one) => h("a", { class: "row", href: address(["subscriptions"], { topic: one.topic }),
        title: "Who would get it" }, mono(one.topic)) },
      { label: "Rate", kind: "number", show: (one) => rate(one.rate_in) },
      { label: "Messages", kind: "number", show: (one) => count(one.messages_in) },
      { label: "Bytes", kind: "number", rank: 2, show: (one) => bytes(one.bytes_in) },
      { label: "Last", kind: "number", rank: 2, show: (one) => ago(one.last_at) },
    ],
    filters: [{ name: "q", label: "Topic", isMain: true, class: "grow", placeholder: "any part" }],
    none: "No messages yet.",
  });
  return { element: h("div", {}, heading("Topics", { note: "The busiest ones; the broker counts a bounded number." }), found.element) };
}
