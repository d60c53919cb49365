// Backups, taken while the broker runs.

import { ask, done } from "../dialog.js";
import { button, h } from "../dom.js";
import { bytes, duration, moment, percent } from "../format.js";
import { badge, empty, heading, mono, notice, resource } from "../parts.js";
import { table } from "../table.js";

const TONES = { running: "plain", done: "good", failed: "bad" };

export default function backups(ctx) {
  const grid = table({ label: "Backups", key: (one) => one.id, columns: [
    { label: "Backup", show: (one) => mono(String(one.id)) },
    { label: "State", show: (one) => badge(TONES[one.state] ?? "plain", one.state === "running" && one.progress !== undefined
      && one.progress !== null ? `running, ${typeof one.progress === "number" ? percent(one.progress) : one.progress}` : one.state) },
    { label: "Begun", rank: 2, show: (one) => moment(one.started_at ?? one.begun_at ?? one.at) },
    { label: "Took", kind: "number", rank: 2, show: (one) => {
      const end = one.ended_at ?? one.done_at ?? one.finished_at;
      const start = one.started_at ?? one.begun_at;
      return end && start ? duration(end - start) : "–";
    } },
    { label: "Size", kind: "number", show: (one) => bytes(one.bytes ?? one.size_bytes) },
    { label: "Where", kind: "mono wide", show: (one) => one.directory ?? one.path ?? "" },
    { label: "Error", kind: "wide", rank: 2, show: (one) => one.error ?? one.why ?? "" },
  ] });
  const found = resource(ctx, {
    every: 2000,
    load: (signal) => ctx.api.get("backups", {}, signal),
    show: (answer) => {
      const items = answer.items ?? answer.backups ?? [];
      grid.update(items);
      return items.length ? grid.element : empty("No backup has been taken since the start.", "A backup has state and streams of one moment, and is taken while clients are served.");
    },
  });
  async function take() {
    const answer = await ask({ title: "Take a backup", action: "Begin", text: "State and streams of one moment are copied to a new directory on the broker's machine.",
      fields: [{ name: "directory", label: "Directory", hint: "On the broker's machine; empty: one below its data directory." }],
      act: (values) => ctx.api.post("backups", values.directory ? { directory: values.directory } : {}) });
    if (answer) { done("The backup has begun"); found.refresh(); }
  }
  return { element: h("div", {}, heading("Backups", { actions: ctx.may("operator") ? [button("Take a backup", take, { kind: "primary" })] : [] }),
    h("div", { class: "stack" }, found.element, notice("plain", "To restore one, stop the broker and run:", "fleetmq ctl restore DIRECTORY"))) };
}
