// The test client: connect over WebSocket, subscribe, publish, and see what comes.

import { badge, failure, field, heading, mono, notice, panel, resource } from "../parts.js";
import { button, h, put } from "../dom.js";
import { feed } from "../feed.js";
import { clock, payloadText, seconds, words } from "../format.js";
import { MqttClient } from "../mqtt/client.js";
import { reason } from "../mqtt/packets.js";

const QOS = ["0", "1", "2"];

export default function tryView(ctx) {
  const state = h("span");
  const problem = h("div");
  const work = h("div", { hidden: true });
  const address = h("input", { type: "url", class: "mono", required: true, list: "websockets", placeholder: "ws://127.0.0.1:8083/mqtt" });
  const known = h("datalist", { id: "websockets" });
  const about = h("div");
  const id = h("input", { type: "text", class: "mono", value: `page-${Math.random().toString(36).slice(2, 8)}`, autocomplete: "off" });
  const user = h("input", { type: "text", autocomplete: "off", autocapitalize: "none" });
  const password = h("input", { type: "password", autocomplete: "off" });
  const clean = h("input", { type: "checkbox", checked: true });
  const expiry = h("input", { type: "text", value: "0s", autocomplete: "off" });
  const go = h("button", { type: "submit", class: "button primary" }, "Connect");
  const leave = button("Disconnect", () => client?.close(), { hidden: true });
  const messages = feed("Messages", 300);
  const filters = h("ul", { class: "actions" });
  let client = null;

  const listeners = resource(ctx, {
    load: (signal) => ctx.api.get("listeners", {}, signal),
    show: (found) => {
      const urls = found.items.map(urlOf).filter(Boolean);
      put(known, urls.map((url) => h("option", { value: url })));
      if (!address.value && urls[0]) address.value = urls[0];
      return urls.length ? h("div") : notice("plain", "This broker has no WebSocket listener, so that a browser cannot connect to it.",
        'Add one to the configuration, and reload this page: [[listeners]] with websocket = true (port 8083).');
    },
  });
  put(about, listeners.element);

  async function connect(event) {
    event.preventDefault();
    problem.replaceChildren();
    const span = seconds(expiry.value || "0");
    if (span === null) { put(problem, notice("bad", `${expiry.value} is not a duration.`, "Write 30s, 10m, 2h or 1d.")); return; }
    go.disabled = true;
    const mine = new MqttClient();
    client = mine;
    mine.addEventListener("message", ({ detail }) => messages.add(entry(detail)));
    mine.addEventListener("line", ({ detail }) => { put(problem, notice("warn", detail.text)); });
    mine.addEventListener("closed", () => closed());
    try {
      const connack = await mine.connect(address.value, { id: id.value, user: user.value, password: password.value,
        cleanStart: clean.checked, keepAlive: 30, properties: { session_expiry_s: span, receive_maximum: 200 } });
      if (connack.properties.assigned_id) id.value = connack.properties.assigned_id;
      put(state, badge("good", connack.session ? "connected, session resumed" : "connected"));
      work.hidden = leave.hidden = false;
      go.hidden = true;
    } catch (error) {
      put(problem, blocked(error));
      closed();
    } finally {
      go.disabled = false;
    }
  }

  function closed() {
    put(state, badge("plain", "not connected"));
    work.hidden = leave.hidden = true;
    go.hidden = false;
    filters.replaceChildren();
  }

  ctx.signal.addEventListener("abort", () => client?.close(), { once: true });
  closed();

  // Subscribe.
  const filter = h("input", { type: "text", class: "mono", value: "#", required: true, autocomplete: "off" });
  const filterQos = h("select", {}, QOS.map((one) => h("option", { value: one, selected: one === "1" }, one)));
  async function subscribe(event) {
    event.preventDefault();
    const wanted = filter.value;
    const code = await client.subscribe(wanted, { qos: Number(filterQos.value) }).catch((error) => error);
    if (code instanceof Error || code >= 128) { put(problem, notice("bad", `Subscription refused: ${code.message ?? reason(code)}.`)); return; }
    const chip = h("li", {}, button(`${wanted} · QoS ${code} ×`, async () => {
      await client.unsubscribe(wanted).catch(() => {});
      chip.remove();
    }, { title: "Unsubscribe", "aria-label": `Unsubscribe from ${wanted}` }));
    filters.append(chip);
  }

  // Publish.
  const topic = h("input", { type: "text", class: "mono", value: "test/page", required: true, autocomplete: "off" });
  const payload = h("textarea", { rows: 4, value: '{"hello": "fleet"}', spellcheck: "false" });
  const qos = h("select", {}, QOS.map((one) => h("option", { value: one, selected: one === "1" }, one)));
  const retain = h("input", { type: "checkbox" });
  const sent = h("p", { class: "hint", role: "status" });
  async function publish(event) {
    event.preventDefault();
    const began = performance.now();
    const code = await client.publish({ topic: topic.value, payload: new TextEncoder().encode(payload.value), qos: Number(qos.value),
      retain: retain.checked }).catch((error) => error);
    const took = `${(performance.now() - began).toFixed(1)} ms`;
    if (code instanceof Error) put(sent, failure(code));
    else sent.textContent = qos.value === "0" ? "Sent; QoS 0 is not acknowledged." : `Acknowledged within ${took}: ${reason(code)}.`;
  }

  put(work, h("div", { class: "columns" },
    panel("Subscribe", {}, h("form", { class: "row-form", on: { submit: subscribe } }, field("Topic Filter", filter, { class: "grow" }),
      field("QoS", filterQos), h("button", { class: "button", type: "submit" }, "Subscribe")), filters),
    panel("Publish", {}, h("form", { class: "grid-form", on: { submit: publish } },
      h("div", { class: "full" }, field("Topic", topic)), h("div", { class: "full" }, field("Payload", payload)),
      field("QoS", qos), field("Retain", retain, { class: "check" }),
      h("div", { class: "actions full" }, h("button", { class: "button primary", type: "submit" }, "Publish"), sent)))),
  panel("Messages", { actions: [button("Clear", () => messages.clear(), { kind: "quiet" })] }, messages.element));

  return { element: h("div", {}, heading("Test client", { note: "MQTT 5 from this browser, with the rights of the user you give." }), about,
    panel("Connection", { actions: [state] }, problem, h("form", { class: "grid-form", on: { submit: connect } },
      h("div", { class: "full" }, field("Address", address), known), field("Client id", id), field("User", user), field("Password", password),
      field("Session expires after", expiry), field("Clean start", clean, { class: "check" }), h("div", { class: "actions full" }, go, leave))),
    h("div", { class: "stack" }, h("div"), work)) };
}

/** The address of a WebSocket listener under the name by which this page was reached. */
function urlOf(one) {
  if (!one.scheme.startsWith("ws")) return null;
  const path = new URL(one.url.replace(/^ws/, "http")).pathname;
  return `${one.scheme}://${location.hostname}:${one.port}${path}`;
}

function blocked(error) {
  return notice("bad", error.message, "The page may connect to the WebSocket listeners that the broker had when the page was loaded: "
    + "reload it after adding one, and use the name or IPv4 address that stands in this page's address.");
}

function entry(packet) {
  const marks = [`QoS ${packet.qos}`, packet.retain ? "retained" : "", packet.dup ? "repeated" : "",
    ...Object.entries(packet.properties).map(([name, value]) => `${words(name)} ${name === "user"
      ? value.map(([key, text]) => `${key}=${text}`).join(" ") : value instanceof Uint8Array ? `${value.length} bytes` : value}`)];
  return h("li", {}, h("time", {}, clock(Date.now() / 1000, { millis: true })),
    h("div", {}, mono(packet.topic), " ", h("span", { class: "meta" }, marks.filter(Boolean).join(" · ")),
      h("pre", {}, payloadText(packet.payload))));
}
