// Problems: what is wrong, and what mends it.

import { age, byName, group, plural } from "./format.ts";
import type { Stream } from "./stream.ts";
import type { Problem, Problems as Answer } from "./types.ts";
import { Copy, Empty, Head, serviceHref, useLoad, useStream, View, Partial } from "./view.tsx";

function objectOf(p: Problem) {
  const name = (p.namespace ? p.namespace + "/" : "") + (p.name ?? "");
  if (!p.kind) return "control plane";
  return p.kind === "Service" && p.namespace && p.name ? <a href={serviceHref(p.namespace, p.name)}>Service {name}</a> : p.kind + " " + name;
}

const idOf = (p: Problem) => [p.kind, p.namespace, p.name, p.problem].join("\n");

export const worstFirst = (all: Problem[]) => [...all].sort((a, b) =>
  byName(a.severity, b.severity) || byName(a.code, b.code) || byName(idOf(a), idOf(b)));

const isCommand = (fix: string) => /^(sudo )?(proxima|kubectl) /.test(fix);

export function ProblemList({ problems, grouped }: { problems: Problem[]; grouped?: boolean }) {
  if (problems.length === 0) return <p class="empty">No problem is known.</p>;
  return <ul class="problems">{problems.map((p) => <li key={p.code + objectOf(p) + p.name} class={p.severity}>
    <p><span class="mark">{p.severity}</span> {!grouped && <b>{p.code}</b>} {objectOf(p)} {p.since && <span class="dim">since {age(p.since)}</span>}</p>
    <p class="text">{p.problem}</p>
    {p.fix && (isCommand(p.fix) ? <p><Copy text={p.fix} /></p> : <p class="text dim">{p.fix}</p>)}
  </li>)}</ul>;
}

export function Problems({ stream }: { stream: Stream }) {
  const s = useStream(stream);
  const first = useLoad<Answer>("/proxima/v1/problems");
  const problems = s.filled("problems") ? worstFirst([...s.rows("problems").values()] as Problem[]) : undefined;
  const codes = new Map<string, Problem[]>();
  const show = (all: Problem[]) => {
    for (const p of all) codes.set(p.code, [...codes.get(p.code) ?? [], p]);
    if (all.length === 0) return <Empty command="proxima status">No problem is known: of the control plane, its nodes and its objects.</Empty>;
    return [...codes].map(([code, of]) => <section key={code} class="panel wide"><div class="bar"><h2>{code}</h2><span class="dim">{plural(of.length, "finding")}</span></div><ProblemList problems={of.slice(0, 50)} grouped />{of.length > 50 && <p class="dim">and {group(of.length - 50)} more</p>}</section>);
  };
  return <><Head title="Problems" command="proxima doctor --cluster" />
    <Partial text={first.data?.partial} />
    {problems ? <div class={s.health === "stale" ? "old" : undefined}>{show(problems)}</div> : <View of={first}>{(d) => <>{show(d.problems)}</>}</View>}
  </>;
}
