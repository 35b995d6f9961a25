package insight

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// state is a copy of what is known of a proxy, for one write.
type state struct {
	at           time.Time
	subscription *meshv1alpha1.Subscription // nil: none to this instance
	ended        bool
	versions     meshv1alpha1.ProxyVersions
	rejected     []meshv1alpha1.RejectedResource
	// released are resources that this connection rejected, and does no more.
	released map[rejectedKey]struct{}
	// proving: the connection is so young that what was rejected before counts still.
	proving bool
	// certificates by mesh; those of a workload have none.
	certificates []issued
	// meshes that there are; nil: it is a workload.
	meshes  map[string]bool
	learned map[string]time.Time
}

func (p *proxy) state(instance string, now time.Time) state {
	s := state{at: now, learned: map[string]time.Time{}}
	for _, mesh := range slices.Sorted(maps.Keys(p.certificates)) {
		s.certificates = append(s.certificates, *p.certificates[mesh])
	}
	for port, last := range p.learned {
		s.learned[port] = last
	}
	if c := p.connection; c != nil {
		subscription := c.settled(instance, now)
		c.behind = c.stalls(now)
		s.subscription, s.ended, s.versions, s.rejected = &subscription, !c.ended.IsZero(), c.versions, c.rejections()
		s.released = maps.Clone(c.released)
		s.proving = now.Sub(c.began) < window && !s.ended
	}
	return s
}

// apply what this instance knows to an insight, which others may have written meanwhile.
func (s *state) apply(i *meshv1alpha1.ClientInsightStatus, subscriptions int) {
	if s.subscription != nil {
		s.connect(i, subscriptions)
	}
	s.certify(i)
	s.learn(i)
}

// certify notes certificates. Of a gateway those of each mesh, of which the one that ends first is in the
// place of a workload's.
func (s *state) certify(i *meshv1alpha1.ClientInsightStatus) {
	if s.meshes == nil {
		for _, c := range s.certificates {
			i.Certificate = c.after(i.Certificate)
		}
		return
	}
	all := map[string]*meshv1alpha1.CertificateInsight{}
	for k := range i.Certificates {
		all[i.Certificates[k].Mesh] = &i.Certificates[k]
	}
	for _, c := range s.certificates {
		all[c.Mesh] = c.after(all[c.Mesh])
	}
	maps.DeleteFunc(all, func(mesh string, _ *meshv1alpha1.CertificateInsight) bool { return !s.meshes[mesh] })
	var next []meshv1alpha1.CertificateInsight
	for _, mesh := range slices.Sorted(maps.Keys(all)) {
		next = append(next, *all[mesh])
	}
	i.Certificates, i.Certificate = next[:min(len(next), maxCertificates)], nil
	for k := range i.Certificates {
		if c := &i.Certificates[k]; i.Certificate == nil || c.Expiry.Before(&i.Certificate.Expiry) {
			i.Certificate = c.DeepCopy()
		}
	}
}

// after is the certificate that is noted after another one: the newer of both. nil: there was none.
func (c *issued) after(was *meshv1alpha1.CertificateInsight) *meshv1alpha1.CertificateInsight {
	before := int64(0)
	if was != nil {
		if before = was.Generations; c.Issued.Before(was.LastIssue.Time) {
			return was
		}
	}
	return &meshv1alpha1.CertificateInsight{
		Mesh: c.Mesh, Identity: c.Identity, Backend: c.Backend, LastIssue: metav1.NewTime(c.Issued), Expiry: metav1.NewTime(c.Expiry),
		Generations: before + c.uncounted,
	}
}

// connect notes the connection, and keeps so many. Those before it have ended: a proxy has one.
func (s *state) connect(i *meshv1alpha1.ClientInsightStatus, subscriptions int) {
	own := *s.subscription
	at := slices.IndexFunc(i.Subscriptions, func(o meshv1alpha1.Subscription) bool { return o.ID == own.ID })
	if at >= 0 {
		own.Generation = i.Subscriptions[at].Generation
		if own.DisconnectTime == nil && at < len(i.Subscriptions)-1 {
			own.DisconnectTime = &i.Subscriptions[len(i.Subscriptions)-1].ConnectTime // it is connected elsewhere since
		}
		i.Subscriptions[at] = own
	} else {
		for n := range i.Subscriptions {
			if o := &i.Subscriptions[n]; o.DisconnectTime == nil {
				o.DisconnectTime = &own.ConnectTime
			}
		}
		if n := len(i.Subscriptions); n > 0 {
			own.Generation = i.Subscriptions[n-1].Generation
		}
		own.Generation++
		i.Subscriptions = append(i.Subscriptions, own)
		i.Subscriptions = i.Subscriptions[max(0, len(i.Subscriptions)-subscriptions):]
	}
	newest := &i.Subscriptions[len(i.Subscriptions)-1]
	i.Online = newest.DisconnectTime == nil
	if newest.ID != own.ID {
		return // the rest is for the instance that has the newest to say
	}
	versions := s.versions
	i.Versions = &versions
	rejected := s.rejected
	if s.proving || s.ended {
		rejected = merged(rejected, slices.DeleteFunc(i.Rejected, func(r meshv1alpha1.RejectedResource) bool {
			_, released := s.released[rejectedKey{r.Type, r.Name}]
			return released
		}))
	}
	i.Rejected = rejected
}

// merged rejections of this connection, and of what was known before.
func merged(now, before []meshv1alpha1.RejectedResource) []meshv1alpha1.RejectedResource {
	out := slices.Clone(now)
	for _, r := range before {
		if !slices.ContainsFunc(now, func(o meshv1alpha1.RejectedResource) bool { return compareRejected(o, r) == 0 }) && len(out) < maxRejected {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, compareRejected)
	return out
}

// learn service ports that were used, and forget those that were not for long. Where there are
// more than can be kept, the newest are.
func (s *state) learn(i *meshv1alpha1.ClientInsightStatus) {
	last := map[string]time.Time{}
	for _, l := range i.Learned {
		last[l.Port] = l.LastUsed.Time
	}
	for port, used := range s.learned {
		if was, known := last[port]; !known || used.Sub(was) >= learnedAgain {
			last[port] = used
		}
	}
	var all []meshv1alpha1.LearnedPort
	for port, used := range last {
		if s.at.Sub(used) < learnedFor {
			all = append(all, meshv1alpha1.LearnedPort{Port: port, LastUsed: metav1.NewTime(used)})
		}
	}
	slices.SortFunc(all, func(a, b meshv1alpha1.LearnedPort) int {
		return cmp.Or(b.LastUsed.Compare(a.LastUsed.Time), strings.Compare(a.Port, b.Port))
	})
	all = all[:min(len(all), maxLearned)]
	slices.SortFunc(all, func(a, b meshv1alpha1.LearnedPort) int { return strings.Compare(a.Port, b.Port) })
	i.Learned = all
}

// Reasons of these conditions.
const (
	ReasonConnected    = "Connected"
	ReasonDisconnected = "Disconnected"
	ReasonAccepted     = "Accepted"
	ReasonRejected     = "Rejected"
	ReasonValid        = "Valid"
	ReasonExpired      = "Expired"
	ReasonConfigured   = "Configured"
	ReasonNoConfig     = "NoConfig"
)

// Conditions of a Dataplane, or of a gateway, that follow from its insight.
func Conditions(i *meshv1alpha1.ClientInsightStatus, now time.Time) []metav1.Condition {
	var out []metav1.Condition
	add := func(typ string, is bool, reason, otherwise, message string) {
		c := metav1.Condition{Type: typ, Status: metav1.ConditionTrue, Reason: reason, Message: message}
		if !is {
			c.Status, c.Reason = metav1.ConditionFalse, otherwise
		}
		out = append(out, c)
	}
	if n := len(i.Subscriptions); n > 0 {
		last := &i.Subscriptions[n-1]
		message := fmt.Sprintf("connected to instance %s since %s", last.Instance, last.ConnectTime.UTC().Format(time.RFC3339))
		if !i.Online && last.DisconnectTime != nil {
			message = fmt.Sprintf("disconnected from instance %s at %s; it goes on with the configuration that it has", last.Instance,
				last.DisconnectTime.UTC().Format(time.RFC3339))
		}
		connected, disconnected := ReasonConnected, ReasonDisconnected
		if v := i.Versions; v != nil && isProgram(v.Proxy) {
			connected, disconnected = meshv1alpha1.ReasonProgram, meshv1alpha1.ReasonProgram
		}
		add(meshv1alpha1.DataplaneProxyConnected, i.Online, connected, disconnected, message)
		add(meshv1alpha1.DataplaneConfigAccepted, len(i.Rejected) == 0, ReasonAccepted, ReasonRejected, rejectedText(i.Rejected))
		program := ""
		if i.Versions != nil {
			program = i.Versions.Proxy
		}
		needs := needed(program)
		ready := !slices.ContainsFunc(needs.types, func(typ string) bool { return !accepted(last, typ) })
		text := "the proxy has accepted its first " + needs.text
		if !ready {
			text = "the proxy has not accepted " + needs.text + " yet"
		}
		add(meshv1alpha1.DataplaneProxyReady, ready, ReasonConfigured, ReasonNoConfig, text)
	}
	if c := i.Certificate; c != nil {
		until, valid := c.Expiry.UTC().Format(time.RFC3339), now.Before(c.Expiry.Time)
		message := fmt.Sprintf("the certificate of %s is valid until %s", c.Identity, until)
		if !valid {
			message = fmt.Sprintf("the certificate of %s expired at %s: peers refuse its connections until it gets a new one", c.Identity, until)
		}
		add(meshv1alpha1.DataplaneCertificateValid, valid, ReasonValid, ReasonExpired, message)
	}
	return out
}

// ownProgram is a gateway without Envoy, as it names itself. It follows a view, as agents do.
const ownProgram = "proxima"

// need is what a proxy has to accept before it is ready.
type need struct {
	types []string
	text  string
}

func needed(program string) need {
	if program == ownProgram {
		return need{[]string{"Service", "EndpointSlice"}, "services and endpoints"}
	}
	return need{[]string{"Cluster", "Listener"}, "clusters and listeners"}
}

// accepted: the proxy acknowledged resources of a type on this connection.
func accepted(s *meshv1alpha1.Subscription, typ string) bool {
	return slices.ContainsFunc(s.Resources, func(r meshv1alpha1.ResourceSync) bool { return r.Type == typ && r.Acknowledged > 0 })
}

// rejectedText names the resources, their policies, and the errors of the proxy.
func rejectedText(all []meshv1alpha1.RejectedResource) string {
	if len(all) == 0 {
		return "the proxy rejects nothing"
	}
	var lines []string
	for _, r := range all {
		from := ""
		if r.Policy != "" {
			from = ", made from " + r.Policy
		}
		lines = append(lines, fmt.Sprintf("%s %s%s: %s", r.Type, r.Name, from, r.Error))
	}
	return strings.Join(lines, "\n")
}
