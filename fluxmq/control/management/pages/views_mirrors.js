// Mirrors of classic queues: how many there are in a list, and on the page of a queue which, with their synchronisation.

import { badge, el, number } from "/dom.js";

const unsynchronised = (row) => row.slave_nodes.filter((node) => !row.synchronised_slave_nodes.includes(node));

// The leader and the number of copies elsewhere; those of them that lack messages stand out.
export function replicas(row) {
  if (!row.slave_nodes) return [row.leader, row.members.length > 1 ? badge(`+${row.members.length - 1}`) : ""];
  const [ready, late] = [row.synchronised_slave_nodes.length, unsynchronised(row).length];
  return [row.leader, " ", ready ? badge(`+${ready}`, "good") : "", late ? badge(`+${late} unsynchronised`, "bad") : ""];
}

export const replicated = (row) => row.members.length > 1 || Boolean(row.slave_nodes?.length);

export function mirrors(row) {
  if (!row.slave_nodes) return "";
  if (!row.slave_nodes.length) return "none is online";
  const late = unsynchronised(row);
  return row.slave_nodes.map((node) => (late.includes(node) ? badge(`${node} (unsynchronised)`, "bad") : badge(node, "good")));
}

// A button that begins the synchronisation, or its progress and one that ends it.
export function synchronisation(context, row, where) {
  if (!row.slave_nodes || !context.api.has()) return "";
  const act = (action, done) => context.act(done, () => context.api.send("POST", `${where}/actions`, { action }));
  const button = (text, action, done) => el("button", { type: "button", on: { click: () => act(action, done) } }, text);
  if (row.mirrors_syncing) {
    return el("div", {}, el("h3", {}, "Synchronisation"), el("div", { class: "row" }, progress(row), button("Cancel", "cancel_sync", "cancelled")));
  }
  if (!unsynchronised(row).length) return "";
  return el("div", {}, el("h3", {}, "Synchronisation"), el("div", { class: "row" }, button("Synchronise", "sync", "synchronising")));
}

function progress(row) {
  const left = /(\d+) messages left/.exec(row.migration || "");
  if (!left) return el("progress", { "aria-label": "Synchronisation" });
  const total = Math.max(row.messages, Number(left[1]), 1);
  const bar = el("progress", { "aria-label": "Synchronisation", max: total, value: total - Number(left[1]) });
  return el("span", {}, bar, ` ${number(Number(left[1]))} messages left`);
}
