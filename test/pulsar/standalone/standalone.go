// Package standalone runs the real Apache Pulsar for tests: broker, bookie and metadata in one process, on the loopback interface
// alone. Enter at Start. tools/interop-pulsar downloads what it runs. Tests that need it have the build tag "interop", so that others do
// not skip them.
package standalone

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// Home is the variable with the folder of the unpacked distribution.
const Home = "PROXIMA_PULSAR_HOME"

const (
	// healthyWithin is how long a start may take; a busy machine of two cores needs 80 s.
	healthyWithin = 4 * time.Minute
	// memory is what the process may use: 1.3 GB resident in all.
	memory = "-Xms256m -Xmx768m -XX:MaxDirectMemorySize=512m"
)

// Config of a Server. The zero value is a broker as Pulsar ships it.
type Config struct {
	// Deduplication: the broker leaves out messages of a producer whose sequence ID it has already.
	Deduplication bool
	// Settings of conf/standalone.conf that are set otherwise, as brokerDeleteInactiveTopicsEnabled.
	Settings map[string]string
	// Token that the settings make the REST API want; empty: none.
	Token string
}

// Server is a process of Pulsar. Its ports and its data stay over Restart. It is not safe for concurrent use.
type Server struct {
	t    testing.TB
	home string
	dir  string
	// URL is the address of the broker, pulsar://127.0.0.1:PORT; Admin that of its REST API, http://127.0.0.1:PORT.
	URL, Admin string
	// Token is that of the configuration.
	Token string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start runs Pulsar until the test ends, and blocks until it is healthy. The test is skipped if Home is not set.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	home := os.Getenv(Home)
	if home == "" {
		t.Skip(Home + " is not set: make interop-pulsar downloads Apache Pulsar and runs it")
	}
	broker, web := testkit.FreePort(t), testkit.FreePort(t)
	s := &Server{
		t: t, home: home, dir: t.TempDir(),
		URL: "pulsar://127.0.0.1:" + strconv.Itoa(broker), Admin: "http://127.0.0.1:" + strconv.Itoa(web), Token: cfg.Token,
	}
	settings := map[string]string{
		"brokerServicePort": strconv.Itoa(broker), "webServicePort": strconv.Itoa(web), "bindAddress": "127.0.0.1", "advertisedAddress": "127.0.0.1",
		"allowLoopback": "true", "listeningInterface": "lo", "brokerDeduplicationEnabled": strconv.FormatBool(cfg.Deduplication),
	}
	maps.Copy(settings, cfg.Settings)
	s.configure(settings)
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("--- Pulsar's log ends with:\n%s", s.tail())
		}
	})
	s.Restart()
	return s
}

// configure writes the configuration: that of the distribution, with other settings.
func (s *Server) configure(settings map[string]string) {
	s.t.Helper()
	shipped, err := os.ReadFile(filepath.Join(s.home, "conf", "standalone.conf"))
	if err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(shipped)) {
		if name, _, ok := strings.Cut(line, "="); ok && settings[strings.TrimSpace(name)] != "" {
			continue
		}
		out.WriteString(line)
	}
	out.WriteString("\n")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&out, "%s=%s\n", name, settings[name])
	}
	if err := os.WriteFile(s.path("standalone.conf"), []byte(out.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// Launch starts the process, and does not wait until it answers. It must not run: call Kill before.
func (s *Server) Launch() {
	s.t.Helper()
	log, err := os.OpenFile(s.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	// No functions worker and no stream storage. bin/pulsar becomes the Java process by exec.
	cmd := exec.Command(filepath.Join(s.home, "bin", "pulsar"), "standalone", "-nfw", "-nss", "-a", "127.0.0.1",
		"--metadata-dir", s.path("metadata"), "--bookkeeper-dir", s.path("bookkeeper"))
	cmd.Env = append(testkit.CleanEnv(), "PULSAR_MEM="+memory, "PULSAR_GC=-XX:+UseSerialGC", "PULSAR_GC_LOG=-Xlog:disable", "PULSAR_LOG_DIR="+s.path("logs"),
		"PULSAR_LOG_IMMEDIATE_FLUSH=true", "PULSAR_STANDALONE_CONF="+s.path("standalone.conf"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
}

// Restart kills the process, if it runs, starts it on the same data and blocks until it is healthy.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.Launch()
	s.Healthy()
}

// Healthy blocks until the broker has sent a message to itself and received it.
func (s *Server) Healthy() {
	s.t.Helper()
	end := time.Now().Add(healthyWithin)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.health()
		if err == nil {
			return
		}
		select {
		case <-s.done:
			s.t.Fatalf("Pulsar has ended; its log:\n%s", s.tail())
		case <-tick.C:
		}
		if time.Now().After(end) {
			s.t.Fatalf("Pulsar is not healthy after %s: %v", healthyWithin, err)
		}
	}
}

func (s *Server) health() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Admin+"/admin/v2/brokers/health", nil)
	if err != nil {
		return err
	}
	if s.Token != "" {
		req.Header.Set("Authorization", "Bearer "+s.Token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	return nil
}

// Kill ends the process and its group at once (SIGKILL), and waits until it is gone. What has ended already is no error.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	s.signal(syscall.SIGKILL)
	<-s.done
	s.cmd = nil
}

// Stop freezes the process (SIGSTOP): connections stay, and nothing answers, until Cont.
func (s *Server) Stop() { s.signal(syscall.SIGSTOP) }

// Cont lets a process go on that Stop has frozen (SIGCONT).
func (s *Server) Cont() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) { _ = syscall.Kill(-s.cmd.Process.Pid, sig) }

// tail is the end of the log.
func (s *Server) tail() string {
	f, err := os.Open(s.path("log"))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var lines []string
	for in := bufio.NewScanner(f); in.Scan(); {
		if lines = append(lines, in.Text()); len(lines) > 60 {
			lines = lines[1:]
		}
	}
	return strings.Join(lines, "\n")
}
