// The one table: columns that sort, rows that are drawn only where they are seen.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { csv, group } from "./format.ts";
import { download } from "./view.tsx";

export interface Column<T> {
  name: string;
  // cell as it is shown; text, if it is not that, for files.
  cell: (row: T) => ComponentChildren;
  text?: (row: T) => string | number | undefined;
  // sort is the name by which rows are sorted by this column.
  sort?: string;
  // up: the first order is ascending.
  up?: boolean;
  number?: boolean;
  wide?: boolean;
  title?: string;
}

interface Props<T> {
  label: string;
  rows: readonly T[];
  columns: Column<T>[];
  id: (row: T) => string;
  sort?: string;
  reverse?: boolean;
  onSort?: (sort: string, reverse: boolean) => void;
  // total of rows there are, if rows are a part; more is called near the end.
  total?: number;
  more?: () => void;
  file?: string;
}

const rowHeight = 28, over = 12, page = 60;

export function Table<T>(p: Props<T>) {
  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const virtual = p.rows.length > page || p.more !== undefined;
  useEffect(() => {
    const e = scroller.current!;
    const measure = () => setHeight(e.clientHeight || 600);
    const o = new ResizeObserver(measure);
    o.observe(e);
    measure();
    return () => o.disconnect();
  }, [virtual]);
  const from = virtual ? Math.max(0, Math.floor(top / rowHeight) - over) : 0;
  const to = virtual ? Math.min(p.rows.length, Math.ceil((top + height) / rowHeight) + over) : p.rows.length;
  useEffect(() => { if (p.more && to >= p.rows.length - over && p.rows.length < (p.total ?? 0)) p.more(); }, [to, p.rows.length, p.total]);
  // Rows that were drawn for the same props are drawn no more than once: scrolling changes only the state.
  const drawn = useRef<{ of: Props<T>; rows: Map<number, JSX.Element> }>({ of: p, rows: new Map() });
  if (drawn.current.of !== p) drawn.current = { of: p, rows: new Map() };
  const draw = (r: T, at: number) => {
    let row = drawn.current.rows.get(at);
    if (!row) {
      row = <tr key={p.id(r)} aria-rowindex={at + 2}>
        {p.columns.map((c, k) => k === 0 ? <th key={c.name} scope="row" class={cls(c)}>{c.cell(r)}</th> : <td key={c.name} class={cls(c)}>{c.cell(r)}</td>)}
      </tr>;
      drawn.current.rows.set(at, row);
    }
    return row;
  };
  const save = () => download((p.file ?? "table") + ".csv", csv([p.columns.map((c) => c.name), ...p.rows.map((r) => p.columns.map((c) => textOf(c, r)))]));
  const total = p.total ?? p.rows.length;
  return <div class="tablebox">
    <div ref={scroller} class={virtual ? "scroll virtual" : "scroll"} tabIndex={0} role="region" aria-label={p.label} onScroll={(e) => setTop((e.currentTarget as HTMLElement).scrollTop)}>
      <table aria-rowcount={total + 1}>
        <caption class="hidden">{p.label}</caption>
        <thead><tr>{p.columns.map((c) => <th key={c.name} scope="col" class={cls(c)} title={c.title} aria-sort={c.sort && c.sort === p.sort ? (!p.reverse === !!c.up ? "ascending" : "descending") : undefined}>
          {c.sort && p.onSort
            ? <button type="button" onClick={() => p.onSort!(c.sort!, c.sort === p.sort ? !p.reverse : false)}>{c.name}<span aria-hidden="true">{c.sort === p.sort ? (!p.reverse === !!c.up ? " ▲" : " ▼") : ""}</span></button>
            : c.name}
        </th>)}</tr></thead>
        <tbody>
          {from > 0 && <tr aria-hidden="true" style={{ height: from * rowHeight + "px" }}><td colSpan={p.columns.length} /></tr>}
          {p.rows.slice(from, to).map((r, i) => draw(r, from + i))}
          {to < p.rows.length && <tr aria-hidden="true" style={{ height: (p.rows.length - to) * rowHeight + "px" }}><td colSpan={p.columns.length} /></tr>}
        </tbody>
      </table>
    </div>
    {p.file && <p class="under dim">{group(p.rows.length)}{total > p.rows.length ? " of " + group(total) : ""} {total === 1 ? "row" : "rows"} <button type="button" onClick={save}>save as CSV</button></p>}
  </div>;
}

function textOf<T>(c: Column<T>, row: T): string | number | undefined {
  if (c.text) return c.text(row);
  const v = c.cell(row);
  return typeof v === "string" || typeof v === "number" ? v : undefined;
}

function cls<T>(c: Column<T>) { return (c.number ? "number " : "") + (c.wide ? "grow" : "") || undefined; }
