// The one stream of a tab: what changes, as it changes. It is closed while the tab is hidden, and goes on where it was.

import { Failure, query, send } from "./api.ts";
import type { Delta, Frame } from "./types.ts";

export type Health = "connecting" | "live" | "stale" | "hidden" | "ended";
export type Rows = ReadonlyMap<string, unknown>;

// staleAfter a frame that is due every 5 s.
const staleAfter = 12_000;
const again = [250, 500, 1000, 2000];

interface Topic { rows: Map<string, unknown>; error: string; filled: boolean }

export class Stream {
  health: Health = "connecting";
  // last time that something came; 0: never.
  last = 0;
  problem = "";
  private topics = new Map<string, Topic>();
  private position = "";
  private listeners = new Set<() => void>();
  private abort: AbortController | null = null;
  private timer = 0;
  private failed = 0;
  private notice = 0;

  constructor(readonly names: string[]) {
    for (const n of names) this.topics.set(n, { rows: new Map(), error: "", filled: false });
  }

  start() {
    document.addEventListener("visibilitychange", this.visibility);
    addEventListener("online", this.soon);
    this.timer = window.setInterval(this.check, 1000);
    this.visibility();
  }

  stop() {
    document.removeEventListener("visibilitychange", this.visibility);
    removeEventListener("online", this.soon);
    clearInterval(this.timer);
    this.close("ended");
  }

  rows(topic: string): Rows { return this.topics.get(topic)!.rows; }
  filled(topic: string) { return this.topics.get(topic)!.filled; }
  error(topic: string) { return this.topics.get(topic)!.error; }

  listen(f: () => void): () => void {
    this.listeners.add(f);
    return () => { this.listeners.delete(f); };
  }

  // tell listeners, once in a frame of the screen.
  private tell() {
    if (this.notice) return;
    this.notice = window.setTimeout(() => {
      this.notice = 0;
      for (const f of this.listeners) f();
    }, 16);
  }

  private set(h: Health) {
    if (this.health === h) return;
    this.health = h;
    this.tell();
  }

  private visibility = () => {
    if (document.hidden) this.close("hidden");
    else this.soon();
  };

  private soon = () => {
    if (document.hidden || this.abort) return;
    this.failed = 0;
    void this.follow();
  };

  private close(h: Health) {
    this.abort?.abort();
    this.abort = null;
    this.set(h);
  }

  private check = () => {
    if (this.health === "live" && Date.now() - this.last > staleAfter) {
      this.problem = "nothing has come for " + staleAfter / 1000 + " s";
      this.close("stale");
      this.soon();
    } else if (this.health === "stale") this.tell(); // its age grows
  };

  private async follow() {
    const abort = new AbortController();
    this.abort = abort;
    if (this.health === "hidden") this.set(this.last ? "stale" : "connecting");
    try {
      const r = await send(query("/proxima/v1/stream", { topics: this.names.join(","), position: this.position }), { signal: abort.signal });
      await this.read(r.body!.getReader(), abort);
      this.problem = "the control plane ended the stream";
    } catch (e) {
      if (abort.signal.aborted) return;
      this.problem = e instanceof Error ? e.message : String(e);
      if (e instanceof Failure && (e.code === 401 || e.code === 403 || e.code === 404)) {
        if (this.abort === abort) this.abort = null;
        this.set("ended");
        return;
      }
    }
    if (this.abort !== abort) return;
    this.abort = null;
    if (this.health !== "hidden") this.set(this.last ? "stale" : "connecting");
    const wait = again[Math.min(this.failed++, again.length - 1)];
    window.setTimeout(() => { if (!document.hidden && !this.abort && this.health !== "ended") void this.follow(); }, wait);
  }

  private async read(body: ReadableStreamDefaultReader<Uint8Array>, abort: AbortController) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await body.read();
      if (done || abort.signal.aborted) return;
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop()!;
      for (const line of lines) if (line) this.take(JSON.parse(line) as Frame);
    }
  }

  private take(f: Frame) {
    this.last = Date.now();
    this.failed = 0;
    this.problem = "";
    this.set("live");
    const topic = f.topic ? this.topics.get(f.topic) : undefined;
    if (!topic) return;
    topic.error = f.error ?? "";
    if (f.delta) {
      topic.rows = applied(topic.rows, f.delta);
      topic.filled = true;
      if (f.delta.epoch) this.position = f.delta.epoch + ":" + f.delta.position;
    }
    this.tell();
  }
}

// applied makes the rows after a delta; those before are not changed.
export function applied(rows: Rows, d: Delta): Map<string, unknown> {
  const out = d.snapshot ? new Map<string, unknown>() : new Map(rows);
  for (const name of d.gone ?? []) out.delete(name);
  for (const [name, row] of Object.entries(d.rows ?? {})) out.set(name, row);
  return out;
}
