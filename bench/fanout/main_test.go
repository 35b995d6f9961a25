package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestMain is the clients' process too.
func TestMain(m *testing.M) {
	if os.Getenv(clientsEnv) != "" {
		if err := connect(os.Args[1:], os.Stdout, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestSmoke: all servers reach all streams, in a size that says nothing of
// speed.
func TestSmoke(t *testing.T) {
	var out bytes.Buffer
	if err := compare(&out, 5, 2, 20); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"floor", "proxima", "zones", "LinearCache"} {
		if !strings.Contains(out.String(), name) {
			t.Errorf("no figures for %s:\n%s", name, out.String())
		}
	}
}
