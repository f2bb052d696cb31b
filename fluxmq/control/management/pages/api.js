// The management API, as the user that has logged in. The password stays in this tab.

const KEY = "fluxmq-authorization";

export class ApiError extends Error {
  constructor(status, reason) { super(reason); this.status = status; }
}

export class Api {
  constructor() { this.authorization = sessionStorage.getItem(KEY) || ""; }

  get known() { return this.authorization !== ""; }

  async logIn(name, password) {
    const raw = new TextEncoder().encode(`${name}:${password}`);
    this.authorization = `Basic ${btoa(String.fromCharCode(...raw))}`;
    try { this.user = await this.get("whoami"); } catch (problem) { this.logOut(); throw problem; }
    sessionStorage.setItem(KEY, this.authorization);
    return this.user;
  }

  logOut() { this.authorization = ""; this.user = undefined; sessionStorage.removeItem(KEY); }

  has(...tags) { return Boolean(this.user) && this.user.tags.some((tag) => tag === "administrator" || tags.includes(tag)); }

  get(path) { return this.send("GET", path); }

  get headers() { return { Authorization: this.authorization, "X-Requested-With": "FluxMQ" }; }

  async send(method, path, body) {
    const options = { method, headers: this.headers, cache: "no-store" };
    if (body !== undefined) { options.body = JSON.stringify(body); options.headers["Content-Type"] = "application/json"; }
    const answer = await fetch(`/api/${path}`, options);
    const text = await answer.text();
    const found = text ? JSON.parse(text) : undefined;
    if (!answer.ok) throw new ApiError(answer.status, (found && (found.reason || found.error)) || answer.statusText);
    return found;
  }
}

export function path(...parts) { return parts.map((part) => encodeURIComponent(part)).join("/"); }
