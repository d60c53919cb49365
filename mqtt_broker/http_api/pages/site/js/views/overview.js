// Overview: the broker at a glance, live, with the hour that it remembers.

import { chart, spark } from "../chart.js";
import { byteStep, joined } from "../chart_scale.js";
import { h, put, setText } from "../dom.js";
import { bytes, count, duration, milliseconds, percent, rate, short, words } from "../format.js";
import { badge, choice, empty, heading, notice, panel, resource } from "../parts.js";
import { poll } from "../poll.js";
import { address } from "../router.js";

const SPANS = [["300", "5 minutes"], ["900", "15 minutes"], ["3600", "1 hour"]];

const TILES = [
  { label: "Messages in", value: (now) => rate(now.rates.messages_in), series: "messages_in", style: "a" },
  { label: "Messages out", value: (now) => rate(now.rates.messages_out), series: "messages_out", style: "b" },
  { label: "Clients online", value: (now) => count(now.clients_online ?? now.clients), series: "clients_online", style: "a",
    under: (now) => `${count(now.sessions)} sessions` },
  { label: "Acknowledged, p99", value: (now) => milliseconds(now.ack_latency_ms?.p99), series: "ack_latency_p99_ms", style: "d",
    under: (now) => `half within ${milliseconds(now.ack_latency_ms?.p50)}` },
  { label: "Dropped", value: (now) => rate(now.rates.drops), series: "drops", style: "c",
    under: (now) => `${count(total(now.dropped))} since the start` },
  { label: "Queued for clients away", value: (now) => short(now.queued_messages), series: "queued_messages", style: "c" },
  { label: "CPU", value: (now) => percent(now.cpu), series: "cpu", style: "a", under: (now) => `${now.build ?? ""}` },
  { label: "Memory", value: (now) => bytes(now.memory_bytes), series: "memory_bytes", style: "a" },
];

const CHARTS = [
  { title: "Messages per second", show: short, lines: [["messages_in", "in", "a"], ["messages_out", "out", "b"]] },
  { title: "Bytes per second", show: bytes, step: byteStep, lines: [["bytes_in", "in", "a"], ["bytes_out", "out", "b"]] },
  { title: "Acknowledged within", show: milliseconds, lines: [["ack_latency_p50_ms", "half", "b"], ["ack_latency_p99_ms", "99 %", "d"]] },
  { title: "Clients online", show: short, lines: [["clients_online", "online", "a"]] },
  { title: "Connections per second", show: short, lines: [["connects", "opened", "a"], ["disconnects", "closed", "c"]] },
  { title: "Drops per second", show: short, lines: [["drops", "dropped", "c"]] },
  { title: "Event loop late", show: milliseconds, lines: [["loop_late_ms", "late", "d"]] },
  { title: "CPU", show: percent, lines: [["cpu", "of a core", "a"]] },
  { title: "Memory", show: bytes, step: byteStep, lines: [["memory_bytes", "resident", "a"]] },
];

const total = (reasons) => Object.values(reasons ?? {}).reduce((sum, one) => sum + one, 0);

export default function overview(ctx) {
  let span = SPANS.some(([key]) => key === ctx.query.span) ? ctx.query.span : "900";
  let history = null;
  const attention = h("div");
  const tiles = TILES.map((tile) => ({ ...tile, dd: h("dd"), small: tile.under ? h("dd", { class: "under" }) : null, line: h("dd", { class: "spark-box" }) }));
  const charts = CHARTS.map(({ lines, ...more }) => chart(ctx, {
    ...more, lines: lines.map(([name, label, style]) => ({ name, label, style })) }));
  const drops = reasons("Drops by reason", "Nothing was dropped since the start.", "Messages that were not delivered, since the start.");
  const refused = reasons("Refusals by reason", "Nothing was refused since the start.", "Connections, logins, publishes and subscriptions.");
  const held = reasons("Clients held back", "No client is held back.", "Clients that are not read from now, and why.");
  const broker = h("div");
  const body = h("div", {},
    attention,
    h("dl", { class: "tiles", "aria-label": "Now" }, tiles.map((tile) => h("div", { class: "tile" },
      h("dt", {}, tile.label), tile.dd, tile.small, tile.line))),
    h("div", { class: "charts" }, charts.map((one) => one.element)),
    h("div", { class: "columns" }, panel("Store and log", {}, broker), drops.element, refused.element, held.element));

  const now = resource(ctx, {
    every: 2000,
    load: (signal) => ctx.api.get("overview", {}, signal),
    show(found) {
      put(attention, concerns(found));
      for (const tile of tiles) {
        setText(tile.dd, tile.value(found));
        if (tile.small) setText(tile.small, tile.under(found));
      }
      drops.update(found.dropped);
      refused.update(found.refused);
      held.update(found.held);
      put(broker, state(found));
      return body;
    },
  });

  const draw = () => {
    if (!history) return;
    for (const one of charts) one.update(history);
    for (const tile of tiles) put(tile.line, spark(history.series[tile.series] ?? [], tile.style));
  };
  let asked = 0;
  const line = poll(ctx.signal, 5000, async (signal) => {
    const all = Number(span);
    const gap = Date.now() / 1000 - asked;
    const found = await ctx.api.get("overview/history", { s: history && gap < all ? Math.ceil(gap) + 15 : all }, signal);
    asked = Date.now() / 1000;
    history = joined(history, found, Math.ceil(all / found.step_s));
    draw();
  }, () => {});

  return {
    element: h("div", {}, heading("Overview", { actions: [choice(SPANS, span, (next) => {
      span = next;
      history = null;
      ctx.remember({ span: next === "900" ? "" : next });
      line.refresh();
    }, { "aria-label": "Time shown" })] }), now.element),
  };
}

function concerns(found) {
  const why = found.why ?? [];
  if (found.health === "ok" || !found.health) return null;
  return notice(found.health === "failing" ? "bad" : "warn",
    `${found.health === "failing" ? "The broker fails" : "The broker works, but not as it should"}: ${why.join("; ") || "no reason is given"}.`,
    "", h("a", { href: address(["health"]) }, "Health in parts"));
}

function state(found) {
  const pairs = [
    ["State", badge({ ok: "good", degraded: "warn", failing: "bad" }[found.health] ?? "plain", found.health ?? "unknown")],
    ["Store", { off: "none: state is in memory", ok: "works" }[found.store.state] ?? found.store.state],
    ["Not yet in the tables", found.store.state === "off" ? null : `${count(found.store.lag)} groups`],
    ["Durability", found.durability],
    ["Event loop late", milliseconds(found.loop_late_ms)],
    ["Running for", duration(found.uptime_s)],
    ["Subscriptions", count(found.subscriptions)],
    ["Retained messages", count(found.retained)],
    ["Version", `${found.version ?? ""} ${found.build ?? ""}`.trim()],
  ];
  return h("dl", { class: "facts one" }, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Numbers by reason, the largest first; the meter is for the eye, the number for everybody. */
function reasons(title, none, note) {
  const body = h("div");
  let last = "";
  function update(found) {
    const rows = Object.entries(found ?? {}).filter(([, many]) => many > 0).sort((one, other) => other[1] - one[1]).slice(0, 12);
    const text = JSON.stringify(rows);
    if (text === last) return;
    last = text;
    const most = rows[0]?.[1] ?? 1;
    put(body, rows.length ? h("ul", { class: "bars" }, rows.map(([reason, many]) => h("li", {},
      h("span", {}, words(reason)), h("span", { class: "amount" }, count(many)),
      h("meter", { min: 0, max: most, value: many, "aria-hidden": "true", "aria-label": words(reason) })))) : empty(none));
  }
  update({});
  return { element: panel(title, {}, h("p", { class: "hint" }, note), body), update };
}
