// Server-sent events for the page that is shown: one stream, with the answers to what the page has asked for.
// They are read with fetch, since an EventSource cannot send a password.

import { ApiError } from "/api.js";

export const PATHS_MAX = 8;

// The API as a view sees it: it notes what is asked for, and answers that from what the stream has told since.
export class WatchedApi {
  constructor(api) { this.api = api; this.asked = []; this.told = new Map(); }

  get user() { return this.api.user; }

  has(...tags) { return this.api.has(...tags); }

  send(...request) { return this.api.send(...request); }

  async get(path) {
    if (!this.asked.includes(path)) this.asked.push(path);
    if (!this.told.has(path)) return this.api.get(path);
    const { found, refused } = this.told.get(path);
    if (refused) throw new ApiError(refused.status, refused.reason);
    return found;
  }
}

// Read streams until `signal` stops it. Calls `changed` after each event; returns the reason when the stream cannot
// be had, and "" when it has ended as it does from time to time.
export async function follow(watched, changed, signal) {
  const paths = watched.asked.slice(0, PATHS_MAX);
  const query = new URLSearchParams(paths.map((path) => ["path", path]));
  const answer = await fetch(`/api/fluxmq/v1/events?${query}`, { headers: watched.api.headers, signal, cache: "no-store" });
  if (!answer.ok) return answer.statusText || "refused";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return "";
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = Object.fromEntries(event.split("\n").map((line) => { const at = line.indexOf(": "); return [line.slice(0, at), line.slice(at + 2)]; }));
      const data = JSON.parse(lines.data);
      if (lines.event === "ended") throw new ApiError(401, data.reason);
      watched.told.set(paths[Number(lines.event)], data);
    }
    if (events.length) await changed();
  }
}
