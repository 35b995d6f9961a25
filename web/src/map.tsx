// Flows between zones: a map of ribbons, or a matrix where there are many zones.

import { useEffect, useRef, useState } from "preact/hooks";
import { byName, bytes, money, num, percent, plural, rate, times, zoneName } from "./format.ts";
import { Table, type Column } from "./table.tsx";
import type { Flow, Zone } from "./types.ts";
import { href } from "./view.tsx";

// maxMap zones are drawn as areas, maxRibbons flows as ribbons.
const maxMap = 12, maxRibbons = 40;

// World of zones, or of regions in their place.
export interface World { zones: Zone[]; flows: Flow[]; currency?: string; regions?: boolean }

// ordered by region and name, so that a zone stays where it is.
export function ordered(zones: Zone[]): Zone[] {
  return [...zones].sort((a, b) => byName(a.region ?? "", b.region ?? "") || byName(a.name, b.name));
}

const inRegion = (z: Zone) => z.region || "(no region)";

// folded makes one zone of each region.
export function folded(w: World): World {
  const regions = new Map<string, Zone>(), of = new Map<string, string>();
  for (const z of w.zones) {
    const name = inRegion(z);
    of.set(z.name, name);
    const r = regions.get(name) ?? { name, nodes: 0, ready: 0, endpoints: 0, demand: 0, guess: 0, inZone: 0, worst: 0, cost: 0 };
    r.nodes += z.nodes; r.ready += z.ready; r.endpoints += z.endpoints; r.demand += z.demand;
    r.guess! += z.guess ?? 0; r.worst = Math.max(r.worst, z.worst); r.cost! += z.cost ?? 0;
    regions.set(name, r);
  }
  const flows = new Map<string, Flow>();
  for (const f of w.flows) {
    const from = of.get(f.from) ?? f.from, to = of.get(f.to) ?? f.to, key = from + "\n" + to;
    const sum = flows.get(key) ?? { from, to };
    for (const k of ["planned", "guess", "measured", "bytes", "cost"] as const) if (f[k]) sum[k] = (sum[k] ?? 0) + f[k]!;
    flows.set(key, sum);
  }
  const all = [...flows.values()];
  for (const r of regions.values()) {
    const size = (f: Flow) => r.demand > 0 ? f.planned ?? 0 : f.guess ?? 0;
    const own = all.filter((f) => f.from === r.name), total = own.reduce((n, f) => n + size(f), 0);
    r.inZone = total > 0 ? own.filter((f) => f.to === r.name).reduce((n, f) => n + size(f), 0) / total : 1;
  }
  return { zones: [...regions.values()], flows: all, currency: w.currency, regions: true };
}

// sizeOf a flow: connections per second, or where none are measured the share of Services.
export function sizeOf(f: Flow, guessed: boolean) { return guessed ? f.guess ?? 0 : Math.max(f.planned ?? 0, f.measured ?? 0); }
const isGuessed = (flows: Flow[]) => !flows.some((f) => (f.planned ?? 0) > 0 || (f.measured ?? 0) > 0);

interface Ribbon { flow: Flow; size: number; leaves: boolean; x0: number; x1: number; y0: number; y1: number; h: number }
interface Bar { zone: Zone; y: number; h: number }

function layout(w: World) {
  const zones = ordered(w.zones), guessed = isGuessed(w.flows);
  const at = new Map(zones.map((z, i) => [z.name, i]));
  const all = w.flows.filter((f) => sizeOf(f, guessed) > 0 && at.has(f.from) && at.has(f.to)).sort((a, b) => sizeOf(b, guessed) - sizeOf(a, guessed) || byName(a.from, b.from) || byName(a.to, b.to));
  const shown = all.slice(0, maxRibbons), rest = all.slice(maxRibbons);
  const sums = (side: "from" | "to") => zones.map((z) => shown.filter((f) => f[side] === z.name).reduce((n, f) => n + sizeOf(f, guessed), 0));
  const left = sums("from"), right = sums("to");
  const most = Math.max(left.reduce((a, b) => a + b, 0), right.reduce((a, b) => a + b, 0), 1e-9);
  const scale = Math.max(160, 46 * zones.length) / most, least = 40, gap = 10, head = 20;
  const bars = (sizes: number[]) => {
    let y = 0, region: string | undefined;
    return zones.map((zone, i) => {
      if (inRegion(zone) !== region) { region = inRegion(zone); y += head + (i > 0 ? 14 : 0); } else y += gap;
      const h = Math.max(least, sizes[i]! * scale);
      const bar = { zone, y, h };
      y += h;
      return bar;
    });
  };
  // Both sides have the same places, so that what stays is level.
  const tall = left.map((n, i) => Math.max(n, right[i]!));
  const places = bars(tall);
  const used = { from: zones.map(() => 0), to: zones.map(() => 0) };
  const start = (side: "from" | "to", sizes: number[], i: number) => places[i]!.y + (places[i]!.h - sizes[i]! * scale) / 2 + used[side][i]!;
  const ribbons: Ribbon[] = [];
  const inOrder = [...shown].sort((a, b) => at.get(a.from)! - at.get(b.from)! || at.get(a.to)! - at.get(b.to)!);
  for (const f of inOrder) {
    const i = at.get(f.from)!, k = at.get(f.to)!, size = sizeOf(f, guessed), h = size * scale;
    ribbons.push({ flow: f, size, leaves: i !== k, x0: 0, x1: 0, y0: start("from", left, i) + h / 2, y1: 0, h });
    used.from[i]! += h;
  }
  for (const r of [...ribbons].sort((a, b) => at.get(a.flow.to)! - at.get(b.flow.to)! || at.get(a.flow.from)! - at.get(b.flow.from)!)) {
    const k = at.get(r.flow.to)!;
    r.y1 = start("to", right, k) + r.h / 2;
    used.to[k]! += r.h;
  }
  const last = places.at(-1);
  return { places, ribbons, rest, guessed, height: last ? last.y + last.h + 12 : 40, scale };
}

const width = 800, side = 186, barWidth = 6;

function band(r: Ribbon, h: number): string {
  const x0 = side + barWidth + 2, x1 = width - side - barWidth - 2, mid = (x0 + x1) / 2, t = Math.max(0.75, h / 2);
  const y = (n: number) => n.toFixed(1);
  return `M${x0} ${y(r.y0 - t)}C${mid} ${y(r.y0 - t)} ${mid} ${y(r.y1 - t)} ${x1} ${y(r.y1 - t)}V${y(r.y1 + t)}C${mid} ${y(r.y1 + t)} ${mid} ${y(r.y0 + t)} ${x0} ${y(r.y0 + t)}Z`;
}

function frames(places: Bar[]) {
  const out: { region: string; y: number; h: number }[] = [];
  for (const p of places) {
    const last = out.at(-1);
    if (last && last.region === inRegion(p.zone)) last.h = p.y + p.h - last.y + 6;
    else out.push({ region: inRegion(p.zone), y: p.y - 18, h: p.h + 24 });
  }
  return out;
}

const short = (text: string, most: number) => text.length > most ? text.slice(0, most - 1) + "…" : text;

function titleOf(f: Flow, currency?: string) {
  const parts = [`${zoneName(f.from)} → ${zoneName(f.to)}`];
  if (f.planned) parts.push(`planned ${rate(f.planned)}`);
  if (f.guess) parts.push(`estimated: the demand of ${num(f.guess)} Services`);
  if (f.measured) parts.push(`measured ${rate(f.measured)}`);
  if (f.bytes) parts.push(`${bytes(f.bytes)}/s`);
  if (f.cost) parts.push(`${money(f.cost, currency)} a month`);
  return parts.join(", ");
}

export function ZoneMap({ world, onPick }: { world: World; onPick?: boolean }) {
  const { places, ribbons, rest, guessed, height } = layout(world), unit = world.regions ? "region" : "zone";
  const single = new Set(places.map((p) => inRegion(p.zone))).size <= 1 && (places[0]?.zone.region ?? "") === "";
  const leaving = ribbons.filter((r) => r.leaves), staying = ribbons.filter((r) => !r.leaves);
  const shape = (r: Ribbon) => <g key={r.flow.from + "\n" + r.flow.to} class={"ribbon " + (r.leaves ? "leaves" : "stays")}>
    <title>{titleOf(r.flow, world.currency)}</title>
    {guessed ? <path class="guess" d={band(r, r.h)} fill={r.leaves ? "url(#hatch-leaves)" : "url(#hatch-stays)"} /> : <>
      {(r.flow.measured ?? 0) > 0 && <path class="measured" d={band(r, r.h * r.flow.measured! / r.size)} />}
      {(r.flow.planned ?? 0) > 0 && <path class="planned" d={band(r, r.h * r.flow.planned! / r.size)} />}
    </>}
  </g>;
  const name = (z: Zone) => <tspan class="name">{short(zoneName(z.name), 22)}</tspan>;
  return <figure class="map">
    <svg viewBox={`0 0 ${width} ${height}`} role={onPick ? "group" : "img"} aria-label={`Flows between ${places.length} ${unit}s; the table below has the same numbers`}>
      <defs>
        {["stays", "leaves"].map((k) => <pattern key={k} id={"hatch-" + k} width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect width="5" height="5" class={"hatch-ground"} /><rect width="2" height="5" class={"hatch-" + k} />
        </pattern>)}
      </defs>
      {!single && frames(places).map((f) => <g key={f.region}>
        <rect class="region" x="0.5" y={f.y + 0.5} width={width - 1} height={f.h - 1} /><text class="regionname" x={10} y={f.y + 13}>{short(f.region, 60)}</text>
      </g>)}
      {staying.map(shape)}{leaving.map(shape)}
      {places.map((p) => {
        const mid = p.y + p.h / 2, z = p.zone;
        const labels = <>
          <rect class="bar" x={side - 2} y={p.y} width={barWidth} height={p.h} /><rect class="bar" x={width - side - barWidth + 2} y={p.y} width={barWidth} height={p.h} />
          <text x={side - 12} y={mid - 4} text-anchor="end">{name(z)}</text>
          <text class="small" x={side - 12} y={mid + 11} text-anchor="end">{(guessed ? z.guess ?? 0 : z.demand) === 0 ? "no clients" : guessed ? percent(z.inZone) + " stays" : `${rate(z.demand)}, ${percent(z.inZone)} stays`}</text>
          <text x={width - side + 12} y={mid - 4}>{name(z)}</text>
          <text class="small" x={width - side + 12} y={mid + 11}>{z.endpoints ? `${plural(z.endpoints, "endpoint")}, busiest ${times(z.worst)}` : "no endpoints"}</text>
        </>;
        return onPick ? <a key={z.name} href={href(["services"], { zone: z.name })}>{labels}</a> : <g key={z.name}>{labels}</g>;
      })}
    </svg>
    <figcaption class="legend">
      <span>left: clients by {unit}; right: endpoints by {unit}</span>
      <span><span class="swatch stays" aria-hidden="true" /> stays in its {unit}</span><span><span class="swatch leaves" aria-hidden="true" /> leaves it</span>
      {guessed ? <span><span class="swatch hatched" aria-hidden="true" /> hatched: estimated from the CPU of nodes, as no connections are measured</span>
        : <><span><span class="swatch outlined" aria-hidden="true" /> outlined: planned</span><span><span class="swatch filled" aria-hidden="true" /> filled: measured</span></>}
      {rest.length > 0 && <span>not drawn: {plural(rest.length, "smaller flow")}, {guessed ? num(rest.reduce((n, f) => n + sizeOf(f, guessed), 0)) : rate(rest.reduce((n, f) => n + sizeOf(f, guessed), 0))} together</span>}
    </figcaption>
  </figure>;
}

// Matrix of flows on a canvas: rows are zones of clients, columns those of endpoints.
export function Matrix({ world }: { world: World }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<[number, number] | null>(null);
  const zones = ordered(world.zones), guessed = isGuessed(world.flows), n = zones.length, unit = "zone";
  const cell = Math.max(4, Math.min(18, Math.floor(640 / n))), size = cell * n;
  const index = new Map(zones.map((z, i) => [z.name, i]));
  const flows = new Map(world.flows.map((f) => [index.get(f.from) + "/" + index.get(f.to), f]));
  const most = Math.max(1e-9, ...world.flows.map((f) => sizeOf(f, guessed)));
  useEffect(() => {
    const e = canvas.current!, draw = () => {
      const dpr = devicePixelRatio || 1, g = e.getContext("2d")!, style = getComputedStyle(document.documentElement);
      e.width = e.height = size * dpr;
      g.scale(dpr, dpr);
      g.clearRect(0, 0, size, size);
      for (const f of world.flows) {
        const i = index.get(f.from), k = index.get(f.to), x = sizeOf(f, guessed);
        if (i === undefined || k === undefined || x <= 0) continue;
        g.globalAlpha = 0.12 + 0.88 * Math.sqrt(x / most);
        g.fillStyle = style.getPropertyValue(i === k ? "--stays" : "--leaves");
        g.fillRect(k * cell, i * cell, cell - 1, cell - 1);
      }
      g.globalAlpha = 1;
      g.fillStyle = style.getPropertyValue("--frame");
      for (let i = 1; i < n; i++) if (inRegion(zones[i]!) !== inRegion(zones[i - 1]!)) { g.fillRect(i * cell - 1, 0, 1, size); g.fillRect(0, i * cell - 1, size, 1); }
    };
    draw();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    return () => dark.removeEventListener("change", draw);
  }, [world]);
  const f = at && flows.get(at[0] + "/" + at[1]);
  return <figure class="matrix">
    <canvas ref={canvas} class="grid" style={{ width: size + "px", height: size + "px" }} role="img" aria-label={`Flows between ${n} zones; the table below has the same numbers`}
      onMouseMove={(e) => { const r = canvas.current!.getBoundingClientRect(), s = r.width / n; setAt([Math.floor((e.clientY - r.top) / s), Math.floor((e.clientX - r.left) / s)]); }}
      onMouseLeave={() => setAt(null)} />
    <figcaption class="legend">
      <span class="pointed">{f ? titleOf(f, world.currency) : at && zones[at[0]] && zones[at[1]] ? `${zoneName(zones[at[0]]!.name)} → ${zoneName(zones[at[1]]!.name)}: nothing` : "Point at a cell to read it."}</span>
      <span>rows: zones of clients, columns: zones of endpoints, in the order of regions, which lines divide</span>
      <span><span class="swatch stays" aria-hidden="true" /> stays in its {unit}</span><span><span class="swatch leaves" aria-hidden="true" /> leaves it; darker is more</span>
      {guessed && <span>estimated from the CPU of nodes, as no connections are measured</span>}
    </figcaption>
  </figure>;
}

function columns(currency: string | undefined, has: (k: keyof Flow) => boolean): Column<Flow>[] {
  const out: Column<Flow>[] = [{ name: "from", cell: (f) => zoneName(f.from) }, { name: "to", cell: (f) => zoneName(f.to) }];
  if (has("planned")) out.push({ name: "planned", number: true, cell: (f) => f.planned ? rate(f.planned) : "–", text: (f) => f.planned });
  if (has("guess")) out.push({ name: "estimated (Services)", number: true, cell: (f) => f.guess ? num(f.guess) : "–", text: (f) => f.guess });
  if (has("measured")) out.push({ name: "measured", number: true, cell: (f) => f.measured ? rate(f.measured) : "–", text: (f) => f.measured });
  if (has("bytes")) out.push({ name: "bytes", number: true, cell: (f) => f.bytes ? bytes(f.bytes) + "/s" : "–", text: (f) => f.bytes });
  if (has("cost")) out.push({ name: "a month", number: true, cell: (f) => f.cost ? money(f.cost, currency) : "–", text: (f) => f.cost });
  return out;
}

// complete has an area for each end of a flow: other sites are no zones here.
function complete(w: World): World {
  const known = new Set(w.zones.map((z) => z.name)), others = new Set(w.flows.flatMap((f) => [f.from, f.to]).filter((n) => !known.has(n)));
  if (others.size === 0) return w;
  return { ...w, zones: [...w.zones, ...[...others].map((name) => ({ name, region: "elsewhere", nodes: 0, ready: 0, endpoints: 0, demand: 0, inZone: 1, worst: 0 }))] };
}

// Flows as a map or a matrix, with a table of the same numbers.
export function Flows({ world: given, fold, onFold, pick }: { world: World; fold?: boolean; onFold?: (fold: boolean) => void; pick?: boolean }) {
  const world = complete(given);
  const regions = new Set(world.zones.map(inRegion)).size;
  const foldable = onFold !== undefined && regions > 1;
  const shown = foldable && fold ? folded(world) : world;
  const guessed = isGuessed(shown.flows);
  const flows = [...shown.flows].sort((a, b) => Number(a.from === a.to) - Number(b.from === b.to) || (b.cost ?? 0) - (a.cost ?? 0) || sizeOf(b, guessed) - sizeOf(a, guessed) || byName(a.from, b.from) || byName(a.to, b.to));
  const has = (k: keyof Flow) => shown.flows.some((f) => f[k] !== undefined && f[k] !== 0);
  return <>
    {foldable && <p class="choices"><label><input type="checkbox" checked={fold} onChange={(e) => onFold!((e.currentTarget as HTMLInputElement).checked)} /> one area for each of the {regions} regions</label></p>}
    {shown.zones.length > maxMap ? <Matrix world={shown} /> : <ZoneMap world={shown} onPick={pick && !fold} />}
    <details class="numbers"><summary>{plural(flows.length, "flow")} as a table, those that leave their {shown.regions ? "region" : "zone"} first</summary>
      <Table label="Flows between zones" rows={flows} id={(f) => f.from + "\n" + f.to} columns={columns(shown.currency, has)} file="flows" />
    </details>
  </>;
}
