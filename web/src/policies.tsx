// Policies: what each is for, how far it is in effect, and what proxies were sent beside what they hold.

import { useState } from "preact/hooks";
import { query } from "./api.ts";
import { age, group, plural } from "./format.ts";
import { Table } from "./table.tsx";
import type { Condition, KubeObject, List, ProxyDifference } from "./types.ts";
import { Copy, Empty, ErrorNote, Head, href, Panel, useLoad, View, type Loaded } from "./view.tsx";

const kinds: [string, string][] = [["workloadpolicies", "WorkloadPolicy"], ["backendpolicies", "BackendPolicy"], ["trafficpermissions", "TrafficPermission"], ["proxypatches", "ProxyPatch"]];

interface Row { kind: string; o: KubeObject }

function targetOf(o: KubeObject) {
  const s = (o.spec ?? {}) as { targetRefs?: { kind: string; name: string; namespace?: string }[]; selector?: { matchLabels?: Record<string, string> }; target?: unknown };
  if (s.targetRefs?.length) return s.targetRefs.slice(0, 2).map((t) => `${t.kind} ${t.namespace ? t.namespace + "/" : ""}${t.name}`).join(", ") + (s.targetRefs.length > 2 ? ` and ${s.targetRefs.length - 2} more` : "");
  if (s.selector) return Object.entries(s.selector.matchLabels ?? {}).map(([k, v]) => `${k}=${v}`).join(",") || "an expression of labels";
  return "its whole namespace";
}

// levelOf a policy, the first thing that decides which wins: docs/concepts/policies.md.
function levelOf(o: KubeObject): [number, string] {
  const s = (o.spec ?? {}) as { targetRefs?: { kind: string; sectionName?: string }[]; selector?: unknown }, t = s.targetRefs ?? [];
  if (t.some((x) => x.kind.endsWith("Route"))) return [6, "route"];
  if (t.some((x) => x.sectionName)) return [5, "port"];
  if (t.some((x) => x.kind === "Mesh")) return [1, "Mesh"];
  return t.length ? [4, "object"] : s.selector ? [3, "selector"] : [2, "namespace"];
}

const conditionsOf = (o: KubeObject) => o.status?.conditions ?? [];
const bad = (c: Condition) => (c.type === "Overridden" || c.type === "PartiallyEnforced") ? c.status === "True" : c.status === "False";

// stateOf a policy: what keeps it from being in effect, or who has acknowledged it. The rest of a message is below the table.
function stateOf(o: KubeObject) {
  const all = conditionsOf(o), failed = all.filter((c) => bad(c) && c.type !== "Overridden"), programmed = all.find((c) => c.type === "Programmed");
  const others = failed.filter((c) => c !== programmed).map((c) => c.type + (c.status === "True" ? "" : ": no")), brief = programmed?.message?.split(";")[0]!.replace(/^acknowledged by /, "");
  return { bad: failed.length > 0, text: [...others, brief || (programmed && bad(programmed) ? "Programmed: no" : "")].filter(Boolean).join(", ") || (all.length ? "in effect" : "not looked at") };
}

export function Policies() {
  const loads = kinds.map(([r]) => useLoad<List>(`/apis/mesh.proxima.dev/v1alpha1/${r}?limit=1000`, 15)) as Loaded<List>[];
  const rows: Row[] = loads.flatMap((l, i) => (l.data?.items ?? []).map((o) => ({ kind: kinds[i]![1], o })));
  const rank = (r: Row) => conditionsOf(r.o).some(bad) ? 0 : 1;
  rows.sort((a, b) => rank(a) - rank(b) || (nameOf(a) < nameOf(b) ? -1 : 1));
  const errors = loads.map((l, i) => l.error && !l.data ? { kind: kinds[i]![0], error: l.error } : undefined).filter((e) => e !== undefined);
  const waiting = loads.some((l) => l.data === undefined && !l.error);
  const troubled = rows.filter((r) => conditionsOf(r.o).some(bad));
  return <><Head title="Policies" command={`proxima get ${kinds.map(([r]) => r).join(",")} -A`} />
    {errors.map((e) => <div key={e.kind}><p class="note partial">This is a part: {e.kind} are not shown.</p><ErrorNote error={e.error} /></div>)}
    {waiting ? <p class="loading" role="status">Loading …</p> : rows.length === 0 && errors.length < kinds.length ? <Empty command="proxima apply -f policy.yaml">There are no policies: proxima docs concepts/policies.</Empty> : rows.length > 0 && <>
      <Table label="Policies" rows={rows} id={(r) => r.kind + nameOf(r)} file="policies" columns={[
        { name: "policy", cell: nameOf }, { name: "kind", cell: (r) => r.kind }, { name: "for", cell: (r) => targetOf(r.o) },
        { name: "targets", number: true, cell: (r) => { const s = r.o.status as { targets?: number; services?: number } | undefined; const n = s?.targets ?? s?.services; return n === undefined ? "–" : group(n); } },
        { name: "order", cell: (r) => levelOf(r.o).join(" ") },
        { name: "programmed by", title: "proxies that have acknowledged it, of those that it concerns", cell: (r) => { const t = stateOf(r.o); return t.bad ? <span class="bad">{t.text}</span> : t.text; }, text: (r) => stateOf(r.o).text },
        { name: "overridden by", wide: true, cell: (r) => conditionsOf(r.o).find((c) => c.type === "Overridden" && c.status === "True")?.message ?? "–" },
      ]} />
      <p class="dim">Of two policies that set the same field, the one of a higher order wins; then the consumer’s, the zone’s own, the older one: proxima docs concepts/policies.</p>
      {troubled.map((r) => <Panel wide key={r.kind + nameOf(r)} title={`${r.kind} ${nameOf(r)}`} aside={<Copy text={`proxima describe ${r.kind.toLowerCase()} ${r.o.metadata.name} -n ${r.o.metadata.namespace}`} />}>
        <table class="plain"><thead><tr><th scope="col">condition</th><th scope="col">status</th><th scope="col">why</th></tr></thead>
          <tbody>{conditionsOf(r.o).map((c) => <tr key={c.type}><th scope="row">{c.type}</th><td><span class={bad(c) ? "bad" : undefined}>{c.status}</span></td><td class="text">{c.message || c.reason}</td></tr>)}</tbody></table>
      </Panel>)}
    </>}
    <Proxies />
  </>;
}

interface Insight { online?: boolean; subscriptions?: { connectTime: string; disconnectTime?: string; resources?: { type: string; sent?: number; acknowledged?: number; rejected?: number }[] }[]; versions?: { proxy?: string; version?: string }; rejected?: { type: string; name: string; policy?: string; error: string }[] }

// Proxies, those with trouble first.
function Proxies() {
  const load = useLoad<List>("/apis/mesh.proxima.dev/v1alpha1/dataplaneinsights?limit=1000", 15), [text, setText] = useState("");
  if (load.error?.code === 404) return null;
  const of = (o: KubeObject) => (o.status ?? {}) as Insight, full = (o: KubeObject) => o.metadata.namespace + "/" + o.metadata.name;
  const refused = (i: Insight) => i.rejected?.length ?? 0, counts = (i: Insight) => i.subscriptions?.at(-1)?.resources ?? [];
  const sum = (i: Insight, f: "sent" | "acknowledged" | "rejected") => counts(i).reduce((n, r) => n + (r[f] ?? 0), 0);
  return <Panel wide title="Proxies" aside={<Copy text="proxima proxy list -A" />}>
    <View of={load}>{(l) => {
      const all = l.items.filter((o) => of(o).versions?.proxy).sort((a, b) => refused(of(b)) - refused(of(a)) || Number(of(a).online ?? false) - Number(of(b).online ?? false) || (full(a) < full(b) ? -1 : 1));
      const shown = all.filter((o) => full(o).includes(text));
      if (all.length === 0) return <p class="empty">No proxy is known: workloads without one are the business of their nodes (proxima docs concepts/sidecars).</p>;
      return <><p class="filters"><label>search <input type="search" value={text} placeholder="namespace or name" onInput={(e) => setText((e.currentTarget as HTMLInputElement).value)} /></label>
        <output class="dim">{group(shown.length)} of {plural(all.length, "proxy", "proxies")}{l.metadata?.continue ? ", of the first 1000 insights" : ""}; those that refuse something first</output></p>
      <Table label="Proxies" rows={shown} id={full} columns={[
        { name: "proxy", cell: (o) => <a href={href(["policies", o.metadata.namespace ?? "", o.metadata.name])}>{full(o)}</a> },
        { name: "program", cell: (o) => `${of(o).versions?.proxy} ${of(o).versions?.version ?? ""}` },
        { name: "connected", number: true, cell: (o) => of(o).online ? age(of(o).subscriptions?.at(-1)?.connectTime) : <span class="bad">not for {age(of(o).subscriptions?.at(-1)?.disconnectTime)}</span> },
        { name: "sent", number: true, title: "responses", cell: (o) => group(sum(of(o), "sent")) }, { name: "acknowledged", number: true, cell: (o) => group(sum(of(o), "acknowledged")) },
        { name: "refused", number: true, cell: (o) => sum(of(o), "rejected") ? <span class="bad">{group(sum(of(o), "rejected"))}</span> : "0" },
        { name: "NACK", wide: true, cell: (o) => { const r = of(o).rejected?.[0]; return r ? `${r.type} ${r.name}${r.policy ? ", of " + r.policy : ""}: ${r.error}` : ""; } },
      ]} /></>;
    }}</View>
  </Panel>;
}

// Proxy: what it was sent, beside what it holds. Both are versions, so that no secret is shown.
export function Proxy({ namespace, name }: { namespace: string; name: string }) {
  const full = namespace + "/" + name, load = useLoad<ProxyDifference>(query("/proxima/v1/proxy/diff", { namespace, name }), 10), [all, setAll] = useState(false);
  return <><Head title={<>Proxy {full}</>} command={`proxima proxy config ${full} --diff`}><p class="dim"><a href="#/policies">all policies and proxies</a></p></Head>
    <View of={load}>{(d) => {
      const rows = d.resources ?? [], differ = rows.filter((r) => r.state !== "same"), shown = all ? rows : differ;
      return <>
        <p>{differ.length === 0 ? `It holds all ${plural(rows.length, "resource")} as they were sent.` : `${plural(differ.length, "resource")} of ${group(rows.length)} ${differ.length === 1 ? "is" : "are"} not as sent.`} <span class="dim">Versions are hashes of the content; keys and certificates are not shown.</span></p>
        <p class="filters"><label><input type="checkbox" checked={all} onChange={(e) => setAll((e.currentTarget as HTMLInputElement).checked)} /> also what is the same</label></p>
        {shown.length > 0 && <Table label="What it was sent, and what it holds" rows={[...shown].sort((a, b) => Number(a.state === "same") - Number(b.state === "same"))} id={(r) => r.type + "/" + r.name} file={"proxy-" + name} columns={[
          { name: "resource", cell: (r) => r.name }, { name: "type", cell: (r) => r.type }, { name: "sent", cell: (r) => <code>{version(r.sent)}</code>, text: (r) => r.sent }, { name: "holds", cell: (r) => <code>{version(r.held)}</code>, text: (r) => r.held },
          { name: "state", cell: (r) => <span class={r.state === "same" ? undefined : "bad"}>{r.state}</span>, text: (r) => r.state }, { name: "why", wide: true, cell: (r) => r.reason ?? "" },
        ]} />}
        <p class="dim">The content, without keys: <Copy text={`proxima proxy config ${full}`} /></p>
      </>;
    }}</View>
  </>;
}

const version = (v: string | undefined) => !v ? "–" : v.length > 14 ? v.slice(0, 13) + "…" : v;

const nameOf = (r: Row) => r.o.metadata.namespace + "/" + r.o.metadata.name;
