// Nodes: how agents follow the control plane.

import { useMemo, useState } from "preact/hooks";
import { age, bytes, group, num } from "./format.ts";
import { Table } from "./table.tsx";
import type { KubeObject, List, Status } from "./types.ts";
import { Copy, Empty, Head, Panel, Partial, useLoad, View } from "./view.tsx";
import { ShiftZone } from "./write.tsx";

interface Row { name: string; zone: string; mode: string; ready: string; agent?: Status["agents"][0]; trouble: string; cordoned: boolean }

const zoneLabel = "topology.kubernetes.io/zone", modeLabel = "mesh.proxima.dev/proxy-mode";

function rowsOf(nodes: KubeObject[], s: Status): Row[] {
  const agents = new Map(s.agents.map((a) => [a.node, a]));
  const suspects = new Map((s.suspects ?? []).map((x) => [x.node, x]));
  const drains = new Map((s.drains ?? []).map((d) => [d.node, d.state]));
  const row = (name: string, n?: KubeObject): Row => {
    const ready = n?.status?.conditions?.find((c) => c.type === "Ready"), suspect = suspects.get(name), agent = agents.get(name);
    const trouble = [
      suspect && `answers no probe of ${suspect.witnesses.slice(0, 3).join(", ")} for ${age(suspect.since)}`,
      s.unreachable?.includes(name) && "gets no probes", drains.get(name), agent?.rejected && "refused a part of its view: " + agent.rejected,
      ready && ready.status !== "True" && (ready.message || ready.reason),
    ].filter(Boolean).join("; ");
    return { name, zone: n?.metadata.labels?.[zoneLabel] ?? "–", mode: n?.metadata.labels?.[modeLabel] ?? "–", ready: ready?.status === "True" ? "ready" : ready ? "not ready" : "–", agent, trouble, cordoned: n?.spec?.unschedulable === true };
  };
  const out = nodes.map((n) => row(n.metadata.name, n)), known = new Set(out.map((r) => r.name));
  for (const a of s.agents) if (!known.has(a.node)) out.push(row(a.node));
  const rank = (r: Row) => (r.trouble ? 0 : 2) + (r.ready === "ready" && r.agent ? 1 : 0);
  return out.sort((a, b) => rank(a) - rank(b) || (b.agent?.behind ?? 0) - (a.agent?.behind ?? 0) || (a.name < b.name ? -1 : 1));
}

export function Nodes({ write }: { write: boolean }) {
  const status = useLoad<Status>("/proxima/v1/status", 5), nodes = useLoad<List>("/api/v1/nodes?limit=1000", 15);
  const [text, setText] = useState("");
  const all = useMemo(() => nodes.data && status.data ? rowsOf(nodes.data.items, status.data) : [], [nodes.data, status.data]);
  const shown = all.filter((r) => !text || (r.name + " " + r.zone + " " + r.mode).toLowerCase().includes(text.toLowerCase()));
  const zones = [...new Set(all.map((r) => r.zone).filter((z) => z !== "–"))].sort();
  return <><Head title="Nodes" command="proxima status" />
    <View of={status}>{(s) => <View of={nodes}>{(n) => <>
      <Partial text={s.silentInstances?.length ? `instances that do not say which agents follow there: ${s.silentInstances.join(", ")}` : n.metadata?.continue ? "the first 1000 Nodes" : undefined} />
      {s.leases.held && <p class="note partial">Leases that ran out are held: {s.leases.reason}</p>}
      {all.length === 0 ? <Empty command="proxima token create --kind node --name NAME">No node has joined: proxima docs how-to/second-machine.</Empty> : <>
        <p class="filters"><label>search <input type="search" value={text} placeholder="name, zone or mode" onInput={(e) => setText((e.currentTarget as HTMLInputElement).value)} /></label>
          <output class="dim">{group(shown.length)} of {group(all.length)} nodes, {group(s.agents.length)} agents follow; trouble first</output>{!s.preset && s.store?.revision > 0 && <a href={"#/changes/" + s.store.revision}>did the newest change, {s.store.revision}, reach each of them?</a>}</p>
        <Table label="Nodes" rows={shown} id={(r) => r.name} file="nodes" columns={[
          { name: "node", cell: (r) => r.name }, { name: "zone", cell: (r) => r.zone }, { name: "mode", cell: (r) => r.mode },
          { name: "state", cell: (r) => <span class={r.ready === "not ready" ? "bad" : undefined}>{r.ready}</span>, text: (r) => r.ready },
          { name: "follows for", number: true, cell: (r) => r.agent ? age(r.agent.since) : <span class="dim">does not follow</span>, text: (r) => r.agent?.since },
          { name: "behind", number: true, cell: (r) => r.agent ? num(r.agent.behind) : "–", title: "changes that its agent has not confirmed" },
          { name: "sent", number: true, cell: (r) => r.agent ? bytes(r.agent.bytesSent) : "–" },
          { name: "version", cell: (r) => r.agent?.version || "–" }, { name: "trouble", wide: true, cell: (r) => r.trouble || <span class="dim">none</span>, text: (r) => r.trouble },
        ]} /></>}
      {(s.zoneShifts?.length ?? 0) > 0 && <Panel title="Taken out for a time"><Table label="Zones and nodes that are taken out" rows={s.zoneShifts!} id={(z) => z.name} columns={[
        { name: "what", cell: (z) => z.zone ? "zone " + z.zone : "node " + z.node }, { name: "state", cell: (z) => z.state }, { name: "ends in", number: true, cell: (z) => age(z.until) },
        { name: "reason", wide: true, cell: (z) => z.reason }, { name: "undo", cell: (z) => <Copy text={z.undo} /> },
      ]} /></Panel>}
      {write && zones.length > 1 && <ShiftZone zones={zones} done={status.reload} />}
    </>}</View>}</View>
  </>;
}
