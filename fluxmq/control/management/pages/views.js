// One function a page: each gets the context and returns what the page shows.

import { path } from "/api.js";
import { badge, bytes, confirmed, el, form, number, numbers, table } from "/dom.js";
import { mirrors, replicas, replicated, synchronisation } from "/views_mirrors.js";

export const link = (href, text) => el("a", { href }, text);
const queueLink = (row) => link(`#/queue/${path(row.vhost, row.name)}`, row.name || "(none)");
const exchangeName = (name) => name || "amq.default";
export const yes = (value, text) => (value ? badge(text) : "");
const json = (value) => (value && Object.keys(value).length ? el("code", {}, JSON.stringify(value)) : "");

export function pages(context, found, name) {
  if (!found.page_count || found.page_count < 2) return "";
  const go = (page) => context.go({ ...context.query, page });
  const step = (text, page) => el("button", { type: "button", class: "plain", disabled: page < 1 || page > found.page_count, on: { click: () => go(page) } }, text);
  const several = found.page_count > 2;
  return el("div", { class: "row" }, several ? step("First", found.page > 1 ? 1 : 0) : "", step("Previous", found.page - 1),
    `Page ${number(found.page)} of ${number(found.page_count)}: ${number(found.filtered_count)} ${name}`,
    step("Next", found.page + 1), several ? step("Last", found.page < found.page_count ? found.page_count : 0) : "");
}

export function search(context, label) {
  return form([{ name: "name", label, value: context.query.name || "" }], "Search", async (values) => context.go({ ...context.query, name: values.name, page: 1 }));
}

export function sorting(context, fallback) {
  const by = context.query.sort || fallback;
  const reverse = context.query.reverse === "true";
  return { by, reverse, change: (column) => context.go({ ...context.query, sort: column, reverse: String(column === by && !reverse), page: 1 }) };
}

// Overview and nodes

const TEN_MINUTES = (step) => `msg_rates_age=600&msg_rates_incr=${step}&lengths_age=600&lengths_incr=${step}`;

export const rateOf = (row, name) => ((row.message_stats || {})[`${name}_details`] || {}).rate || 0;
const shownRate = (row, name) => rateOf(row, name).toLocaleString("en", { maximumFractionDigits: 1 });

// Lengths over time, oldest first; and how fast a counter has grown between two samples.
const lengths = (details) => ((details || {}).samples || []).map((each) => each.sample).reverse();
function speeds(row, name) {
  const samples = [...(((row.message_stats || {})[`${name}_details`] || {}).samples || [])].reverse();
  return samples.slice(1).map((each, at) => Math.max(0, 1000 * (each.sample - samples[at].sample) / (each.timestamp - samples[at].timestamp)));
}

const CHURN = [
  ["connection_created", "Connections opened"], ["connection_closed", "Connections closed"], ["channel_created", "Channels opened"], ["channel_closed", "Channels closed"],
  ["queue_created", "Queues created"], ["queue_deleted", "Queues deleted"],
];
const churned = (found, name) => (((found.churn_rates || {})[`${name}_details`] || {}).rate || 0).toLocaleString("en", { maximumFractionDigits: 1 });

export async function overview({ api }) {
  const found = await api.get(`overview?${TEN_MINUTES(10)}`);
  const totals = found.queue_totals || {};
  const objects = found.object_totals;
  const shown = [
    el("h2", {}, "Overview"),
    el("p", { class: "soft" }, `${found.product_name} ${found.product_version}, node ${found.node}`),
    numbers([
      ["Messages in queues", number(totals.messages), lengths(totals.messages_details)],
      ["Ready", number(totals.messages_ready)],
      ["Unacknowledged", number(totals.messages_unacknowledged)],
      ["Published per second", shownRate(found, "publish"), speeds(found, "publish")],
      ["Delivered per second", shownRate(found, "deliver_get"), speeds(found, "deliver_get")],
      ["Acknowledged per second", shownRate(found, "ack"), speeds(found, "ack")],
    ]),
    el("h3", {}, "Objects"),
    numbers([["Connections", number(objects.connections)], ["Channels", number(objects.channels)], ["Consumers", number(objects.consumers)], ["Queues", number(objects.queues)], ["Exchanges", number(objects.exchanges)]]),
    el("h3", {}, "Per second"),
    numbers(CHURN.map(([name, title]) => [title, churned(found, name)])),
  ];
  if (found.listeners.length) {
    shown.push(el("h3", {}, "Listeners"), table("Listeners of this node", [
      { title: "Protocol", cell: (row) => row.protocol }, { title: "Address", cell: (row) => row.ip_address }, { title: "Port", number: true, cell: (row) => String(row.port) },
    ], found.listeners));
  }
  return shown;
}

export async function nodes({ api }) {
  const found = await api.get("nodes");
  const shown = [el("h2", {}, "Nodes")];
  for (const node of found) {
    shown.push(el("h3", {}, node.name, " ", node.running ? badge("running", "good") : badge("not reachable", "bad"), node.mem_alarm ? badge("memory alarm", "bad") : "", node.disk_free_alarm ? badge("disk alarm", "bad") : ""));
    if (node.processes === undefined) continue;
    shown.push(numbers([
      ["Memory", `${bytes(node.mem_used)} of ${bytes(node.mem_limit)}`], ["Disk free", bytes(node.disk_free)], ["Open files", number(node.fd_used)], ["Up for", duration(node.uptime)],
    ]), table(`Processes of ${node.name}: a shard for each core`, [
      { title: "Process", cell: (row) => row.name }, { title: "State", cell: (row) => (row.ready ? badge(row.state, "good") : badge(row.state, "bad")) },
      { title: "Core", number: true, cell: (row) => (row.core < 0 ? "–" : String(row.core)) }, { title: "Process id", number: true, cell: (row) => String(row.pid) },
      { title: "Restarts", number: true, cell: (row) => row.restarts }, { title: "Connections", number: true, cell: (row) => row.connections },
    ], node.processes));
  }
  return shown;
}

function duration(milliseconds) {
  const minutes = Math.floor(milliseconds / 60000);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

// Queues

const ARGUMENTS = {
  classic: ["x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-single-active-consumer", "x-max-priority", "x-deliver-before-sync", "x-queue-master-locator"],
  quorum: ["x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-single-active-consumer", "x-delivery-limit", "x-quorum-initial-group-size", "x-queue-leader-locator"],
  stream: ["x-max-length-bytes", "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size", "x-queue-leader-locator"],
};

export async function queues(context) {
  const { api, query } = context;
  const sort = sorting(context, "name");
  const wanted = new URLSearchParams({ page: query.page || 1, page_size: 50, sort: sort.by, sort_reverse: sort.reverse, name: query.name || "" });
  const found = await api.get(`queues${query.vhost ? `/${path(query.vhost)}` : ""}?${wanted}`);
  const several = found.items.some(replicated);
  return [
    el("h2", {}, "Queues"),
    search(context, "Part of the name"),
    table("Queues", [
      { title: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
      { title: "Name", sort: "name", cell: queueLink },
      { title: "Type", sort: "type", cell: (row) => badge(row.type) },
      { title: "Features", cell: (row) => [yes(row.durable, "durable"), yes(row.exclusive, "exclusive"), yes(row.auto_delete, "auto-delete"), yes(row.policy, row.policy)] },
      ...(several ? [{ title: "Leader", cell: replicas }] : []),
      { title: "State", sort: "state", cell: (row) => badge(row.state, row.state === "running" ? "good" : "bad") },
      { title: "Ready", number: true, sort: "messages_ready", cell: (row) => row.messages_ready },
      { title: "Unacknowledged", number: true, sort: "messages_unacknowledged", cell: (row) => row.messages_unacknowledged },
      { title: "Total", number: true, sort: "messages", cell: (row) => row.messages },
      { title: "Consumers", number: true, sort: "consumers", cell: (row) => row.consumers },
      { title: "In/s", number: true, sort: "message_stats.publish_details.rate", cell: (row) => shownRate(row, "publish") },
      { title: "Out/s", number: true, sort: "message_stats.deliver_get_details.rate", cell: (row) => shownRate(row, "deliver_get") },
      { title: "Ack/s", number: true, sort: "message_stats.ack_details.rate", cell: (row) => shownRate(row, "ack") },
    ], found.items, sort),
    pages(context, found, "queues"),
    el("h3", {}, "Add a queue"),
    addQueue(context, await vhosts(api)),
  ];
}

const vhosts = async (api) => (await api.get("vhosts?columns=name")).map((row) => row.name);

function addQueue(context, hosts) {
  const offered = el("p", { class: "soft" });
  const offer = (type) => { offered.textContent = `Arguments of ${type} queues: ${ARGUMENTS[type].join(", ")}`; };
  const made = form([
    { name: "vhost", label: "Virtual host", type: "select", options: hosts, value: context.query.vhost || "/" },
    { name: "type", label: "Type", type: "select", options: Object.keys(ARGUMENTS), value: "classic", change: offer },
    { name: "name", label: "Name", required: true },
    { name: "durable", label: "Durable", type: "check", value: true },
    { name: "auto", label: "Deleted with its last consumer", type: "check" },
    { name: "arguments", label: "Arguments, one a line", type: "area", wide: true, hint: "x-message-ttl = 60000" },
  ], "Add queue", async (values) => {
    await context.act(`queue ${values.name} declared`, () => context.api.send("PUT", `queues/${path(values.vhost, values.name)}`,
      { durable: values.durable, auto_delete: values.auto, arguments: { "x-queue-type": values.type, ...parsed(values.arguments) } }));
  });
  offer("classic");
  return el("div", {}, made, offered);
}

// Arguments as lines "name = value": numbers and truth values as such, everything else as text.
function parsed(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf("=");
    if (at < 0) throw new Error(`no "=" in the line "${line}"`);
    const value = line.slice(at + 1).trim();
    found[line.slice(0, at).trim()] = /^-?\d+$/.test(value) ? Number(value) : value === "true" ? true : value === "false" ? false : value;
  }
  return found;
}

export async function queue(context) {
  const { api, parts: [vhost, name] } = context;
  const where = `queues/${path(vhost, name)}`;
  const [found, bindings, consumers, explained] = await Promise.all([api.get(`${where}?${TEN_MINUTES(30)}`), api.get(`${where}/bindings`), api.get(`consumers/${path(vhost)}`), api.get(`fluxmq/v1/explain/${path(vhost, name)}`)]);
  const movable = (found.members || []).length > 1 && !found.slave_nodes && api.has();
  const groups = movable ? (await api.get("fluxmq/v1/raft?columns=name")).map((row) => row.name).filter((each) => !each.startsWith("_") && each !== found.group) : [];
  const own = consumers.filter((row) => row.queue.name === name);
  return [
    el("h2", {}, `Queue ${name}`, " ", badge(found.type)),
    numbers([
      ["Ready", number(found.messages_ready), lengths(found.messages_ready_details)], ["Unacknowledged", number(found.messages_unacknowledged), lengths(found.messages_unacknowledged_details)], ["Total", number(found.messages), lengths(found.messages_details)],
      ["Published per second", shownRate(found, "publish"), speeds(found, "publish")], ["Delivered per second", shownRate(found, "deliver_get"), speeds(found, "deliver_get")], ["Acknowledged per second", shownRate(found, "ack"), speeds(found, "ack")],
      ["Redelivered per second", shownRate(found, "redeliver"), speeds(found, "redeliver")], ["Consumers", number(found.consumers)], ["State", found.state], ["Bytes in its log", bytes(found.message_bytes)],
    ]),
    facts([["Virtual host", found.vhost], ["Arguments", json(found.arguments)], ["Policy", found.policy], ["In effect by policies", json(found.effective_policy_definition)], ["Replication group", found.group], ["Move", found.migration], ["Leader", found.leader], ["Mirrors online", mirrors(found)], ["Members", (found.members || []).join(", ")], ["Members online", (found.online || []).join(", ")], ["Idle since (UTC)", found.idle_since]]),
    synchronisation(context, found, where),
    ...(explained.length ? [table("Settings, and where they come from", [
      { title: "Setting", cell: (row) => row.key }, { title: "Value", cell: (row) => el("code", {}, row.value) }, { title: "From", cell: (row) => row.source },
      { title: "Not in effect", cell: (row) => row.others },
    ], explained)] : []),
    bindingsTable(context, bindings, "Bindings to this queue"),
    form([{ name: "source", label: "From exchange", required: true }, { name: "key", label: "Routing key" }, { name: "arguments", label: "Arguments, one a line", type: "area", wide: true }], "Bind",
      async (values) => context.act("bound", () => api.send("POST", `bindings/${path(vhost, "e", values.source, "q", name)}`, { routing_key: values.key, arguments: parsed(values.arguments) }))),
    el("h3", {}, "Consumers"),
    table("Consumers of this queue", [
      { title: "Tag", cell: (row) => row.consumer_tag }, { title: "Channel", cell: (row) => row.channel_details.name }, { title: "Prefetch", number: true, cell: (row) => row.prefetch_count },
      { title: "Acknowledges", cell: (row) => (row.ack_required ? "yes" : "no") }, { title: "State", cell: (row) => row.activity_status },
    ], own),
    el("h3", {}, "Publish"),
    publishForm(context, vhost, "amq.default", name),
    el("h3", {}, "Get messages"),
    getForm(context, where),
    ...(groups.length ? [el("h3", {}, "Move to another replication group"), form([{ name: "group", label: "Group", type: "select", options: groups }], "Move",
      async (values) => context.act(`moving to ${values.group}`, () => api.send("PUT", `fluxmq/v1/${where}/migration`, { group: values.group })))] : []),
    el("h3", {}, "Purge, delete"),
    el("div", { class: "row" },
      el("button", { class: "danger", type: "button", on: { click: async () => { if (await confirmed("Purge the queue", name)) await context.act("purged", () => api.send("DELETE", `${where}/contents`)); } } }, "Purge"),
      el("button", { class: "danger", type: "button", on: { click: async () => { if (await confirmed("Delete the queue", name)) { await context.act("deleted", () => api.send("DELETE", where), "#/queues"); } } } }, "Delete")),
  ];
}

export function facts(entries) {
  const rows = entries.filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows.map(([title, value]) => el("tr", {}, el("th", { scope: "row" }, title), el("td", {}, value))))));
}

function bindingsTable(context, rows, caption) {
  return el("div", {}, el("h3", {}, "Bindings"), table(caption, [
    { title: "From", cell: (row) => (row.source ? link(`#/exchange/${path(row.vhost, row.source)}`, row.source) : "(default exchange)") },
    { title: "To", cell: (row) => (row.destination_type === "queue" ? link(`#/queue/${path(row.vhost, row.destination)}`, row.destination) : link(`#/exchange/${path(row.vhost, row.destination)}`, row.destination)) },
    { title: "Routing key", cell: (row) => row.routing_key }, { title: "Arguments", cell: (row) => json(row.arguments) },
    { title: "", cell: (row) => (row.source ? el("button", { class: "danger", type: "button", on: { click: () => context.act("unbound", () => context.api.send("DELETE", `bindings/${path(row.vhost, "e", row.source, row.destination_type[0], row.destination, row.properties_key)}`)) } }, "Unbind") : "") },
  ], rows));
}

function publishForm(context, vhost, exchange, key) {
  return form([
    { name: "key", label: "Routing key", value: key }, { name: "persistent", label: "Persistent", type: "check", value: true },
    { name: "headers", label: "Headers, one a line", type: "area" }, { name: "properties", label: "Properties, one a line", type: "area", hint: "content_type = text/plain" },
    { name: "payload", label: "Payload", type: "area", wide: true },
  ], "Publish", async (values) => {
    await context.act("", async () => {
      const properties = { delivery_mode: values.persistent ? 2 : 1, ...parsed(values.properties) };
      const headers = parsed(values.headers);
      if (Object.keys(headers).length) properties.headers = headers;
      const body = { routing_key: values.key, payload: values.payload, payload_encoding: "string", properties };
      const answer = await context.api.send("POST", `exchanges/${path(vhost, exchange)}/publish`, body);
      context.say(answer.routed ? "Published, and safe." : "Published, but not routed to any queue.", !answer.routed);
    });
  });
}

function getForm(context, where) {
  const results = el("div", { "aria-live": "polite" });
  const asked = form([
    { name: "mode", label: "Then", type: "select", options: ["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"], value: "ack_requeue_true" },
    { name: "count", label: "Messages", type: "number", value: "1" },
  ], "Get messages", async (values) => {
    await context.act("", async () => {
      const found = await context.api.send("POST", `${where}/get`, { count: Number(values.count), ackmode: values.mode, encoding: "auto", truncate: 50000 });
      results.replaceChildren(...(found.length ? found.map((row, at) => el("section", { "aria-label": `Message ${at + 1}` },
        facts([["Message", `${at + 1} of ${found.length}; ${number(row.message_count)} left`], ["Exchange", row.exchange || "(default exchange)"], ["Routing key", row.routing_key], ["Redelivered", row.redelivered ? "yes" : "no"], ["Properties", json(row.properties)], ["Encoding", row.payload_encoding]]),
        el("pre", {}, row.payload))) : [el("p", { class: "soft" }, "The queue is empty.")]));
    }, null, true);
  });
  return el("div", {}, asked, results);
}

// Exchanges

export async function exchanges(context) {
  const found = await context.api.get("exchanges?sort=name");
  return [
    el("h2", {}, "Exchanges"),
    table("Exchanges", [
      { title: "Virtual host", cell: (row) => row.vhost }, { title: "Name", cell: (row) => link(`#/exchange/${path(row.vhost, exchangeName(row.name))}`, row.name || "(default exchange)") },
      { title: "Type", cell: (row) => badge(row.type) }, { title: "Features", cell: (row) => [yes(row.durable, "durable"), yes(row.internal, "internal"), yes(row.auto_delete, "auto-delete"), yes(row.policy, row.policy)] },
      { title: "In/s", number: true, cell: (row) => shownRate(row, "publish_in") }, { title: "Out/s", number: true, cell: (row) => shownRate(row, "publish_out") },
    ], found),
    el("h3", {}, "Add an exchange"),
    form([
      { name: "vhost", label: "Virtual host", type: "select", options: await vhosts(context.api), value: "/" }, { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", options: ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-delayed-message"], value: "direct" },
      { name: "durable", label: "Durable", type: "check", value: true }, { name: "auto", label: "Deleted with its last binding", type: "check" }, { name: "internal", label: "Internal", type: "check" },
      { name: "arguments", label: "Arguments, one a line", type: "area", wide: true, hint: "alternate-exchange = unrouted" },
    ], "Add exchange", async (values) => context.act(`exchange ${values.name} declared`, () => context.api.send("PUT", `exchanges/${path(values.vhost, values.name)}`, { type: values.type, durable: values.durable, auto_delete: values.auto, internal: values.internal, arguments: parsed(values.arguments) }))),
  ];
}

export async function exchange(context) {
  const { api, parts: [vhost, name] } = context;
  const where = `exchanges/${path(vhost, name)}`;
  const [found, from, to] = await Promise.all([api.get(where), api.get(`${where}/bindings/source`), api.get(`${where}/bindings/destination`)]);
  const shown = [
    el("h2", {}, found.name ? `Exchange ${found.name}` : "The default exchange", " ", badge(found.type)),
    facts([["Virtual host", found.vhost], ["Arguments", json(found.arguments)], ["Policy", found.policy]]),
    bindingsTable(context, [...from, ...to], "Bindings from and to this exchange"),
    el("h3", {}, "Publish"), publishForm(context, vhost, name, ""),
  ];
  if (found.name && !found.name.startsWith("amq.")) {
    shown.push(el("h3", {}, "Delete"), el("button", { class: "danger", type: "button", on: { click: async () => { if (await confirmed("Delete the exchange", name)) await context.act("deleted", () => api.send("DELETE", where), "#/exchanges"); } } }, "Delete"));
  }
  return shown;
}

// Clients

// Bytes a second, since an earlier look at the list.
const octets = (row, name) => (row[`${name}_details`] ? bytes(row[`${name}_details`].rate) : "–");

export async function connections(context) {
  const sort = sorting(context, "name");
  const wanted = new URLSearchParams({ page: context.query.page || 1, page_size: 100, sort: sort.by, sort_reverse: sort.reverse, name: context.query.name || "" });
  const found = await context.api.get(`connections?${wanted}`);
  return [
    el("h2", {}, "Connections"),
    search(context, "Part of the name, or of an MQTT client identifier"),
    table("Clients of all nodes; the name of an MQTT client is its client identifier", [
      { title: "Name", sort: "name", cell: (row) => row.name }, { title: "Protocol", sort: "protocol", cell: (row) => badge(row.protocol) }, { title: "User", sort: "user", cell: (row) => row.user },
      { title: "From", cell: (row) => `${row.peer_host}:${row.peer_port}` }, { title: "State", cell: (row) => badge(row.state, row.state === "running" ? "good" : "bad") }, { title: "TLS", cell: (row) => (row.ssl ? "yes" : "no") },
      { title: "Channels", number: true, sort: "channels", cell: (row) => row.channels }, { title: "Node", cell: (row) => row.node },
      { title: "In/s", number: true, sort: "recv_oct_details.rate", cell: (row) => octets(row, "recv_oct") }, { title: "Out/s", number: true, sort: "send_oct_details.rate", cell: (row) => octets(row, "send_oct") },
      { title: "", cell: (row) => el("button", { class: "danger", type: "button", on: { click: async () => { if (await confirmed("Close the connection", row.name)) await context.act("closed", () => context.api.send("DELETE", `connections/${path(row.name)}`)); } } }, "Close") },
    ], found.items, sort),
    pages(context, found, "connections"),
  ];
}

export async function channels(context) {
  const found = await context.api.get("channels");
  return [el("h2", {}, "Channels"), table("AMQP channels of all nodes", [
    { title: "Channel", cell: (row) => row.name }, { title: "User", cell: (row) => row.user }, { title: "Virtual host", cell: (row) => row.vhost },
    { title: "Mode", cell: (row) => [yes(row.confirm, "confirms"), yes(row.transactional, "transactions")] }, { title: "Consumers", number: true, cell: (row) => row.consumer_count },
    { title: "Unacknowledged", number: true, cell: (row) => row.messages_unacknowledged }, { title: "Unconfirmed", number: true, cell: (row) => row.messages_unconfirmed }, { title: "Prefetch", number: true, cell: (row) => row.prefetch_count },
  ], found)];
}

// Administration

export async function users(context) {
  const { api } = context;
  const [found, permissions, limits, hosts] = await Promise.all([api.get("users"), api.get("permissions"), api.get("user-limits"), vhosts(api)]);
  const limitsOf = Object.fromEntries(limits.map((row) => [row.user, row.value]));
  const of = (name) => permissions.filter((row) => row.user === name);
  return [
    el("h2", {}, "Users"),
    table("Users and their permissions", [
      { title: "Name", cell: (row) => row.name }, { title: "Tags", cell: (row) => row.tags.map((tag) => badge(tag)) },
      { title: "Permissions (configure, write, read)", cell: (row) => of(row.name).map((each) => el("div", {}, badge(each.vhost), el("code", {}, `${each.configure} ${each.write} ${each.read}`), " ",
        el("button", { class: "danger", type: "button", on: { click: () => context.act("permissions cleared", () => api.send("DELETE", `permissions/${path(each.vhost, row.name)}`)) } }, "Clear"))) },
      { title: "Limits", cell: (row) => json(limitsOf[row.name]) },
      { title: "", cell: (row) => el("button", { class: "danger", type: "button", on: { click: async () => { if (await confirmed("Delete the user", row.name)) await context.act("deleted", () => api.send("DELETE", `users/${path(row.name)}`)); } } }, "Delete") },
    ], found),
    el("h3", {}, "Add or change a user"),
    form([{ name: "name", label: "Name", required: true }, { name: "password", label: "Password", type: "password" }, { name: "tags", label: "Tags, separated by commas", hint: "management" }], "Set user", async (values) => {
      const body = { tags: values.tags, ...(values.password ? { password: values.password } : {}) };
      await context.act(`user ${values.name} set`, () => api.send("PUT", `users/${path(values.name)}`, body));
    }),
    el("h3", {}, "Set permissions"),
    form([
      { name: "user", label: "User", type: "select", options: found.map((row) => row.name) }, { name: "vhost", label: "Virtual host", type: "select", options: hosts, value: "/" },
      { name: "configure", label: "Configure (pattern)", value: ".*" }, { name: "write", label: "Write (pattern)", value: ".*" }, { name: "read", label: "Read (pattern)", value: ".*" },
    ], "Set permissions", async (values) => context.act("permissions set", () => api.send("PUT", `permissions/${path(values.vhost, values.user)}`, { configure: values.configure, write: values.write, read: values.read }))),
    el("h3", {}, "Limit a user"),
    limitForm(context, "User", found.map((row) => row.name), ["max-connections", "max-channels"], (user) => `user-limits/${path(user)}`),
  ];
}

export async function virtualHosts(context) {
  const { api } = context;
  const [found, limits] = await Promise.all([api.get("vhosts"), api.get("vhost-limits")]);
  const limitsOf = Object.fromEntries(limits.map((row) => [row.vhost, row.value]));
  const shown = [el("h2", {}, "Virtual hosts"), table("Virtual hosts", [
    { title: "Name", cell: (row) => row.name }, { title: "Description", cell: (row) => row.description }, { title: "Default queue type", cell: (row) => badge(row.default_queue_type) }, { title: "Limits", cell: (row) => json(limitsOf[row.name]) },
    { title: "", cell: (row) => (api.has() ? el("button", { class: "danger", type: "button", on: { click: async () => { if (await confirmed("Delete the virtual host and everything in it", row.name)) await context.act("deleted", () => api.send("DELETE", `vhosts/${path(row.name)}`)); } } }, "Delete") : "") },
  ], found)];
  if (api.has()) {
    shown.push(el("h3", {}, "Add a virtual host"), form([{ name: "name", label: "Name", required: true }, { name: "description", label: "Description" }, { name: "type", label: "Default queue type", type: "select", options: ["classic", "quorum", "stream"], value: "classic" }], "Add virtual host",
      async (values) => context.act(`virtual host ${values.name} added`, () => api.send("PUT", `vhosts/${path(values.name)}`, { description: values.description, default_queue_type: values.type }))),
    el("h3", {}, "Limit a virtual host"), limitForm(context, "Virtual host", found.map((row) => row.name), ["max-connections", "max-queues"], (vhost) => `vhost-limits/${path(vhost)}`));
  }
  return shown;
}

// A form that sets a limit, or clears it where no number is given. `where` returns the path of a subject's limits.
function limitForm(context, label, subjects, limits, where) {
  return form([
    { name: "subject", label, type: "select", options: subjects }, { name: "limit", label: "Limit", type: "select", options: limits }, { name: "value", label: "Value (empty: no limit)", type: "number" },
  ], "Set limit", async (values) => context.act(values.value ? "limit set" : "limit cleared", () => (values.value
    ? context.api.send("PUT", `${where(values.subject)}/${values.limit}`, { value: Number(values.value) })
    : context.api.send("DELETE", `${where(values.subject)}/${values.limit}`))));
}

// Policies, and those of operators, which only tighten the others.
const POLICY_KINDS = { "policy": "policies", "operator policy": "operator-policies" };

export async function policies(context) {
  const { api } = context;
  const [own, operators] = await Promise.all([api.get("policies"), api.get("operator-policies")]);
  const found = [...own.map((row) => ({ ...row, kind: "policy" })), ...operators.map((row) => ({ ...row, kind: "operator policy" }))];
  const kinds = Object.keys(POLICY_KINDS).filter((kind) => kind === "policy" || api.has());
  const shown = [el("h2", {}, "Policies"), table("Policies", [
    { title: "Virtual host", cell: (row) => row.vhost }, { title: "Name", cell: (row) => [row.name, row.kind === "policy" ? "" : " ", row.kind === "policy" ? "" : badge("operator")] }, { title: "Pattern", cell: (row) => el("code", {}, row.pattern) }, { title: "Applies to", cell: (row) => row["apply-to"] },
    { title: "Definition", cell: (row) => json(row.definition) }, { title: "Priority", number: true, cell: (row) => row.priority },
    { title: "", cell: (row) => (api.has("policymaker") && kinds.includes(row.kind) ? el("button", { class: "danger", type: "button", on: { click: async () => { if (await confirmed(`Clear the ${row.kind}`, row.name)) await context.act("cleared", () => api.send("DELETE", `${POLICY_KINDS[row.kind]}/${path(row.vhost, row.name)}`)); } } }, "Clear") : "") },
  ], found)];
  if (api.has("policymaker")) {
    shown.push(el("h3", {}, "Set a policy"), form([
      { name: "kind", label: "Kind", type: "select", options: kinds, value: "policy" },
      { name: "vhost", label: "Virtual host", type: "select", options: await vhosts(api), value: "/" }, { name: "name", label: "Name", required: true }, { name: "pattern", label: "Pattern", required: true, hint: "^orders" },
      { name: "to", label: "Applies to", type: "select", options: ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"], value: "queues" }, { name: "priority", label: "Priority", type: "number", value: "0" },
      { name: "definition", label: "Definition, one key a line", type: "area", wide: true, required: true, hint: "max-length = 1000" },
    ], "Set policy", async (values) => context.act(`${values.kind} ${values.name} set`, () => api.send("PUT", `${POLICY_KINDS[values.kind]}/${path(values.vhost, values.name)}`, { pattern: values.pattern, "apply-to": values.to, priority: Number(values.priority), definition: parsed(values.definition) }))));
  }
  return shown;
}

export async function definitions(context) {
  const { api } = context;
  const file = el("input", { type: "file", accept: "application/json,.json", id: "file" });
  return [
    el("h2", {}, "Definitions"),
    el("p", {}, "Everything that is declared: virtual hosts, users, permissions, policies, queues, exchanges and bindings, in RabbitMQ's format."),
    el("div", { class: "row" }, el("button", { type: "button", on: { click: () => context.act("", async () => {
      const found = await api.get("definitions");
      const address = URL.createObjectURL(new Blob([JSON.stringify(found, null, 2)], { type: "application/json" }));
      el("a", { href: address, download: "definitions.json" }).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    }, null, true) } }, "Export")),
    el("h3", {}, "Import"),
    el("div", { class: "row" }, el("label", { for: "file" }, "Definitions of this broker or of RabbitMQ"), file,
      el("button", { type: "button", on: { click: () => context.act("imported", async () => {
        if (!file.files.length) throw new Error("choose a file first");
        await api.send("POST", "definitions", JSON.parse(await file.files[0].text()));
      }) } }, "Import")),
  ];
}
