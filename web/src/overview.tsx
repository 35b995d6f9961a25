// Overview: what leaves its zone, what it costs, what could be better, and why it is not.

import { useState } from "preact/hooks";
import { query } from "./api.ts";
import { Chart } from "./chart.tsx";
import { age, group, money, num, percent, plural, rate, times, zoneName } from "./format.ts";
import { Flows, ordered } from "./map.tsx";
import { ProblemList, worstFirst } from "./problems.tsx";
import type { Stream } from "./stream.ts";
import { Table } from "./table.tsx";
import type { Flow, Metrics, Problem, Routed, Series, Services, Simulation, Totals, Zone } from "./types.ts";
import { adjust, Copy, Empty, Fact, Head, href, Kinds, Panel, Partial, serviceHref, useLoad, usePlace, useStream, View } from "./view.tsx";

export function Overview({ stream }: { stream: Stream }) {
  const s = useStream(stream), rows = s.rows("zones"), place = usePlace();
  const zones: Zone[] = [], flows: Flow[] = [];
  for (const [k, v] of rows) {
    if (k.startsWith("zone/")) zones.push(v as Zone);
    else if (k.startsWith("flow/")) flows.push(v as Flow);
  }
  const total = rows.get("total") as Totals | undefined;
  const scope = rows.get("scope") as { since: string; partial?: string } | undefined;
  // Where there are many zones the stream has the largest flows alone.
  const whole = useLoad<{ flows: Flow[] }>(rows.has("rest") ? "/proxima/v1/summary/zones" : "", 10);
  if (rows.has("rest") && whole.data) flows.splice(0, flows.length, ...whole.data.flows);
  const head = <Head title="Overview" command="proxima top zones --once" />;
  if (!total || !scope) {
    return <>{head}{s.error("zones") ? <p class="note error" role="alert">{s.error("zones")}</p> : s.health === "ended" ? <p class="note error" role="alert">{s.problem}</p> : <p class="loading" role="status">Loading …</p>}</>;
  }
  if (total.services === 0) {
    return <>{head}<Partial text={scope.partial} /><Empty command="proxima apply -f service.yaml">There are no Services{scope.partial ? " that you may see" : ""}. A Service with endpoints in several zones makes this page: proxima docs how-to/three-machines.</Empty></>;
  }
  const problems = worstFirst([...s.rows("problems").values()] as Problem[]);
  const old = s.health === "stale" || s.health === "ended";
  const leaving = flows.filter((f) => f.from !== f.to).reduce((n, f) => n + (f.planned ?? 0), 0);
  const basis = total.guessed ? "estimated" : "planned";
  const refused = total.codes.filter((c) => c.refused).sort((a, b) => b.refused! - a.refused!);
  const points = 100 * (total.inZone - total.ways.even.inZone);
  return <>{head}<Partial text={scope.partial} /><div class={old ? "old" : undefined}>
    <dl class="facts">
      <Fact name="stays in its zone" of={basis} value={percent(total.inZone)} title="The share of the demand whose connections stay in the zone of their client" />
      {!total.guessed && <Fact name="leaves its zone" of="planned" value={rate(leaving)} />}
      <Fact name="over even spread" of={basis} value={(points >= 0 ? "+" : "−") + num(Math.abs(points)) + " points"} title="What stays in its zone beyond what would if all endpoints were used alike" />
      {total.cost !== undefined
        ? <><Fact name="cost a month" of="measured" value={money(total.cost, total.currency)} title="Bytes between zones × the price of ZoneCosts; traffic of Services only, not a bill" /><Fact name="plans would save" of="planned" value={money(total.saving, total.currency)} /></>
        : <Fact name="cost" value={<a href="#money">not known</a>} />}
      <Fact name="demand" of={total.guessed ? "estimated" : "measured"} value={total.guessed ? "not measured" : rate(total.demand)} title="New connections of all Services" />
      <Fact name="Services" value={<a href="#/services">{group(total.services)}</a>} title={`${plural(total.planned, "Service")} planned, ${total.measured} measured`} />
    </dl>
    <div class="panels">
      <Panel wide title="Flows between zones" aside={<span class="dim">{total.guessed ? "estimated" : `measured for ${age(scope.since)}`}</span>}>
        <Flows world={{ zones: ordered(zones), flows, currency: total.currency }} fold={place.query.get("fold") === "true"} onFold={(f) => adjust({ fold: f ? "true" : undefined })} pick />
      </Panel>
    </div>
    <div class="columns"><div>
      <Panel title="Ways to route all of it" aside={<Kinds of={basis} />}><Comparison total={total} /></Panel>
      <Savings />
    </div><div>
      <Panel title="Problems" aside={problems.length > 5 && <a href="#/problems">all {problems.length}</a>}>
        {s.error("problems") ? <p class="note error">{s.error("problems")}</p> : !s.filled("problems") ? <p class="loading" role="status">Loading …</p> : <ProblemList problems={problems.slice(0, 5)} />}
      </Panel>
      <Panel title="Why a mode is not in effect">
        {refused.length === 0 ? <p class="empty">Each Service is routed by the mode that it asks for.</p> : <table class="plain"><thead><tr><th scope="col">reason</th><th scope="col" class="number">Services</th></tr></thead>
          <tbody>{refused.map((c) => <tr key={c.code}><th scope="row"><a href={href(["services"], { code: c.code, refused: "true" })}>{c.code}</a></th><td class="number">{group(c.refused!)}</td></tr>)}</tbody></table>}
      </Panel>
      <Past />
      {zones.length > 1 && <LostZone zones={ordered(zones).map((z) => z.name).filter(Boolean)} />}
      {total.cost === undefined && <Panel title={<span id="money">What it costs</span>}>
        <p>No price or no bytes are known, so that nothing is said of money. A price is stated in a ZoneCosts object, bytes are counted by agents: proxima docs how-to/traffic-costs.</p>
        <Copy text="proxima simulate --top 10 --price USD:0.02:0.04" />
      </Panel>}
    </div></div>
  </div></>;
}

function Comparison({ total }: { total: Totals }) {
  const rows: [string, string, Routed, string?][] = [
    ["now", "What is in effect", total],
    ["Adaptive for all", "The best plans, for each Service", total.ways.best],
    ["even spread", "All endpoints alike, wherever they are", total.ways.even],
    ["Auto", "Kubernetes' heuristic, with its refusals", total.ways.auto],
    ["PreferSameZone", "Own endpoints of a zone first, however loaded", total.ways.sameZone],
  ];
  const most = Math.max(1, ...rows.map((r) => r[2].worst));
  return <><table class="plain bars"><thead><tr><th scope="col">way</th><th scope="col">stays in its zone</th><th scope="col">busiest endpoint</th></tr></thead>
    <tbody>{rows.map(([name, title, r]) => <tr key={name} title={title}>
      <th scope="row">{name}</th>
      <td><span class="num">{percent(r.inZone)}</span><Track part={r.inZone} /></td>
      <td><span class="num">{times(r.worst)}</span><Track part={r.worst / most} high={overloaded(r)} /></td>
    </tr>)}</tbody></table>
    <p class="dim">The busiest endpoint's load is a multiple of the mean of its Service: 1 is even. {overloaded(total.ways.sameZone) && `PreferSameZone would load it with ${times(total.ways.sameZone.worst)}.`}</p></>;
}

// Track draws a number that stands beside it.
function Track({ part, high }: { part: number; high?: boolean }) {
  return <span class={high ? "track high" : "track"} aria-hidden="true"><span style={{ width: 100 * Math.max(0, Math.min(1, part)) + "%" }} /></span>;
}

const overloaded = (r: Routed) => r.worst > 1.25;

function Savings() {
  const load = useLoad<Services>("/proxima/v1/summary/services?sort=saving&limit=10", 10);
  return <Panel title="Largest savings" aside={<a href="#/services">all Services</a>}>
    <View of={load}>{(d) => {
      const found = d.services.filter((l) => (l.saving ?? 0) > 0 || l.ways.best.inZone - l.inZone > 0.005);
      if (found.length === 0) return <p class="empty">No plan would keep more in its zone than what is in effect.</p>;
      const priced = found.some((l) => l.saving !== undefined);
      return <Table label="Services that plans would save most of" rows={found} id={(l) => l.namespace + "/" + l.name} columns={[
        { name: "Service", wide: true, cell: (l) => <a href={serviceHref(l.namespace, l.name)}>{l.namespace}/{l.name}</a> },
        { name: "now", number: true, title: "stays in its zone", cell: (l) => percent(l.inZone) },
        { name: "best", number: true, title: "would stay with the best plan", cell: (l) => percent(l.ways.best.inZone) },
        ...(priced ? [{ name: "saves a month", number: true, cell: (l: typeof found[0]) => money(l.saving, l.currency) }] : []),
        { name: "state", cell: (l) => <span title={l.why}>{l.code}</span> },
      ]} />;
    }}</View>
  </Panel>;
}

// LostZone asks what planned Services would do without a zone.
function LostZone({ zones }: { zones: string[] }) {
  const [zone, set] = useState("");
  const load = useLoad<Simulation>(zone ? query("/proxima/v1/simulate", { failZone: zone, summary: true }) : "");
  return <Panel title="What if a zone is lost">
    <p class="filters"><label>zone <select value={zone} onChange={(e) => set((e.currentTarget as HTMLSelectElement).value)}><option value="">none</option>{zones.map((z) => <option key={z}>{z}</option>)}</select></label>
      {zone ? <Copy text={`proxima simulate --fail-zone ${zone} --summary`} /> : <span class="dim">Nothing is applied.</span>}</p>
    {zone && <View of={load}>{({ summary: s }) => !s || s.affected === 0 ? <p class="empty">No planned Service is affected.</p> : <>
      <table class="plain"><caption>{plural(s.affected, "planned Service")} of {group(s.services)}</caption>
        <thead><tr><th scope="col" /><th scope="col" class="number">stays in its zone</th><th scope="col" class="number">busiest endpoint</th></tr></thead>
        <tbody>{([["now", s.before], ["without it", s.after]] as [string, Metrics][]).map(([n, m]) => <tr key={n}><th scope="row">{n}</th><td class="number">{percent(m.inZone)}</td><td class="number">{times(m.worst)}</td></tr>)}</tbody></table>
      {s.busiest && <p class="dim">The busiest endpoint is one of {s.busiest}.</p>}
      {s.unservedCount > 0 && <p class="note error">{plural(s.unservedCount, "Service")} would have no endpoint: {(s.unserved ?? []).join(", ")}</p>}
    </>}</View>}
  </Panel>;
}

function Past() {
  const load = useLoad<Series>("/proxima/v1/series?minutes=360", 30);
  return <Panel title="Share that stays, of the last six hours" aside={load.data && <span class="dim">kept for {age(load.data.since)}</span>}>
    <View of={load}>{(d) => {
      const zones = d.zones.filter((z) => z.inZone.length > 0);
      if (!d.last || zones.length === 0) return <p class="empty">The first values come after {num(d.stepSeconds)} seconds. A restart, or a change of the leader, begins anew.</p>;
      const curves = zones.length <= 6 ? zones.map((z) => ({ name: zoneName(z.zone), values: z.inZone, format: percent })) : [worstOf(zones), meanOf(zones)];
      return <Chart label="Share of the demand that stays in its zone" last={d.last} step={d.stepSeconds} curves={curves} max={1.05} />;
    }}</View>
  </Panel>;
}

type Past = Series["zones"];
const longest = (zones: Past) => Math.max(...zones.map((z) => z.inZone.length));
const back = (zones: Past, f: (k: number) => number) => ({ values: Array.from({ length: longest(zones) }, (_, i) => f(longest(zones) - i)), format: percent });

function meanOf(zones: Past) {
  return { name: "all zones, by demand", ...back(zones, (k) => {
    let sum = 0, weight = 0;
    for (const z of zones) { const x = z.inZone.at(-k); if (x !== undefined) { const w = z.demand.at(-k) || 1e-6; sum += w * x; weight += w; } }
    return weight ? sum / weight : 1;
  }) };
}

function worstOf(zones: Past) {
  return { name: "the zone with the least", ...back(zones, (k) => Math.min(1, ...zones.map((z) => z.inZone.at(-k) ?? 1))) };
}
