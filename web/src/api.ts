// Requests to the API, with the secret of this tab.

const secretKey = "proxima-console-secret";

// Failure is an answer that is none: what the API says, or why there is no answer.
export class Failure extends Error {
  constructor(readonly code: number, readonly reason: string, message: string) { super(message); }
}

export interface Session { loopback: boolean; server: string; write: boolean; until?: string }

let secret = sessionStorage.getItem(secretKey) ?? "";
let onUnauthorized: () => void = () => {};

export function whenUnauthorized(f: () => void) { onUnauthorized = f; }
export function hasSecret() { return secret !== ""; }

export function setSecret(text: string) {
  secret = text;
  if (text) sessionStorage.setItem(secretKey, text);
  else sessionStorage.removeItem(secretKey);
}

interface Options { method?: string; body?: unknown; type?: string; signal?: AbortSignal; quiet?: boolean }

async function failureOf(r: Response): Promise<Failure> {
  const text = await r.text().catch(() => "");
  try {
    const status = JSON.parse(text);
    if (typeof status.message === "string") return new Failure(r.status, String(status.reason ?? ""), status.message);
  } catch { /* not of the API */ }
  const known: Record<number, string> = {
    401: "the credentials are wrong or have expired",
    404: "this control plane does not serve that",
    503: "the control plane cannot answer now",
  };
  return new Failure(r.status, r.statusText, known[r.status] ?? (text.slice(0, 300) || "no reason was given"));
}

// send a request; its path begins with a slash. Throws a Failure, or an AbortError.
export async function send(path: string, o: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (secret) headers.Authorization = "Bearer " + secret;
  if (o.body !== undefined) headers["Content-Type"] = o.type ?? "application/json";
  let r: Response;
  try {
    r = await fetch(path, {
      method: o.method ?? "GET", headers, signal: o.signal, cache: "no-store", credentials: "omit", redirect: "error",
      body: o.body === undefined ? undefined : JSON.stringify(o.body),
    });
  } catch (e) {
    if (o.signal?.aborted) throw e;
    throw new Failure(0, "Unreachable", "the control plane cannot be reached: is it, or \"proxima console\", still running?");
  }
  if (r.ok) return r;
  const f = await failureOf(r);
  if (r.status === 401 && !o.quiet) onUnauthorized();
  throw f;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const r = await send(path, { signal });
  return await r.json() as T;
}

// query leaves out what is empty.
export function query(path: string, values: Record<string, string | number | boolean | undefined>) {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== undefined && value !== "" && value !== false) q.append(name, String(value));
  const text = q.toString();
  return text ? path + "?" + text : path;
}

// session of the loopback listener, or of an API that is open in the browser itself; null: no way in yet.
export async function openSession(): Promise<Session | null> {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) {
    history.replaceState(null, "", location.pathname + "#/");
    const r = await send("/console/session", { method: "POST", body: { code }, quiet: true });
    const s = await r.json();
    setSecret(s.secret);
    return { loopback: true, server: s.server, write: s.write, until: s.until };
  }
  try {
    const r = await send("/console/session", { quiet: true });
    const s = await r.json();
    if (s.direct) return secret ? { loopback: false, server: location.host, write: true } : null;
    return { loopback: true, server: s.server, write: s.write, until: s.until };
  } catch (e) {
    setSecret("");
    throw e;
  }
}

// mayDo asks whether the viewer may do something.
export async function mayDo(verb: string, group: string, resource: string, namespace?: string, name?: string): Promise<boolean> {
  const r = await send("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {
    method: "POST",
    body: {
      apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview",
      spec: { resourceAttributes: { verb, group, resource, namespace, name } },
    },
  });
  const answer = await r.json();
  return answer.status?.allowed === true;
}
