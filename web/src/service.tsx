// A Service: where its endpoints are, where its connections go and why, and what if.

import { useEffect, useState } from "preact/hooks";
import { query } from "./api.ts";
import { Chart } from "./chart.tsx";
import { age, bytes, clock, money, num, percent, plural, rate, span, times, yaml, zoneName } from "./format.ts";
import { Changes } from "./changes.tsx";
import { Flows, ordered } from "./map.tsx";
import type { Stream } from "./stream.ts";
import { Table } from "./table.tsx";
import type { Detail, Explained, History, KubeObject, List, Metrics, PlanReport, Series, Simulation, Status, Zone } from "./types.ts";
import { adjust, Copy, Empty, Fact, Head, href, Kinds, Panel, usePlace, usePolite, useLoad, useStream, View } from "./view.tsx";
import { SetMode } from "./write.tsx";

export function Service({ namespace, name, stream, status, write }: { namespace: string; name: string; stream: Stream; status?: Status; write: boolean }) {
  const load = useLoad<Detail>(query("/proxima/v1/summary/service", { namespace, name }), 10);
  const full = namespace + "/" + name;
  return <><Head title={<>Service {full}</>} command={`proxima explain service ${full}`}>
    <p class="dim"><a href="#/services">all Services</a></p></Head>
    <View of={load}>{(d) => <Body d={d} stream={stream} status={status} write={write} changed={load.reload} />}</View>
  </>;
}

function Body({ d, stream, status, write, changed }: { d: Detail; stream: Stream; status?: Status; write: boolean; changed: () => void }) {
  const s = useStream(stream), known = [...s.rows("zones")].filter(([k]) => k.startsWith("zone/")).map(([, v]) => v as Zone);
  const zones = [...new Set([...(d.byZone ?? []).map((z) => z.zone), ...(d.flows ?? []).flatMap((f) => [f.from, f.to])])];
  const regionOf = new Map(known.map((z) => [z.name, z.region]));
  const flows = d.flows ?? [], basis = d.measured ? "planned" : "estimated";
  const shown: Zone[] = zones.map((zone) => {
    const own = flows.filter((f) => f.from === zone), of = (f: typeof own[0]) => d.measured ? f.planned ?? 0 : f.guess ?? 0;
    const demand = own.reduce((n, f) => n + of(f), 0), at = (d.byZone ?? []).find((z) => z.zone === zone);
    return { name: zone, region: regionOf.get(zone), nodes: 0, ready: 0, endpoints: at?.endpoints ?? 0, demand, guess: d.measured ? 0 : demand, inZone: demand ? own.filter((f) => f.to === zone).reduce((n, f) => n + of(f), 0) / demand : 1, worst: at?.load ?? 0 };
  });
  const full = d.namespace + "/" + d.name;
  return <>
    <dl class="facts">
      <Fact long name="mode" value={d.mode || "none"} title={d.level ? "chosen by: " + d.level : "nothing chooses one"} />
      <Fact long name="state" value={<span class={d.refused ? "bad" : undefined}>{d.code}</span>} />
      <Fact name="endpoints" value={`${num(d.endpoints)} in ${plural(d.zones, "zone")}`} />
      <Fact name="demand" of={d.measured ? "measured" : "estimated"} value={d.measured ? rate(d.demand) : "not measured"} />
      <Fact name="stays in its zone" of={basis} value={d.endpoints ? percent(d.inZone) : "–"} />
      <Fact name="best plan" of={basis} value={d.endpoints ? percent(d.ways.best.inZone) : "–"} />
      <Fact name="busiest endpoint" of={basis} value={times(d.worst)} />
      {d.cost !== undefined && <Fact name="cost a month" of="measured" value={money(d.cost, d.currency)} />}
      {d.saving !== undefined && <Fact name="a plan saves" of="planned" value={money(d.saving, d.currency)} />}
      {d.bytes > 0 && <Fact name="bytes" of="measured" value={bytes(d.bytes) + "/s"} />}
    </dl>
    {d.why && <p class={d.refused ? "note partial" : "note"}>{d.why}</p>}
    <div class="panels">
      <Panel wide title="Flows between zones" aside={<Kinds of={basis} />}>
        {flows.length ? <Flows world={{ zones: ordered(shown), flows, currency: d.currency }} /> : <p class="empty">{d.endpoints ? "No client is known." : "No endpoint is ready, so that connections fail."}</p>}
      </Panel>
    </div>
    <div class="columns"><div>
      <Panel title="Endpoints by zone">
        {d.byZone?.length ? <Table label="Endpoints by zone" rows={d.byZone} id={(z) => z.zone} columns={[
          { name: "zone", cell: (z) => zoneName(z.zone) }, { name: "endpoints", number: true, cell: (z) => num(z.endpoints) }, { name: "load of one", number: true, cell: (z) => times(z.load), title: "as a multiple of the mean of the Service" },
        ]} /> : <Empty command={`proxima get endpointslices -n ${d.namespace} -l kubernetes.io/service-name=${d.name}`}>No endpoint is ready.</Empty>}
      </Panel>
      {d.endpoints > 0 && zones.length > 1 && <WhatIf full={full} zones={zones} />}
    </div><div>
      <Demand namespace={d.namespace} name={d.name} />
    </div></div>
    <div class="panels">
      {d.endpoints > 0 && <Why namespace={d.namespace} name={d.name} zones={zones} />}
      {status?.feed && <PlanHistory namespace={d.namespace} name={d.name} />}
      <Object_ namespace={d.namespace} name={d.name} agents={status !== undefined && !status.preset} write={write} changed={changed} />
    </div>
  </>;
}

function Demand({ namespace, name }: { namespace: string; name: string }) {
  const load = useLoad<Series>(query("/proxima/v1/series", { namespace, name }), 60);
  return <Panel title="Demand of the last six hours" aside={load.data && <span class="dim">kept for {age(load.data.since)}</span>}>
    <View of={load}>{(s) => {
      const z = s.zones[0];
      if (!z || !s.last || z.demand.length === 0) return <p class="empty">None is measured yet; a value is kept every {span(s.stepSeconds)}. It begins anew with the control plane, or its leader.</p>;
      return <Chart label="Connections per second" last={s.last} step={s.stepSeconds} curves={[{ name: "connections", values: z.demand, format: rate }]} />;
    }}</View>
  </Panel>;
}

function Why({ namespace, name, zones }: { namespace: string; name: string; zones: string[] }) {
  const p = usePlace().query, node = p.get("node") ?? "", zone = p.get("zone") ?? (node ? "" : zones[0] ?? "");
  const nodes = useLoad<List>("/api/v1/nodes?limit=500");
  const load = useLoad<Explained>(query("/proxima/v1/explain/service", { namespace, name, zone: node ? undefined : zone, node }), 15);
  const from = node ? `--from-node ${node}` : `--from-zone ${zone}`;
  return <Panel wide title="Why connections go where they go">
    <p class="filters">
      <label>from zone <select value={node ? "" : zone} onChange={(e) => adjust({ zone: (e.currentTarget as HTMLSelectElement).value, node: undefined })}>{node && <option value="">–</option>}{zones.map((z) => <option key={z} value={z}>{zoneName(z)}</option>)}</select></label>
      <label>or node <select value={node} onChange={(e) => adjust({ node: (e.currentTarget as HTMLSelectElement).value })}><option value="">–</option>{nodes.data?.items.map((n) => <option key={n.metadata.name} value={n.metadata.name}>{n.metadata.name}</option>)}</select></label>
      <Copy text={`proxima explain service ${namespace}/${name} ${from}`} />
    </p>
    <View of={load}>{(e) => <>
      {e.topology && <Decision t={e.topology} from={node ? e.zone ?? "" : zone} />}
      {[...e.limits ?? [], ...e.notEnforced ?? [], ...e.refused ?? []].map((l) => <p key={l} class="note partial">{l}</p>)}
      {e.ports.map((port) => port.families.map((f) => <section key={port.port + port.protocol + f.family}>
        <h3>port {port.name ? port.name + " " : ""}{port.port} {port.protocol}, {f.family}</h3>
        <p>{f.rule}: {f.outcome}</p>
        <Table label={`Endpoints of port ${port.port}, ${f.family}`} rows={[...f.endpoints].sort((a, b) => b.share - a.share)} id={(x) => x.address} file={`endpoints-${name}`} columns={[
          { name: "endpoint", cell: (x) => x.address }, { name: "zone", cell: (x) => x.zone ?? "–" }, { name: "node", cell: (x) => x.node ?? "–" },
          { name: "share", number: true, cell: (x) => percent(x.share), text: (x) => x.share }, { name: "why", wide: true, cell: (x) => x.why },
        ]} />
      </section>))}
    </>}</View>
  </Panel>;
}

function Decision({ t, from }: { t: NonNullable<Explained["topology"]>; from: string }) {
  return <>
    {t.decision.split("\n").map((l) => <p key={l}>{l}</p>)}
    {t.problems?.map((l) => <p key={l} class="note partial">{l}</p>)}
    {t.plans.map((p) => <PlanMatrix key={p.family + p.ports.join()} p={p} planned={t.planned} from={from} />)}
  </>;
}

// PlanMatrix has a row for each zone of clients and a column for each of endpoints.
function PlanMatrix({ p, planned, from }: { p: PlanReport; planned: boolean; from: string }) {
  const targets = [...new Set(p.plan.zones.flatMap((z) => (z.to ?? []).map((t) => t.zone)))].sort();
  const head = `${planned ? "The plan" : "What Adaptive would plan"} for ${p.ports.join(", ")}, ${p.family}`;
  return <section>
    <h3>{head} {planned && p.reason && <span class="dim">published {span(p.ageSeconds)} ago: {p.reason}</span>}</h3>
    <div class="scroll" tabIndex={0} role="region" aria-label={head}><table class="shares">
      <thead><tr><th scope="col">from zone</th><th scope="col" class="number">demand</th>{targets.map((t) => <th key={t} scope="col" class="number">to {t}</th>)}<th scope="col" class="number" title="of its endpoints, as a multiple of the mean">load</th><th scope="col">rule</th></tr></thead>
      <tbody>{p.plan.zones.map((z) => <tr key={z.name} class={z.name === from ? "here" : undefined}>
        <th scope="row">{z.name}</th><td class="number">{percent(z.demand)}</td>
        {targets.map((t) => { const x = z.to?.find((s) => s.zone === t)?.share ?? 0; return <td key={t} class={"number " + (t === z.name ? "own" : "")}>{x ? percent(x) : <span class="dim">·</span>}</td>; })}
        <td class="number">{times(z.overload)}</td><td>{z.rule}{z.endpointsMissing ? `, ${plural(z.endpointsMissing, "endpoint")} missing` : ""}</td>
      </tr>)}</tbody>
    </table></div>
    {p.plan.warnings?.map((w) => <p key={w} class="note partial">{w}</p>)}
    {p.hints && <p class="dim">Hints for other proxies ({p.hints.mode}): {p.hints.given ? "given" : p.hints.why || p.hints.reason}.</p>}
  </section>;
}

function WhatIf({ full, zones }: { full: string; zones: string[] }) {
  const [failed, setFailed] = useState("");
  const [zone, setZone] = useState(zones[0] ?? "");
  const [power, setPower] = useState(0);
  const [more, setMore] = useState(0);
  const factor = Math.round(10 ** power * 100) / 100;
  const params: [string, string][] = [];
  if (failed) params.push(["failZone", failed]);
  if (factor !== 1) params.push(["demand", `${full}:${zone}:x${factor}`]);
  if (more) params.push(["endpoints", `${full}:${zone}:${more > 0 ? "+" : ""}${more}`]);
  const path = usePolite(params.length ? "/proxima/v1/simulate?" + new URLSearchParams(params) : "", 120);
  const load = useLoad<Simulation>(path);
  const flags = params.map(([k, v]) => (k === "failZone" ? "--fail-zone " : `--${k} `) + v).join(" ");
  return <Panel title="What if">
    <form class="whatif" onSubmit={(e) => e.preventDefault()}>
      <label>a zone is lost <select value={failed} onChange={(e) => setFailed((e.currentTarget as HTMLSelectElement).value)}><option value="">none</option>{zones.map((z) => <option key={z}>{z}</option>)}</select></label>
      <label>in zone <select value={zone} onChange={(e) => setZone((e.currentTarget as HTMLSelectElement).value)}>{zones.map((z) => <option key={z}>{z}</option>)}</select></label>
      <label>demand × <output>{factor}</output> <input type="range" min="-1" max="1" step="0.05" value={power} aria-valuetext={factor + " times"} onInput={(e) => setPower(Number((e.currentTarget as HTMLInputElement).value))} /></label>
      <label>endpoints <input type="number" min="-100" max="100" value={more} onInput={(e) => setMore(Number((e.currentTarget as HTMLInputElement).value) || 0)} /></label>
    </form>
    {params.length === 0 ? <p class="dim">Lose a zone, or change demand or endpoints. Nothing is applied.</p> : <>
      <View of={load}>{(s) => {
        const own = (s.services ?? []).filter((x) => x.service === full);
        if (own.length === 0) return <p>It changes nothing for this Service{s.services?.length ? `, but for ${plural(s.services.length, "other")}` : ""}. A failed zone affects planned Services alone.</p>;
        return own.map((x) => <table key={x.family + x.ports.join()} class="plain"><caption>{x.ports.join(", ")}, {x.family}</caption>
          <thead><tr><th scope="col" /><th scope="col" class="number">stays</th><th scope="col" class="number">busiest</th></tr></thead>
          <tbody>{([["before", x.before], ["after", x.after], ...(x.unplanned ? [["if the plan stayed", x.unplanned]] : [])] as [string, Metrics][]).map(([n, m]) =>
            <tr key={n}><th scope="row">{n}</th><td class="number">{percent(m.inZone)}</td><td class="number">{times(m.worst)}</td></tr>)}
          {x.moneyBefore && x.moneyAfter && <tr><th scope="row">a month</th><td class="number" colSpan={2}>{money(x.moneyBefore.now, x.moneyBefore.currency)} → {money(x.moneyAfter.now, x.moneyAfter.currency)}</td></tr>}</tbody></table>);
      }}</View>
      <p><Copy text={`proxima simulate ${flags}`} /></p></>}
  </Panel>;
}

function PlanHistory({ namespace, name }: { namespace: string; name: string }) {
  const plans = useLoad<List>(query(`/apis/planner.mesh.proxima.dev/v1alpha1/namespaces/${namespace}/trafficplans`, { limit: 500 }));
  const own = plans.data?.items.filter((p) => (p.spec as { service?: string } | undefined)?.service === name).map((p) => p.metadata.name) ?? [];
  const plan = own[0] ?? "";
  const load = useLoad<History>(plan ? query("/proxima/v1/feed/history", { resource: "trafficplans", group: "planner.mesh.proxima.dev", namespace, name: plan, limit: 20 }) : "");
  return <Panel wide title="Earlier plans" aside={plan && <Copy text={`proxima history trafficplan ${plan} -n ${namespace}`} />}>
    <View of={plans}>{() => plan ? <View of={load}>{(h) => <Changes h={h} />}</View> : <p class="empty">There is no TrafficPlan of this Service: agents follow plans of Services in mode Adaptive alone.</p>}</View>
  </Panel>;
}

function Object_({ namespace, name, agents, write, changed }: { namespace: string; name: string; agents: boolean; write: boolean; changed: () => void }) {
  const load = useLoad<KubeObject>(`/api/v1/namespaces/${encodeURIComponent(namespace)}/services/${encodeURIComponent(name)}`);
  const [later, set] = useState(false);
  useEffect(() => { if (later) { load.reload(); changed(); set(false); } }, [later]);
  return <>
    {write && load.data && <SetMode service={load.data} done={() => set(true)} />}
    <Panel title="The object" aside={<Copy text={`proxima get service ${name} -n ${namespace} -o yaml`} />}>
      <View of={load}>{(o) => <><p class="dim">created {clock(o.metadata.creationTimestamp)}{agents && o.metadata.resourceVersion && <>, last changed at revision <a href={href(["changes", o.metadata.resourceVersion])}>{o.metadata.resourceVersion}: did it reach every node?</a></>}</p><details><summary>YAML</summary><pre tabIndex={0}>{yamlOf(o)}</pre></details></>}</View>
    </Panel>
  </>;
}

function yamlOf(o: KubeObject) {
  const { managedFields: _, ...metadata } = o.metadata as KubeObject["metadata"] & { managedFields?: unknown };
  return yaml({ ...o, metadata }).replace(/^\n/, "");
}
