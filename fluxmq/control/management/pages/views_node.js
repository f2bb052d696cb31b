// The node's log, and its bans.

import { path } from "/api.js";
import { badge, confirmed, el, form, table } from "/dom.js";

const V1 = "fluxmq/v1";
const LEVELS = ["debug", "info", "warning", "error"];
const KINDS = { address: "Address or network", user: "User", client_id: "MQTT client" };
const moment = (seconds) => new Date(1000 * seconds).toISOString().replace("T", " ");

export async function log(context) {
  const { api, query } = context;
  const wanted = { level: query.level || "info", text: query.text || "" };
  const found = await api.get(`${V1}/log?${new URLSearchParams(wanted)}`);
  return [
    el("h2", {}, "Log"),
    form([
      { name: "level", label: "Level, and those above", type: "select", options: LEVELS, value: wanted.level }, { name: "text", label: "Part of a line, or a process", value: wanted.text },
    ], "Show", async (values) => context.go(values)),
    table("The last lines of this node's processes, the newest first", [
      { title: "Time (UTC)", cell: (row) => el("code", {}, moment(row.time)) }, { title: "Process", cell: (row) => row.process },
      { title: "Level", cell: (row) => badge(row.level, row.level === "info" || row.level === "debug" ? "" : "bad") }, { title: "Line", cell: (row) => el("span", { class: "lines" }, row.text) },
    ], found),
  ];
}

export async function bans(context) {
  const { api } = context;
  const found = await api.get(`${V1}/bans`);
  const lift = (row) => async () => { if (await confirmed("Lift the ban", row.value)) await context.act("lifted", () => api.send("DELETE", `${V1}/bans/${path(row.kind, row.value)}`)); };
  const kindOf = (label) => Object.keys(KINDS).find((kind) => KINDS[kind] === label);
  return [
    el("h2", {}, "Bans"),
    table("Who may not connect to this node", [
      { title: "What", cell: (row) => badge(KINDS[row.kind]) }, { title: "Value", cell: (row) => row.value }, { title: "Until (UTC)", cell: (row) => (row.until === null ? "it is lifted" : moment(row.until)) }, { title: "Reason", cell: (row) => row.reason },
      { title: "", cell: (row) => el("button", { class: "danger", type: "button", "aria-label": `Lift the ban of ${row.value}`, on: { click: lift(row) } }, "Lift") },
    ], found),
    el("h3", {}, "Ban"),
    form([
      { name: "kind", label: "What", type: "select", options: Object.values(KINDS) }, { name: "value", label: "Value", required: true, hint: "192.0.2.0/24" },
      { name: "minutes", label: "For minutes (empty: until it is lifted)", type: "number" }, { name: "reason", label: "Reason, for the list" },
    ], "Ban", async (values) => context.act(`the ban of ${values.value} is in force`, () => api.send("PUT", `${V1}/bans/${path(kindOf(values.kind), values.value)}`,
      { reason: values.reason, ...(values.minutes ? { seconds: 60 * Number(values.minutes) } : {}) }))),
  ];
}
