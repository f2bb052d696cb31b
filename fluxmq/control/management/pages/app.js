// Logging in, and the page that the address names. Pages without forms in use are loaded again every few seconds.

import { Api, ApiError } from "/api.js";
import { el, form } from "/dom.js";
import * as views from "/views.js";

const RELOAD_MILLISECONDS = 5000;
const api = new Api();
const main = document.getElementById("main");
const status = document.getElementById("status");
const nav = document.getElementById("nav");
const who = document.getElementById("who");

const PAGES = [
  ["", "Overview", views.overview], ["nodes", "Nodes", views.nodes, "monitoring"], ["queues", "Queues", views.queues], ["exchanges", "Exchanges", views.exchanges],
  ["connections", "Connections", views.connections], ["channels", "Channels", views.channels], ["policies", "Policies", views.policies],
  ["vhosts", "Virtual hosts", views.virtualHosts], ["users", "Users", views.users, "administrator"], ["definitions", "Definitions", views.definitions, "administrator"],
];
const DETAILS = { queue: views.queue, exchange: views.exchange };
const LIVE = new Set(["", "nodes", "queues", "connections", "channels"]);

let shown = 0;
let timer;

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

async function show(reload = false) {
  clearTimeout(timer);
  const number = ++shown;
  const { page, parts, query } = place();
  const known = PAGES.find(([name]) => name === page);
  const view = known ? known[2] : DETAILS[page];
  if (!view) { location.hash = "#/"; return; }
  menu(page === "queue" ? "queues" : page === "exchange" ? "exchanges" : page);
  document.title = `FluxMQ: ${known ? known[1] : parts[1]}`;
  try {
    const found = await view({ api, parts, query, go, act, say });
    if (number !== shown) return;
    if (!reload || !busy()) {
      main.replaceChildren(...found);
      if (!reload && document.activeElement === document.body) main.focus({ preventScroll: true });
    }
  } catch (problem) {
    if (number !== shown) return;
    if (!reload) main.replaceChildren(el("h2", {}, known ? known[1] : parts[1] || page), el("p", { class: "bad" }, problem.message));
    failed(problem);
  }
  if (LIVE.has(page) && number === shown && api.known) timer = setTimeout(() => { if (!document.hidden && !busy()) show(true); else timer = setTimeout(() => show(true), RELOAD_MILLISECONDS); }, RELOAD_MILLISECONDS);
}

// Whether somebody is filling in a form, or using a control of the page.
function busy() {
  const active = document.activeElement;
  if (document.querySelector("dialog[open]") || (active && main.contains(active) && active !== main)) return true;
  return [...main.querySelectorAll("input, textarea")].some((input) => input.type !== "checkbox" && input.value !== input.defaultValue && input.value !== (input.getAttribute("value") || ""));
}

function logIn(problem = "") {
  clearTimeout(timer);
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

async function begin() {
  if (!api.known) { logIn(); return; }
  try { api.user = await api.get("whoami"); await show(); } catch { api.logOut(); logIn(); }
}

begin();
