// MQTT clients, their subscriptions, and retained messages.

import { path } from "/api.js";
import { badge, bytes, confirmed, el, number, numbers, table } from "/dom.js";
import { facts, link, pages, search, sorting, yes } from "/views.js";

const V1 = "fluxmq/v1";
const clientLink = (id) => link(`#/client/${path(id)}`, id || "(none)");
const seconds = (value) => (value === 4294967295 ? "never" : `${number(value)} s`);
const state = (row) => (row.connected ? badge("connected", "good") : badge("offline"));

function wanted(context, sort, size = 100) {
  return new URLSearchParams({ page: context.query.page || 1, page_size: size, sort: sort.by, sort_reverse: sort.reverse, name: context.query.name || "" });
}

function endButton(context, id, next = null) {
  if (!context.api.has()) return "";
  return el("button", { class: "danger", type: "button", on: { click: async () => { if (await confirmed("End the session", id)) await context.act("ended", () => context.api.send("DELETE", `${V1}/sessions/${path(id)}`), next); } } }, "End session");
}

export async function clients(context) {
  const sort = sorting(context, "name");
  const found = await context.api.get(`${V1}/sessions?${wanted(context, sort)}`);
  return [
    el("h2", {}, "MQTT clients"),
    search(context, "Part of a client identifier"),
    table("Sessions of all nodes, connected or not", [
      { title: "Client", sort: "name", cell: (row) => clientLink(row.name) }, { title: "State", sort: "connected", cell: state }, { title: "User", sort: "user", cell: (row) => row.user },
      { title: "Protocol", sort: "protocol", cell: (row) => row.protocol && badge(row.protocol) }, { title: "From", cell: (row) => row.peer }, { title: "Node", sort: "node", cell: (row) => row.node },
      { title: "Subscriptions", number: true, sort: "subscriptions", cell: (row) => row.subscriptions }, { title: "In flight", number: true, sort: "inflight", cell: (row) => row.inflight },
      { title: "Waiting", number: true, sort: "pending", cell: (row) => row.pending }, { title: "Bytes waiting", number: true, sort: "pending_bytes", cell: (row) => bytes(row.pending_bytes) },
      { title: "", cell: (row) => endButton(context, row.name) },
    ], found.items, sort),
    pages(context, found, "clients"),
  ];
}

export async function client(context) {
  const { api, parts: [id] } = context;
  const where = `${V1}/sessions/${path(id)}`;
  const [found, subscribed] = await Promise.all([api.get(where), api.get(`${where}/subscriptions`)]);
  return [
    el("h2", {}, `MQTT client ${id}`, " ", state(found)),
    numbers([["Subscriptions", number(found.subscriptions)], ["In flight", number(found.inflight)], ["Waiting", number(found.pending)], ["Bytes waiting", bytes(found.pending_bytes)]]),
    facts([["User", found.user], ["Protocol", found.protocol], ["From", found.peer], ["Node", found.node], ["Shard", String(found.shard)], ["Keep alive", found.keep_alive ? `${found.keep_alive} s` : ""], ["Session expires after", seconds(found.expiry)], ["Will", found.will ? "yes" : "no"]]),
    el("h3", {}, "Subscriptions"),
    subscriptionTable("Subscriptions of this client", subscribed, false),
    el("div", { class: "row" }, endButton(context, id, "#/clients")),
  ];
}

function subscriptionTable(caption, rows, named, sort) {
  return table(caption, [
    { title: "Topic filter", sort: "name", cell: (row) => el("code", {}, row.name) },
    ...(named ? [{ title: "Client", sort: "client_id", cell: (row) => clientLink(row.client_id) }, { title: "State", cell: state }] : []),
    { title: "QoS", number: true, sort: "qos", cell: (row) => String(row.qos) }, { title: "Share", sort: "share", cell: (row) => row.share },
    { title: "Options", cell: (row) => [yes(row.queue, "queue"), yes(row.no_local, "no local"), yes(row.retain_as_published, "retain as published")] },
    ...(named ? [{ title: "Node", cell: (row) => row.node }] : []),
  ], rows, sort);
}

export async function subscriptions(context) {
  const sort = sorting(context, "name");
  const found = await context.api.get(`${V1}/subscriptions?${wanted(context, sort)}`);
  return [
    el("h2", {}, "Subscriptions"), search(context, "Part of a topic filter"),
    subscriptionTable("Subscriptions of the MQTT clients of all nodes", found.items, true, sort), pages(context, found, "subscriptions"),
  ];
}

export async function retained(context) {
  const { api } = context;
  const sort = sorting(context, "name");
  const found = await api.get(`${V1}/retained?${wanted(context, sort)}`);
  const shown = el("div", { "aria-live": "polite" });
  const show = (topic) => context.act("", async () => {
    const row = await api.send("GET", `${V1}/retained/${path(topic)}`);
    shown.replaceChildren(el("h3", {}, `Message of ${topic}`), el("pre", {}, row.payload), row.payload_bytes > 4096 ? el("p", { class: "soft" }, `The first 4 KiB of ${bytes(row.payload_bytes)}.`) : "");
  }, null, true);
  const remove = async (topic) => { if (await confirmed("Delete the retained message", topic)) await context.act("deleted", () => api.send("DELETE", `${V1}/retained/${path(topic)}`)); };
  return [
    el("h2", {}, "Retained messages"),
    search(context, "Part of a topic"),
    table("Retained messages", [
      { title: "Topic", sort: "name", cell: (row) => el("code", {}, row.name) }, { title: "QoS", number: true, sort: "qos", cell: (row) => String(row.qos) },
      { title: "Size", number: true, sort: "payload_bytes", cell: (row) => bytes(row.payload_bytes) }, { title: "Expires in", number: true, sort: "expires_in", cell: (row) => (row.expires_in === null ? "never" : `${number(row.expires_in)} s`) },
      { title: "", cell: (row) => (api.has() ? el("div", { class: "row" }, el("button", { class: "plain", type: "button", "aria-label": `Show the message of ${row.name}`, on: { click: () => show(row.name) } }, "Show"), el("button", { class: "danger", type: "button", "aria-label": `Delete the message of ${row.name}`, on: { click: () => remove(row.name) } }, "Delete")) : "") },
    ], found.items, sort),
    pages(context, found, "retained messages"),
    shown,
  ];
}
