// Traces: the packets of a client, a topic or an address, as they come, for a while.

import { ask, done } from "../dialog.js";
import { button, h, put } from "../dom.js";
import { feed } from "../feed.js";
import { clock, count, fromBase64, moment, payloadText, seconds, visible, words } from "../format.js";
import { empty, failure, heading, mono, notice, panel, resource } from "../parts.js";
import { table } from "../table.js";

const TARGETS = [["client", "client id"], ["topic", "topic"], ["address", "address"]];

export default function traces(ctx) {
  const live = h("div");
  let stop = null;
  const grid = table({ label: "Traces", key: (one) => one.n, columns: [
    { label: "Trace", show: (one) => button(`${one.n}`, () => follow(one), { kind: "quiet", title: "Show its packets" }) },
    { label: "Of", show: (one) => { const [kind, value] = target(one); return h("span", {}, `${kind} `, mono(value)); } },
    { label: "Packets", kind: "number", show: (one) => `${count(one.packets)} of ${count(one.packets_max)}` },
    { label: "Ends", rank: 2, show: (one) => (one.is_over ? "has ended" : moment(one.ends_at)) },
    { label: "", show: (one) => (ctx.may("operator") ? button("End", async () => {
      await ctx.api.send("DELETE", `traces/${one.n}`).catch((error) => put(live, failure(error)));
      all.refresh();
    }, { kind: "quiet", "aria-label": `End trace ${one.n}` }) : "") },
  ] });
  const all = resource(ctx, {
    every: 3000,
    load: (signal) => ctx.api.get("traces", {}, signal),
    show: (found) => {
      const { items } = found;
      grid.update(items);
      return items.length ? grid.element : empty("No trace runs.", "Start one; it ends by itself. For what has been already, ask Why: the recorder always runs.");
    },
  });

  async function start() {
    const answer = await ask({
      title: "Start a trace", action: "Start",
      fields: [
        { name: "kind", label: "Packets of", options: TARGETS, value: ctx.query.topic ? "topic" : "client" },
        { name: "value", label: "Which", value: ctx.query.client ?? ctx.query.topic ?? "", required: true, hint: "A client id, a Topic Filter or an address." },
        { name: "span", label: "For how long", value: "10m", hint: "Such as 30s, 10m, 1h." },
        { name: "most", label: "At most so many packets", type: "number", value: 1000, min: 1 },
        { name: "payloads", label: "With payloads", type: "checkbox", hint: "They may hold what is not for everybody." },
      ],
      act: (values) => {
        const span = seconds(values.span);
        if (span === null) throw new Error(`${values.span} is not a duration: write 30s, 10m or 1h.`);
        return ctx.api.post("traces", { [values.kind]: values.value, payloads: values.payloads, for_s: span, packets_max: values.most });
      },
    });
    if (!answer) return;
    done("The trace runs");
    all.refresh();
    if (answer !== true) follow(answer);
  }

  async function follow(one) {
    const number = one.n;
    stop?.abort();
    stop = new AbortController();
    const mine = stop;
    ctx.signal.addEventListener("abort", () => mine.abort(), { once: true });
    const lines = feed(`Packets of trace ${number}`, 1000, "old");
    const state = h("span", { class: "hint", role: "status" }, "Waiting for packets …");
    const [kind, value] = target(one);
    put(live, panel(`Trace ${number}: ${kind} ${visible(value)}`, { actions: [state, button("Clear", () => lines.clear(), { kind: "quiet" })] }, lines.element));
    let seen = 0;
    try {
      const answer = await ctx.api.open("GET", `traces/${number}/packets`, { signal: mine.signal, isStream: true });
      for await (const packet of readLines(answer.body, mine.signal)) {
        lines.add(line(packet));
        seen += 1;
        state.textContent = `${count(seen)} packets`;
      }
      state.textContent = `${count(seen)} packets; the trace has ended.`;
    } catch (error) {
      if (!mine.signal.aborted) state.replaceChildren(failure(error));
    }
  }

  if ((ctx.query.client || ctx.query.topic) && ctx.may("operator")) setTimeout(start);
  return { element: h("div", {}, heading("Traces", { note: "Packets as they come, without cost to others.",
    actions: ctx.may("operator") ? [button("Start a trace", start, { kind: "primary" })] : [] }),
  ctx.may("operator") ? null : notice("plain", "Your role may read traces, but not start one."),
  h("div", { class: "stack" }, all.element, live)) };
}

function target(one) {
  const kind = ["client", "topic", "address"].find((name) => one[name] !== "") ?? "client";
  return [kind, one[kind]];
}

async function* readLines(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  signal.addEventListener("abort", () => reader.cancel().catch(() => {}), { once: true });
  let rest = "";
  for (;;) {
    const { value, done: isOver } = await reader.read();
    if (isOver) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.trim()) continue;
      yield JSON.parse(part);
    }
  }
}

function line(packet) {
  if (packet.lost) return h("li", { class: "warning" }, h("time", {}, clock(packet.at)), h("span", { class: "word" }, `${count(packet.lost)} lines were left out: this page read too slowly`));
  const { at, direction, packet: name, client, topic, payload, payload_base64: raw, ...more } = packet;
  const text = Object.entries(more).filter(([, value]) => value !== null && value !== "" && value !== false && value.length !== 0)
    .map(([key, value]) => `${words(key)} ${value === true ? "" : Array.isArray(value) ? value.join(", ") : value}`.trim()).join(" · ");
  return h("li", {}, h("time", {}, clock(at, { millis: true })), h("div", {},
    h("b", {}, `${direction} ${name}`), " ", mono(client), " ", topic === undefined ? null : [mono(topic), " "],
    h("span", { class: "meta" }, visible(text)),
    payload === undefined ? null : h("pre", {}, payload), raw === undefined ? null : h("pre", {}, payloadText(fromBase64(raw)))));
}
