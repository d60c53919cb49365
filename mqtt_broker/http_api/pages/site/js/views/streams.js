// Streams: what they keep, partitions, groups and their lag, and the records themselves.

import { pathPart } from "../api.js";
import { ask, done } from "../dialog.js";
import { button, h, put } from "../dom.js";
import { feed } from "../feed.js";
import { bytes, count, duration, fromBase64, moment, payloadText } from "../format.js";
import { badge, empty, facts, failure, field, heading, mono, panel, resource, shown, tabs } from "../parts.js";
import { poll } from "../poll.js";
import { address } from "../router.js";
import { table } from "../table.js";

const sum = (numbers) => Object.values(numbers ?? {}).reduce((total, one) => total + one, 0);

export default function streams(ctx) {
  if (ctx.parts.length > 1) return stream(ctx, ctx.parts[1]);
  const grid = table({ label: "Streams", key: (one) => one.name, columns: [
    { label: "Stream", show: (one) => h("a", { class: "row", href: address(["streams", one.name]) }, mono(one.name)) },
    { label: "Filter", kind: "mono", show: (one) => one.settings.filter || "none" },
    { label: "Partitions", kind: "number", rank: 2, show: (one) => count(Object.keys(one.ends).length) },
    { label: "Records", kind: "number", show: (one) => count(sum(one.ends) - sum(one.starts)) },
    { label: "Size", kind: "number", show: (one) => bytes(one.bytes) },
    { label: "Kept", rank: 2, show: (one) => (one.settings.retain_s ? duration(one.settings.retain_s) : "for ever") },
    { label: "Groups", kind: "number", rank: 2, show: (one) => count(one.groups.length) },
  ] });
  const body = resource(ctx, {
    every: 5000,
    load: (signal) => ctx.api.get("streams", {}, signal),
    show: (found) => {
      grid.update(found.streams);
      return found.streams.length ? grid.element : empty("There are no streams.",
        "A stream keeps what is published under a Topic Filter: fleetmq stream create telemetry --filter 'plant/+/temperature'");
    },
  });
  return { element: h("div", {}, heading("Streams"), body.element) };
}

function stream(ctx, name) {
  const path = `streams/${pathPart(name)}`;
  const parts = tabs("What is known about the stream", [
    { key: "partitions", label: "Partitions", make: () => partitions(ctx, path) },
    { key: "groups", label: "Groups", make: () => groups(ctx, path) },
    { key: "records", label: "Records", make: () => records(ctx, path) },
  ], ctx.query.tab, (key) => ctx.remember({ tab: key === "partitions" ? "" : key }));
  return { title: name, element: h("div", {}, h("p", { class: "hint" }, h("a", { href: address(["streams"]) }, "Streams")),
    heading(mono(name)), parts) };
}

function partitions(ctx, path) {
  const grid = table({ label: "Partitions", key: (one) => one.name, columns: [
    { label: "Partition", show: (one) => one.name },
    { label: "Earliest", kind: "number", show: (one) => count(one.start) },
    { label: "End", kind: "number", show: (one) => count(one.end) },
    { label: "Records", kind: "number", show: (one) => count(one.end - one.start) },
  ] });
  const settings = h("div");
  const body = h("div", { class: "columns" }, panel("Offsets", {}, grid.element), settings);
  return resource(ctx, {
    every: 3000,
    load: (signal) => ctx.api.get(path, {}, signal),
    show: (found) => {
      grid.update(Object.entries(found.ends).map(([key, end]) => ({ name: key, end, start: found.starts[key] })));
      put(settings, panel("Settings", {}, facts([["Size", bytes(found.bytes)], ["Segments", count(found.segments)],
        ["Appended since the start", count(found.appended)], ["Refused", found.refused ? badge("bad", count(found.refused)) : "0"],
        ["Epoch", mono(found.epoch)], ["Schema", found.schema ? "yes" : "none"],
        ...Object.entries(found.settings).map(([key, value]) => [key.replaceAll("_", " "), value === 0 ? "no limit" : shown(key, value)])])));
      return body;
    },
  }).element;
}

function groups(ctx, path) {
  const grid = table({ label: "Lag of consumer groups", key: (one) => `${one.group} ${one.partition}`, columns: [
    { label: "Group", show: (one) => mono(one.group) },
    { label: "Partition", show: (one) => one.partition },
    { label: "Member", kind: "mono", rank: 2, show: (one) => one.member ?? "nobody" },
    { label: "Next offset", kind: "number", show: (one) => count(one.committed) },
    { label: "Lag", kind: "number", show: (one) => (one.lag > 0 ? h("b", {}, count(one.lag)) : "0") },
  ] });
  const actions = h("div", { class: "actions" });
  const body = h("div", { class: "stack" }, grid.element, actions);
  const found = resource(ctx, {
    every: 3000,
    load: (signal) => ctx.api.get(`${path}/groups`, {}, signal),
    show: ({ groups: all }) => {
      grid.update(all.flatMap((group) => Object.entries(group.committed).map(([partition, committed]) => ({
        group: group.name, partition, committed, lag: group.lag[partition],
        member: Object.entries(group.members).find(([, own]) => own.includes(partition))?.[0] }))));
      if (ctx.may("operator")) {
        put(actions, all.map((group) => button(`Set offsets of ${group.name}`, () => reset(ctx, path, group.name, found.refresh))));
      }
      return all.length ? body : empty("No group reads this stream.", "Subscribe to $share/GROUP/$stream/NAME to make one.");
    },
  });
  return found.element;
}

async function reset(ctx, path, group, after) {
  const answer = await ask({
    title: `Set the offsets of ${group}`, action: "Set offsets", isDanger: true,
    text: "The group reads on from there: records are delivered again, or left out. It must have no members.",
    fields: [{ name: "to", label: "To", value: "earliest", required: true, hint: "earliest, latest, an ISO 8601 time, or offsets as JSON" }],
    act: (values) => ctx.api.post(`${path}/groups/${pathPart(group)}/reset`, { to: values.to }),
  });
  if (answer) { done("Offsets set"); after(); }
}

/** The records: the last ones and what comes, or all from a time or an offset on. */
function records(ctx, path) {
  const from = h("input", { type: "text", class: "mono", value: "", placeholder: "the last 50; earliest; 2026-11-18T12:00:00Z; {\"p0\": 17}",
    autocomplete: "off", spellcheck: "false" });
  const lines = feed("Records", 500, "old");
  const problem = h("div");
  const state = h("span", { class: "hint", role: "status" });
  let next = "";
  let seen = 0;
  const pause = button("Pause", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    if (!isPaused) control.refresh();
  });
  let isPaused = false;
  const control = poll(ctx.signal, 1000, async (signal) => {
    if (isPaused || !lines.element.isConnected && seen) return;
    const found = await ctx.api.get(`${path}/messages`, next ? { at: next, limit: 200 } : {}, signal);
    next = JSON.stringify(found.next);
    for (const one of found.items) lines.add(record(one));
    seen += found.items.length;
    problem.replaceChildren();
    state.textContent = found.items.length ? `${count(seen)} records read` : seen ? `${count(seen)} records read; waiting for new ones` : "No records yet.";
  }, (error) => { if (!error.isAway) put(problem, failure(error)); });
  return panel("Records", { actions: [state, pause] },
    h("form", { class: "row-form", on: { submit: (event) => {
      event.preventDefault();
      lines.clear();
      seen = 0;
      next = from.value.trim();
      control.refresh();
    } } }, field("From", from, { class: "grow" }), h("button", { type: "submit", class: "button" }, "Read")), problem, lines.element);
}

function record(one) {
  return h("li", {}, h("time", {}, moment(one.received_at, undefined, { millis: true })),
    h("div", {}, mono(one.topic), " ", h("span", { class: "meta" }, `p${one.partition} @ ${count(one.offset)} · QoS ${one.qos} · `, mono(one.client)),
      h("pre", {}, payloadText(fromBase64(one.payload_base64), 2048))));
}
