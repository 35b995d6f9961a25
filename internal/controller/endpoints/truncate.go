package endpoints

import corev1 "k8s.io/api/core/v1"

// truncate leaves at most limit addresses, ready ones first, and says whether it
// had to cut. What is short is shared out among the subsets in proportion to
// what they have, rounded up, so that the last ones may get less. Subsets that
// are left with nothing go, as the API allows none without an address.
func truncate(subsets []corev1.EndpointSubset, limit int) (out []corev1.EndpointSubset, cut bool) {
	ready, notReady := 0, 0
	for i := range subsets {
		ready += len(subsets[i].Addresses)
		notReady += len(subsets[i].NotReadyAddresses)
	}
	if ready+notReady <= limit {
		return subsets, false
	}
	forReady, forNotReady := share{quota: ready, of: ready}, share{quota: limit - ready, of: notReady}
	if ready > limit {
		forReady.quota, forNotReady.quota = limit, 0
	}
	forReady.left, forNotReady.left = forReady.quota, forNotReady.quota
	for _, s := range subsets {
		s.Addresses = forReady.take(s.Addresses)
		s.NotReadyAddresses = forNotReady.take(s.NotReadyAddresses)
		if len(s.Addresses)+len(s.NotReadyAddresses) > 0 {
			out = append(out, s)
		}
	}
	return out, true
}

// share is a quota of some of a number of addresses.
type share struct{ quota, of, left int }

func (s *share) take(all []corev1.EndpointAddress) []corev1.EndpointAddress {
	if s.of == 0 || len(all) == 0 {
		return nil
	}
	n := min((len(all)*s.quota+s.of-1)/s.of, s.left)
	s.left -= n
	return all[:n:n]
}
