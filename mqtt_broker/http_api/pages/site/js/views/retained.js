// Retained messages as a tree that is read branch by branch, and one message read whole.

import { ask, done } from "../dialog.js";
import { button, glyph, h, put } from "../dom.js";
import { bytes, count, fromBase64, moment, payloadText, pretty, label, visible } from "../format.js";
import { empty, facts, failure, field, heading, mono, panel, resource, shown } from "../parts.js";

const PAGE = 200;

export default function retained(ctx) {
  const detail = h("div", { "aria-live": "polite" }, empty("Choose a topic to read its message."));
  const tree = h("ul", { class: "tree", role: "tree", "aria-label": "Topics with a retained message" });
  const box = h("div");
  const go = h("input", { type: "search", value: ctx.query.topic ?? "", placeholder: "plant/7/state", class: "mono", autocomplete: "off",
    spellcheck: "false", data: { main: "" } });
  let chosen = null;

  async function branch(list, prefix, level, cursor = "") {
    const found = await ctx.api.get("retained/tree", { prefix, limit: PAGE, cursor }, ctx.signal);
    const items = found.items.map((one) => item(one, level));
    list.querySelector(":scope > .more, :scope > .hint")?.remove();
    list.append(...items);
    if (found.next) {
      list.append(h("li", { class: "more", role: "none" }, button(`${count(PAGE)} more of ${count(found.total)}`, async (event) => {
        event.target.disabled = true;
        await branch(list, prefix, level, found.next).catch((error) => put(box, failure(error)));
        list.children[list.children.length - 1]?.focus?.();
      }, { kind: "quiet" })));
    }
    return items;
  }

  function item(one, level) {
    const { name, topic: path, messages: below, retained: has, children: isBranch } = one;
    const group = isBranch ? h("ul", { role: "group" }) : null;
    const row = h("div", { class: "node-row" }, h("span", { class: "twist" }, isBranch ? glyph("right") : null),
      mono(name), has && isBranch ? h("span", { class: "badge plain" }, "message") : null,
      isBranch ? h("span", { class: "amount" }, count(below)) : null);
    const node = h("li", { role: "treeitem", "aria-level": level, "aria-expanded": isBranch ? "false" : null, "aria-selected": "false",
      tabindex: "-1", data: { topic: path, has: has ? "1" : "" } }, row, group);
    if (group) group.hidden = true;
    row.addEventListener("click", () => { focus(node); if (isBranch) open(node); if (has) choose(node); });
    node.open = async (is = node.getAttribute("aria-expanded") !== "true") => {
      if (!isBranch) return;
      node.setAttribute("aria-expanded", String(is));
      group.hidden = !is;
      if (is && !group.firstChild) {
        put(group, h("li", { role: "none", class: "hint" }, "Loading …"));
        try {
          await branch(group, path, level + 1);
        } catch (error) {
          if (!ctx.signal.aborted) put(group, h("li", { role: "none" }, failure(error)));
        }
      }
    };
    return node;
  }

  const open = (node, is) => node.open(is);

  function focus(node) {
    for (const one of tree.querySelectorAll('[tabindex="0"]')) one.tabIndex = -1;
    node.tabIndex = 0;
    node.focus();
  }

  function choose(node) {
    chosen?.setAttribute("aria-selected", "false");
    chosen = node;
    node.setAttribute("aria-selected", "true");
    read(node.dataset.topic);
  }

  function read(topic) {
    ctx.remember({ topic });
    put(detail, resource(ctx, {
      load: (signal) => ctx.api.get("retained/message", { topic }, signal),
      show: (found) => described(ctx, topic, found, () => { put(detail, empty("The message is deleted.")); start(); }),
    }).element);
  }

  tree.addEventListener("keydown", (event) => {
    const node = event.target.closest('[role="treeitem"]');
    if (!node) return;
    const seen = [...tree.querySelectorAll('[role="treeitem"]')].filter((one) => !one.closest('ul[hidden]'));
    const at = seen.indexOf(node);
    const isOpen = node.getAttribute("aria-expanded") === "true";
    const act = {
      ArrowDown: () => seen[at + 1] && focus(seen[at + 1]),
      ArrowUp: () => seen[at - 1] && focus(seen[at - 1]),
      Home: () => focus(seen[0]),
      End: () => focus(seen.at(-1)),
      ArrowRight: () => (isOpen ? seen[at + 1] && focus(seen[at + 1]) : open(node, true)),
      ArrowLeft: () => (isOpen ? open(node, false) : focus(node.parentNode.closest('[role="treeitem"]') ?? node)),
      Enter: () => (node.dataset.has ? choose(node) : open(node)),
      " ": () => (node.dataset.has ? choose(node) : open(node)),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });

  const top = resource(ctx, {
    load: () => {
      put(tree);
      return branch(tree, "", 1);
    },
    show: (items) => {
      if (items[0]) items[0].tabIndex = 0;
      return items.length ? tree : empty("No message is retained.", "Publish one with the retain flag set.");
    },
  });
  const start = () => top.refresh();
  if (ctx.query.topic) read(ctx.query.topic);
  const actions = ctx.may("operator") ? [button("Clear by filter", () => clear(ctx, start), { kind: "plain risky" })] : [];
  return { element: h("div", {}, heading("Retained messages", { actions }),
    h("form", { class: "row-form", role: "search", "aria-label": "Read a topic", on: { submit: (event) => { event.preventDefault(); if (go.value) read(go.value); } } },
      field("Topic", go, { class: "grow" }), h("button", { class: "button", type: "submit" }, "Read")),
    h("div", { class: "columns" }, panel("Topics", {}, box, top.element), panel("Message", {}, detail))) };
}

function described(ctx, topic, found, gone) {
  const raw = fromBase64(found.payload_base64);
  return h("div", { class: "stack" },
    h("p", {}, mono(topic)),
    facts([["QoS", found.qos], ["Payload", bytes(raw.length)], ["From", mono(found.publisher)], ["Received", moment(found.received_at)],
      ["Expires", found.expires_at === null ? "never" : moment(found.expires_at)],
      ...Object.entries(found.properties).map(([name, value]) => [label(name), shown(name, value)])]),
    h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" }, pretty(payloadText(raw, 65536)) || "(empty)"),
    ctx.may("operator") ? h("div", { class: "actions" }, button("Delete", async () => {
      if (await ask({ title: "Delete the retained message", text: visible(topic), action: "Delete", isDanger: true,
        act: () => remove(ctx, topic) })) { done("Deleted"); gone(); }
    }, { kind: "plain risky" })) : null);
}

const remove = (ctx, filter) => ctx.api.send("DELETE", "retained", { query: { filter } });

async function clear(ctx, after) {
  const answer = await ask({
    title: "Clear retained messages", action: "Delete messages", isDanger: true,
    text: "All retained messages whose topic matches the filter are deleted, for everybody.",
    fields: [{ name: "filter", label: "Topic Filter", required: true, hint: "Such as plant/7/#" }],
    act: (values) => remove(ctx, values.filter),
  });
  if (!answer) return;
  done(`${count(answer.removed)} deleted`);
  after();
}
