package garbage

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestUIDSet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var set uidSet
		model := map[types.UID]struct{}{}
		for range 100 {
			uid := types.UID(strconv.Itoa(random.IntN(2 * maxFew)))
			if random.IntN(3) > 0 {
				set, model[uid] = set.with(uid), struct{}{}
			} else {
				set = set.without(uid)
				delete(model, uid)
			}
			if got, want := slices.Sorted(set.all()), slices.Sorted(maps.Keys(model)); !slices.Equal(got, want) || set.empty() != (len(want) == 0) {
				t.Fatalf("the set has %v, want %v", got, want)
			}
		}
	}
}
