// Registries: clients of Nacos, Eureka, ZooKeeper and Dubbo, by protocol.

import { group, num, span } from "./format.ts";
import { Table } from "./table.tsx";
import type { Status } from "./types.ts";
import { Empty, Head, Panel, useLoad, View } from "./view.tsx";

export function Registries() {
  const load = useLoad<Status>("/proxima/v1/status", 5);
  return <><Head title="Registries" command="proxima status" />
    <View of={load}>{(s) => !s.registries?.length ? <Empty>This instance serves no registry: proxima docs how-to/registries.</Empty> : <>
      <Table label="Registries" rows={s.registries} id={(r) => r.protocol} columns={[
        { name: "protocol", cell: (r) => r.protocol }, { name: "address", cell: (r) => r.address ?? "–" },
        { name: "clients", number: true, cell: (r) => r.limit ? `${group(r.clients)} of ${group(r.limit)}` : group(r.clients) }, { name: "sessions", number: true, cell: (r) => group(r.sessions) },
        { name: "instances", number: true, cell: (r) => group(r.instances) }, { name: "requests", number: true, cell: (r) => num(r.requests) },
        { name: "failed", number: true, cell: (r) => r.failed ? <span class="bad">{num(r.failed)}</span> : "0" }, { name: "pushes", number: true, cell: (r) => num(r.pushes) },
        { name: "last lag", number: true, cell: (r) => r.lastLagSeconds >= 1 ? span(r.lastLagSeconds) : num(1000 * r.lastLagSeconds) + " ms" },
        { name: "copied from", cell: (r) => Object.entries(r.imported ?? {}).map(([k, n]) => `${k}: ${n}`).join(", ") || "–" },
      ]} />
      <Panel title="What is wrong with registrations">{s.registryTroubles?.length ? <Table label="Troubles" rows={s.registryTroubles} id={(t) => t.protocol + t.reason} columns={[
        { name: "protocol", cell: (t) => t.protocol }, { name: "reason", cell: (t) => t.reason }, { name: "count", number: true, cell: (t) => group(t.count) }, { name: "such as", wide: true, cell: (t) => (t.examples ?? []).join(", ") },
      ]} /> : <p class="empty">No trouble is known.</p>}</Panel>
      <p class="dim">Counts are of this instance, since it started.</p>
    </>}</View>
  </>;
}
