// The frame of all pages: the way in, the menu, and how the stream is.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, openSession, send, setSecret, whenUnauthorized, type Session } from "./api.ts";
import { age, span } from "./format.ts";
import { HistoryPage } from "./history.tsx";
import { Nodes } from "./nodes.tsx";
import { Overview } from "./overview.tsx";
import { Policies, Proxy } from "./policies.tsx";
import { Problems } from "./problems.tsx";
import { Registries } from "./registries.tsx";
import { Rollout } from "./rollout.tsx";
import { Service } from "./service.tsx";
import { Services } from "./services.tsx";
import { Sites } from "./sites.tsx";
import { Stream } from "./stream.ts";
import "./style.css";
import "../vendor/uplot/dist/uPlot.min.css";
import type { Status } from "./types.ts";
import { ErrorNote, useLoad, usePlace, useStream, type Place } from "./view.tsx";

interface Context { stream: Stream; status?: Status; write: boolean; place: Place }
interface Page { path: string; name: string; aside?: boolean; there: (s: Status | undefined) => boolean; show: (c: Context) => preact.ComponentChild }

// A page without its source is not in the menu, nor is one that others lead to.
const hasSums = (s?: Status) => s?.role !== "global";
const hasAgents = (s?: Status) => s !== undefined && s.role !== "global" && s.preset !== "planner-only";
const pages: Page[] = [
  { path: "", name: "Overview", there: hasSums, show: (c) => <Overview stream={c.stream} /> },
  {
    path: "services", name: "Services", there: hasSums,
    show: (c) => c.place.path.length >= 3 ? <Service key={c.place.path.join("/")} namespace={c.place.path[1]!} name={c.place.path[2]!} stream={c.stream} status={c.status} write={c.write} /> : <Services />,
  },
  { path: "problems", name: "Problems", there: hasSums, show: (c) => <Problems stream={c.stream} /> },
  { path: "nodes", name: "Nodes", there: hasAgents, show: (c) => <Nodes write={c.write} /> },
  { path: "sites", name: "Sites", there: (s) => s?.federation !== undefined, show: (c) => <Sites write={c.write} /> },
  { path: "policies", name: "Policies", there: (s) => s !== undefined && s.preset !== "planner-only", show: (c) => c.place.path.length >= 3 ? <Proxy key={c.place.path.join("/")} namespace={c.place.path[1]!} name={c.place.path[2]!} /> : <Policies /> },
  { path: "registries", name: "Registries", there: (s) => (s?.registries?.length ?? 0) > 0, show: () => <Registries /> },
  { path: "changes", name: "Changes", aside: true, there: (s) => hasAgents(s) && !s!.preset, show: (c) => <Rollout key={c.place.path[1]} revision={c.place.path[1] ?? ""} newest={c.status?.store?.revision} /> },
  { path: "history", name: "History", there: (s) => s?.feed !== undefined, show: () => <HistoryPage /> },
];

function App() {
  const [session, set] = useState<Session | null | undefined>(undefined);
  const [error, fail] = useState<Failure | undefined>(undefined);
  useEffect(() => {
    whenUnauthorized(() => { setSecret(""); set(null); fail(new Failure(401, "Unauthorized", "the credentials of this tab are not accepted any more")); });
    openSession().then(set, (e) => { fail(e instanceof Failure ? e : new Failure(0, "Error", String(e))); set(null); });
  }, []);
  if (session === undefined) return <p class="boot" role="status">Opening …</p>;
  if (session === null) return <Enter error={error} enter={(s) => { fail(undefined); set(s); }} />;
  return <Frame session={session} leave={() => { setSecret(""); fail(undefined); set(null); }} />;
}

// Enter asks for a token, where the API itself is open; the loopback listener needs none.
function Enter({ error, enter }: { error?: Failure; enter: (s: Session) => void }) {
  const [token, setToken] = useState("");
  const [failed, setFailed] = useState<Failure | undefined>(error);
  const [loopback, setLoopback] = useState(false);
  useEffect(() => { send("/console/session", { quiet: true }).catch((e) => setLoopback(e instanceof Failure && e.code === 401)); }, []);
  useEffect(() => setFailed(error), [error]);
  const local = ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);
  const submit = async (e: Event) => {
    e.preventDefault();
    setSecret(token.trim());
    try {
      await send("/version", { quiet: true });
      await send("/proxima/v1/status", { quiet: true }).catch((e) => { if (e instanceof Failure && e.code !== 401) return; throw e; });
      enter({ loopback: false, server: location.host, write: true });
    } catch (e) {
      setSecret("");
      setFailed(e instanceof Failure ? e : new Failure(0, "Error", String(e)));
    }
  };
  return <main class="enter"><h1>Proxima</h1>
    {failed && <ErrorNote error={failed} />}
    {loopback ? <>
      <p>This page gets in by a code that works once, within a minute. Start it again:</p><p><code>proxima console</code></p>
      <p class="dim">Each tab has a way in of its own: “new tab” in the menu opens another one.</p>
    </> : location.protocol !== "https:" && !local ? <p class="note error">This page came over plain HTTP, so that a token would be sent for all to read. Use <code>https://</code>, or <code>proxima console</code>.</p>
      : <form onSubmit={submit}>
        <label>Token <input type="password" autocomplete="off" spellcheck={false} value={token} onInput={(e) => setToken((e.currentTarget as HTMLInputElement).value)} required /></label>
        <button type="submit">Open</button>
        <p class="dim">It is kept for this tab alone. <code>proxima token create --kind read-only --name NAME</code> makes one that reads. <code>proxima console</code> needs none: it uses the kubeconfig.</p>
      </form>}
  </main>;
}

function Frame({ session, leave }: { session: Session; leave: () => void }) {
  const [stream] = useState(() => new Stream(["zones", "problems"], session.loopback && "locks" in navigator));
  const status = useLoad<Status>("/proxima/v1/status", 15);
  const place = usePlace(), sums = hasSums(status.data);
  const known = status.data !== undefined || status.error !== undefined;
  useEffect(() => { if (!known || !sums) return; stream.start(); return () => stream.stop(); }, [known, sums]);
  const there = pages.filter((p) => p.there(status.data));
  const wanted = place.path[0] ?? "", page = there.find((p) => p.path === wanted) ?? (wanted === "" ? there[0] : undefined);
  const main = useRef<HTMLElement>(null), first = useRef(true), where = place.path.join("/");
  useEffect(() => {
    document.title = [place.path.slice(1).join("/"), page?.name ?? "Proxima", session.server].filter(Boolean).join(" · ");
    if (!known) return;
    if (first.current) { first.current = false; return; }
    scrollTo(0, 0);
    document.getElementById("title")?.focus();
  }, [where, page?.name]);
  const another = async () => {
    const r = await send("/console/code", { method: "POST", body: {} });
    const { code } = await r.json();
    open(location.pathname + "#code=" + code, "_blank", "noopener");
  };
  return <>
    <a class="skip" href="#content" onClick={(e) => { e.preventDefault(); main.current?.focus(); }}>to the content</a>
    <header class="top"><a class="brand" href="#/">Proxima</a><span class="server" title={status.data ? `version ${status.data.version.version}, role ${status.data.role}` : undefined}>{session.server}</span>
      {sums && <Pulse stream={stream} />}
      <span class="right">{session.loopback ? <>{session.until && <span class="dim">ends in {span((new Date(session.until).getTime() - Date.now()) / 1000)}</span>}<button type="button" onClick={another}>new tab</button></> : <button type="button" onClick={leave}>forget the token</button>}</span>
    </header>
    <div class="body">
      <nav aria-label="Pages"><ul>{there.filter((p) => !p.aside).map((p) => <li key={p.path}><a href={"#/" + p.path} aria-current={p === page ? "page" : undefined}>{p.name}</a></li>)}</ul></nav>
      <main id="content" ref={main} tabIndex={-1}>
        {!known ? <p class="loading" role="status">Loading …</p>
          : page ? page.show({ stream, status: status.data, write: session.write, place })
            : <div class="empty"><h1>There is no such page</h1><p>{status.error ? <ErrorNote error={status.error} /> : <a href="#/">Overview</a>}</p></div>}
      </main>
    </div>
  </>;
}

const healths: Record<string, string> = { connecting: "connecting", live: "live", stale: "not up to date", hidden: "paused", ended: "no stream" };

// Pulse says how old what is shown may be.
function Pulse({ stream }: { stream: Stream }) {
  const s = useStream(stream);
  return <span class={"pulse " + s.health} role="status" title={s.problem || undefined}>{healths[s.health]}{s.health === "stale" && s.last ? <span aria-hidden="true">, {age(s.last)} old</span> : ""}</span>;
}

const root = document.getElementById("app")!;
root.textContent = "";
render(<App />, root);
