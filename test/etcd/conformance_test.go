package etcd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestConformance runs upstream's suite for storages, as internal/apiserver/kvstorage
// has it, on etcd. The suite is in that package's tests, so it is a test binary of
// its own, which has its servers from here.
func TestConformance(t *testing.T) {
	f := &factory{t: t, work: make(chan func()), running: map[string]*member{}}
	service := httptest.NewServer(f)
	t.Cleanup(service.Close)
	args := []string{"test", "-count=1", "-run", "^TestConformance$"}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./internal/apiserver/kvstorage")...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "PROXIMA_TEST_ETCD="+service.URL)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}()
	f.serve(done)
	if f.started < 50 {
		t.Errorf("only %d checks took a server; the suite did not run on etcd", f.started)
	}
}

// factory starts and stops servers by HTTP, on the test's goroutine, as that may
// fail the test.
type factory struct {
	t       *testing.T
	work    chan func()
	running map[string]*member
	started int
}

func (f *factory) serve(done <-chan struct{}) {
	for {
		select {
		case w := <-f.work:
			w()
		case <-done:
			return
		}
	}
}

func (f *factory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answered := make(chan struct{})
	f.work <- func() {
		defer close(answered)
		f.answer(w, r)
	}
	<-answered
}

func (f *factory) answer(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		m := startMember(f.t)
		f.running[m.endpoint()] = m
		f.started++
		fmt.Fprintln(w, m.endpoint())
	case http.MethodDelete:
		m := f.running[strings.TrimPrefix(r.URL.Path, "/")]
		if m == nil {
			http.Error(w, "no such server", http.StatusNotFound)
			return
		}
		go m.stop() // takes seconds while connections are open
	}
}
