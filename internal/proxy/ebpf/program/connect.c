// Programs at cgroup/connect4 and cgroup/connect6: a TCP socket that connects to a
// virtual address gets an endpoint in place of it, or passes. What passes is served by
// the kernel mode below; so every doubt passes.
//
// Those at cgroup/getpeername4 and cgroup/getpeername6 are attached where applications are
// to see the virtual address as their peer.
//
// The layout of maps is that of layout.go. No CO-RE, and no helper that needs the GPL.
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define always_inline inline __attribute__((always_inline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

// Helpers by their numbers in linux/bpf.h.
static void *(*map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static __u64 (*ktime_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u32 (*random32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static __u32 (*processor)(void) = (void *)BPF_FUNC_get_smp_processor_id;
static __u64 (*netns_cookie)(void *ctx) = (void *)BPF_FUNC_get_netns_cookie;
static __u64 (*cgroup_at)(int level) = (void *)BPF_FUNC_get_current_ancestor_cgroup_id;
static __u64 (*socket_cookie)(void *ctx) = (void *)BPF_FUNC_get_socket_cookie;
static long (*spin_lock)(struct bpf_spin_lock *lock) = (void *)BPF_FUNC_spin_lock;
static long (*spin_unlock)(struct bpf_spin_lock *lock) = (void *)BPF_FUNC_spin_unlock;

#define SOCK_STREAM 1
#define IPPROTO_TCP 6
#define IPPROTO_MPTCP 262
#define SHARDS 8
#define FLAG_STICKY 1
#define CGROUP (1ULL << 63) // a key of map exempt is a cgroup, not the cookie of a network namespace

// Of the generation; the verifier takes them for constants. Written before the load.
volatile const __u32 stride = 1; // of counts: lists of a shard
volatile const __u32 hostonly = 0; // only sockets of the host's network namespace
volatile const __u32 networks = 0; // map exempt has network namespaces
volatile const __u32 levels = 0; // map exempt has cgroups of these levels, a bit each
volatile const __u32 peers = 0; // entries of maps peers4 and peers6 less one, a power of two less one; 0: nothing is noted there

struct vip4 {
	__u32 addr; // network order, as are all addresses and ports
	__u16 port;
	__u16 proto; // 6
};

struct vip6 {
	__u32 addr[4];
	__u16 port;
	__u16 proto;
};

struct list {
	__u64 word; // base 32 bits, n 24, flags 8; n 0: pass
	__u64 id;
	__u64 timeout; // of a sticky list, in ns
};

struct slot4 {
	__u32 a, b;
	__u16 aport, bport; // bport 0: there is no b
	__u16 cut; // below it, of 65536: a
	__u16 pad;
};

struct slot6 {
	__u32 a[4], b[4];
	__u16 aport, bport;
	__u16 cut;
	__u16 pad;
};

struct endpoint {
	__u32 addr[4]; // IPv4: the first word
	__u32 port; // the low 16 bits, in network order
};

struct member {
	__u64 id;
	struct endpoint e;
	__u32 pad;
};

struct client {
	__u64 id;
	__u64 cookie;
};

struct memory {
	struct endpoint e;
	__u32 pad;
	__u64 expiry; // by ktime
};

// What a socket asked for, at the number that its cookie has in a ring. Another socket may
// take the place later.
struct peer4 {
	struct bpf_spin_lock lock;
	__u32 vip, endpoint;
	__u16 vport, eport;
	__u64 cookie;
};

struct peer6 {
	struct bpf_spin_lock lock;
	__u32 vip[4], endpoint[4];
	__u16 vport, eport;
	__u64 cookie;
};

// The number of entries is set by the loader.
struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, struct vip4); __type(value, __u32); __uint(max_entries, 1); } vip4 SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, struct vip6); __type(value, __u32); __uint(max_entries, 1); } vip6 SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct list); __uint(max_entries, 1); } lists SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct slot4); __uint(max_entries, 1); } slots4 SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, struct slot6); __uint(max_entries, 1); } slots6 SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __type(key, __u32); __type(value, __u64); __uint(max_entries, 1); } counts SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct member); __type(value, __u32); __uint(max_entries, 1); } members SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __type(key, struct client); __type(value, struct memory); __uint(max_entries, 1); } clients SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, __u64); __type(value, __u32); __uint(max_entries, 1); } exempt SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __type(key, __u32); __type(value, struct peer4); __uint(max_entries, 1); } peers4 SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __type(key, __u32); __type(value, struct peer6); __uint(max_entries, 1); } peers6 SEC(".maps");

// The context is read and written a word at a time, as it is: else the compiler computes an
// address within it first, which the verifier refuses ("dereference of modified ctx ptr").
#define CTX(field) (*(volatile __u32 *)&ctx->field)

static always_inline int passes(struct bpf_sock_addr *ctx)
{
	if (CTX(type) != SOCK_STREAM)
		return 1;
	__u32 protocol = CTX(protocol);
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP)
		return 1;
	if (hostonly && netns_cookie(ctx) != netns_cookie(0))
		return 1;
	if (networks) {
		__u64 of = netns_cookie(ctx);
		if (map_lookup(&exempt, &of))
			return 1;
	}
	if (levels) {
#pragma clang loop unroll(full)
		for (int level = 1; level < 32; level++) {
			if (!(levels & (1U << level)))
				continue;
			__u64 of = cgroup_at(level) | CGROUP;
			if (map_lookup(&exempt, &of))
				return 1;
		}
	}
	return 0;
}

// remembered finds the endpoint of a client of a sticky list, and goes on remembering it.
static always_inline struct endpoint *remembered(struct client *c, __u64 timeout)
{
	struct memory *m = map_lookup(&clients, c);
	if (!m)
		return 0;
	__u64 now = ktime_ns();
	if (m->expiry <= now)
		return 0;
	struct member key = {.id = c->id, .e = m->e};
	if (!map_lookup(&members, &key))
		return 0;
	m->expiry = now + timeout;
	return &m->e;
}

static always_inline void count(__u32 number)
{
	__u32 at = (processor() & (SHARDS - 1)) * stride + number;
	__u64 *n = map_lookup(&counts, &at);
	if (n)
		__sync_fetch_and_add(n, 1);
}

// translate4 to an endpoint; 0: pass.
static always_inline int translate4(struct bpf_sock_addr *ctx, __u32 addr, __u32 *to, __u32 *port)
{
	struct vip4 key = {.addr = addr, .port = (__u16)CTX(user_port), .proto = IPPROTO_TCP};
	__u32 *number = map_lookup(&vip4, &key);
	if (!number)
		return 0;
	__u32 l = *number;
	struct list *list = map_lookup(&lists, &l);
	if (!list)
		return 0;
	__u64 w = *(volatile __u64 *)&list->word;
	__u32 n = (__u32)(w >> 32) & 0xffffff;
	if (!n)
		return 0;
	struct client c = {};
	if ((w >> 56) & FLAG_STICKY) {
		c.id = list->id;
		c.cookie = netns_cookie(ctx);
		struct endpoint *e = remembered(&c, list->timeout);
		if (e) {
			*to = e->addr[0];
			*port = e->port;
			count(l);
			return 1;
		}
	}
	__u64 p = (__u64)random32() * n;
	__u32 at = (__u32)w + (__u32)(p >> 32);
	struct slot4 *s = map_lookup(&slots4, &at);
	if (!s)
		return 0;
	if (!s->bport || (__u16)((__u32)p >> 16) < s->cut) {
		*to = s->a;
		*port = s->aport;
	} else {
		*to = s->b;
		*port = s->bport;
	}
	if ((w >> 56) & FLAG_STICKY) {
		struct memory m = {.e = {.addr = {*to}, .port = *port}, .expiry = ktime_ns() + list->timeout};
		map_update(&clients, &c, &m, BPF_ANY);
	}
	count(l);
	return 1;
}

// note4 what a socket asked for, in the context still, and what it gets.
static always_inline void note4(struct bpf_sock_addr *ctx, __u32 to, __u32 port)
{
	if (!peers)
		return;
	__u64 cookie = socket_cookie(ctx);
	__u32 at = (__u32)cookie & peers;
	struct peer4 *p = map_lookup(&peers4, &at);
	if (!p)
		return;
	__u32 vip = CTX(user_ip4), vport = CTX(user_port);
	spin_lock(&p->lock);
	p->cookie = cookie;
	p->vip = vip;
	p->vport = (__u16)vport;
	p->endpoint = to;
	p->eport = (__u16)port;
	spin_unlock(&p->lock);
}

static always_inline void note6(struct bpf_sock_addr *ctx, const __u32 *to, __u32 port)
{
	if (!peers)
		return;
	__u64 cookie = socket_cookie(ctx);
	__u32 at = (__u32)cookie & peers;
	struct peer6 *p = map_lookup(&peers6, &at);
	if (!p)
		return;
	__u32 v0 = CTX(user_ip6[0]), v1 = CTX(user_ip6[1]), v2 = CTX(user_ip6[2]), v3 = CTX(user_ip6[3]), vport = CTX(user_port);
	spin_lock(&p->lock);
	p->cookie = cookie;
	p->vip[0] = v0;
	p->vip[1] = v1;
	p->vip[2] = v2;
	p->vip[3] = v3;
	p->vport = (__u16)vport;
	p->endpoint[0] = to[0];
	p->endpoint[1] = to[1];
	p->endpoint[2] = to[2];
	p->endpoint[3] = to[3];
	p->eport = (__u16)port;
	spin_unlock(&p->lock);
}

// rewrite6 the address that a socket connects to, or sees.
static always_inline void rewrite6(struct bpf_sock_addr *ctx, const __u32 *to, __u32 port)
{
	CTX(user_ip6[0]) = to[0];
	CTX(user_ip6[1]) = to[1];
	CTX(user_ip6[2]) = to[2];
	CTX(user_ip6[3]) = to[3];
	CTX(user_port) = port;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	if (passes(ctx))
		return 1;
	struct bpf_sock *sk = ctx->sk;
	if (!sk || sk->src_ip4)
		return 1;
	__u32 to, port;
	if (translate4(ctx, CTX(user_ip4), &to, &port)) {
		note4(ctx, to, port);
		CTX(user_ip4) = to;
		CTX(user_port) = port;
	}
	return 1;
}

#define MAPPED 0x0000ffff // ::ffff:0:0, the third word as a number of network order

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	if (passes(ctx))
		return 1;
	struct bpf_sock *sk = ctx->sk;
	if (!sk)
		return 1;
	struct vip6 key = {.addr = {CTX(user_ip6[0]), CTX(user_ip6[1]), CTX(user_ip6[2]), CTX(user_ip6[3])},
			   .port = (__u16)CTX(user_port), .proto = IPPROTO_TCP};
	if (!key.addr[0] && !key.addr[1] && key.addr[2] == __builtin_bswap32(MAPPED)) {
		__u32 to, port;
		if (!sk->src_ip4 && translate4(ctx, key.addr[3], &to, &port)) {
			key.addr[3] = to;
			note6(ctx, key.addr, port);
			CTX(user_ip6[3]) = to;
			CTX(user_port) = port;
		}
		return 1;
	}
	if (sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3])
		return 1;
	__u32 *number = map_lookup(&vip6, &key);
	if (!number)
		return 1;
	__u32 l = *number;
	struct list *list = map_lookup(&lists, &l);
	if (!list)
		return 1;
	__u64 w = *(volatile __u64 *)&list->word;
	__u32 n = (__u32)(w >> 32) & 0xffffff;
	if (!n)
		return 1;
	struct client c = {};
	if ((w >> 56) & FLAG_STICKY) {
		c.id = list->id;
		c.cookie = netns_cookie(ctx);
		struct endpoint *e = remembered(&c, list->timeout);
		if (e) {
			struct endpoint to = *e;
			note6(ctx, to.addr, to.port);
			rewrite6(ctx, to.addr, to.port);
			count(l);
			return 1;
		}
	}
	__u64 p = (__u64)random32() * n;
	__u32 at = (__u32)w + (__u32)(p >> 32);
	struct slot6 *s = map_lookup(&slots6, &at);
	if (!s)
		return 1;
	struct memory m = {};
	if (!s->bport || (__u16)((__u32)p >> 16) < s->cut) {
		m.e.addr[0] = s->a[0];
		m.e.addr[1] = s->a[1];
		m.e.addr[2] = s->a[2];
		m.e.addr[3] = s->a[3];
		m.e.port = s->aport;
	} else {
		m.e.addr[0] = s->b[0];
		m.e.addr[1] = s->b[1];
		m.e.addr[2] = s->b[2];
		m.e.addr[3] = s->b[3];
		m.e.port = s->bport;
	}
	if ((w >> 56) & FLAG_STICKY) {
		m.expiry = ktime_ns() + list->timeout;
		map_update(&clients, &c, &m, BPF_ANY);
	}
	note6(ctx, m.e.addr, m.e.port);
	rewrite6(ctx, m.e.addr, m.e.port);
	count(l);
	return 1;
}

// A socket whose peer is the endpoint that it got sees the address that it asked for. One that
// has connected to something else since does not.
SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	__u64 cookie = socket_cookie(ctx);
	__u32 at = (__u32)cookie & peers;
	struct peer4 *p = map_lookup(&peers4, &at);
	if (!p)
		return 1;
	__u32 addr = CTX(user_ip4), port = CTX(user_port);
	spin_lock(&p->lock);
	int own = p->cookie == cookie && p->endpoint == addr && p->eport == (__u16)port;
	__u32 vip = p->vip, vport = p->vport;
	spin_unlock(&p->lock);
	if (own) {
		CTX(user_ip4) = vip;
		CTX(user_port) = vport;
	}
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	__u64 cookie = socket_cookie(ctx);
	__u32 at = (__u32)cookie & peers;
	struct peer6 *p = map_lookup(&peers6, &at);
	if (!p)
		return 1;
	__u32 a0 = CTX(user_ip6[0]), a1 = CTX(user_ip6[1]), a2 = CTX(user_ip6[2]), a3 = CTX(user_ip6[3]), port = CTX(user_port);
	spin_lock(&p->lock);
	int own = p->cookie == cookie && p->endpoint[0] == a0 && p->endpoint[1] == a1 && p->endpoint[2] == a2 && p->endpoint[3] == a3 &&
		p->eport == (__u16)port;
	__u32 vip[4] = {p->vip[0], p->vip[1], p->vip[2], p->vip[3]}, vport = p->vport;
	spin_unlock(&p->lock);
	if (own)
		rewrite6(ctx, vip, vport);
	return 1;
}

// No helper above asks for the GPL.
char terms[] SEC("license") = "Apache-2.0";
