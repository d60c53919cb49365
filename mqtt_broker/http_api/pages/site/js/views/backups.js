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
    { label: "State", show: (one) => badge(TONES[one.state] ?? "plain", one.state === "running" && one.bytes_total
      ? `running: ${one.phase}, ${percent(one.bytes_done / one.bytes_total)}` : one.state) },
    { label: "Begun", rank: 2, show: (one) => moment(one.started_at) },
    { label: "Took", kind: "number", rank: 2, show: (one) => (one.finished_at ? duration(one.finished_at - one.started_at) : "–") },
    { label: "Size", kind: "number", show: (one) => bytes(one.bytes) },
    { label: "Where", kind: "mono wide", show: (one) => one.directory },
    { label: "Error", kind: "wide", rank: 2, show: (one) => one.error },
  ] });
  const found = resource(ctx, {
    every: 2000,
    load: (signal) => ctx.api.get("backups", {}, signal),
    show: (answer) => {
      const items = answer.items;
      grid.update(items);
      return items.length ? grid.element : empty("There is no backup yet.", "A backup has state and streams of one moment, and is taken while clients are served.");
    },
  });
  async function take() {
    const answer = await ask({ title: "Take a backup", action: "Begin", text: "State and streams of one moment are copied to a new directory on the broker's machine.",
      fields: [{ name: "directory", label: "Directory", hint: "A name below backups/ of its data directory, by default the time; an absolute path is for admins." }],
      act: (values) => ctx.api.post("backups", values.directory ? { directory: values.directory } : {}) });
    if (answer) { done("The backup has begun"); found.refresh(); }
  }
  return { element: h("div", {}, heading("Backups", { actions: ctx.may("operator") ? [button("Take a backup", take, { kind: "primary" })] : [] }),
    h("div", { class: "stack" }, found.element, notice("plain", "To restore one, stop the broker and run:", "fleetmq ctl restore DIRECTORY"))) };
}
