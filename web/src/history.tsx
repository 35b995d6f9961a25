// History: what changed and by whom, how objects were at a time, and what differs between two times.

import { useState } from "preact/hooks";
import { query } from "./api.ts";
import { clock, yaml } from "./format.ts";
import { Changes } from "./changes.tsx";
import type { History, KubeObject, List, Status } from "./types.ts";
import { adjust, Copy, Empty, Head, Panel, useLoad, usePlace, View } from "./view.tsx";

const kinds: Record<string, string> = {
  services: "", endpointslices: "discovery.k8s.io", nodes: "", namespaces: "", dataplanes: "mesh.proxima.dev", meshes: "mesh.proxima.dev", trafficplans: "planner.mesh.proxima.dev",
  zonecosts: "mesh.proxima.dev", zoneshifts: "mesh.proxima.dev", workloadpolicies: "mesh.proxima.dev", backendpolicies: "mesh.proxima.dev", trafficpermissions: "mesh.proxima.dev",
};
const global = new Set(["nodes", "namespaces", "meshes", "zonecosts", "zoneshifts"]);

export function HistoryPage() {
  const p = usePlace().query, kind = p.get("kind") ?? "services", namespace = p.get("namespace") ?? "", name = p.get("name") ?? "", since = p.get("since") ?? "1h", at = p.get("at") ?? "", to = p.get("to") ?? "";
  const status = useLoad<Status>("/proxima/v1/status");
  const group = kinds[kind] ?? "", needs = name !== "" && !global.has(kind) && namespace === "";
  const asked = { resource: kind, group, namespace: global.has(kind) ? "" : namespace, name };
  const changes = useLoad<History>(needs ? "" : query("/proxima/v1/feed/history", { ...asked, since, limit: 200 }), 15);
  const scope = global.has(kind) ? "" : namespace ? ` -n ${namespace}` : " -A";
  const change = (f: string) => (e: Event) => adjust({ [f]: (e.currentTarget as HTMLInputElement).value.trim() });
  return <><Head title="History" command={`proxima history ${kind}${name ? " " + name : ""}${scope} --since ${since}`} />
    <form class="filters" onSubmit={(e) => e.preventDefault()}>
      <label>kind <select value={kind} onChange={change("kind")}>{Object.keys(kinds).map((k) => <option key={k}>{k}</option>)}</select></label>
      {!global.has(kind) && <label>namespace <input value={namespace} placeholder="all" onChange={change("namespace")} /></label>}
      <label>name <input value={name} placeholder="all" onChange={change("name")} /></label>
      <label>changes since <input value={since} placeholder="1h, or a time" onChange={change("since")} /></label>
    </form>
    {status.data?.feed && <p class="dim">The feed begins at {clock(status.data.feed.begins)}.</p>}
    <div class="panels">
      <Panel wide title="Changes, and who made them">{needs ? <p class="empty">One object has a namespace: give it too.</p> : <View of={changes}>{(h) => <Changes h={h} objects />}</View>}</Panel>
      <States asked={asked} at={at} to={to} begins={status.data?.feed?.begins} scope={scope} />
    </div>
  </>;
}

function States({ asked, at, to, begins, scope }: { asked: Record<string, string>; at: string; to: string; begins?: string; scope: string }) {
  const from = begins ? new Date(begins).getTime() : Date.now() - 3600_000, now = Date.now();
  const [slid, setSlid] = useState<number | undefined>(undefined);
  const ready = at !== "" && (asked.name !== "" || asked.namespace !== "");
  const path = (t: string) => ready && t ? query("/proxima/v1/feed/state", { ...asked, at: t }) : "";
  const then = useLoad<KubeObject | List>(path(at)), later = useLoad<KubeObject | List>(path(to));
  const set = (f: string) => (e: Event) => adjust({ [f]: (e.currentTarget as HTMLInputElement).value.trim() });
  const pick = (e: Event) => adjust({ at: new Date(Number((e.currentTarget as HTMLInputElement).value)).toISOString().slice(0, 19) + "Z" });
  return <Panel wide title="As it was" aside={ready && <Copy text={`proxima get ${asked.resource}${asked.name ? " " + asked.name : ""}${scope} --at ${at} -o yaml`} />}>
    <form class="filters" onSubmit={(e) => e.preventDefault()}>
      <label>time <input value={at} placeholder="2h, or 2026-01-31T15:04:05Z" onChange={set("at")} /></label>
      <label>between the first change and now <input type="range" min={from} max={now} step="1000" value={slid ?? now} aria-valuetext={clock(slid ?? now)} onInput={(e) => setSlid(Number((e.currentTarget as HTMLInputElement).value))} onChange={pick} /> <output>{slid ? clock(slid) : ""}</output></label>
      <label>compare with <input value={to} placeholder="another time" onChange={set("to")} /></label>
    </form>
    {!ready ? <p class="empty">Give a time, and the name of an object or a namespace.</p> : <View of={then}>{(a) => to ? <View of={later}>{(b) => <Diff from={textOf(a)} to={textOf(b)} />}</View> : <pre tabIndex={0}>{textOf(a)}</pre>}</View>}
  </Panel>;
}

function textOf(o: KubeObject | List) {
  const strip = (x: KubeObject) => {
    const { managedFields: _, ...metadata } = x.metadata as KubeObject["metadata"] & { managedFields?: unknown };
    return { ...x, metadata };
  };
  if (!("items" in o)) return yaml(strip(o)).replace(/^\n/, "");
  return o.items.map((x) => yaml(strip(x)).replace(/^\n/, "")).join("---\n") || "# nothing\n";
}

// Diff of two texts by lines: what is common, gone and new.
export function Diff({ from, to }: { from: string; to: string }) {
  const lines = diff(from.split("\n"), to.split("\n"));
  if (!lines.some((l) => l.sign !== " ")) return <Empty>There is no difference.</Empty>;
  return <pre class="diff" tabIndex={0}>{lines.map((l, i) => <span key={i} class={l.sign === "+" ? "new" : l.sign === "-" ? "gone" : undefined}>{l.sign} {l.text}{"\n"}</span>)}</pre>;
}

interface DiffLine { sign: " " | "+" | "-"; text: string }

const maxDiff = 2000;

export function diff(a: string[], b: string[]): DiffLine[] {
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const x = a.slice(head, a.length - tail), y = b.slice(head, b.length - tail);
  const same = (t: string): DiffLine => ({ sign: " ", text: t }), gone = (t: string): DiffLine => ({ sign: "-", text: t }), added = (t: string): DiffLine => ({ sign: "+", text: t });
  const middle: DiffLine[] = [];
  if (x.length > maxDiff || y.length > maxDiff) middle.push(...x.map(gone), ...y.map(added));
  else {
    // The longest common lines.
    const n = y.length + 1, most = new Uint16Array((x.length + 1) * n);
    for (let i = x.length - 1; i >= 0; i--) for (let k = y.length - 1; k >= 0; k--) most[i * n + k] = x[i] === y[k] ? most[(i + 1) * n + k + 1]! + 1 : Math.max(most[(i + 1) * n + k]!, most[i * n + k + 1]!);
    let i = 0, k = 0;
    while (i < x.length || k < y.length) {
      if (i < x.length && k < y.length && x[i] === y[k]) { middle.push(same(x[i]!)); i++; k++; }
      else if (k >= y.length || (i < x.length && most[(i + 1) * n + k]! >= most[i * n + k + 1]!)) middle.push(gone(x[i++]!));
      else middle.push(added(y[k++]!));
    }
  }
  return [...a.slice(Math.max(0, head - 3), head).map(same), ...middle, ...a.slice(a.length - tail, a.length - tail + 3).map(same)];
}
