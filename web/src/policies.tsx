// Policies: what each is for, and how far it is in effect.

import { age, group } from "./format.ts";
import { Table } from "./table.tsx";
import type { Condition, KubeObject, List } from "./types.ts";
import { Copy, Empty, ErrorNote, Head, Panel, useLoad, type Loaded } from "./view.tsx";

const kinds: [string, string][] = [["workloadpolicies", "WorkloadPolicy"], ["backendpolicies", "BackendPolicy"], ["trafficpermissions", "TrafficPermission"], ["proxypatches", "ProxyPatch"]];

interface Row { kind: string; o: KubeObject }

function targetOf(o: KubeObject) {
  const s = (o.spec ?? {}) as { targetRefs?: { kind: string; name: string; namespace?: string }[]; selector?: { matchLabels?: Record<string, string> }; target?: unknown };
  if (s.targetRefs?.length) return s.targetRefs.map((t) => `${t.kind} ${t.namespace ? t.namespace + "/" : ""}${t.name}`).join(", ");
  if (s.selector) return Object.entries(s.selector.matchLabels ?? {}).map(([k, v]) => `${k}=${v}`).join(",") || "an expression of labels";
  return "its whole namespace";
}

const conditionsOf = (o: KubeObject) => o.status?.conditions ?? [];
const bad = (c: Condition) => (c.type === "Overridden" || c.type === "PartiallyEnforced") ? c.status === "True" : c.status === "False";

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
        { name: "policy", cell: nameOf }, { name: "kind", cell: (r) => r.kind }, { name: "for", wide: true, cell: (r) => targetOf(r.o) },
        { name: "targets", number: true, cell: (r) => { const s = r.o.status as { targets?: number; services?: number } | undefined; const n = s?.targets ?? s?.services; return n === undefined ? "–" : group(n); } },
        { name: "state", cell: (r) => { const c = conditionsOf(r.o).filter(bad); return c.length ? <span class="bad">{c.map((x) => x.type + (x.status === "True" ? "" : ": no")).join(", ")}</span> : conditionsOf(r.o).length ? "in effect" : "not looked at"; } },
        { name: "age", number: true, cell: (r) => age(r.o.metadata.creationTimestamp) },
      ]} />
      {troubled.map((r) => <Panel wide key={r.kind + nameOf(r)} title={`${r.kind} ${nameOf(r)}`} aside={<Copy text={`proxima describe ${r.kind.toLowerCase()} ${r.o.metadata.name} -n ${r.o.metadata.namespace}`} />}>
        <table class="plain"><thead><tr><th scope="col">condition</th><th scope="col">status</th><th scope="col">why</th></tr></thead>
          <tbody>{conditionsOf(r.o).map((c) => <tr key={c.type}><th scope="row">{c.type}</th><td><span class={bad(c) ? "bad" : undefined}>{c.status}</span></td><td class="text">{c.message || c.reason}</td></tr>)}</tbody></table>
      </Panel>)}
    </>}
  </>;
}

const nameOf = (r: Row) => r.o.metadata.namespace + "/" + r.o.metadata.name;
