// Replication groups, cores, and alarms.

import { path } from "/api.js";
import { badge, bytes, el, form, number, table } from "/dom.js";

const V1 = "fluxmq/v1";
const milliseconds = (value) => (value > 0 ? `${(1000 * value).toFixed(2)} ms` : "–");
const role = (row) => badge(row.role, row.role === "leader" || row.role === "follower" ? "good" : "bad");

export async function groups(context) {
  const { api } = context;
  const [replicated, own] = await Promise.all([api.get(`${V1}/raft`), api.get(`${V1}/groups`)]);
  const results = el("div", { "aria-live": "polite" });
  const audit = (group) => context.act("", async () => {
    const { rows } = await api.send("POST", `${V1}/raft/${path(group)}/audit`);
    results.replaceChildren(table(`Copies of ${group}`, [
      { title: "Node", cell: (row) => row.node }, { title: "Place", cell: (row) => row.kind }, { title: "Index", number: true, cell: (row) => row.index }, { title: "Hash", cell: (row) => el("code", {}, row.rolling) },
      { title: "Verdict", cell: (row) => [badge(row.verdict, row.verdict === "equal" ? "good" : "bad"), row.problem || ""] },
    ], rows));
  }, null, true);
  const shown = [el("h2", {}, "Replication groups")];
  if (replicated.length) {
    shown.push(table("Replicated groups of the cluster", [
      { title: "Group", cell: (row) => row.name }, { title: "Leader", cell: (row) => row.leader || badge("none", "bad") }, { title: "Term", number: true, cell: (row) => row.term },
      { title: "Members, with entries behind", cell: (row) => row.members.map((each) => badge(`${each.node}${each.leads ? " (leader)" : each.lag > 0 ? ` −${number(each.lag)}` : ""}${each.kind === "voter" ? "" : ` ${each.kind}`}`, each.leads || each.connected ? "good" : "bad")) },
      { title: "Committed", number: true, cell: (row) => row.commit }, { title: "Applied", number: true, cell: (row) => row.applied }, { title: "Elections", number: true, cell: (row) => row.elections },
      { title: "Fsync p99", number: true, cell: (row) => milliseconds(row.fsync_p99) }, { title: "Problem", cell: (row) => row.problem },
      { title: "", cell: (row) => (api.has() ? el("button", { class: "plain", type: "button", "aria-label": `Audit ${row.name} now`, on: { click: () => audit(row.name) } }, "Audit now") : "") },
    ], replicated), results);
    if (api.has()) shown.push(el("div", { class: "row" }, el("button", { type: "button", on: { click: () => context.act("leaders are spread evenly", () => api.send("POST", `${V1}/rebalance`)) } }, "Spread leaders evenly")));
  }
  shown.push(el("h3", {}, "Groups of this node"), table("Groups of this node, which hold its queues", [
    { title: "Group", cell: (row) => row.name }, { title: "Shard", number: true, cell: (row) => String(row.shard) }, { title: "Role", cell: role }, { title: "Durability", cell: (row) => row.durability },
    { title: "Queues", number: true, cell: (row) => row.queues }, { title: "Messages", number: true, cell: (row) => row.messages }, { title: "Size", number: true, cell: (row) => bytes(row.bytes) },
    { title: "Applied", number: true, cell: (row) => row.applied }, { title: "Fsync p99", number: true, cell: (row) => milliseconds(row.fsync_p99) }, { title: "Problem", cell: (row) => row.problem || "" },
  ], own));
  return shown;
}

const GROUP_TYPE = "application/x-fluxmq-group";

// A group that can be dragged to another shard, or moved there with an arrow key.
function movable(group, row, shards, pin) {
  const at = shards.indexOf(row);
  const made = el("button", { class: "group", type: "button", draggable: true, "aria-label": `Group ${group} on ${row.name}: an arrow key up or down pins it to another shard`, on: {
    dragstart: (event) => { event.dataTransfer.setData(GROUP_TYPE, group); event.dataTransfer.effectAllowed = "move"; },
    keydown: (event) => {
      const next = shards[at + ({ ArrowUp: -1, ArrowDown: 1 }[event.key] || NaN)];
      if (next) { event.preventDefault(); made.blur(); pin(group, next); }
    },
  } }, group);
  return made;
}

function takesGroups(line, take) {
  const takes = (event) => event.dataTransfer.types.includes(GROUP_TYPE);
  line.addEventListener("dragover", (event) => { if (takes(event)) { event.preventDefault(); line.classList.add("over"); } });
  line.addEventListener("dragleave", () => line.classList.remove("over"));
  line.addEventListener("drop", (event) => { if (takes(event)) { event.preventDefault(); line.classList.remove("over"); take(event.dataTransfer.getData(GROUP_TYPE)); } });
}

export async function cores(context) {
  const { api } = context;
  const found = await api.get(`${V1}/cores`);
  const unpin = (group) => el("button", { class: "plain", type: "button", "aria-label": `Unpin ${group}`, on: { click: () => context.act(`${group} is no longer pinned`, () => api.send("DELETE", `${V1}/groups/${path(group)}/pin`)) } }, "Unpin");
  const pin = (group, row) => context.act(`group ${group} is pinned to ${row.name}`, () => api.send("PUT", `${V1}/groups/${path(group)}/pin`, { shard: row.shard }));
  const shards = table("Shards of this node, each with a core of its own where there are enough", [
    { title: "Shard", cell: (row) => row.name }, { title: "Core", number: true, cell: (row) => (row.core < 0 ? "–" : String(row.core)) }, { title: "State", cell: (row) => badge(row.state, row.ready ? "good" : "bad") },
    { title: "Connections", number: true, cell: (row) => row.connections }, { title: "Sessions", number: true, cell: (row) => row.sessions }, { title: "Queues", number: true, cell: (row) => row.queues }, { title: "Restarts", number: true, cell: (row) => row.restarts },
    { title: "Groups", cell: (row) => row.groups.map((group) => (api.has() ? movable(group, row, found, pin) : badge(group))) },
    { title: "Pinned here", cell: (row) => row.pinned.map((group) => el("div", { class: "row" }, group, api.has() ? unpin(group) : "")) },
  ], found);
  const shown = [el("h2", {}, "Cores"), shards];
  if (api.has()) {
    shown.push(el("p", { class: "soft" }, "Drag a group to another shard to pin it there, or choose it with Tab and press an arrow key up or down."));
    shards.querySelectorAll("tbody tr").forEach((line, at) => takesGroups(line, (group) => { if (!found[at].groups.includes(group)) pin(group, found[at]); }));
  }
  const names = found.flatMap((row) => row.groups).sort();
  if (api.has() && names.length) {
    shown.push(el("h3", {}, "Pin a group"), form([
      { name: "group", label: "Group", type: "select", options: names }, { name: "shard", label: "To shard", type: "select", options: found.map((row) => row.name) },
    ], "Pin", async (values) => context.act(`group ${values.group} is pinned to ${values.shard}`, () => api.send("PUT", `${V1}/groups/${path(values.group)}/pin`, { shard: Number(values.shard.split("-")[1]) }))));
  }
  return shown;
}

export async function alarms({ api }) {
  const [nodes, own, replicated] = await Promise.all([api.get("nodes"), api.get(`${V1}/groups`), api.get(`${V1}/raft`)]);
  const rows = [];
  for (const node of nodes) {
    if (!node.running) rows.push([node.name, "The node cannot be reached."]);
    if (node.mem_alarm) rows.push([node.name, `Memory: ${bytes(node.mem_used)} of ${bytes(node.mem_limit)} are used. Publishers are stopped.`]);
    if (node.disk_free_alarm) rows.push([node.name, `Disk: ${bytes(node.disk_free)} are free, less than ${bytes(node.disk_free_limit)}. Publishers are stopped.`]);
    for (const process of node.processes || []) if (!process.ready) rows.push([`${node.name} ${process.name}`, `The process is not ready: ${process.state}.`]);
  }
  for (const group of replicated) if (!group.leader) rows.push([group.name, "The group has no leader."]);
  for (const group of [...replicated, ...own]) if (group.problem) rows.push([group.name, group.problem]);
  return [
    el("h2", {}, "Alarms"),
    rows.length ? "" : el("p", {}, badge("none", "good"), " Nothing is wrong."),
    rows.length ? table("Alarms and problems", [{ title: "Where", cell: (row) => row[0] }, { title: "Problem", cell: (row) => row[1] }], rows) : "",
    el("h3", {}, "Resources"),
    table("Memory and disks of the nodes that are known here", [
      { title: "Node", cell: (row) => row.name }, { title: "Memory used", number: true, cell: (row) => bytes(row.mem_used) }, { title: "Alarm above", number: true, cell: (row) => bytes(row.mem_limit) },
      { title: "Disk free", number: true, cell: (row) => bytes(row.disk_free) }, { title: "Alarm below", number: true, cell: (row) => bytes(row.disk_free_limit) },
    ], nodes),
  ];
}
