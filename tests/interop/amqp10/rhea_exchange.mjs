// What a program with rhea does: publish, browse with a selector, consume, and ask over a dynamic node.
// The result goes to the standard output as JSON.

import { createRequire } from "node:module";

const [, , entry, host, port, queue] = process.argv;
const rhea = createRequire(import.meta.url)(entry);
const COUNT = 10;
const address = `/queues/${queue}`;
const seen = { accepted: 0, released: 0, browsed: [], consumed: [], answers: [] };

const connection = rhea.connect({
  host,
  port: Number(port),
  username: "guest",
  password: "guest",
  reconnect: false,
});

const opened = (receiver) => new Promise((resolve) => receiver.once("receiver_open", resolve));

function publish() {
  return new Promise((resolve) => {
    const sender = connection.open_sender(address);
    let sent = 0;
    sender.on("sendable", () => {
      while (sent < COUNT && sender.sendable()) {
        sender.send({
          message_id: `id-${sent}`,
          subject: "subject",
          durable: true,
          application_properties: { number: sent },
          body: { number: sent },
        });
        sent += 1;
      }
    });
    sender.on("accepted", () => {
      seen.accepted += 1;
      if (seen.accepted === COUNT) resolve();
    });
  });
}

function unrouted() {
  return new Promise((resolve) => {
    const sender = connection.open_sender(`/exchanges/amq.direct/${queue}-nowhere`);
    sender.once("sendable", () => sender.send({ body: "x" }));
    sender.on("released", () => {
      seen.released += 1;
      resolve();
    });
  });
}

async function browse() {
  const receiver = connection.open_receiver({
    credit_window: 0,
    source: {
      address,
      distribution_mode: "copy",
      filter: rhea.filter.selector("number > 6 AND JMSType IS NOT NULL"),
    },
  });
  await opened(receiver);
  await new Promise((resolve) => {
    receiver.on("message", (context) => seen.browsed.push(context.message.body.number));
    receiver.on("receiver_drained", resolve);
    receiver.drain = true;
    receiver.add_credit(100);
  });
  receiver.close();
}

function consume() {
  return new Promise((resolve) => {
    const receiver = connection.open_receiver({ source: { address }, autoaccept: false });
    receiver.on("message", (context) => {
      const { body, message_id, subject, durable } = context.message;
      seen.consumed.push([body.number, message_id, subject, durable]);
      context.delivery.accept();
      if (seen.consumed.length === COUNT) {
        receiver.once("receiver_close", resolve);
        receiver.close();
      }
    });
  });
}

async function ask() {
  const replies = connection.open_receiver({ source: { dynamic: true } });
  await opened(replies);
  const requests = connection.open_sender(address);
  const done = new Promise((resolve) => {
    replies.on("message", (context) => {
      seen.answers.push([context.message.correlation_id, context.message.body]);
      resolve();
    });
  });
  const server = connection.open_receiver({ source: { address } });
  server.on("message", (context) => {
    const { reply_to, message_id, body } = context.message;
    connection.send({ to: reply_to, correlation_id: message_id, body: body.toUpperCase() });
  });
  requests.send({ message_id: "ask", reply_to: replies.source.address, body: "answer" });
  await done;
}

connection.on("connection_open", async () => {
  await publish();
  await unrouted();
  await browse();
  await consume();
  await ask();
  connection.close();
});
connection.on("connection_close", () => console.log(JSON.stringify(seen)));
connection.on("disconnected", (context) => {
  console.error(context.error);
  process.exit(1);
});
for (const event of ["connection_error", "session_error", "sender_error", "receiver_error"]) {
  connection.on(event, (context) => {
    const source = context.receiver ?? context.sender ?? context.session ?? context.connection;
    console.error(event, source.error);
    process.exit(1);
  });
}
