package ipvs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Default is the scheduler that is chosen for each list: rr where all weights are equal, else wrr.
const Default = ""

// Schedulers of Linux, by the names that ipvsadm has for them (net/netfilter/ipvs; ipvsadm(8)). A name is also that of the
// kernel's module, behind "ip_vs_".
func Schedulers() []string {
	return []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf"}
}

// CheckScheduler refuses a name that Linux does not have.
func CheckScheduler(name string) error {
	if name == Default || slices.Contains(Schedulers(), name) {
		return nil
	}
	return fmt.Errorf("%q is no scheduler of IPVS: use one of %s", name, strings.Join(Schedulers(), ", "))
}

// WithoutPlan says why the weights of a plan are not shares under a scheduler; empty: they are.
func WithoutPlan(scheduler string) string {
	switch scheduler {
	case "rr", "lc", "dh":
		return "scheduler " + scheduler + " ignores weights: a plan's weights have no effect"
	case "fo", "ovf":
		return "scheduler " + scheduler + " takes weights for an order, not for shares: a plan's weights do not divide connections"
	}
	return ""
}

// schedulerOf a list: the one that is asked for, or by its weights.
func schedulerOf(asked string, list []proxy.Target) string {
	switch {
	case asked != Default:
		return asked
	case equal(list):
		return "rr"
	}
	return "wrr"
}

func equal(list []proxy.Target) bool {
	return !slices.ContainsFunc(list, func(t proxy.Target) bool { return max(1, t.Weight) != max(1, list[0].Weight) })
}

// Sums of weights. sh fills a table of 256 by them (IP_VS_SH_TAB_BITS).
const (
	sumOfHash = 256
	sumOfRest = 1024
)

// weightsOf a list as small integers in its proportion, by largest remainder. An endpoint whose share is less than half of
// the smallest that the sum can express has none.
func weightsOf(scheduler string, list []proxy.Target) []uint32 {
	out := make([]uint32, len(list))
	if equal(list) {
		for i := range out {
			out[i] = 1
		}
		return out
	}
	var all uint64
	for _, t := range list {
		all += uint64(max(1, t.Weight))
	}
	var divisor uint64
	for _, t := range list {
		divisor = gcd(uint64(max(1, t.Weight)), divisor)
	}
	sum := uint64(sumOfRest)
	if scheduler == "sh" {
		sum = sumOfHash
	}
	if all/divisor <= sum { // exact
		for i, t := range list {
			out[i] = uint32(uint64(max(1, t.Weight)) / divisor)
		}
		return out
	}
	order, rest := make([]int, len(list)), sum
	remainder := make([]uint64, len(list))
	for i, t := range list {
		exact := uint64(max(1, t.Weight)) * sum
		out[i], remainder[i], order[i] = uint32(exact/all), exact%all, i
		if out[i] == 0 && 2*exact >= all {
			out[i], remainder[i] = 1, 0
		}
		rest -= min(rest, uint64(out[i]))
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case remainder[a] > remainder[b]:
			return -1
		case remainder[a] < remainder[b]:
			return 1
		}
		return list[a].Addr.Compare(list[b].Addr)
	})
	for _, i := range order {
		if rest > 0 && out[i] > 0 {
			out[i]++
			rest--
		}
	}
	return out
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
