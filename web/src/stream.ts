// The one stream of a tab: what changes, as it changes. It is closed while the tab is hidden, and goes on where it was.
//
// A browser opens six connections to a host over HTTP/1.1, which the loopback listener speaks. So there the tabs of a browser share one
// stream: the tab with the lock follows, and passes frames on.

import { Failure, query, send } from "./api.ts";
import type { Delta, Frame } from "./types.ts";

export type Health = "connecting" | "live" | "stale" | "hidden" | "ended";
export type Rows = ReadonlyMap<string, unknown>;

// staleAfter a frame that is due every 5 s.
const staleAfter = 12_000;
const again = [250, 500, 1000];
// A request that nothing comes of may be on a connection that is dead: another is made beside it after a while, up to some at once.
const besideAfter = 1000, mostBeside = 3;

// cameBack is the event of the window when what was old is up to date again.
export const cameBack = "proxima-came-back";

// Said between tabs: a frame, or the wish for all that there is.
interface Said { frame?: Frame; ask?: boolean }

interface Topic { rows: Map<string, unknown>; error: string; filled: boolean }

export class Stream {
  health: Health = "connecting";
  // last time that something came; 0: never.
  last = 0;
  problem = "";
  private topics = new Map<string, Topic>();
  private position = "";
  private listeners = new Set<() => void>();
  // attempts to have a stream, the newest last; abort is the one that something has come of, or else the newest.
  private attempts: AbortController[] = [];
  private abort: AbortController | null = null;
  private heard = 0; // when bytes came last
  private away = false; // what is shown may be old
  private timer = 0;
  private failed = 0;
  private opened = 0; // when the newest request began
  private notice = 0;

  private channel: BroadcastChannel | null = null;
  // leave the lock, or the queue for it; leading: this tab has it.
  private leave: (() => void) | null = null;
  private leading = false;
  // awaited topics: what another tab sends of them makes no sense before a snapshot.
  private awaited = new Set<string>();

  constructor(readonly names: string[], private shared: boolean) {
    for (const n of names) this.topics.set(n, { rows: new Map(), error: "", filled: false });
  }

  start() {
    if (this.shared) {
      this.channel = new BroadcastChannel("proxima-console-stream");
      this.channel.onmessage = (e) => this.hear(e.data as Said);
    }
    document.addEventListener("visibilitychange", this.visibility);
    addEventListener("online", this.soon);
    this.timer = window.setInterval(this.check, 500);
    this.visibility();
  }

  stop() {
    document.removeEventListener("visibilitychange", this.visibility);
    removeEventListener("online", this.soon);
    clearInterval(this.timer);
    this.close("ended");
    this.channel?.close();
    this.channel = null;
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
    if (h !== "live" && this.last) this.away = true;
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
    if (this.channel && !this.leading) this.lead();
    else void this.follow();
  };

  // lead as soon as no other tab does, until this one is hidden. Meanwhile another tab's frames come by the channel.
  private lead() {
    this.awaited = new Set(this.names);
    this.channel?.postMessage({ ask: true } satisfies Said);
    if (this.leave) return;
    const abort = new AbortController();
    this.leave = () => abort.abort();
    navigator.locks.request("proxima-console-stream", { signal: abort.signal }, () => new Promise<void>((done) => {
      this.leading = true;
      this.leave = () => { this.leading = false; done(); };
      this.awaited.clear();
      void this.follow();
    })).catch(() => { /* it was hidden before it led */ });
  }

  private hear(said: Said) {
    if (document.hidden) return;
    const f = said.frame;
    if (f?.topic && this.awaited.has(f.topic)) {
      if (!f.delta?.snapshot) return;
      this.awaited.delete(f.topic);
    }
    if (f) this.take(f);
    else if (said.ask && this.abort) {
      for (const [topic, t] of this.topics) if (t.filled) this.say({ topic, delta: { snapshot: true, rows: Object.fromEntries(t.rows), ...this.positionOf(topic) }, error: t.error || undefined, time: "" });
    }
  }

  private say(frame: Frame) { this.channel?.postMessage({ frame } satisfies Said); }

  private positionOf(topic: string) {
    const [epoch, position] = this.position.split(":");
    return topic === "zones" && epoch ? { epoch, position: Number(position) } : {};
  }

  private close(h: Health) {
    this.giveUp();
    if (h === "hidden" || h === "ended") {
      this.leave?.();
      this.leave = null;
    }
    this.set(h);
  }

  private check = () => {
    const now = Date.now(), waited = now - Math.max(this.heard, this.opened);
    const old = this.health === "live" && now - this.last > staleAfter;
    if (old) {
      this.problem = "nothing has come for " + staleAfter / 1000 + " s";
      this.set("stale");
    }
    // Bytes of a large frame on a slow link are as good as a frame.
    if (this.abort ? now - Math.max(this.last, this.heard, this.opened) > staleAfter : old) {
      this.close(this.last ? "stale" : "connecting");
      this.soon();
    } else if (this.abort && this.heard < this.opened && waited >= besideAfter) {
      if (this.attempts.length >= mostBeside) this.attempts.shift()!.abort();
      void this.follow();
    }
    if (this.health === "stale") this.tell(); // its age grows
  };

  // giveUp all attempts but one.
  private giveUp(but?: AbortController) {
    for (const a of this.attempts) if (a !== but) a.abort();
    this.attempts = but ? [but] : [];
    this.abort = but ?? null;
  }

  private async follow() {
    const abort = new AbortController();
    this.attempts.push(abort);
    this.abort = abort;
    this.opened = Date.now();
    if (this.health === "hidden") this.set(this.last ? "stale" : "connecting");
    try {
      const r = await send(query("/proxima/v1/stream", { topics: this.names.join(","), position: this.position }), { signal: abort.signal });
      await this.read(r.body!.getReader(), abort);
      this.problem = "the control plane ended the stream";
    } catch (e) {
      if (abort.signal.aborted) return;
      this.problem = e instanceof Error ? e.message : String(e);
      if (e instanceof Failure && (e.code === 401 || e.code === 403 || e.code === 404)) {
        this.giveUp();
        this.set("ended");
        return;
      }
    }
    if (abort.signal.aborted) return;
    this.giveUp();
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
      this.heard = Date.now();
      if (this.attempts.length > 1) this.giveUp(abort);
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        if (!line) continue;
        const frame = JSON.parse(line) as Frame;
        this.say(frame);
        this.take(frame);
      }
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
      if (this.away) {
        this.away = false;
        dispatchEvent(new Event(cameBack));
      }
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
