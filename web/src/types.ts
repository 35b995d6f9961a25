// What the API answers. Names are those of the JSON.

export interface Routed { inZone: number; worst: number }
export interface Ways { best: Routed; even: Routed; auto: Routed; sameZone: Routed }

export interface Flow {
  from: string; to: string;
  planned?: number; guess?: number; measured?: number; bytes?: number; cost?: number;
}

export interface Zone {
  name: string; region?: string; nodes: number; ready: number; endpoints: number;
  demand: number; guess?: number; inZone: number; worst: number; cost?: number;
}

export interface Totals extends Routed {
  services: number; planned: number; measured: number; demand: number; guessed?: boolean;
  ways: Ways; cost?: number; saving?: number; currency?: string;
  codes: { code: string; services: number; refused?: number }[];
  modes: { mode: string; services: number }[];
}

export interface Line extends Routed {
  namespace: string; name: string; mode?: string; level?: string; planned: boolean; code: string; why?: string; refused?: boolean;
  endpoints: number; zones: number; demand: number; measured: boolean; ways: Ways; bytes: number; volume?: string;
  cost?: number; saving?: number; currency?: string;
}

export interface Services { services: Line[]; total: number; all: number; next?: number; partial?: string; since: string }
export interface Detail extends Line { byZone: { zone: string; endpoints: number; load: number }[] | null; flows: Flow[] | null }

export interface Series {
  since: string; last?: string; stepSeconds: number;
  zones: { zone?: string; inZone: number[]; demand: number[]; cost?: number[] }[];
}

export interface Problem {
  code: string; severity: "error" | "warning"; kind?: string; namespace?: string; name?: string;
  problem: string; fix?: string; since?: string;
}

export interface Delta { epoch?: string; position?: number; snapshot?: boolean; rows?: Record<string, unknown>; gone?: string[] }
export interface Frame { topic?: string; delta?: Delta; error?: string; time: string }

export interface Status {
  version: { version: string }; role: string; preset?: string; started: string;
  store: { name: string; epoch: string; revision: number; problem?: string };
  catalog: { synced: boolean; objects: Record<string, number> };
  leases: { watched: number; late: number; held: boolean; reason?: string };
  suspects?: { node: string; zone?: string; since: string; witnesses: string[] }[];
  drains?: { node: string; state: string }[];
  zoneShifts?: ZoneShift[];
  unreachable?: string[];
  silentInstances?: string[];
  agents: { node: string; version?: string; instance?: string; peer: string; since: string; bytesSent: number; behind: number; rejected?: string }[];
  proxies?: { connected: number; behind: number; rejecting: number; rejected?: { dataplane: string; type: string; name: string; reason: string }[] };
  registries?: Registry[];
  registryTroubles?: { reason: string; protocol: string; count: number; examples?: string[] }[];
  federation?: Federation;
  feed?: { begins: string };
}

export interface ZoneShift { name: string; zone?: string; node?: string; state: string; until: string; reason: string; undo: string }

export interface Registry {
  protocol: string; address?: string; clients: number; limit?: number; sessions: number; instances: number; imported?: Record<string, number>;
  requests: number; failed: number; pushes: number; lastLagSeconds: number;
}

export interface TypeSync {
  type: string; direction: string; objects?: number; held?: number; heldNames?: string[]; heldToken?: string;
  refused?: { name: string; reason: string; waiting?: boolean }[];
}

export interface SyncLag { samples: number; p50Seconds: number; p99Seconds: number; waitingSeconds?: number }
export interface SyncLink { epoch?: string; sent?: SyncLag; received?: SyncLag; lastRefused?: { type: string; direction: string; resource?: string; reason: string; at: string }[] }
export interface FailureRow { name: string; failure: string; state: "yes" | "no" | "perhaps" | "unknown"; why: string; where?: string[]; count?: number; works: string; fails: string; look?: string }

export interface Federation {
  zone?: string; global?: string; instance?: string; connected?: boolean; lastCheck?: string; problem?: string; certificateNotAfter?: string;
  behind?: number; types?: TypeSync[]; elsewhere?: boolean; link?: SyncLink; failures?: FailureRow[];
  zones?: { name: string; enabled: boolean; refused?: string; link?: SyncLink; insight?: { online?: boolean; subscriptions?: { version?: string; instance?: string; connectTime: string; disconnectTime?: string }[]; types?: TypeSync[] } }[];
}

export interface Metrics { inZone: number; cost: number; worst: number }

export interface Explanation {
  limit: number; metrics: Metrics; warnings?: string[];
  zones: { name: string; region?: string; demand: number; weight: number; rule: string; to?: { zone: string; share: number }[]; overload: number; full?: boolean; endpointsMissing?: number }[];
}

export interface PlanReport {
  ports: string[]; family: string; ageSeconds: number; reason?: string; measured: boolean; connectionsPerSecond: number;
  plan: Explanation; now: Metrics; gapPoints: number;
  hints?: { mode: string; given: boolean; reason: string; why?: string };
}

export interface Explained {
  service: string; node?: string; zone?: string; addresses: string[]; limits?: string[]; notEnforced?: string[]; refused?: string[];
  ports: {
    name?: string; port: number; protocol: string; route?: string; policy?: string;
    families: {
      family: string; rule: string; outcome: string; elsewhere?: number;
      endpoints: { address: string; node?: string; zone?: string; share: number; reason: string; why: string }[];
    }[];
  }[];
  topology?: { mode?: string; level?: string; planned: boolean; decision: string; problems?: string[]; plans: PlanReport[] };
}

export interface Simulation {
  services: {
    service: string; ports: string[]; family: string; planned: boolean; before: Metrics; after: Metrics; unplanned?: Metrics; plan: Explanation;
    moneyBefore?: { currency: string; now: number; planned: number }; moneyAfter?: { currency: string; now: number; planned: number };
  }[] | null;
  unaffected: number;
  summary?: { affected: number; services: number; before: Metrics; after: Metrics; busiest?: string; unserved?: string[]; unservedCount: number };
}

export interface Change {
  position: number; resourceVersion?: string; time: string; operation: string; group?: string; resource: string; kind: string; namespace?: string; name: string;
  user?: string; manager?: string; registry?: { protocol: string; by?: string; instance?: string };
  fields?: { path: string; from?: unknown; to?: unknown; hidden?: boolean }[]; problem?: string;
}

export interface History { begins: string; changes: Change[] | null; more?: boolean; notes?: string[] }

export interface Meta {
  name: string; namespace?: string; resourceVersion?: string; creationTimestamp?: string;
  labels?: Record<string, string>; annotations?: Record<string, string>;
}
export interface Condition { type: string; status: string; reason?: string; message?: string; lastTransitionTime?: string }
export interface KubeObject {
  apiVersion?: string; kind?: string; metadata: Meta; spec?: Record<string, unknown>;
  status?: { conditions?: Condition[]; [field: string]: unknown };
}
export interface List { items: KubeObject[]; metadata?: { continue?: string; remainingItemCount?: number } }

export interface Problems { problems: Problem[]; partial?: string }

export interface AgentRollout { node: string; instance?: string; since: string; sent: boolean; behind: number; rejected?: string }
export interface Rollout {
  revision: number; newest: number; committed: boolean; viewed: boolean; agents: number; sent: number; confirmed: number;
  slowest?: AgentRollout[]; rejecting?: AgentRollout[]; silentInstances?: string[];
}

export interface ProxyDifference { dataplane: string; resources: { type: string; name: string; sent?: string; held?: string; state: string; reason?: string }[] | null }
