// Why: a client and a topic in, a sentence and the facts out.

import { h, put } from "../dom.js";
import { moment } from "../format.js";
import { field, heading, notice, panel, quoted, resource } from "../parts.js";
import { eventLine } from "./events.js";

const SINCE = [["60", "last minute"], ["600", "last 10 minutes"], ["3600", "last hour"], ["86400", "last day"]];

export default function why(ctx) {
  const client = h("input", { type: "search", class: "mono", value: ctx.query.client ?? "", required: true, autocomplete: "off",
    spellcheck: "false", placeholder: "pump-7", data: { main: "" } });
  const topic = h("input", { type: "search", class: "mono", value: ctx.query.topic ?? "", autocomplete: "off", spellcheck: "false",
    placeholder: "plant/7/cmd" });
  const message = h("input", { type: "search", class: "mono", value: ctx.query.message ?? "", autocomplete: "off", spellcheck: "false",
    placeholder: "app-3@12:00:01", title: "Publisher and time (UTC), as the facts show them" });
  const since = h("select", {}, SINCE.map(([key, label]) => h("option", { value: key, selected: key === (ctx.query.since ?? "600") }, label)));
  const answer = h("div", { "aria-live": "polite" });
  let stop = null;

  function look() {
    if (client.value === "") return;
    stop?.abort();
    stop = new AbortController();
    ctx.signal.addEventListener("abort", () => stop.abort(), { once: true });
    const query = { client: client.value, topic: topic.value, message: message.value, since: `${since.value}s` };
    ctx.remember({ client: client.value, topic: topic.value, message: message.value, since: since.value === "600" ? "" : since.value });
    put(answer, resource({ ...ctx, signal: stop.signal }, {
      load: (signal) => ctx.api.get("why", query, signal), show: explained, label: "Looking through the recorder …",
    }).element);
  }

  if (client.value) look();
  return { element: h("div", {},
    heading("Why did it not get the message?", { note: "What the broker decided, from the recorder that always runs." }),
    h("form", { class: "row-form", role: "search", "aria-label": "What to explain", on: { submit: (event) => { event.preventDefault(); look(); } } },
      field("Client that should have got it, or sent it", client, { class: "grow" }), field("Topic", topic, { class: "grow" }),
      field("One message", message, { class: "grow" }), field("Time", since), h("button", { type: "submit", class: "button primary" }, "Find out")),
    answer) };
}

function explained(found) {
  const { sentence: first, sentences, facts: items } = found;
  const others = sentences.filter((one) => one !== first).slice(-20).reverse();
  return h("div", { class: "stack" },
    panel("Answer", {}, h("p", { class: "sentence" }, quoted(first)),
      found.advice ? notice("plain", quoted(found.advice)) : null,
      h("p", { class: "hint" }, `The recorder sees back to ${moment(found.sees_back_to)}.`,
        found.is_cut ? " There is more than one answer holds: choose a topic or a shorter time." : "")),
    others.length ? panel("Also", { note: "newest first" }, h("ul", { class: "plain" }, others.map((one) => h("li", {}, quoted(one))))) : null,
    items.length ? panel("Facts", { note: `${items.length}` }, h("ol", { class: "timeline" }, items.slice(-500).map((one) => eventLine(one)))) : null);
}
