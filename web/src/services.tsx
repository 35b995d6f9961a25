// Services: a line for each, sorted, searched and paged by the control plane.

import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, get, query } from "./api.ts";
import { group, money, num, percent, rate, times } from "./format.ts";
import { Table, type Column } from "./table.tsx";
import type { Line, Services as Answer } from "./types.ts";
import { adjust, Empty, ErrorNote, Head, Partial, serviceHref, useCameBack, usePlace, usePolite } from "./view.tsx";

const size = 200, mostAtOnce = 1000;
const filters = ["q", "namespace", "zone", "mode", "code", "refused", "sort", "reverse"] as const;

// usePages keeps the pages that were asked for, each as long as all before it, and asks for the first again now and then.
function usePages(q: Record<string, string>) {
  const path = query("/proxima/v1/summary/services", { ...q, limit: size });
  const [state, set] = useState<{ path: string; rows: Line[]; answer?: Answer; error?: Failure; old: boolean }>({ path: "", rows: [], old: false });
  const busy = useRef<AbortController | null>(null);
  const load = (from: number, whole: number) => {
    busy.current?.abort();
    const abort = new AbortController();
    busy.current = abort;
    get<Answer>(query("/proxima/v1/summary/services", { ...q, limit: whole, continue: from || undefined }), abort.signal).then(
      (a) => { busy.current = null; set((s) => ({ path, answer: a, rows: from > 0 && s.path === path ? [...s.rows.slice(0, from), ...a.services] : a.services, old: false })); },
      (e) => { if (!abort.signal.aborted) { busy.current = null; set((s) => ({ ...s, error: e instanceof Failure ? e : new Failure(0, "Error", String(e)), old: s.answer !== undefined })); } });
  };
  useEffect(() => { load(0, size); }, [path]);
  const rows = useRef(0);
  rows.current = state.rows.length;
  useEffect(() => {
    const timer = window.setInterval(() => { if (!document.hidden && !busy.current && rows.current <= mostAtOnce) load(0, Math.max(size, rows.current)); }, 10_000);
    return () => { clearInterval(timer); busy.current?.abort(); };
  }, [path]);
  useCameBack(() => load(0, Math.max(size, Math.min(rows.current, mostAtOnce))));
  const more = () => { if (!busy.current && state.answer?.next) load(state.rows.length, Math.min(state.rows.length, mostAtOnce)); };
  return { ...state, more, again: () => load(0, size), waiting: state.path !== path };
}

const columns: Column<Line>[] = [
  { name: "Service", sort: "name", up: true, wide: true, cell: (l) => <a href={serviceHref(l.namespace, l.name)}>{l.namespace}/{l.name}</a>, text: (l) => l.namespace + "/" + l.name },
  { name: "mode", cell: (l) => l.mode || "none", text: (l) => l.mode || "none" },
  { name: "state", cell: (l) => <span class={l.refused ? "bad" : undefined} title={l.why}>{l.code}</span>, text: (l) => l.code },
  { name: "endpoints", sort: "endpoints", number: true, cell: (l) => `${group(l.endpoints)} in ${l.zones}`, text: (l) => l.endpoints, title: "ready endpoints, and in how many zones" },
  { name: "demand", sort: "demand", number: true, cell: (l) => l.measured ? rate(l.demand) : <span class="dim" title="estimated from the CPU of nodes">estimated</span>, text: (l) => l.measured ? l.demand : undefined },
  { name: "stays", sort: "inZone", up: true, number: true, cell: (l) => l.endpoints ? percent(l.inZone) : "–", text: (l) => l.inZone, title: "share of the demand that stays in its zone" },
  { name: "best", number: true, cell: (l) => l.endpoints ? percent(l.ways.best.inZone) : "–", text: (l) => l.ways.best.inZone, title: "share that would stay with the best plan" },
  { name: "busiest", sort: "worst", number: true, cell: (l) => times(l.worst), text: (l) => l.worst, title: "load of the most loaded endpoint, as a multiple of the mean" },
  { name: "cost", sort: "cost", number: true, cell: (l) => money(l.cost, l.currency), text: (l) => l.cost, title: "a month" },
  { name: "saving", sort: "saving", number: true, cell: (l) => money(l.saving, l.currency), text: (l) => l.saving, title: "what the best plan would save a month" },
];

export function Services() {
  const p = usePlace().query;
  const q: Record<string, string> = {};
  for (const f of filters) if (p.get(f)) q[f] = p.get(f)!;
  const [text, setText] = useState(q.q ?? "");
  const polite = usePolite(text, 60);
  const first = useRef(true);
  useEffect(() => { if (first.current) first.current = false; else adjust({ q: polite }); }, [polite]);
  const pages = usePages(q);
  const sort = q.sort ?? "saving";
  const others = (["namespace", "zone", "mode", "code", "refused"] as const).filter((f) => q[f]);
  const a = pages.answer;
  return <><Head title="Services" command={`proxima top services --once --sort ${sort}${q.reverse ? " --reverse" : ""}${q.q ? " --filter " + JSON.stringify(q.q) : ""}`} />
    <search class="filters">
      <label>search <input type="search" value={text} placeholder="name or namespace" onInput={(e) => setText((e.currentTarget as HTMLInputElement).value)} /></label>
      <label>mode <select value={q.mode ?? ""} onChange={(e) => adjust({ mode: (e.currentTarget as HTMLSelectElement).value })}>
        {["", "none", "proxima.dev/Adaptive", "Auto", "Disabled", "PreferSameZone", "PreferSameNode"].map((m) => <option key={m} value={m}>{m || "all"}</option>)}
      </select></label>
      <label><input type="checkbox" checked={q.refused === "true"} onChange={(e) => adjust({ refused: (e.currentTarget as HTMLInputElement).checked ? "true" : undefined })} /> refused only</label>
      {others.filter((f) => f !== "refused" && f !== "mode").map((f) => <span key={f} class="chip">{f}: {q[f]} <button type="button" aria-label={`without ${f}`} onClick={() => adjust({ [f]: undefined })}>×</button></span>)}
      <output class="dim">{a && !pages.waiting ? (a.total === a.all ? `${group(a.total)} Services` : `${group(a.total)} of ${group(a.all)} Services`) : "…"}</output>
    </search>
    <Partial text={a?.partial} />
    {pages.error && !a && <ErrorNote error={pages.error} retry={pages.again} />}
    {pages.old && pages.error && <p class="note stale" role="status">Not up to date: {pages.error.message} <button type="button" onClick={pages.again}>Try again</button></p>}
    {!a && !pages.error && <p class="loading" role="status">Loading …</p>}
    {a && (a.all === 0
      ? <Empty command="proxima apply -f service.yaml">There are no Services{a.partial ? " that you may see" : ""}.</Empty>
      : a.total === 0 ? <Empty>No Service matches. {num(a.all)} are there.</Empty>
        : <div class={pages.old ? "old" : undefined}><Table label="Services" rows={pages.rows} id={(l) => l.namespace + "/" + l.name} columns={columns} sort={sort} reverse={q.reverse === "true"}
          onSort={(s, r) => adjust({ sort: s, reverse: r ? "true" : undefined })} total={a.total} more={pages.more} file="services" /></div>)}
  </>;
}
