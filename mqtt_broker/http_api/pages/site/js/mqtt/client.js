// An MQTT 5 client over WebSocket, for the operator's tests.

import * as mqtt from "./packets.js";

const CONNECT_MS = 10_000;

export class MqttClient extends EventTarget {
  #socket = null;
  #splitter = new mqtt.Splitter();
  #waiting = new Map(); // packet id -> what goes on with the answer
  #received = new Set(); // QoS 2 packet ids until PUBREL
  #nextId = 0;
  #timer = 0;

  /** Connect; resolves with CONNACK. Later events: message, closed, line. */
  connect(url, options) {
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(url, ["mqtt"]);
      socket.binaryType = "arraybuffer";
      this.#socket = socket;
      const late = setTimeout(() => { reject(new Error("The listener did not answer within 10 s.")); socket.close(); }, CONNECT_MS);
      socket.onopen = () => this.#send(mqtt.connect(options));
      socket.onmessage = (event) => this.#read(event, (connack) => {
        clearTimeout(late);
        if (connack.code) {
          reject(new Error(`The broker refused: ${mqtt.reason(connack.code)}. ${connack.properties.reason_text ?? ""}`.trim()));
          socket.close();
          return;
        }
        const keepAlive = connack.properties.server_keep_alive_s ?? options.keepAlive ?? 30;
        if (keepAlive) this.#timer = setInterval(() => this.#send(mqtt.pingreq()), keepAlive * 500);
        resolve(connack);
      });
      socket.onclose = (event) => {
        clearTimeout(late);
        clearInterval(this.#timer);
        const text = event.wasClean || event.code === 1000 ? "The connection is closed." : "The connection was lost, or could not be opened.";
        reject(new Error(`${text} Check the address, and that the listener allows this page's origin.`));
        for (const { fail } of this.#waiting.values()) fail(new Error(text));
        this.#waiting.clear();
        this.#tell("closed", { text, code: event.code });
      };
    });
  }

  get isOpen() { return this.#socket?.readyState === 1; }

  /** Publish; resolves with the reason code of the acknowledgement, at QoS 0 at once. */
  async publish(message) {
    if (!message.qos) { this.#send(mqtt.publish(message)); return 0; }
    const packetId = this.#id();
    return this.#answer(packetId, mqtt.publish({ ...message, packetId }));
  }

  /** Subscribe; resolves with the reason code. */
  async subscribe(filter, options = {}) {
    const packetId = this.#id();
    return this.#answer(packetId, mqtt.subscribe({ packetId, filter, ...options }));
  }

  /** Unsubscribe; resolves with the reason code. */
  async unsubscribe(filter) {
    const packetId = this.#id();
    return this.#answer(packetId, mqtt.unsubscribe({ packetId, filter }));
  }

  /** Say goodbye and close. */
  close() {
    if (this.isOpen) this.#send(mqtt.disconnect());
    this.#socket?.close(1000);
  }

  #id() {
    for (let tries = 0; tries < 65535; tries += 1) {
      this.#nextId = (this.#nextId % 65535) + 1;
      if (!this.#waiting.has(this.#nextId)) return this.#nextId;
    }
    throw new Error("All packet ids are in use.");
  }

  #answer(packetId, bytes) {
    return new Promise((done, fail) => {
      this.#waiting.set(packetId, { done, fail });
      try {
        this.#send(bytes);
      } catch (error) {
        this.#waiting.delete(packetId);
        fail(error);
      }
    });
  }

  #send(bytes) {
    if (!this.isOpen) throw new Error("Not connected.");
    this.#socket.send(bytes);
  }

  #read(event, onConnack) {
    let packets;
    try {
      packets = this.#splitter.add(new Uint8Array(event.data));
    } catch (error) {
      this.#tell("line", { text: error.message });
      this.#socket.close();
      return;
    }
    for (const packet of packets) {
      if (packet.type === mqtt.CONNACK) onConnack(packet);
      else this.#take(packet);
    }
  }

  #take(packet) {
    switch (packet.type) {
      case mqtt.PUBLISH: this.#message(packet); break;
      case mqtt.PUBREL:
        this.#received.delete(packet.packetId);
        this.#send(mqtt.acknowledge(mqtt.PUBCOMP, packet.packetId));
        break;
      case mqtt.PUBREC:
        if (packet.code < 128) this.#send(mqtt.acknowledge(mqtt.PUBREL, packet.packetId));
        else this.#done(packet.packetId, packet.code);
        break;
      case mqtt.PUBACK: case mqtt.PUBCOMP: this.#done(packet.packetId, packet.code); break;
      case mqtt.SUBACK: case mqtt.UNSUBACK: this.#done(packet.packetId, packet.codes[0] ?? 0); break;
      case mqtt.DISCONNECT:
        this.#tell("line", { text: `The broker disconnects: ${mqtt.reason(packet.code)}. ${packet.properties.reason_text ?? ""}` });
        break;
    }
  }

  #message(packet) {
    if (packet.qos === 2) {
      const isNew = !this.#received.has(packet.packetId);
      this.#received.add(packet.packetId);
      this.#send(mqtt.acknowledge(mqtt.PUBREC, packet.packetId));
      if (!isNew) return;
    } else if (packet.qos === 1) {
      this.#send(mqtt.acknowledge(mqtt.PUBACK, packet.packetId));
    }
    this.#tell("message", packet);
  }

  #done(packetId, code) {
    this.#waiting.get(packetId)?.done(code);
    this.#waiting.delete(packetId);
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
