// Logging in, and the page that the address names. Pages are shown anew when what they show has changed, as long as
// nobody is filling in a form: told by a stream of events, or else by asking every few seconds.

import { Api, ApiError } from "/api.js";
import { el, form } from "/dom.js";
import { WatchedApi, follow } from "/live.js";
import * as views from "/views.js";
import * as groups from "/views_groups.js";
import * as mqtt from "/views_mqtt.js";
import * as node from "/views_node.js";

const RELOAD_MILLISECONDS = 5000;
const api = new Api();
const main = document.getElementById("main");
const status = document.getElementById("status");
const nav = document.getElementById("nav");
const who = document.getElementById("who");

const PAGES = [
  ["", "Overview", views.overview], ["nodes", "Nodes", views.nodes, "monitoring"], ["queues", "Queues", views.queues], ["exchanges", "Exchanges", views.exchanges],
  ["connections", "Connections", views.connections], ["channels", "Channels", views.channels],
  ["clients", "MQTT clients", mqtt.clients, "monitoring"], ["subscriptions", "Subscriptions", mqtt.subscriptions, "monitoring"], ["retained", "Retained", mqtt.retained, "monitoring"],
  ["groups", "Groups", groups.groups, "monitoring"], ["cores", "Cores", groups.cores, "monitoring"], ["alarms", "Alarms", groups.alarms, "monitoring"], ["log", "Log", node.log, "administrator"], ["bans", "Bans", node.bans, "administrator"], ["policies", "Policies", views.policies],
  ["vhosts", "Virtual hosts", views.virtualHosts], ["users", "Users", views.users, "administrator"], ["definitions", "Definitions", views.definitions, "administrator"],
];
const DETAILS = { queue: views.queue, exchange: views.exchange, client: mqtt.client };
const PARENTS = { queue: "queues", exchange: "exchanges", client: "clients" };
const LIVE = new Set(["", "nodes", "queues", "queue", "connections", "channels", "clients", "client", "subscriptions", "retained", "groups", "cores", "alarms", "log", "bans"]);

let shown = 0;
let timer;
let stream = new AbortController();

function say(text, bad = false) {
  status.className = bad ? "bad" : "";
  status.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { status.textContent = ""; }, bad ? 12000 : 4000);
}

function place() {
  const [address, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...parts] = address.split("/");
  return { page, parts: parts.map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query)) };
}

function go(query) {
  const address = location.hash.split("?")[0] || "#/";
  location.hash = `${address}?${new URLSearchParams(query)}`;
}

// Do something, say what came of it, and show the page anew, or another one.
async function act(done, action, next = null, stay = false) {
  try {
    await action();
    if (done) say(done[0].toUpperCase() + done.slice(1) + ".");
    if (next) location.hash = next;
    else if (!stay) await show();
  } catch (problem) { failed(problem); }
}

function failed(problem) {
  if (problem instanceof ApiError && problem.status === 401 && !api.user) { logIn(problem.message); return; }
  say(problem.message, true);
}

function menu(current) {
  const entries = PAGES.filter(([, , , tag]) => !tag || api.has(tag));
  nav.replaceChildren(el("ul", {}, entries.map(([page, title]) => el("li", {}, el("a", { href: `#/${page}`, "aria-current": page === current ? "page" : null }, title)))));
  nav.hidden = false;
  who.replaceChildren(api.user.name, " ", el("button", { type: "button", class: "plain", on: { click: () => { api.logOut(); logIn(); } } }, "Log out"));
  who.hidden = false;
}

// Show the page that the address names; `watched` has what a stream has told of it.
async function show(reload = false, watched = null) {
  if (!watched) stop();
  const number = ++shown;
  const source = watched || new WatchedApi(api);
  const { page, parts, query } = place();
  const known = PAGES.find(([name]) => name === page);
  const view = known ? known[2] : DETAILS[page];
  if (!view) { location.hash = "#/"; return; }
  if (!watched) menu(PARENTS[page] || page);
  const name = known ? known[1] : parts.at(-1);
  document.title = `FluxMQ: ${name}`;
  try {
    const found = await view({ api: source, parts, query, go, act, say });
    if (number !== shown) return;
    if (!reload || !busy()) {
      main.replaceChildren(...found);
      if (!reload && document.activeElement === document.body) main.focus({ preventScroll: true });
    }
  } catch (problem) {
    if (number !== shown) return;
    if (!reload) main.replaceChildren(el("h2", {}, name || page), el("p", { class: "bad" }, problem.message));
    failed(problem);
  }
  if (!watched && LIVE.has(page) && number === shown && api.known && !document.hidden) live(source);
}

// Stop asking for the page that was shown.
function stop() {
  clearTimeout(timer);
  stream.abort();
}

// Show the page anew when a stream tells that it has changed; without one, after a while.
async function live(source) {
  const { signal } = stream = new AbortController();
  try {
    let reason = "";
    while (!reason && !signal.aborted) reason = await follow(source, () => (signal.aborted || busy() ? undefined : show(true, source)), signal);
  } catch (problem) {
    if (problem instanceof ApiError) { api.logOut(); logIn(problem.message); return; }
  }
  if (!signal.aborted) timer = setTimeout(() => show(true), RELOAD_MILLISECONDS);
}

// Whether somebody is filling in a form, or using a control of the page.
function busy() {
  const active = document.activeElement;
  if (document.querySelector("dialog[open]") || (active && main.contains(active) && active !== main)) return true;
  return [...main.querySelectorAll("input, textarea")].some((input) => input.type !== "checkbox" && input.value !== input.defaultValue && input.value !== (input.getAttribute("value") || ""));
}

function logIn(problem = "") {
  stop();
  shown += 1;
  nav.hidden = true;
  who.hidden = true;
  document.title = "FluxMQ: log in";
  const asked = form([{ name: "name", label: "User", required: true }, { name: "password", label: "Password", type: "password", required: true }], "Log in", async (values) => {
    try { await api.logIn(values.name, values.password); await show(); } catch (refusal) { say(refusal.message, true); asked.inputs.password.value = ""; asked.inputs.password.focus(); }
  });
  main.replaceChildren(el("h2", {}, "Log in"), problem ? el("p", { class: "bad" }, problem) : "", asked);
  asked.inputs.name.focus();
}

window.addEventListener("hashchange", () => { if (api.user) show(); });
document.addEventListener("visibilitychange", () => { if (document.hidden) stop(); else if (api.user) show(true); });

async function begin() {
  if (!api.known) { logIn(); return; }
  try { api.user = await api.get("whoami"); await show(); } catch { api.logOut(); logIn(); }
}

begin();
