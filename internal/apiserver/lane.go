package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/apiserver/quota"
)

// lane is a class of requests that compete for the same slots.
type lane struct {
	name  string
	limit string // in the metric of refusals
	// flag that sets its size; empty: it is fixed.
	flag  string
	slots *quota.Pool
	// memory for bodies. Reads have none: their bodies are ignored.
	memory *quota.Pool
	// maxBytes of a body.
	maxBytes int64
}

func (l *limiter) newLanes() {
	l.reads = &lane{
		name: "read", limit: limitRead, flag: "--max-requests-inflight", slots: quota.Quarter(int64(l.RequestsInFlight)),
	}
	l.writes = &lane{
		name: "write", limit: limitMutating, flag: "--max-mutating-requests-inflight", slots: quota.Quarter(int64(l.MutatingInFlight)),
		memory: quota.Quarter(l.BodyMemory), maxBytes: l.MaxRequestBytes,
	}
	perLease := int64(bytesPerRequest + 2*maxLeaseBytes + bytesPerValue*maxLeaseBytes/64)
	l.leases = &lane{
		name: "node-lease", limit: limitLeases, slots: quota.New(leasesInFlight, leasesPerNode),
		memory: quota.New(leasesInFlight*perLease, leasesPerNode*perLease), maxBytes: min(maxLeaseBytes, l.MaxRequestBytes),
	}
}

var (
	inFlightDesc = prometheus.NewDesc("proxima_api_requests_in_flight", "Requests that have a slot, by lane.", []string{"lane"}, nil)
	memoryDesc   = prometheus.NewDesc("proxima_api_body_memory_bytes",
		"Memory that is reserved for the bodies of requests in progress and what they are decoded to, by lane.", []string{"lane"}, nil)
)

func (l *limiter) collectLanes(to chan<- prometheus.Metric) {
	for _, lane := range []*lane{l.reads, l.writes, l.leases} {
		to <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, float64(lane.slots.Used()), lane.name)
		if lane.memory != nil {
			to <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, float64(lane.memory.Used()), lane.name)
		}
	}
}

// arrival is one authorized request waiting to be served.
type arrival struct {
	limiter *limiter
	info    *request.RequestInfo
	who     user.Info
}

func (q *arrival) lane() *lane {
	switch {
	case q.isNodeLease():
		return q.limiter.leases
	case isMutating(q.info.Verb):
		return q.limiter.writes
	}
	return q.limiter.reads
}

// isNodeLease: a node keeps its own Lease, which the authorizer has made sure of.
func (q *arrival) isNodeLease() bool {
	return q.info.IsResourceRequest && q.info.APIGroup == coordinationv1.GroupName && q.info.Resource == "leases" &&
		q.info.Namespace == corev1.NamespaceNodeLease && q.info.Subresource == "" &&
		slices.Contains([]string{"get", "create", "update", "patch"}, q.info.Verb) &&
		slices.Contains(q.who.GetGroups(), user.NodesGroup)
}

// privileged users are always served, whatever others do.
func (q *arrival) privileged() bool {
	return slices.Contains(q.who.GetGroups(), user.SystemPrivilegedGroup)
}

// serve a request that ends by itself: first its body is read, then it gets a slot.
func (q *arrival) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	l, lane, name := q.limiter, q.lane(), q.who.GetName()
	if q.info.Resource == "events" && isMutating(q.info.Verb) && !q.privileged() && !l.events.Allow(name, time.Now()) {
		l.refused.WithLabelValues(limitEvents).Inc()
		l.refuse(w, r, q.info, apierrors.NewTooManyRequests(fmt.Sprintf(
			"%s writes more than %d Events a second: write fewer, or raise --max-events-per-second of the control plane", name, l.EventsPerSecond),
			retryAfterSeconds))
		return
	}
	if isMutating(q.info.Verb) {
		mem := &reservation{pool: lane.memory, user: name, beyond: q.privileged()}
		defer mem.release()
		body, err := l.readBody(r, q.info.IsResourceRequest, lane.maxBytes, mem)
		if err != nil {
			if apierrors.IsTooManyRequests(err) {
				l.refused.WithLabelValues(limitMemory).Inc()
			}
			l.refuse(w, r, q.info, err)
			return
		}
		r = withBody(r, body)
	} else {
		r = withBody(r, nil)
	}
	switch result := lane.slots.Take(name, 1, false); {
	case result == quota.Taken:
		defer lane.slots.Give(name, 1)
	case q.privileged():
	default:
		l.refused.WithLabelValues(lane.limit).Inc()
		l.refuse(w, r, q.info, apierrors.NewTooManyRequests(lane.full(name, result), retryAfterSeconds))
		return
	}
	next.ServeHTTP(w, r)
}

// full is the message for a request that gets no slot.
func (l *lane) full(name string, why quota.Result) string {
	raise := ""
	if l.flag != "" {
		raise = ", or raise " + l.flag + " of the control plane"
	}
	if why == quota.ShareUsed {
		return fmt.Sprintf("%s has %d %s requests in progress, as many as one user may have: wait for one to end%s",
			name, l.slots.Share(), l.name, raise)
	}
	return fmt.Sprintf("too many %s requests are in progress: try again%s", l.name, raise)
}

// serveWatch serves a request that may last as long as the client likes.
func (q *arrival) serveWatch(w http.ResponseWriter, r *http.Request, next http.Handler) {
	l, name := q.limiter, q.who.GetName()
	if r.ContentLength != 0 {
		// It would be held for as long as the answer lasts.
		l.refuse(w, r, q.info, apierrors.NewBadRequest("a watch or a backup takes no body: send none"))
		return
	}
	if q.info.Verb != "watch" { // such as a backup
		next.ServeHTTP(w, r)
		return
	}
	if !l.begin(name) {
		l.refused.WithLabelValues(limitWatches).Inc()
		err := apierrors.NewTooManyRequests(fmt.Sprintf(
			"%s has %d watches open already: end some, or raise --max-watches-per-client of the control plane", name, l.WatchesPerClient),
			watchRetryAfterSeconds)
		l.refuse(w, r, q.info, err)
		return
	}
	defer l.end(name)
	next.ServeHTTP(w, r)
}
