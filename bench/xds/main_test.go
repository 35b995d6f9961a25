package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestMain is the process of the streams too.
func TestMain(m *testing.M) {
	if os.Getenv(clientsEnv) != "" {
		exit(clients(os.Args[1:], os.Stdout, os.Stdin))
		return
	}
	os.Exit(m.Run())
}

// TestInProcess: the parts that need no other program measure something, in a size that says nothing
// of speed.
func TestInProcess(t *testing.T) {
	p := smoke
	var out bytes.Buffer
	for _, part := range parts() {
		switch part.name {
		case "fanout", "memory", "cost":
			if err := part.run(t.Context(), p, &out); err != nil {
				t.Fatalf("%s: %v", part.name, err)
			}
		}
	}
	for _, want := range []string{"floor", "proxima", "SnapshotCache", "kB for each stream", "40 services"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing of %q in\n%s", want, out.String())
		}
	}
}
