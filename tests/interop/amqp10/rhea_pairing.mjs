// A program with rhea that sends messages of a file to a queue, or prints those that it gets from one:
// node rhea_pairing.mjs ENTRY send HOST PORT QUEUE FILE, and ... receive HOST PORT QUEUE COUNT [first].
// Messages are JSON, in the form that pairing_cases.py describes.

import { once } from "node:events";
import { readFileSync } from "node:fs";

const [entry, does, host, port, queue, what, start] = process.argv.slice(2);
const rhea = (await import(entry)).default;
const { types, message: sections } = rhea;

// Small, so that large messages come in hundreds of frames.
const FRAME_MAX = 8192;
const INTEGERS = {
  ubyte: [1, false], ushort: [2, false], uint: [4, false],
  byte: [1, true], short: [2, true], int: [4, true],
};
// The encodings of elements of arrays.
const CODES = {
  boolean: 0x56, ubyte: 0x50, ushort: 0x60, uint: 0x70, ulong: 0x80, byte: 0x51, short: 0x61, int: 0x71, long: 0x81,
  float: 0x72, double: 0x82, decimal32: 0x74, decimal64: 0x84, decimal128: 0x94, char: 0x73, timestamp: 0x83, uuid: 0x98,
  binary: 0xb0, string: 0xb1, symbol: 0xb3, list: 0xd0, map: 0xd1, array: 0xf0,
};
const NAMES = {
  True: "boolean", False: "boolean", Uint0: "uint", SmallUint: "uint", Ulong0: "ulong", SmallUlong: "ulong",
  SmallInt: "int", SmallLong: "long", CharUTF32: "char", Vbin8: "binary", Vbin32: "binary", Str8: "string",
  Str32: "string", Sym8: "symbol", Sym32: "symbol", List0: "list", List8: "list", List32: "list", Map8: "map",
  Map32: "map", Array8: "array", Array32: "array",
};
const HEADER = ["durable", "priority", "ttl", "first-acquirer", "delivery-count"];
const PROPERTIES = [
  "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding",
  "absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id",
];
const MAPS = {
  application: "application_properties",
  annotations: "message_annotations",
  delivery: "delivery_annotations",
  footer: "footer",
};

// A number if it is exact, or the bytes, as rhea takes and gives wide integers.
function wide(bytes, signed) {
  const number = signed ? bytes.readBigInt64BE() : bytes.readBigUInt64BE();
  return Number.isSafeInteger(Number(number)) ? Number(number) : bytes;
}

// A value as rhea takes it inside of an array, which says the type.
function plain([kind, content]) {
  if (kind === "string" || kind === "symbol") return content;
  if (kind === "list") return content.map(made);
  if (kind === "map") return content.flat().map(made);
  const bytes = Buffer.from(content, "hex");
  if (kind in INTEGERS) {
    const [width, signed] = INTEGERS[kind];
    return signed ? bytes.readIntBE(0, width) : bytes.readUIntBE(0, width);
  }
  if (kind === "boolean") return bytes[0] === 1;
  if (kind === "float") return bytes.readFloatBE();
  if (kind === "double") return bytes.readDoubleBE();
  if (kind === "char") return bytes.readUInt32BE();
  if (kind === "ulong") return wide(bytes, false);
  if (kind === "long" || kind === "timestamp") return wide(bytes, true);
  return bytes;
}

function made(value) {
  const [kind, content] = value;
  if (kind === "null") return null;
  if (kind === "list") return types.wrap_list(content.map(made));
  if (kind === "map") return types.wrap_map_as_map(new Map(content.map(([key, each]) => [made(key), made(each)])));
  if (kind === "array") {
    const [element, values, descriptor] = content;
    return types.wrap_array(values.map(plain), CODES[element], descriptor ? made(descriptor) : undefined);
  }
  if (kind === "described") return types.described(made(content[0]), types.wrap(made(content[1])));
  if (kind.startsWith("decimal")) return types[`Decimal${kind.slice(7)}`](plain(value));
  return types[`wrap_${kind}`](plain(value));
}

function hexadecimal(name, value) {
  if (Buffer.isBuffer(value)) return value.toString("hex");
  if (name === "boolean") return value ? "01" : "00";
  const bytes = Buffer.alloc(8);
  if (name === "float") bytes.writeFloatBE(value);
  else if (name === "double") bytes.writeDoubleBE(value);
  else bytes.writeBigUInt64BE(BigInt.asUintN(64, BigInt(value.valueOf())));
  if (name === "float") return bytes.toString("hex", 0, 4);
  const widths = { char: 4, uint: 4, int: 4, ushort: 2, short: 2, ubyte: 1, byte: 1 };
  return bytes.toString("hex", 8 - (widths[name] ?? 8));
}

function written(typed) {
  const { type, value, descriptor, array_constructor: of } = typed;
  if (descriptor) return ["described", [written(descriptor), written({ type, value, array_constructor: of })]];
  const name = NAMES[type.name] ?? type.name.toLowerCase();
  switch (name) {
    case "null":
      return ["null", ""];
    case "string":
    case "symbol":
      return [name, value];
    case "list":
      return [name, value.map(written)];
    case "map":
      return [name, pairs(value).map(([key, each]) => [written(key), written(each)])];
    case "array": {
      const element = Object.keys(CODES).find((each) => CODES[each] === of.typecode) ?? NAMES[types.by_code[of.typecode].name];
      return [name, [element, value.map(written), of.descriptor ? written(of.descriptor) : null]];
    }
  }
  return [name, hexadecimal(name, value)];
}

function pairs(items) {
  return items.flatMap((key, index) => (index % 2 ? [] : [[key, items[index + 1]]]));
}

function madeMessage(given) {
  const [kind, content] = given.body;
  const message = {};
  if (kind === "data") message.body = sections.data_sections(content.map((each) => Buffer.from(each, "hex")));
  else if (kind === "sequence") message.body = sections.sequence_section(content.map(made));
  else message.body = made(content);
  for (const [field, value] of Object.entries({ ...given.header, ...given.properties })) {
    // An id's type is the application's to say; that of another field is known.
    const id = field === "message-id" || field === "correlation-id";
    message[field.replaceAll("-", "_")] = id ? made(value) : plain(value);
  }
  for (const [section, name] of Object.entries(MAPS))
    if (given[section]) message[name] = Object.fromEntries(given[section].map(([key, value]) => [key, made(value)]));
  return message;
}

// Fields that are there, by their names.
function fields(names, items) {
  const present = items.map((item, index) => [names[index], written(item)]);
  return Object.fromEntries(present.filter(([, value]) => value[0] !== "null"));
}

// rhea's message has lost types: its reader gives them.
function writtenMessage(bytes) {
  const found = { header: {}, properties: {}, application: [], annotations: [], delivery: [], footer: [] };
  const maps = { 0x71: "delivery", 0x72: "annotations", 0x74: "application", 0x78: "footer" };
  const reader = new types.Reader(bytes);
  while (reader.remaining()) {
    const section = reader.read();
    const { type, value, array_constructor } = section;
    const content = { type, value, array_constructor };
    const code = section.descriptor.value;
    if (code === 0x70) found.header = fields(HEADER, value);
    else if (code === 0x73) found.properties = fields(PROPERTIES, value);
    else if (code in maps) found[maps[code]] = pairs(value).map(([key, each]) => [key.value, written(each)]);
    else if (code === 0x75) found.body = ["data", [...(found.body?.[1] ?? []), value.toString("hex")]];
    else if (code === 0x76) found.body = ["sequence", value.map(written)];
    else found.body = ["value", written(content)];
  }
  return found;
}

const connection = rhea.connect({
  host,
  port: Number(port),
  username: "guest",
  password: "guest",
  reconnect: false,
  max_frame_size: FRAME_MAX,
});
await once(connection, "connection_open");

async function send() {
  const sender = connection.open_sender(`/queues/${queue}`);
  const messages = JSON.parse(readFileSync(what, "utf8")).map(madeMessage);
  let accepted = 0;
  const done = new Promise((resolve, reject) => {
    sender.on("accepted", () => ++accepted === messages.length && resolve());
    for (const outcome of ["rejected", "released", "modified"])
      sender.on(outcome, (context) => reject(new Error(`${outcome}: ${JSON.stringify(context.delivery.remote_state)}`)));
  });
  for (const each of messages) {
    if (!sender.sendable()) await once(sender, "sendable");
    sender.send(each);
  }
  await done;
}

async function receive() {
  const received = [];
  const decode = sections.decode;
  sections.decode = (bytes) => {
    received.push(Buffer.from(bytes));
    return decode(bytes);
  };
  const address = `/queues/${queue}`;
  const offset = { "rabbitmq:stream-offset-spec": types.wrap_described("first", "rabbitmq:stream-offset-spec") };
  const source = start === "first" ? { address, filter: offset } : { address };
  const receiver = connection.open_receiver({ source, credit_window: 100 });
  await new Promise((resolve) => receiver.on("message", () => received.length === Number(what) && resolve()));
  process.stdout.write(JSON.stringify(received.map(writtenMessage)));
}

await (does === "send" ? send() : receive());
connection.close();
await once(connection, "connection_close");
