// What all pages share: the address, loading, states, commands.

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Failure, get } from "./api.ts";
import { age } from "./format.ts";
import { cameBack, type Stream } from "./stream.ts";

// Place in the address: a path and a query, after the #.
export interface Place { path: string[]; query: URLSearchParams }

export function place(): Place {
  const [path = "", q = ""] = location.hash.replace(/^#/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map((p) => { try { return decodeURIComponent(p); } catch { return p; } }), query: new URLSearchParams(q) };
}

export function href(path: string[], query: Record<string, string | undefined> = {}): string {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(query)) if (v) q.set(k, v);
  const text = q.toString();
  return "#/" + path.map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

// adjust the query of the address, without a step in the history of the browser.
export function adjust(values: Record<string, string | undefined>) {
  const p = place();
  for (const [k, v] of Object.entries(values)) if (v) p.query.set(k, v); else p.query.delete(k);
  history.replaceState(null, "", href(p.path, Object.fromEntries(p.query)));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function usePlace(): Place {
  const [p, set] = useState(place);
  useEffect(() => {
    const f = () => set(place());
    addEventListener("hashchange", f);
    return () => removeEventListener("hashchange", f);
  }, []);
  return p;
}

export interface Loaded<T> { data?: T; error?: Failure; loading: boolean; at: number; reload: () => void }

// useLoad asks for a path, again when it changes and every so many seconds; what was there stays until the answer comes. An empty path asks for nothing.
export function useLoad<T>(path: string, every = 0): Loaded<T> {
  const [state, set] = useState<{ path: string; data?: T; error?: Failure; at: number; loading: boolean }>({ path: "", at: 0, loading: true });
  const [turn, next] = useState(0);
  const reload = useCallback(() => next((n) => n + 1), []);
  useEffect(() => {
    if (!path) return;
    const abort = new AbortController();
    set((s) => ({ ...s, loading: true }));
    get<T>(path, abort.signal).then(
      (data) => set({ path, data, at: Date.now(), loading: false }),
      (e) => {
        if (abort.signal.aborted) return;
        set((s) => ({ ...s, path, error: e instanceof Failure ? e : new Failure(0, "Error", String(e)), loading: false }));
      });
    return () => abort.abort();
  }, [path, turn]);
  useEffect(() => {
    if (!every || !path) return;
    const timer = window.setInterval(() => { if (!document.hidden) reload(); }, every * 1000);
    return () => clearInterval(timer);
  }, [path, every]);
  useCameBack(reload);
  return { data: state.data, error: state.error, loading: state.loading, at: state.at, reload };
}

// useCameBack does something when what was old is up to date again.
export function useCameBack(f: () => void) {
  const now = useRef(f);
  now.current = f;
  useEffect(() => {
    const g = () => now.current();
    addEventListener(cameBack, g);
    return () => removeEventListener(cameBack, g);
  }, []);
}

// useStream draws again when something has come.
export function useStream(stream: Stream): Stream {
  const [, next] = useState(0);
  useEffect(() => stream.listen(() => next((n) => n + 1)), [stream]);
  return stream;
}

export function usePolite<T>(value: T, ms: number): T {
  const [v, set] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => set(value), ms);
    return () => clearTimeout(timer);
  }, [value]);
  return v;
}

// hints for failures, by what an API server calls them.
function hintOf(f: Failure): string {
  switch (f.code) {
    case 0: return "This page goes on by itself when there is an answer again.";
    case 401: return "Start \"proxima console\" again, or paste another token.";
    case 403: return "An administrator decides who may read this: proxima docs how-to/credentials.";
    case 404: return "It may have been deleted, or this control plane may be of another version.";
    case 405: case 410: return "The change feed keeps what has happened: \"proxima feed status\" shows since when.";
    case 429: return "Too many ask at once. It is asked again.";
    case 503: return "\"proxima status\" shows how the control plane is.";
  }
  return "\"proxima status\" and \"proxima doctor\" look for the cause.";
}

export function ErrorNote({ error, retry }: { error: Failure; retry?: () => void }) {
  return <div class="note error" role="alert">
    <p><b>{error.code ? error.code + " " : ""}{error.reason}</b> {error.message}</p>
    <p class="dim">{hintOf(error)} {retry && <button type="button" onClick={retry}>Try again</button>}</p>
  </div>;
}

// View of what was loaded: loading, an error, what is old, or the thing itself.
export function View<T>({ of, children }: { of: Loaded<T>; children: (data: T) => ComponentChildren }) {
  if (of.data === undefined) return of.error ? <ErrorNote error={of.error} retry={of.reload} /> : <p class="loading" role="status">Loading …</p>;
  return <>
    {of.error && <div class="note stale" role="status">As it was {age(of.at)} ago: {of.error.message} <button type="button" onClick={of.reload}>Try again</button></div>}
    <div class={of.error ? "old" : undefined}>{children(of.data)}</div>
  </>;
}

export function Partial({ text }: { text?: string }) {
  return text ? <p class="note partial" role="status">This is a part: {text}.</p> : null;
}

// Empty says what is missing, and the command that makes it.
export function Empty({ children, command }: { children: ComponentChildren; command?: string }) {
  return <div class="empty"><p>{children}</p>{command && <Copy text={command} />}</div>;
}

// Copy is a command with a button.
export function Copy({ text, label }: { text: string; label?: string }) {
  const [done, set] = useState(false);
  const timer = useRef(0);
  const copy = async () => {
    try { await navigator.clipboard.writeText(text); } catch { return; }
    set(true);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => set(false), 1500);
  };
  return <span class="copy">{label && <span class="dim">{label} </span>}<code>{text}</code><button type="button" onClick={copy} aria-label={"Copy: " + text}>{done ? "copied" : "copy"}</button></span>;
}

// Head of a page.
export function Head({ title, command, children }: { title: ComponentChildren; command?: string; children?: ComponentChildren }) {
  return <header class="head">
    <h1 tabIndex={-1} id="title">{title}</h1>
    {children}
    {command && <p class="command"><Copy label="The same in a terminal:" text={command} /></p>}
  </header>;
}

export function Kinds({ of }: { of: "measured" | "planned" | "estimated" }) {
  return <span class={"kind " + of}>{of}</span>;
}

export function Fact({ name, value, of, title, long }: { name: string; value: ComponentChildren; of?: "measured" | "planned" | "estimated"; title?: string; long?: boolean }) {
  return <div class={long ? "fact long" : "fact"} title={title}><dt>{name}{of && <> <Kinds of={of} /></>}</dt><dd>{value}</dd></div>;
}

export function Panel({ title, children, aside, wide }: { title: ComponentChildren; children: ComponentChildren; aside?: ComponentChildren; wide?: boolean }) {
  return <section class={wide ? "panel wide" : "panel"}><div class="bar"><h2>{title}</h2>{aside}</div>{children}</section>;
}

export function download(name: string, text: string, type = "text/csv") {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(new Blob([text], { type }));
  a.download = name;
  a.click();
  URL.revokeObjectURL(a.href);
}

export function serviceHref(namespace: string, name: string) { return href(["services", namespace, name]); }
