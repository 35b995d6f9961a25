// Changes of objects, as the change feed has them.

import { clock } from "./format.ts";
import { href } from "./view.tsx";
import { Table } from "./table.tsx";
import type { Change, History } from "./types.ts";

export const who = (c: Change) => c.registry ? `${c.registry.by || "a client"} (${c.registry.protocol})` : [c.user, c.manager && `by ${c.manager}`].filter(Boolean).join(" ") || "–";

const brief = (v: unknown) => { const t = v === undefined ? "–" : typeof v === "string" ? v : JSON.stringify(v); return t.length > 120 ? t.slice(0, 119) + "…" : t; };

export const fieldsOf = (c: Change) => c.problem ?? ((c.fields ?? []).slice(0, 4).map((f) => f.hidden ? `${f.path}: hidden` : `${f.path}: ${brief(f.from)} → ${brief(f.to)}`).join("; ") + ((c.fields?.length ?? 0) > 4 ? `; and ${c.fields!.length - 4} more` : ""));

export function Changes({ h, objects }: { h: History; objects?: boolean }) {
  const changes = h.changes ?? [];
  return <>
    {h.notes?.map((n) => <p key={n} class="note">{n}</p>)}
    {changes.length === 0 ? <p class="empty">No change since {clock(h.begins)}, when the feed begins.</p>
      : <Table label="Changes, the newest first" rows={[...changes].sort((a, b) => b.position - a.position)} id={(c) => String(c.position) + c.name} file="changes" columns={[
        { name: "time", cell: (c) => <span class="tight">{clock(c.time)}</span>, text: (c) => c.time }, { name: "what", cell: (c) => c.operation },
        { name: "revision", number: true, cell: (c) => c.resourceVersion ? c.resourceVersion : <a href={href(["changes", String(c.position)])} title="how far it got">{c.position}</a>, text: (c) => c.position },
        ...(objects ? [{ name: "object", cell: (c: Change) => c.kind + " " + (c.namespace ? c.namespace + "/" : "") + c.name }] : []),
        { name: "who", cell: who }, { name: "fields", wide: true, cell: fieldsOf },
      ]} />}
    {h.more && <p class="dim">There are more changes than these.</p>}
  </>;
}
