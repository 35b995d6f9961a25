// Sites: the connections between control planes, and what they hold back or refuse.

import { useState } from "preact/hooks";
import { age, brief, clock, num, plural } from "./format.ts";
import { Table } from "./table.tsx";
import type { FailureRow, Federation, Status, SyncLag, SyncLink, TypeSync } from "./types.ts";
import { Copy, Empty, Fact, Head, Panel, useLoad, View } from "./view.tsx";
import { ConfirmHeld } from "./write.tsx";

export function Sites({ write }: { write: boolean }) {
  const load = useLoad<Status>("/proxima/v1/status", 5);
  return <><Head title="Sites" command="proxima status" />
    <View of={load}>{(s) => !s.federation ? <Empty>This control plane stands alone: proxima docs how-to/zones.</Empty>
      : s.federation.zone ? <OfZone f={s.federation} own={s.store?.epoch ?? ""} write={write} done={load.reload} /> : <OfGlobal f={s.federation} own={s.store?.epoch ?? ""} write={write} done={load.reload} />}</View>
  </>;
}

const lag = (l: SyncLag | undefined) => !l || l.samples === 0 ? "–" : `${brief(l.p50Seconds)} / ${brief(l.p99Seconds)}`;
const lagTitle = "p50 / p99 of the changes of the last 10 to 20 minutes: from when a side has a change until the store of the other one has it";
const shortEpoch = (e: string | undefined) => e ? <span title={e}>{e.length > 14 ? e.slice(0, 13) + "…" : e}</span> : "–";

function OfZone({ f, own, write, done }: { f: Federation; own: string; write: boolean; done: () => void }) {
  return <>
    <dl class="facts">
      <Fact name="this site" value={f.zone} /><Fact long name="global" value={f.global ?? "–"} />
      <Fact name="connection" value={<span class={f.connected ? undefined : "bad"}>{f.connected ? "connected" : "not connected"}</span>} title={f.elsewhere ? "at another instance of this control plane" : undefined} />
      <Fact name="last answer" value={f.lastCheck ? age(f.lastCheck) + " ago" : "–"} /><Fact name="not confirmed" value={plural(f.behind ?? 0, "change")} />
      <Fact long name="lag to global, p50 / p99" of="measured" value={lag(f.link?.sent)} title={lagTitle} />
      {f.link?.sent?.waitingSeconds ? <Fact name="oldest change waits" value={brief(f.link.sent.waitingSeconds)} /> : null}
      <Fact long name="certificate until" value={clock(f.certificateNotAfter)} />
      <Fact long name="epoch here, of global" value={<>{shortEpoch(own)}, {shortEpoch(f.link?.epoch)}</>} title="Another epoch is another history of a store: what it deletes is held" />
    </dl>
    {f.problem && <p class="note error">{f.problem}</p>}
    {!f.connected && <p class="note">Without global, this site goes on by itself: its own Services, plans and policies work, and names of other sites keep the endpoints that were known. What changes elsewhere comes when the connection is back.</p>}
    <Board rows={f.failures ?? []} />
    <Types zone={f.zone!} types={f.types ?? []} link={f.link} write={write} done={done} />
  </>;
}

function OfGlobal({ f, own, write, done }: { f: Federation; own: string; write: boolean; done: () => void }) {
  const zones = f.zones ?? [];
  const trouble = (z: typeof zones[0]) => [!z.enabled && "disabled", z.enabled && !z.insight?.online && "not connected", z.refused,
    ...(z.insight?.types ?? []).flatMap((t) => [t.held ? `${t.held} deletions of ${t.type} held` : "", t.refused?.length ? `refused ${t.type.replace(/.*\//, "")} ${t.refused[0]!.name}: ${t.refused[0]!.reason}${t.refused.length > 1 ? ` and ${t.refused.length - 1} more` : ""}` : ""])].filter(Boolean).join("; ");
  if (zones.length === 0) return <Empty command="proxima token create --kind zone --name NAME">No site has joined: proxima docs how-to/zones.</Empty>;
  return <>
    <p class="dim">{plural(zones.length, "site")}, {num(zones.filter((z) => z.insight?.online).length)} online; the epoch of global is {own || "not known"}. Lags are p50 / p99 of the last 10 to 20 minutes.</p>
    <Table label="Sites" file="sites" rows={[...zones].sort((a, b) => Number(!!trouble(b)) - Number(!!trouble(a)) || (a.name < b.name ? -1 : 1))} id={(z) => z.name} columns={[
      { name: "site", cell: (z) => z.name }, { name: "state", cell: (z) => z.insight?.online ? "online" : <span class="bad">{z.enabled ? "offline" : "disabled"}</span>, text: (z) => z.insight?.online ? "online" : z.enabled ? "offline" : "disabled" },
      { name: "trouble", wide: true, cell: (z) => trouble(z) || <span class="dim">none</span>, text: trouble },
      { name: "lag to it", number: true, title: lagTitle, cell: (z) => lag(z.link?.sent) }, { name: "lag from it", number: true, title: lagTitle + ", as the site measures it", cell: (z) => lag(z.link?.received) },
      { name: "last NACK", number: true, cell: (z) => { const r = last(z.link); return r ? <span title={r.type}>{age(r.at)} ago</span> : "–"; }, text: (z) => last(z.link)?.at },
      { name: "epoch", cell: (z) => shortEpoch(z.link?.epoch), text: (z) => z.link?.epoch },
      { name: "version", cell: (z) => z.insight?.subscriptions?.at(-1)?.version ?? "–" }, { name: "since", number: true, cell: (z) => age(z.insight?.subscriptions?.at(-1)?.connectTime) },
    ]} />
    <p class="dim">More of one: <Copy text="proxima zone inspect SITE" /></p>
    <Board rows={f.failures ?? []} />
    {zones.filter((z) => z.link?.lastRefused?.length || z.insight?.types?.some((t) => t.held || t.refused?.length)).map((z) => <section key={z.name} class="site"><h2>{z.name}</h2><Types zone={z.name} types={z.insight?.types ?? []} link={z.link} write={write} done={done} /></section>)}
  </>;
}

const last = (l: SyncLink | undefined) => [...l?.lastRefused ?? []].sort((a, b) => a.at < b.at ? 1 : -1)[0];

const isLit = (r: FailureRow) => r.state === "yes" || r.state === "perhaps";

// Board of what can fail. Its words and verdicts are the control plane's.
function Board({ rows }: { rows: FailureRow[] }) {
  const [open, setOpen] = useState(false);
  const rank = { yes: 0, perhaps: 1, unknown: 2, no: 3 }, lit = rows.filter(isLit), rest = rows.filter((r) => r.state === "no");
  if (rows.length === 0) return null;
  return <Panel wide title="What can fail, and what works meanwhile" aside={<Copy text="proxima zone board" />}>
    <p class="dim">{lit.length === 0 ? "Nothing that is seen from here fails now." : `${lit.length} of ${plural(rows.length, "failure")} ${lit.length === 1 ? "is so, or may be" : "are so, or may be"}.`} “perhaps”: another one looks the same from here. “unknown”: it is seen elsewhere.</p>
    <Failures label="Failures" rows={rows.filter((r) => r.state !== "no").sort((a, b) => rank[a.state] - rank[b.state])} />
    {rest.length > 0 && <details open={open} onToggle={(e) => setOpen((e.currentTarget as HTMLDetailsElement).open)}><summary>{plural(rest.length, "failure")} that {rest.length === 1 ? "is" : "are"} not there now</summary>{open && <Failures label="Failures that are not there" rows={rest} />}</details>}
  </Panel>;
}

function Failures({ label, rows }: { label: string; rows: FailureRow[] }) {
  return rows.length === 0 ? null : <div class="scroll" tabIndex={0} role="region" aria-label={label}><table class="plain board">
    <thead><tr><th scope="col">failure</th><th scope="col">now</th><th scope="col">works meanwhile</th><th scope="col">does not work, and says so</th></tr></thead>
    <tbody>{rows.map((r) => <tr key={r.name} class={isLit(r) ? "lit" : undefined}>
      <th scope="row">{r.failure}{r.where?.length ? <b class="bad">: {r.where.join(", ")}{(r.count ?? 0) > r.where.length ? ` and ${r.count! - r.where.length} more` : ""}</b> : null}<p class="dim">{r.why}</p>{r.look && isLit(r) && <Copy text={r.look} />}</th>
      <td><span class={isLit(r) ? "bad" : undefined}>{r.state}</span></td><td>{r.works}</td><td>{r.fails}</td>
    </tr>)}</tbody>
  </table></div>;
}

function Types({ zone, types, link, write, done }: { zone: string; types: TypeSync[]; link?: SyncLink; write: boolean; done: () => void }) {
  const rows = [...types].sort((a, b) => (b.held ?? 0) + (b.refused?.length ?? 0) - (a.held ?? 0) - (a.refused?.length ?? 0) || (a.type < b.type ? -1 : 1));
  const shown = rows.filter((t) => t.objects || t.held || t.refused?.length), none = rows.length - shown.length;
  return <div class="panels">
    <Panel wide title="Objects that go between sites" aside={none > 0 && <span class="dim">{plural(none, "type")} without objects {none === 1 ? "is" : "are"} not shown</span>}><Table label={"Objects of " + zone} rows={shown} id={(t) => t.type + t.direction} columns={[
      { name: "type", cell: (t) => t.type.replace(/^\//, "") }, { name: "direction", cell: (t) => t.direction }, { name: "objects", number: true, cell: (t) => num(t.objects ?? 0) },
      { name: "deletions held", number: true, cell: (t) => t.held ? <span class="bad">{t.held}</span> : "0" }, { name: "refused", number: true, cell: (t) => t.refused?.length ? <span class="bad">{t.refused.length}</span> : "0" },
      { name: "why", wide: true, cell: (t) => t.refused?.length ? `${t.refused[0]!.name}: ${t.refused[0]!.reason}` : "" },
    ]} /></Panel>
    {link?.lastRefused?.length ? <Panel wide title="Last NACK of each type" aside={<span class="dim">also of what has been accepted since; kept since the control plane started</span>}><Table label={"Last NACKs of " + zone} rows={[...link.lastRefused].sort((a, b) => a.at < b.at ? 1 : -1)} id={(r) => r.type + r.direction} columns={[
      { name: "type", cell: (r) => r.type }, { name: "resource", cell: (r) => r.resource || "not named" }, { name: "refused by", cell: (r) => r.direction === "ToZone" ? "site " + zone : "global" },
      { name: "ago", number: true, cell: (r) => age(r.at) }, { name: "why", wide: true, cell: (r) => r.reason },
    ]} /></Panel> : null}
    {rows.filter((t) => t.held).map((t) => <Panel key={t.type} title={`${t.held} deletions of ${t.type} are held`}>
      <p>So many deletions at once may be a mistake. Until they are confirmed, the objects stay in use.</p>
      {t.heldNames?.length ? <ul class="names">{t.heldNames.map((n) => <li key={n}>{n}</li>)}</ul> : null}
      <p><Copy text={`proxima zone confirm ${zone} ${t.type}${t.heldToken ? " --token " + t.heldToken : ""}`} /></p>
      {write && <ConfirmHeld zone={zone} type={t} done={done} />}
    </Panel>)}
  </div>;
}
