package machine

import (
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// Processes in another network namespace have another loopback interface, so
// they are on another machine for our purposes.
func TestNetworkNamespacesDiffer(t *testing.T) {
	here, err := networkNamespace()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{here: "this process"}
	for _, name := range []string{"a", "b"} {
		ns := netns.New(t, name)
		var id, again string
		if err := ns.Do(func() (err error) {
			if id, err = networkNamespace(); err != nil {
				return err
			}
			again, err = networkNamespace()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if id != again {
			t.Errorf("namespace %s is %q, then %q", name, id, again)
		}
		if other := seen[id]; other != "" {
			t.Errorf("namespaces %s and %s are both %q", name, other, id)
		}
		seen[id] = name
	}
}
