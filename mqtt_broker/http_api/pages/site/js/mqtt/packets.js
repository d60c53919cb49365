// MQTT 5 packets, as the test client sends and reads them. No socket here, so that they can be tested alone.

const UTF8 = new TextEncoder();
const TEXT = new TextDecoder();

export const CONNECT = 1, CONNACK = 2, PUBLISH = 3, PUBACK = 4, PUBREC = 5, PUBREL = 6, PUBCOMP = 7, SUBSCRIBE = 8, SUBACK = 9,
  UNSUBSCRIBE = 10, UNSUBACK = 11, PINGREQ = 12, PINGRESP = 13, DISCONNECT = 14;

/** Reason codes that a client may get. */
export const REASONS = {
  0: "success", 1: "granted QoS 1", 2: "granted QoS 2", 4: "disconnect with will", 16: "no matching subscribers",
  17: "no subscription existed", 128: "unspecified error", 129: "malformed packet", 130: "protocol error",
  131: "implementation specific error", 132: "unsupported protocol version", 133: "client identifier not valid",
  134: "bad user name or password", 135: "not authorized", 136: "server unavailable", 137: "server busy", 138: "banned",
  139: "server shutting down", 140: "bad authentication method", 141: "keep alive timeout", 142: "session taken over",
  143: "topic filter invalid", 144: "topic name invalid", 145: "packet identifier in use", 146: "packet identifier not found",
  147: "receive maximum exceeded", 148: "topic alias invalid", 149: "packet too large", 150: "message rate too high",
  151: "quota exceeded", 152: "administrative action", 153: "payload format invalid", 154: "retain not supported",
  155: "QoS not supported", 156: "use another server", 157: "server moved", 158: "shared subscriptions not supported",
  159: "connection rate exceeded", 160: "maximum connect time", 161: "subscription identifiers not supported",
  162: "wildcard subscriptions not supported",
};

/** A reason code with its name. */
export function reason(code) {
  return `${code} ${REASONS[code] ?? "unknown reason"}`;
}

// Properties: id -> [name, type].
const PROPERTIES = {
  1: ["payload_format", "byte"], 2: ["message_expiry_s", "four"], 3: ["content_type", "text"], 8: ["response_topic", "text"],
  9: ["correlation_data", "data"], 11: ["subscription_id", "varint"], 17: ["session_expiry_s", "four"], 18: ["assigned_id", "text"],
  19: ["server_keep_alive_s", "two"], 21: ["authentication_method", "text"], 22: ["authentication_data", "data"],
  23: ["request_problem", "byte"], 24: ["will_delay_s", "four"], 25: ["request_response", "byte"], 26: ["response_information", "text"],
  28: ["server_reference", "text"], 31: ["reason_text", "text"], 33: ["receive_maximum", "two"], 34: ["topic_alias_maximum", "two"],
  35: ["topic_alias", "two"], 36: ["maximum_qos", "byte"], 37: ["retain_available", "byte"], 38: ["user", "pair"],
  39: ["packet_bytes_max", "four"], 40: ["wildcard_available", "byte"], 41: ["subscription_ids_available", "byte"],
  42: ["shared_available", "byte"],
};
const IDS = Object.fromEntries(Object.entries(PROPERTIES).map(([id, [name, type]]) => [name, [Number(id), type]]));

class Writer {
  constructor() { this.out = []; }

  byte(value) { this.out.push(value & 0xff); return this; }
  two(value) { return this.byte(value >> 8).byte(value); }
  four(value) { return this.two(value >>> 16).two(value & 0xffff); }
  varint(value) {
    do {
      const more = value > 127;
      this.out.push((value % 128) | (more ? 128 : 0));
      value = Math.floor(value / 128);
    } while (value > 0);
    return this;
  }
  raw(bytes) { for (const one of bytes) this.out.push(one); return this; }
  data(bytes) {
    if (bytes.length > 65535) throw new RangeError(`a text has ${bytes.length} bytes: at most 65535 are possible`);
    return this.two(bytes.length).raw(bytes);
  }
  text(value) { return this.data(UTF8.encode(value)); }

  properties(found = {}) {
    const inner = new Writer();
    for (const [name, value] of Object.entries(found)) {
      if (value === undefined || value === null || value === "") continue;
      const [id, type] = IDS[name];
      for (const one of type === "pair" || type === "varint" ? [value].flat(type === "pair" ? 0 : 1) : [value]) {
        if (type === "pair") for (const [key, text] of one) inner.byte(id).text(key).text(text);
        else inner.byte(id)[type](one);
      }
    }
    return this.varint(inner.out.length).raw(inner.out);
  }
}

function packet(type, flags, write) {
  const body = new Writer();
  write(body);
  return new Uint8Array(new Writer().byte((type << 4) | flags).varint(body.out.length).raw(body.out).out);
}

/** CONNECT of MQTT 5. */
export function connect({ id = "", user = "", password = "", cleanStart = true, keepAlive = 30, properties = {} }) {
  const flags = (cleanStart ? 2 : 0) | (user ? 0x80 : 0) | (password ? 0x40 : 0);
  return packet(CONNECT, 0, (body) => {
    body.text("MQTT").byte(5).byte(flags).two(keepAlive).properties(properties).text(id);
    if (user) body.text(user);
    if (password) body.text(password);
  });
}

/** PUBLISH; `payload` is bytes. */
export function publish({ topic, payload, qos = 0, retain = false, dup = false, packetId = 0, properties = {} }) {
  return packet(PUBLISH, (dup ? 8 : 0) | (qos << 1) | (retain ? 1 : 0), (body) => {
    body.text(topic);
    if (qos) body.two(packetId);
    body.properties(properties).raw(payload);
  });
}

/** SUBSCRIBE to one filter. */
export function subscribe({ packetId, filter, qos = 0, noLocal = false, properties = {} }) {
  return packet(SUBSCRIBE, 2, (body) => body.two(packetId).properties(properties).text(filter).byte(qos | (noLocal ? 4 : 0)));
}

/** UNSUBSCRIBE from one filter. */
export function unsubscribe({ packetId, filter }) {
  return packet(UNSUBSCRIBE, 2, (body) => body.two(packetId).properties().text(filter));
}

/** PUBACK, PUBREC, PUBREL or PUBCOMP with success. */
export function acknowledge(type, packetId) {
  return packet(type, type === PUBREL ? 2 : 0, (body) => body.two(packetId));
}

export const pingreq = () => packet(PINGREQ, 0, () => {});
export const disconnect = () => packet(DISCONNECT, 0, () => {});

class Reader {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }

  get left() { return this.bytes.length - this.at; }
  raw(size) {
    if (size > this.left) throw new Error("malformed packet: it ends too early");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }
  byte() { return this.raw(1)[0]; }
  two() { const [a, b] = this.raw(2); return a * 256 + b; }
  four() { return this.two() * 65536 + this.two(); }
  varint() {
    let value = 0;
    for (let scale = 1, count = 0; count < 4; count += 1, scale *= 128) {
      const one = this.byte();
      value += (one & 127) * scale;
      if (one < 128) return value;
    }
    throw new Error("malformed packet: a length of more than four bytes");
  }
  data() { return this.raw(this.two()).slice(); }
  text() { return TEXT.decode(this.raw(this.two())); }

  properties() {
    if (!this.left) return {};
    const inner = new Reader(this.raw(this.varint()));
    const found = {};
    while (inner.left) {
      const known = PROPERTIES[inner.varint()];
      if (!known) throw new Error("malformed packet: an unknown property");
      const [name, type] = known;
      if (type === "pair") (found[name] ??= []).push([inner.text(), inner.text()]);
      else if (type === "varint") (found[name] ??= []).push(inner.varint());
      else found[name] = inner[type]();
    }
    return found;
  }
}

/** Read a packet from its first byte and the bytes behind its length. */
export function decode(first, bytes) {
  const type = first >> 4;
  const body = new Reader(bytes);
  switch (type) {
    case CONNACK: return { type, session: (body.byte() & 1) === 1, code: body.byte(), properties: body.properties() };
    case PUBLISH: {
      const qos = (first >> 1) & 3;
      const topic = body.text();
      const packetId = qos ? body.two() : 0;
      const properties = body.properties();
      return { type, qos, dup: (first & 8) !== 0, retain: (first & 1) !== 0, topic, packetId, properties, payload: body.raw(body.left).slice() };
    }
    case PUBACK: case PUBREC: case PUBREL: case PUBCOMP:
      return { type, packetId: body.two(), code: body.left ? body.byte() : 0, properties: body.properties() };
    case SUBACK: case UNSUBACK:
      return { type, packetId: body.two(), properties: body.properties(), codes: [...body.raw(body.left)] };
    case DISCONNECT: return { type, code: body.left ? body.byte() : 0, properties: body.properties() };
    default: return { type };
  }
}

/** Cuts a stream of bytes into packets. */
export class Splitter {
  #waiting = new Uint8Array(0);

  /** Return the packets that are whole with these bytes. */
  add(bytes) {
    const all = new Uint8Array(this.#waiting.length + bytes.length);
    all.set(this.#waiting);
    all.set(bytes, this.#waiting.length);
    const found = [];
    let at = 0;
    for (;;) {
      const next = lengthAt(all, at);
      if (!next || next.end > all.length) break;
      found.push(decode(all[at], all.subarray(next.start, next.end)));
      at = next.end;
    }
    this.#waiting = all.slice(at);
    return found;
  }
}

function lengthAt(all, at) {
  let size = 0;
  for (let count = 0, scale = 1; count < 4; count += 1, scale *= 128) {
    const place = at + 1 + count;
    if (place >= all.length) return null;
    size += (all[place] & 127) * scale;
    if (all[place] < 128) return { start: place + 1, end: place + 1 + size };
  }
  throw new Error("malformed packet: a length of more than four bytes");
}
