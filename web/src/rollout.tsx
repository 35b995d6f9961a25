// Rollout: how far a change got on its way to the agents.

import { useState } from "preact/hooks";
import { age, group, num, plural } from "./format.ts";
import { Table } from "./table.tsx";
import type { AgentRollout, Rollout as Answer } from "./types.ts";
import { Copy, Empty, Fact, Head, href, Panel, Partial, useLoad, View } from "./view.tsx";

export function Rollout({ revision, newest }: { revision: string; newest?: number }) {
  const [text, setText] = useState(revision);
  const load = useLoad<Answer>(/^[1-9][0-9]*$/.test(revision) ? "/proxima/v1/changes/" + revision : "", 2);
  const go = (e: Event) => { e.preventDefault(); if (text.trim()) location.hash = href(["changes", text.trim()]); };
  return <><Head title={revision ? <>Change {revision}</> : "Change"} command={`proxima rollout ${revision || "REVISION"}`}><p class="dim"><a href="#/history">all changes</a></p></Head>
    <form class="filters" onSubmit={go}>
      <label>revision <input inputMode="numeric" value={text} placeholder={newest ? String(newest) : "4711"} onInput={(e) => setText((e.currentTarget as HTMLInputElement).value)} /></label>
      <button type="submit">Show how far it got</button>{newest && <a href={href(["changes", String(newest)])}>the newest, {newest}</a>}
    </form>
    {!/^[1-9][0-9]*$/.test(revision) ? <Empty command="proxima rollout service/NAME">Give a revision of the store, a number: metadata.resourceVersion of an object, or the position of a change in History.</Empty> : <View of={load}>{(r) => <Body r={r} />}</View>}
  </>;
}

function Body({ r }: { r: Answer }) {
  const done = r.committed && r.viewed && r.confirmed === r.agents && !r.silentInstances?.length;
  const step = (yes: boolean) => <span class={yes ? undefined : "bad"}>{yes ? "yes" : "not yet"}</span>;
  return <>
    <Partial text={r.silentInstances?.length ? `instances that do not say how far their agents are: ${r.silentInstances.join(", ")}` : undefined} />
    <dl class="facts">
      <Fact name="committed" value={step(r.committed)} title={`the store is at revision ${r.newest}`} /><Fact name="in the views" value={step(r.viewed)} title="what agents follow has it" />
      <Fact name="sent" value={`${group(r.sent)} of ${group(r.agents)}`} /><Fact name="confirmed" value={`${group(r.confirmed)} of ${group(r.agents)}`} />
    </dl>
    <p class={done ? "note" : "note partial"} role="status">{r.agents === 0 ? "No agent follows this control plane." : done ? `It has reached each of ${plural(r.agents, "agent")}.` : !r.committed ? `There is no such change yet: the store is at revision ${r.newest}.` : `${plural(r.agents - r.confirmed, "agent")} of ${group(r.agents)} ${r.agents - r.confirmed === 1 ? "has" : "have"} not confirmed it.`}</p>
    {r.slowest?.length ? <Panel wide title="Agents that have not confirmed it, those with most to confirm first" aside={<Copy text="proxima top nodes" />}><Agents label="Agents that have not confirmed it" rows={r.slowest} />
      {r.agents - r.confirmed > r.slowest.length && <p class="dim">and {group(r.agents - r.confirmed - r.slowest.length)} more</p>}</Panel> : null}
    {r.rejecting?.length ? <Panel wide title="Agents that refused a part of their view since they connected"><Agents label="Agents that refused a part" rows={r.rejecting} /><p class="dim">It may be a part of another change.</p></Panel> : null}
  </>;
}

function Agents({ label, rows }: { label: string; rows: AgentRollout[] }) {
  return <Table label={label} rows={rows} id={(a) => a.node + (a.instance ?? "")} columns={[
    { name: "node", cell: (a) => a.node }, { name: "was sent it", cell: (a) => a.sent ? "yes" : "not yet" }, { name: "behind", number: true, cell: (a) => num(a.behind), title: "changes that it has not confirmed, also later ones" },
    { name: "follows for", number: true, cell: (a) => age(a.since) }, { name: "instance", cell: (a) => a.instance ?? "this one" }, { name: "refused", wide: true, cell: (a) => a.rejected ?? "" },
  ]} />;
}
