//go:build unix

package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// PostgresServer is a throw-away server with its own data, reached by a Unix
// socket only and without a password. It goes when the test binary does, however
// that ends.
type PostgresServer struct {
	bin      string    // folder of the server's programs
	dir      string    // data, socket, log
	identity []string  // what to put before a command, so that it does not run as root
	lifeline *os.File  // the server lives as long as we hold this …
	reaper   *exec.Cmd // … for this to end
}

// postgresUser owns the databases of a PostgresServer.
const postgresUser = "proxima"

var shared struct {
	sync.Mutex
	server    *PostgresServer
	err       error
	databases atomic.Int64
}

// Postgres returns the URL of an empty database. All tests of a binary share one
// server, which trades the safety of its disk for speed; the database is dropped
// with the test. Without PostgreSQL on the machine the test is skipped.
func Postgres(t testing.TB) string {
	t.Helper()
	shared.Lock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = newPostgres("fsync=off", "full_page_writes=off", "max_connections=200")
		if shared.err == nil {
			shared.err = shared.server.start()
		}
	}
	server, err := shared.server, shared.err
	shared.Unlock()
	if err != nil {
		missing(t, err)
	}
	name := fmt.Sprintf("test%d", shared.databases.Add(1))
	if out, err := server.run("createdb", name); err != nil {
		t.Fatalf("create database: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := server.run("dropdb", "--force", name); err != nil {
			t.Errorf("drop database: %v\n%s", err, out)
		}
	})
	return server.url(name)
}

// StartPostgres starts a server of its own for one test, with the defaults of
// PostgreSQL, thus as durable as the disk, and settings of the form "name=value".
func StartPostgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	server, err := newPostgres(settings...)
	if err == nil {
		err = server.start()
	}
	if err != nil {
		missing(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(server.dir, "log"))
			t.Logf("--- PostgreSQL:\n%s", log)
		}
		server.end()
	})
	return server
}

// errNoPostgres is the reason for a missing server.
var errNoPostgres = errors.New("no PostgreSQL")

func missing(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, errNoPostgres) {
		t.Skip(err)
	}
	t.Fatal(err)
}

// URL of the server's own database.
func (s *PostgresServer) URL() string { return s.url("postgres") }

func (s *PostgresServer) url(database string) string {
	return "postgres:///" + database + "?" + url.Values{
		"host": {s.dir}, "user": {postgresUser},
		"connect_timeout": {"60"}, // of a machine that is busy with other tests
	}.Encode()
}

// Stop ends the server in a mode of pg_ctl: "fast" ends sessions and writes
// everything out, "immediate" is a crash.
func (s *PostgresServer) Stop(t testing.TB, mode string) {
	t.Helper()
	if out, err := s.run("pg_ctl", "stop", "--wait", "--mode", mode, "--pgdata", s.data()); err != nil {
		t.Fatalf("stop PostgreSQL: %v\n%s", err, out)
	}
}

// Start it again after Stop. Blocks until it serves.
func (s *PostgresServer) Start(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

func (s *PostgresServer) data() string { return filepath.Join(s.dir, "data") }

// newPostgres makes the data of a server, and its lifeline.
func newPostgres(settings ...string) (*PostgresServer, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{bin: bin}
	// Not the test's folder: that of the first test would go before the last test
	// runs, and the path of a socket may have 107 bytes only.
	if s.dir, err = os.MkdirTemp("/tmp", "proxima-pg-"); err != nil {
		return nil, err
	}
	if err := s.prepare(settings); err != nil {
		_ = os.RemoveAll(s.dir)
		return nil, err
	}
	return s, nil
}

func (s *PostgresServer) prepare(settings []string) error {
	if os.Geteuid() == 0 { // the server refuses to run as root
		owner, err := unprivileged()
		if err != nil {
			return err
		}
		if err := os.Chown(s.dir, owner.uid, owner.gid); err != nil {
			return err
		}
		setpriv, err := exec.LookPath("setpriv")
		if err != nil {
			return fmt.Errorf("%w: it does not run as root, and setpriv (util-linux) is not there to change that", errNoPostgres)
		}
		s.identity = []string{setpriv, "--reuid", strconv.Itoa(owner.uid), "--regid", strconv.Itoa(owner.gid), "--clear-groups", "--"}
	}
	if out, err := s.run("initdb", "--pgdata", s.data(), "--username", postgresUser, "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync"); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	// Added to the end of the file, where they win.
	var config bytes.Buffer
	for _, setting := range append([]string{"listen_addresses=", "unix_socket_directories=" + s.dir}, settings...) {
		name, value, _ := strings.Cut(setting, "=")
		fmt.Fprintf(&config, "%s = '%s'\n", name, value)
	}
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err := f.Write(config.Bytes()); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return s.watch()
}

// reaper ends the server and deletes its data when its standard input ends,
// which is when the test binary is gone, even if it was killed.
const reaper = `trap '' INT TERM HUP
cat >/dev/null
[ ! -s "$1/data/postmaster.pid" ] || "$2/pg_ctl" stop --wait --mode immediate --pgdata "$1/data" >/dev/null 2>&1
rm -rf "$1"`

func (s *PostgresServer) watch() error {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := s.command("/bin/sh", "-c", reaper, "reaper", s.dir, s.bin)
	cmd.Stdin = theirs
	cmd.SysProcAttr = apart()
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = ours.Close()
		return fmt.Errorf("start the watch over PostgreSQL: %w", err)
	}
	s.lifeline, s.reaper = ours, cmd
	return nil
}

// end stops the server and waits until nothing of it is left.
func (s *PostgresServer) end() {
	_ = s.lifeline.Close()
	_ = s.reaper.Wait()
}

func (s *PostgresServer) start() error {
	out, err := s.run("pg_ctl", "start", "--wait", "--timeout", strconv.Itoa(int(Timeout.Seconds())),
		"--pgdata", s.data(), "--log", filepath.Join(s.dir, "log"))
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		return fmt.Errorf("start PostgreSQL: %w\n%s\n%s", err, out, log)
	}
	return nil
}

// command runs as the server's user, free of settings that point elsewhere.
func (s *PostgresServer) command(path string, args ...string) *exec.Cmd {
	argv := slices.Concat(s.identity, []string{path}, args)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "PGHOST="+s.dir, "PGUSER="+postgresUser, "LC_ALL=C")
	return cmd
}

// run one of PostgreSQL's programs. Its output goes to a file: pg_ctl leaves the
// server behind with our end of a pipe, and we would wait for it.
func (s *PostgresServer) run(program string, args ...string) (string, error) {
	out, err := os.CreateTemp("", "proxima-pg-out-")
	if err != nil {
		return "", err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := s.command(filepath.Join(s.bin, program), args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = apart()
	err = cmd.Run()
	text, _ := os.ReadFile(out.Name())
	return string(text), err
}

// postgresPrograms finds the folder that has the server's programs: the newest
// of Debian's, or that of the PATH. Where there is none and we may, Debian's
// package is installed.
func postgresPrograms() (string, error) {
	if bin := findPostgres(); bin != "" {
		return bin, nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return "", fmt.Errorf("%w: its programs are neither in /usr/lib/postgresql nor on the PATH", errNoPostgres)
	}
	if out, err := installPostgres(apt); err != nil {
		return "", fmt.Errorf("%w: installing it: %w\n%s", errNoPostgres, err, out)
	}
	if bin := findPostgres(); bin != "" {
		return bin, nil
	}
	return "", fmt.Errorf("%w: the package has no server", errNoPostgres)
}

func findPostgres() string {
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(folders, func(a, b string) int { return majorVersion(b) - majorVersion(a) })
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, "postgres")); err == nil {
			return folder
		}
	}
	return ""
}

func majorVersion(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return n
}

// installPostgres makes sure that the package starts no server by itself.
func installPostgres(apt string) ([]byte, error) {
	const config = "/etc/postgresql-common/createcluster.conf"
	if _, err := os.Stat(config); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(config, []byte("create_main_cluster = false\n"), 0o644); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(apt, "install", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", "postgresql")
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	return cmd.CombinedOutput()
}

type account struct{ uid, gid int }

// apart keeps a terminal's signals away from a server, which would take an
// interrupt as the wish to end.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// unprivileged is an account that is not root and owns little.
func unprivileged() (account, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil {
			return account{uid, gid}, nil
		}
	}
	return account{}, fmt.Errorf("%w: it does not run as root, and there is neither a user postgres nor nobody", errNoPostgres)
}

// LaunchPostgres is StartPostgres for programs that are no test. Call end when
// the server is not needed any more; it goes with the process at the latest.
func LaunchPostgres(settings ...string) (url string, end func(), err error) {
	server, err := newPostgres(settings...)
	if err != nil {
		return "", nil, err
	}
	if err := server.start(); err != nil {
		server.end()
		return "", nil, err
	}
	return server.URL(), server.end, nil
}
