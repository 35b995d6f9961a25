// Registries: clients of Nacos, Eureka, ZooKeeper and Dubbo, by protocol.

import { age, group, num, span } from "./format.ts";
import { Table } from "./table.tsx";
import { query } from "./api.ts";
import type { KubeObject, List, Status } from "./types.ts";
import { adjust, Copy, Empty, Head, Panel, useLoad, usePlace, View } from "./view.tsx";

export function Registries() {
  const load = useLoad<Status>("/proxima/v1/status", 5);
  return <><Head title="Registries" command="proxima status" />
    <View of={load}>{(s) => !s.registries?.length ? <Empty>This instance serves no registry: proxima docs how-to/registries.</Empty> : <>
      <Table label="Registries" rows={s.registries} id={(r) => r.protocol} columns={[
        { name: "protocol", cell: (r) => s.registries!.length === 1 ? r.protocol : <button type="button" onClick={() => adjust({ protocol: r.protocol })} title="list who has registered by it">{r.protocol}</button>, text: (r) => r.protocol }, { name: "address", cell: (r) => r.address ?? "–" },
        { name: "clients", number: true, cell: (r) => r.limit ? `${group(r.clients)} of ${group(r.limit)}` : group(r.clients) }, { name: "sessions", number: true, cell: (r) => group(r.sessions) },
        { name: "instances", number: true, cell: (r) => group(r.instances) }, { name: "requests", number: true, cell: (r) => num(r.requests) },
        { name: "failed", number: true, cell: (r) => r.failed ? <span class="bad">{num(r.failed)}</span> : "0" }, { name: "pushes", number: true, cell: (r) => num(r.pushes) },
        { name: "last lag", number: true, cell: (r) => r.lastLagSeconds >= 1 ? span(r.lastLagSeconds) : num(1000 * r.lastLagSeconds) + " ms" },
        { name: "copied from", cell: (r) => Object.entries(r.imported ?? {}).map(([k, n]) => `${k}: ${n}`).join(", ") || "–" },
      ]} />
      <Registered protocols={s.registries.map((r) => r.protocol)} />
      <Panel title="What is wrong with registrations">{s.registryTroubles?.length ? <Table label="Troubles" rows={s.registryTroubles} id={(t) => t.protocol + t.reason} columns={[
        { name: "protocol", cell: (t) => t.protocol }, { name: "reason", cell: (t) => t.reason }, { name: "count", number: true, cell: (t) => group(t.count) }, { name: "such as", wide: true, cell: (t) => (t.examples ?? []).join(", ") },
      ]} /> : <p class="empty">No trouble is known.</p>}</Panel>
      <p class="dim">Counts are of this instance, since it started.</p>
    </>}</View>
  </>;
}

const label = "registry.proxima.dev/protocol", serviceLabel = "registry.proxima.dev/service", by = "registry.proxima.dev/registered-by";

// Registered lists the instances that clients of a protocol have registered.
function Registered({ protocols }: { protocols: string[] }) {
  const asked = usePlace().query.get("protocol") ?? "", protocol = asked || protocols[0]!;
  const load = useLoad<List>(query("/apis/mesh.proxima.dev/v1alpha1/dataplanes", { labelSelector: label + "=" + protocol, limit: 1000 }), 15);
  const spec = (o: KubeObject) => (o.spec ?? {}) as { addresses?: string[]; ports?: { port: number }[] };
  return <Panel wide title={`Clients that have registered by ${protocol}`} aside={<Copy text={`proxima get dataplanes -A -l ${label}=${protocol}`} />}>
    {protocols.length > 1 && <p class="filters"><label>protocol <select value={protocol} onChange={(e) => adjust({ protocol: (e.currentTarget as HTMLSelectElement).value })}>{protocols.map((p) => <option key={p}>{p}</option>)}</select></label></p>}
    <View of={load}>{(l) => l.items.length === 0 ? <p class="empty">No client has registered an instance by {protocol}.</p> : <Table label={`Instances registered by ${protocol}`} rows={l.items} id={(o) => o.metadata.namespace + "/" + o.metadata.name} file={"registered-" + protocol} columns={[
      { name: "instance", cell: (o) => o.metadata.namespace + "/" + o.metadata.name }, { name: "service", cell: (o) => o.metadata.annotations?.[serviceLabel] ?? o.metadata.labels?.[serviceLabel] ?? "–" },
      { name: "address", cell: (o) => `${spec(o).addresses?.[0] ?? "–"}${spec(o).ports?.[0] ? ":" + spec(o).ports![0]!.port : ""}` }, { name: "by", cell: (o) => o.metadata.annotations?.[by] || "not named" },
      { name: "for", number: true, cell: (o) => age(o.metadata.creationTimestamp) },
    ]} />}</View>
    <p class="dim">Clients that only look up others register nothing: they are counted above, not named.</p>
  </Panel>;
}
