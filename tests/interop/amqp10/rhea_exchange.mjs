// A program with rhea: node rhea_exchange.mjs ENTRY HOST PORT QUEUE. Prints what it has seen as JSON.
// QUEUE has a dead-letter queue QUEUE-dead; "from-proton" has messages of Qpid Proton, "to-proton" gets some.

import { once } from "node:events";

const [entry, host, port, queue] = process.argv.slice(2);
const rhea = (await import(entry)).default;
const { types, message: sections } = rhea;
const seen = {};

const connection = rhea.connect({
  host,
  port: Number(port),
  username: "guest",
  password: "guest",
  reconnect: false,
});
await once(connection, "connection_open");

async function senderTo(address) {
  const sender = connection.open_sender(address);
  await once(sender, "sendable");
  return sender;
}

// Sends, and resolves with the name of the outcome.
function sent(sender, message) {
  const delivery = sender.send(message);
  return new Promise((resolve) => {
    for (const outcome of ["accepted", "rejected", "released", "modified"])
      sender.on(outcome, (context) => context.delivery === delivery && resolve(outcome));
  });
}

async function receiverOf(source) {
  const receiver = connection.open_receiver({ source, credit_window: 0, autoaccept: false });
  await once(receiver, "receiver_open");
  return receiver;
}

async function next(receiver) {
  receiver.add_credit(1);
  const [context] = await once(receiver, "message");
  return context;
}

const bodies = {
  text: "text",
  large: "x".repeat(300000),
  list: ["a", 1, true, null],
  map: { a: 1, b: [2, 3] },
  ulong: types.wrap_ulong(7),
  long: types.wrap_long(-7),
  double: types.wrap_double(1.5),
  symbol: types.wrap_symbol("s"),
  timestamp: types.wrap_timestamp(1700000000000),
  array: types.wrap_array([1, 2, 3], 0x71),
  binary: sections.data_section(Buffer.from([0, 255])),
  sequence: sections.sequence_section([1, "two"]),
};

function plain(value) {
  if (Buffer.isBuffer(value)) return [...value];
  if (value instanceof Date) return value.getTime();
  if (value?.content !== undefined) return plain(value.content);
  return value?.valueOf?.() ?? value;
}

const sender = await senderTo(`/queues/${queue}`);
const receiver = await receiverOf(`/queues/${queue}`);
seen.bodies = {};
for (const [name, body] of Object.entries(bodies)) {
  const application_properties = { name, count: 3, flag: true };
  const outcome = await sent(sender, {
    body,
    message_id: rhea.generate_uuid(),
    correlation_id: 9,
    subject: "subject",
    durable: true,
    priority: 7,
    application_properties,
  });
  const { message, delivery } = await next(receiver);
  const kept =
    message.subject === "subject" &&
    message.correlation_id === 9 &&
    message.durable === true &&
    message.priority === 7 &&
    JSON.stringify(message.application_properties) === JSON.stringify(application_properties);
  delivery.accept();
  const value = plain(message.body);
  seen.bodies[name] = [outcome, kept, name === "large" ? value.length : value];
}

// Outcomes: released, modified, rejected to the dead-letter queue.
await sent(sender, { body: "again" });
const counts = [];
for (const settle of [
  (delivery) => delivery.release(),
  (delivery) => delivery.modified({ delivery_failed: true, undeliverable_here: false }),
  (delivery) => delivery.reject({ condition: "example:bad", description: "it is bad" }),
]) {
  const { message, delivery } = await next(receiver);
  counts.push(message.delivery_count ?? 0);
  settle(delivery);
}
seen.counts = counts;
const dead = await receiverOf(`/queues/${queue}-dead`);
const buried = await next(dead);
seen.dead = [buried.message.body, buried.message.message_annotations["x-first-death-reason"]];
buried.delivery.accept();

// An empty queue answers a drain.
receiver.drain_credit();
receiver.add_credit(10);
await once(receiver, "receiver_drained");
seen.drained = receiver.credit;

// A request to a service, which answers over a sender without address to the requester's own queue.
const answers = await receiverOf({ dynamic: true });
const requests = await senderTo(`/queues/${queue}`);
await sent(requests, { body: "question", reply_to: answers.source.address, correlation_id: "c1" });
const question = await next(receiver);
question.delivery.accept();
const anonymous = await senderTo({ target: {} });
const to = question.message.reply_to;
const correlation_id = question.message.correlation_id;
seen.replied = await sent(anonymous, { to, correlation_id, body: "answer" });
const answer = await next(answers);
answer.delivery.accept();
seen.answer = [answer.message.body, answer.message.correlation_id];

// A link that is refused tells why.
const refused = connection.open_receiver({ source: "/queues/there-is-none" });
await once(refused, "receiver_error");
seen.refused = refused.error.condition;

// Messages of another client, and for it.
seen.fromProton = [];
const incoming = await receiverOf(`/queues/${queue}-from-proton`);
for (let index = 0; index < 4; index++) {
  const { message, delivery } = await next(incoming);
  seen.fromProton.push(plain(message.body));
  delivery.accept();
}
const outgoing = await senderTo(`/queues/${queue}-to-proton`);
for (const name of ["text", "list", "map", "ulong", "long", "double"])
  await sent(outgoing, { body: bodies[name], message_id: types.wrap_ulong(5) });

connection.close();
await once(connection, "connection_close");
console.log(JSON.stringify(seen));
