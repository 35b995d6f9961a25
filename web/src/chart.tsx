// The one chart: lines over time.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "./format.ts";
import { Table } from "./table.tsx";

export interface Curve { name: string; values: (number | null)[]; format: (x: number) => string }

const lines = ["--line1", "--line2", "--line3", "--line4", "--line5", "--line6"];
const dashes = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 4]];

// Chart of curves, whose last values are of the time last, each before it step seconds earlier.
export function Chart({ label, last, step, curves, height = 160, max }: { label: string; last: string; step: number; curves: Curve[]; height?: number; max?: number }) {
  const box = useRef<HTMLDivElement>(null);
  const n = Math.max(0, ...curves.map((c) => c.values.length));
  const end = new Date(last).getTime() / 1000;
  const xs = Array.from({ length: n }, (_, i) => end - (n - 1 - i) * step);
  const rows = curves.map((c) => [...Array<null>(n - c.values.length).fill(null), ...c.values]);
  useEffect(() => {
    const e = box.current!;
    let plot: uPlot | undefined;
    const draw = () => {
      plot?.destroy();
      const style = getComputedStyle(document.documentElement);
      const color = (name: string) => style.getPropertyValue(name).trim();
      const axis = { stroke: color("--dim"), grid: { stroke: color("--rule"), width: 1 }, ticks: { stroke: color("--rule"), width: 1 }, font: "11px " + style.fontFamily };
      plot = new uPlot({
        width: Math.max(160, e.clientWidth), height, legend: { show: false }, cursor: { drag: { x: false, y: false } },
        scales: { x: { time: true }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), max ?? ((high ?? 1) * 1.08 || 1)] } },
        axes: [{ ...axis, size: 30, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
          { ...axis, size: 56, values: (_, ticks) => ticks.map((t) => curves[0]?.format(t) ?? String(t)) }],
        series: [{}, ...curves.map((c, i) => ({ label: c.name, stroke: color(lines[i % lines.length]!), width: 1.5, dash: dashes[i % dashes.length], points: { show: n < 2 } }))],
      }, [xs, ...rows] as uPlot.AlignedData, e);
    };
    draw();
    const resize = new ResizeObserver(() => plot?.setSize({ width: Math.max(160, e.clientWidth), height }));
    resize.observe(e);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    return () => { resize.disconnect(); dark.removeEventListener("change", draw); plot?.destroy(); };
  }, [last, step, n, JSON.stringify(curves.map((c) => c.name))]);
  const stepOf = Math.max(1, Math.ceil(n / 40));
  const picked = xs.map((_, i) => i).filter((i) => (n - 1 - i) % stepOf === 0).reverse();
  return <figure class="chart">
    <div ref={box} role="img" aria-label={label} />
    <figcaption class="legend">{curves.map((c, i) => <span key={c.name}><span class={"swatch s" + i % 6} aria-hidden="true" /> {c.name} {rows[i]!.at(-1) === null || rows[i]!.length === 0 ? "" : c.format(rows[i]!.at(-1)!)}</span>)}</figcaption>
    <details><summary>as a table</summary>
      <Table label={label} rows={picked} id={String} columns={[{ name: "time", cell: (i) => clock(xs[i]! * 1000) }, ...curves.map((c, k) => ({ name: c.name, number: true, cell: (i: number) => rows[k]![i] == null ? "–" : c.format(rows[k]![i]!) }))]} />
    </details>
  </figure>;
}
