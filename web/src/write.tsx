// The three writes: a topology mode, a zone shift, and the release of held deletions. Each is tried first, shown, and confirmed by the typed name.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, get, mayDo, query, send } from "./api.ts";
import { plural, yaml } from "./format.ts";
import { Diff } from "./history.tsx";
import type { KubeObject, TypeSync } from "./types.ts";
import { Copy, ErrorNote, Panel } from "./view.tsx";

interface Shown { diff?: [string, string]; notes: string[]; forbidden?: string }

interface Write { title: string; name: string; command: string; ready: boolean; preview: () => Promise<Shown>; apply: () => Promise<void>; done: () => void; children: ComponentChildren; may: () => Promise<boolean> }

const toFailure = (e: unknown) => e instanceof Failure ? e : new Failure(0, "Error", String(e));

// Writer is absent for those who may not write. Another choice makes the preview void.
function Writer(w: Write) {
  const [may, setMay] = useState(false);
  const [shown, setShown] = useState<Shown | undefined>(undefined);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState<Failure | undefined>(undefined);
  const [state, setState] = useState<"" | "busy" | "done">("");
  const last = useRef(w.command);
  useEffect(() => { let live = true; w.may().then((m) => { if (live) setMay(m); }, () => {}); return () => { live = false; }; }, []);
  useEffect(() => { if (last.current !== w.command) { last.current = w.command; setShown(undefined); setTyped(""); setError(undefined); setState(""); } }, [w.command]);
  if (!may) return null;
  const run = async (f: () => Promise<void>, end: "" | "done") => {
    setState("busy"); setError(undefined);
    try { await f(); setState(end); } catch (e) { setError(toFailure(e)); setState(""); setShown(undefined); }
  };
  return <Panel title={w.title}>
    <form class="write" onSubmit={(e) => { e.preventDefault(); void run(async () => setShown(await w.preview()), ""); }}>
      {w.children}
      <button type="submit" disabled={!w.ready || state === "busy"}>Show what it would do</button>
    </form>
    {error && <><ErrorNote error={error} />{error.code === 409 && <p class="note">It has been changed meanwhile. Look at it as it is now, and try again.</p>}</>}
    {shown && state !== "done" && <div class="preview" role="group" aria-label="What it would do">
      {shown.diff && <Diff from={shown.diff[0]} to={shown.diff[1]} />}
      {shown.notes.map((n) => <p key={n}>{n}</p>)}
      <p><Copy label="The same in a terminal:" text={w.command} /></p>
      {shown.forbidden ? <p class="note error">{shown.forbidden}</p> : <form class="write" onSubmit={(e) => { e.preventDefault(); if (typed === w.name) void run(async () => { await w.apply(); w.done(); }, "done"); }}>
        <label>Type <code>{w.name}</code> to do it <input value={typed} autocomplete="off" onInput={(e) => setTyped((e.currentTarget as HTMLInputElement).value)} /></label>
        <button type="submit" class="act" disabled={typed !== w.name || state === "busy"}>Do it</button>
      </form>}
    </div>}
    {state === "done" && <p class="note" role="status">Done.</p>}
  </Panel>;
}

const annotation = "service.kubernetes.io/topology-mode";

export function SetMode({ service, done }: { service: KubeObject; done: () => void }) {
  const m = service.metadata, full = m.namespace + "/" + m.name, had = m.annotations?.[annotation] ?? "";
  const [mode, setMode] = useState(had);
  const path = `/api/v1/namespaces/${m.namespace}/services/${m.name}`;
  const body = { metadata: { resourceVersion: m.resourceVersion, annotations: { [annotation]: mode || null } } };
  const patch = (dry: boolean) => send(query(path, { dryRun: dry ? "All" : undefined, fieldManager: "proxima-console" }), { method: "PATCH", type: "application/merge-patch+json", body });
  const text = (o: KubeObject) => yaml({ metadata: { name: o.metadata.name, annotations: o.metadata.annotations ?? {} }, spec: o.spec }).replace(/^\n/, "");
  return <Writer title="Change the mode" name={full} ready={mode !== had} done={done} may={() => mayDo("patch", "", "services", m.namespace, m.name)}
    command={`kubectl annotate service ${m.name} -n ${m.namespace} --overwrite ${annotation}${mode ? "=" + mode : "-"}`}
    preview={async () => {
      const after = await (await patch(true)).json() as KubeObject;
      return { diff: [text(service), text(after)], notes: ["The next plan, or its end, follows within seconds; \"What if\" above shows the effect of other changes."] };
    }}
    apply={async () => { await patch(false); }}>
    <label>mode <select value={mode} onChange={(e) => setMode((e.currentTarget as HTMLSelectElement).value)}>
      {[...new Set(["", "proxima.dev/Adaptive", "Auto", "Disabled", had])].map((x) => <option key={x} value={x}>{x || "none of its own"}</option>)}
    </select></label>
  </Writer>;
}

export function ShiftZone({ zones, done }: { zones: string[]; done: () => void }) {
  const [zone, setZone] = useState(zones[0] ?? ""), [minutes, setMinutes] = useState(60), [reason, setReason] = useState("");
  const spec = () => ({ zone, reason, until: new Date(Date.now() + minutes * 60_000).toISOString().slice(0, 19) + "Z" });
  const create = (dry: boolean) => send(query("/apis/mesh.proxima.dev/v1alpha1/zoneshifts", { dryRun: dry ? "All" : undefined, fieldManager: "proxima-console" }), {
    method: "POST", body: { apiVersion: "mesh.proxima.dev/v1alpha1", kind: "ZoneShift", metadata: { name: zone }, spec: spec() },
  });
  interface Effect { services: { name: string; out: number; left: number; last?: boolean }[] | null; endpoints: number; plans?: { services: unknown[] | null } }
  return <Writer title="Shift a zone away" name={zone} ready={reason !== "" && minutes > 0} done={done} may={() => mayDo("create", "mesh.proxima.dev", "zoneshifts")}
    command={`proxima zone shift ${zone} --for ${minutes}m --reason ${JSON.stringify(reason)}`}
    preview={async () => {
      await create(true);
      const e = await get<Effect>(query("/proxima/v1/zones/shift", { zone })), services = e.services ?? [], last = services.filter((s) => s.last);
      return {
        notes: [`${plural(e.endpoints, "endpoint")} of ${plural(services.length, "Service")} would be taken out for ${plural(minutes, "minute")}; ${plural(e.plans?.services?.length ?? 0, "plan")} would change.`,
          ...services.slice(0, 10).map((s) => `${s.name}: ${s.out} out, ${s.left} left`)],
        forbidden: last.length ? `It would take the last endpoints of ${last.slice(0, 5).map((s) => s.name).join(", ")}: it is refused without --force in a terminal.` : undefined,
      };
    }}
    apply={async () => { await create(false); }}>
    <label>zone <select value={zone} onChange={(e) => setZone((e.currentTarget as HTMLSelectElement).value)}>{zones.map((z) => <option key={z}>{z}</option>)}</select></label>
    <label>minutes <input type="number" min="1" max="10080" value={minutes} onInput={(e) => setMinutes(Number((e.currentTarget as HTMLInputElement).value))} /></label>
    <label>reason <input value={reason} placeholder="for other people" onInput={(e) => setReason((e.currentTarget as HTMLInputElement).value)} /></label>
  </Writer>;
}

export function ConfirmHeld({ zone, type, done }: { zone: string; type: TypeSync; done: () => void }) {
  return <Writer title="Delete them" name={zone} ready done={done} may={() => mayDo("delete", "mesh.proxima.dev", "zones", undefined, zone)}
    command={`proxima zone confirm ${zone} ${type.type}${type.heldToken ? " --token " + type.heldToken : ""}`}
    preview={async () => ({ notes: [`${plural(type.held ?? 0, "object")} of ${type.type} would be deleted: ${(type.heldNames ?? []).slice(0, 20).join(", ") || "those that are held"}. If others are held meanwhile, it is refused.`] })}
    apply={async () => { await send("/proxima/v1/zones/confirm", { method: "POST", body: { zone, type: type.type, token: type.heldToken } }); }}>
    <p>The set is the one that is shown.</p>
  </Writer>;
}
