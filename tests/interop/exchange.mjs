// Talks to a broker with MQTT.js as a browser would, over WebSocket, and prints what it saw as JSON.
//
//   node exchange.mjs MODULE URL VERSION TOPIC
//
// MODULE is the path of the mqtt package, VERSION 4 or 5. Ends with status 0 when every step worked.

import { pathToFileURL } from "node:url";

const [module, url, version, topic] = process.argv.slice(2);
const { default: mqtt } = await import(pathToFileURL(module));
const options = { protocolVersion: Number(version), reconnectPeriod: 0, connectTimeout: 15000 };
const watchdog = setTimeout(() => { console.error("too slow"); process.exit(2); }, 60000);

function collect(client, count) {
  return new Promise((resolve) => {
    const found = [];
    client.on("message", (name, payload, packet) => {
      found.push({ topic: name, payload, packet });
      if (found.length === count) resolve(found);
    });
  });
}

const seen = {};

// Every QoS, every size of a WebSocket frame's length, in order.
const subscriber = await mqtt.connectAsync(url, options);
const publisher = await mqtt.connectAsync(url, options);
const sizes = [0, 1, 125, 126, 65535, 65536, 300000];
await subscriber.subscribeAsync(`${topic}/data/+`, { qos: 2 });
const arriving = collect(subscriber, sizes.length * 3);
for (const qos of [0, 1, 2]) {
  for (const size of sizes) {
    await publisher.publishAsync(`${topic}/data/${qos}`, Buffer.alloc(size, qos), { qos });
  }
}
const arrived = await arriving;
seen.messages = arrived.map(({ topic, payload, packet }) => ({
  topic, size: payload.length, qos: packet.qos, whole: payload.every((byte) => byte === packet.qos),
}));

// Retained messages and, in 5.0, properties.
const properties = { contentType: "text/plain", userProperties: { a: ["1", "2"], b: "3" },
  responseTopic: "back", correlationData: Buffer.from([0, 255]), messageExpiryInterval: 60 };
await publisher.publishAsync(`${topic}/kept`, "kept",
  version === "5" ? { qos: 1, retain: true, properties } : { qos: 1, retain: true });
const late = await mqtt.connectAsync(url, options);
const finding = collect(late, 1);
await late.subscribeAsync(`${topic}/kept`, { qos: 1 });
const [{ payload, packet }] = await finding;
seen.retained = { payload: payload.toString(), retain: packet.retain };
if (version === "5") {
  const { contentType, userProperties, responseTopic, correlationData } = packet.properties;
  seen.properties = { contentType, userProperties: { ...userProperties }, responseTopic,
    correlationData: [...correlationData] };
}

// A will: the stream is cut under the client.
const willTopic = `${topic}/will`;
const witness = await mqtt.connectAsync(url, options);
await witness.subscribeAsync(willTopic, { qos: 1 });
const told = collect(witness, 1);
const leaving = await mqtt.connectAsync(url, { ...options, will: { topic: willTopic, payload: Buffer.from("gone"), qos: 1 } });
leaving.on("error", () => {});
leaving.stream.destroy();
seen.will = (await told)[0].payload.toString();

for (const client of [subscriber, publisher, late, witness]) await client.endAsync();
clearTimeout(watchdog);
console.log(JSON.stringify(seen));
process.exit(0);
