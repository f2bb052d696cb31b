// Runs the examples of amqplib's documentation against a broker and prints what they saw as JSON.
//
//   node tutorials.mjs MODULE URL PREFIX
//
// MODULE is the path of the amqplib package's channel_api.js. Ends with status 0 when every step worked.

import { pathToFileURL } from "node:url";

const [module, url, prefix] = process.argv.slice(2);
const { default: amqplib } = await import(pathToFileURL(module));
const watchdog = setTimeout(() => { console.error("too slow"); process.exit(2); }, 60000);
const seen = {};
const name = (part) => `${prefix}-${part}`;

function collect(channel, queue, count, options = {}) {
  return new Promise((resolve, reject) => {
    const found = [];
    channel.consume(queue, (message) => {
      if (message === null) return;
      found.push(message);
      if (!options.noAck) channel.ack(message);
      if (found.length === count) resolve(found);
    }, options).catch(reject);
  });
}

const connection = await amqplib.connect(url);
const product = connection.connection.serverProperties.product;
seen.product = typeof product === "string" && product.length > 0;
const channel = await connection.createChannel();

// Hello world.
await channel.assertQueue(name("hello"), { durable: false });
channel.sendToQueue(name("hello"), Buffer.from("Hello World!"));
seen.hello = (await collect(channel, name("hello"), 1, { noAck: true }))[0].content.toString();

// Work queue: persistent, one at a time.
const work = await connection.createChannel();
await work.assertQueue(name("work"), { durable: true });
await work.prefetch(1);
for (let task = 0; task < 5; task++) work.sendToQueue(name("work"), Buffer.from(`${task}`), { persistent: true });
seen.work = (await collect(work, name("work"), 5)).map((message) => message.content.toString());

// Publish and subscribe.
await channel.assertExchange(name("logs"), "fanout", { durable: false });
const listener = await connection.createChannel();
const { queue: logs } = await listener.assertQueue("", { exclusive: true });
await listener.bindQueue(logs, name("logs"), "");
const heard = collect(listener, logs, 1, { noAck: true });
channel.publish(name("logs"), "", Buffer.from("log"));
seen.log = (await heard)[0].content.toString();

// Topics.
await channel.assertExchange(name("topics"), "topic", { durable: false });
const { queue: topics } = await listener.assertQueue("", { exclusive: true });
for (const pattern of ["kern.*", "*.critical"]) await listener.bindQueue(topics, name("topics"), pattern);
const matched = collect(listener, topics, 2, { noAck: true });
for (const key of ["kern.info", "cron.info", "cron.critical"]) channel.publish(name("topics"), key, Buffer.from(key));
seen.topics = (await matched).map((message) => message.fields.routingKey);

// Remote procedure call.
const server = await connection.createChannel();
await server.assertQueue(name("rpc"), { durable: false });
await server.consume(name("rpc"), (message) => {
  if (message === null) return;
  server.sendToQueue(message.properties.replyTo, Buffer.from(`${Number(message.content.toString()) * 2}`),
    { correlationId: message.properties.correlationId });
  server.ack(message);
});
const { queue: answers } = await channel.assertQueue("", { exclusive: true });
const answered = collect(channel, answers, 1, { noAck: true });
channel.sendToQueue(name("rpc"), Buffer.from("21"), { correlationId: "c", replyTo: answers });
const [answer] = await answered;
seen.rpc = [answer.content.toString(), answer.properties.correlationId];

// Direct reply-to.
const direct = await connection.createChannel();
const replied = collect(direct, "amq.rabbitmq.reply-to", 1, { noAck: true });
direct.sendToQueue(name("rpc"), Buffer.from("4"), { replyTo: "amq.rabbitmq.reply-to" });
seen.direct = (await replied)[0].content.toString();

// Confirms.
const confirms = await connection.createConfirmChannel();
await confirms.assertQueue(name("confirmed"), { durable: true, arguments: { "x-queue-type": "quorum" } });
for (let each = 0; each < 100; each++) confirms.sendToQueue(name("confirmed"), Buffer.from(`${each}`), { persistent: true });
await confirms.waitForConfirms();
seen.confirmed = (await confirms.checkQueue(name("confirmed"))).messageCount;

// Get, nack, mandatory, headers.
await confirms.assertQueue(name("got"), { durable: true });
for (const body of ["a", "b"]) confirms.sendToQueue(name("got"), Buffer.from(body));
await confirms.waitForConfirms();
const got = await confirms.get(name("got"));
confirms.nack(got, false, true);
const again = await confirms.get(name("got"));
seen.again = [again.content.toString() === got.content.toString(), again.fields.redelivered];
confirms.ack(again);
const returned = new Promise((resolve) => confirms.once("return", resolve));
confirms.publish("", name("nowhere"), Buffer.from("x"), { mandatory: true, headers: { a: 1, b: ["x", { c: true }] } });
const back = await returned;
seen.returned = [back.fields.replyCode, back.fields.replyText, back.properties.headers];

// An error closes its channel and no other.
const failing = await connection.createChannel();
const closed = new Promise((resolve) => failing.once("error", resolve));
failing.checkQueue(name("not-there")).catch(() => {});
seen.error = (await closed).code;

// A deleted queue tells its consumer by a null message.
const told = new Promise((resolve) => work.consume(name("hello"), (message) => { if (message === null) resolve(true); }));
await channel.deleteQueue(name("hello"));
seen.cancelled = await told;

for (const queue of ["work", "rpc", "confirmed", "got"]) await channel.deleteQueue(name(queue));
for (const exchange of ["logs", "topics"]) await channel.deleteExchange(name(exchange));
await connection.close();
clearTimeout(watchdog);
console.log(JSON.stringify(seen));
process.exit(0);
