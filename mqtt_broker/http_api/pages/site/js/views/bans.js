// Bans in force: add and lift.

import { ask, done } from "../dialog.js";
import { button, h } from "../dom.js";
import { duration, moment, seconds, visible } from "../format.js";
import { badge, empty, heading, mono, resource } from "../parts.js";
import { table } from "../table.js";

export default function bans(ctx) {
  const grid = table({ label: "Bans", key: (one) => `${one.kind} ${one.value}`, columns: [
    { label: "Of", show: (one) => one.kind },
    { label: "Value", kind: "mono", show: (one) => mono(one.value) },
    { label: "Until", show: (one) => (one.until ? `${moment(one.until)} (${duration(Math.max(0, one.until - Date.now() / 1000))})` : "it is lifted") },
    { label: "Why", kind: "wide", rank: 2, show: (one) => h("bdi", {}, visible(one.why || "–")) },
    { label: "Made by", rank: 2, show: (one) => (one.made_by === "flapping" ? badge("warn", "flapping") : "an operator") },
    { label: "", show: (one) => (ctx.may("operator") ? button("Lift", () => lift(one), { kind: "quiet", "aria-label": `Lift the ban of ${one.value}` }) : "") },
  ] });
  const found = resource(ctx, {
    every: 5000,
    load: (signal) => ctx.api.get("bans", {}, signal),
    show: (answer) => {
      grid.update(answer.bans);
      return answer.bans.length ? grid.element : empty("Nobody is banned.");
    },
  });

  async function lift(one) {
    if (await ask({ title: `Lift the ban of ${visible(one.value)}`, action: "Lift", text: "It may connect again at once.",
      act: () => ctx.api.send("DELETE", "bans", { query: { kind: one.kind, value: one.value } }) })) { done("Ban lifted"); found.refresh(); }
  }

  async function add() {
    const answer = await ask({ title: "Ban", action: "Ban", isDanger: true, text: "Those who match are disconnected and refused.",
      fields: [
        { name: "kind", label: "What", options: [["client", "client id"], ["user", "user name"], ["address", "address or network"]] },
        { name: "value", label: "Which", required: true, hint: "Such as pump-7, or 203.0.113.0/24" },
        { name: "span", label: "For how long", value: "1h", hint: "Such as 30m, 2h, 7d; empty: until it is lifted." },
        { name: "why", label: "Why" },
      ],
      act: (values) => {
        const span = values.span.trim() === "" ? 0 : seconds(values.span);
        if (span === null) throw new Error(`${values.span} is not a duration: write 30m, 2h or 7d.`);
        return ctx.api.post("bans", { kind: values.kind, value: values.value, for_s: span, why: values.why });
      } });
    if (answer) { done("Banned"); found.refresh(); }
  }

  return { element: h("div", {}, heading("Bans", { actions: ctx.may("operator") ? [button("Ban", add, { kind: "primary" })] : [] }), found.element) };
}
