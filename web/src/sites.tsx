// Sites: the connections between control planes, and what they hold back or refuse.

import { age, clock, num, plural } from "./format.ts";
import { Table } from "./table.tsx";
import type { Federation, Status, TypeSync } from "./types.ts";
import { Copy, Empty, Fact, Head, Panel, useLoad, View } from "./view.tsx";
import { ConfirmHeld } from "./write.tsx";

export function Sites({ write }: { write: boolean }) {
  const load = useLoad<Status>("/proxima/v1/status", 5);
  return <><Head title="Sites" command="proxima status" />
    <View of={load}>{(s) => !s.federation ? <Empty>This control plane stands alone: proxima docs how-to/zones.</Empty>
      : s.federation.zone ? <OfZone f={s.federation} write={write} done={load.reload} /> : <OfGlobal f={s.federation} write={write} done={load.reload} />}</View>
  </>;
}

function OfZone({ f, write, done }: { f: Federation; write: boolean; done: () => void }) {
  return <>
    <dl class="facts">
      <Fact name="this site" value={f.zone} /><Fact long name="global" value={f.global ?? "–"} />
      <Fact name="connection" value={<span class={f.connected ? undefined : "bad"}>{f.connected ? "connected" : "not connected"}</span>} />
      <Fact name="last answer" value={f.lastCheck ? age(f.lastCheck) + " ago" : "–"} /><Fact name="not confirmed" value={plural(f.behind ?? 0, "change")} />
      <Fact long name="certificate until" value={clock(f.certificateNotAfter)} />
    </dl>
    {f.problem && <p class="note error">{f.problem}</p>}
    {!f.connected && <p class="note">Without global, this site goes on by itself: its own Services, plans and policies work, and names of other sites keep the endpoints that were known. What changes elsewhere comes when the connection is back.</p>}
    <Types zone={f.zone!} types={f.types ?? []} write={write} done={done} />
  </>;
}

function OfGlobal({ f, write, done }: { f: Federation; write: boolean; done: () => void }) {
  const zones = f.zones ?? [];
  const trouble = (z: typeof zones[0]) => [!z.enabled && "disabled", z.enabled && !z.insight?.online && "not connected", z.refused,
    ...(z.insight?.types ?? []).flatMap((t) => [t.held ? `${t.held} deletions of ${t.type} held` : "", t.refused?.length ? `${plural(t.refused.length, t.type)} refused: ${t.refused[0]!.reason}` : ""])].filter(Boolean).join("; ");
  if (zones.length === 0) return <Empty command="proxima token create --kind zone --name NAME">No site has joined: proxima docs how-to/zones.</Empty>;
  return <>
    <Table label="Sites" rows={[...zones].sort((a, b) => Number(!!trouble(b)) - Number(!!trouble(a)) || (a.name < b.name ? -1 : 1))} id={(z) => z.name} columns={[
      { name: "site", cell: (z) => z.name }, { name: "state", cell: (z) => z.insight?.online ? "online" : <span class="bad">offline</span> },
      { name: "version", cell: (z) => z.insight?.subscriptions?.at(-1)?.version ?? "–" }, { name: "since", number: true, cell: (z) => age(z.insight?.subscriptions?.at(-1)?.connectTime) },
      { name: "trouble", wide: true, cell: (z) => trouble(z) || <span class="dim">none</span> }, { name: "more", cell: (z) => <Copy text={`proxima zone inspect ${z.name}`} /> },
    ]} />
    {zones.filter((z) => z.insight?.types?.some((t) => t.held || t.refused?.length)).map((z) => <section key={z.name}><h2>{z.name}</h2><Types zone={z.name} types={z.insight!.types!} write={write} done={done} /></section>)}
  </>;
}

function Types({ zone, types, write, done }: { zone: string; types: TypeSync[]; write: boolean; done: () => void }) {
  const rows = [...types].sort((a, b) => (b.held ?? 0) + (b.refused?.length ?? 0) - (a.held ?? 0) - (a.refused?.length ?? 0) || (a.type < b.type ? -1 : 1));
  const shown = rows.filter((t) => t.objects || t.held || t.refused?.length), none = rows.length - shown.length;
  return <div class="panels">
    <Panel wide title="Objects that go between sites" aside={none > 0 && <span class="dim">{plural(none, "type")} without objects {none === 1 ? "is" : "are"} not shown</span>}><Table label={"Objects of " + zone} rows={shown} id={(t) => t.type + t.direction} columns={[
      { name: "type", cell: (t) => t.type.replace(/^\//, "") }, { name: "direction", cell: (t) => t.direction }, { name: "objects", number: true, cell: (t) => num(t.objects ?? 0) },
      { name: "deletions held", number: true, cell: (t) => t.held ? <span class="bad">{t.held}</span> : "0" }, { name: "refused", number: true, cell: (t) => t.refused?.length ? <span class="bad">{t.refused.length}</span> : "0" },
      { name: "why", wide: true, cell: (t) => t.refused?.length ? `${t.refused[0]!.name}: ${t.refused[0]!.reason}` : "" },
    ]} /></Panel>
    {rows.filter((t) => t.held).map((t) => <Panel key={t.type} title={`${t.held} deletions of ${t.type} are held`}>
      <p>So many deletions at once may be a mistake. Until they are confirmed, the objects stay in use.</p>
      {t.heldNames?.length ? <ul class="names">{t.heldNames.map((n) => <li key={n}>{n}</li>)}</ul> : null}
      <p><Copy text={`proxima zone confirm ${zone} ${t.type}${t.heldToken ? " --token " + t.heldToken : ""}`} /></p>
      {write && <ConfirmHeld zone={zone} type={t} done={done} />}
    </Panel>)}
  </div>;
}
