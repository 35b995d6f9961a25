package registry

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
)

func TestExamine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		s := r.open(Nacos, User{Local: true}, 0)
		r.register(s, orders(8080))
		local := orders(8081)
		local.Address = netip.MustParseAddr("127.0.0.1")
		r.register(s, local)
		r.client.Seed(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}},
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "mine"}}},
		)
		synctest.Wait()
		first, second := orders(8080).Key().String(), local.Key().String()
		both := []string{first, second}
		if second < first {
			both = []string{second, first}
		}
		taken := Trouble{Reason: NameTaken, Protocol: Nacos, Count: 2, Examples: []string{"shop/orders"}}
		loopback := Trouble{Reason: Loopback, Protocol: Nacos, Count: 1, Examples: []string{second}}
		for name, test := range map[string]struct {
			edit func(*Examination)
			want []Trouble
		}{
			"well":       {func(*Examination) {}, []Trouble{loopback, taken}},
			"not served": {func(x *Examination) { x.Served = nil }, []Trouble{loopback, taken, {Reason: NotServed, Protocol: Nacos, Count: 2, Examples: both}}},
			"restarted": {func(x *Examination) { x.Claimed = func(key resource.Key) bool { return key.String() == first } },
				[]Trouble{loopback, taken, {Reason: Orphaned, Protocol: Nacos, Count: 1, Examples: []string{second}}}},
			"owner gone":   {func(x *Examination) { x.Owner = "cp-2" }, []Trouble{loopback, taken, {Reason: Orphaned, Protocol: Nacos, Count: 2, Examples: both}}},
			"owner runs":   {func(x *Examination) { x.Owner, x.Running = "cp-2", map[string]bool{"cp-1": true} }, []Trouble{loopback, taken}},
			"many clients": {func(x *Examination) { x.Served[0].Clients, x.Served[0].Limit = 90, 100 }, []Trouble{{Reason: Full, Protocol: Nacos, Count: 90}, loopback, taken}},
			"many nodes": {func(x *Examination) { x.Served[0].Nodes = &Nodes{Count: 3, Bytes: 900, Quota: 1000} },
				[]Trouble{loopback, taken, {Reason: QuotaUsed, Protocol: Nacos, Count: 3}}},
			"fewer nodes":   {func(x *Examination) { x.Served[0].Nodes = &Nodes{Count: 3, Bytes: 899, Quota: 1000} }, []Trouble{loopback, taken}},
			"fewer clients": {func(x *Examination) { x.Served[0].Clients, x.Served[0].Limit = 89, 100 }, []Trouble{loopback, taken}},
		} {
			x := Examination{Snapshot: r.index.Snapshot(), Served: []Status{{Protocol: Nacos}}, Owner: "cp-1", Claimed: r.registrar.Claimed}
			test.edit(&x)
			if diff := cmp.Diff(test.want, Examine(x)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		for port := range uint16(maxExamples) {
			r.register(s, orders(9000+port))
		}
		synctest.Wait()
		got := Examine(Examination{Snapshot: r.index.Snapshot(), Owner: "cp-1"})
		if text := fmt.Sprint(len(got), got[2].Count, len(got[2].Examples)); text != fmt.Sprint(3, 2+maxExamples, maxExamples) {
			t.Errorf("troubles %+v", got)
		}
	})
}
