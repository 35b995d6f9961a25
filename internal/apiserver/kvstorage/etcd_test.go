package kvstorage_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
	"github.com/proxima-mesh/proxima/internal/store/storetest"
)

// etcdServers is the URL of a service that starts an etcd server for each POST and
// answers with its HOST:PORT; a DELETE of that path ends it. If it is set the
// suites of this package run on etcd in place of the other stores. Module
// test/etcd sets it: etcd's server is no dependency of this module.
//
// Upstream's suite computes with revisions that rise by one, so it gets a dense
// view of the store. A server has one state, as a compaction is of all of it.
var etcdServers = os.Getenv("PROXIMA_TEST_ETCD")

func init() {
	if etcdServers == "" {
		return
	}
	clear(backends)
	backends["etcd"] = func(t testing.TB) store.Store {
		host := callServers(t, http.MethodPost, "")
		s, err := etcd.Open(context.Background(), "etcd://"+host, etcd.Options{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := storetest.Dense(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = d.Close()
			callServers(t, http.MethodDelete, host)
		})
		return d
	}
}

func callServers(t testing.TB, method, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, etcdServers+"/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s etcd server: %s %s %v", method, resp.Status, text, err)
	}
	return strings.TrimSpace(string(text))
}
