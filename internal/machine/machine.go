// Package machine identifies the machine that a process runs on.
//
// Two processes have the same ID exactly when they share a loopback interface:
// the same host, and on Linux the same network namespace. Agents use it to find
// out on which machine an endpoint's loopback address is, and to detect one node
// name in use on two machines. Enter at ID. The package never contacts another
// machine, and an ID does not reveal the host's own machine ID.
package machine

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

// application is the key of the HMAC, so that the ID of this application can't be
// compared with those of others (as machine-id(5) requires).
const application = "proxima-mesh/proxima machine identity v1"

// idBytes of the HMAC are kept: 16, as in machine-id(5).
const idBytes = 16

// ID of this machine: 32 lower-case hexadecimal digits. It is the same after a
// restart of the process. It is the same after a reboot, too, except in a network
// namespace other than the host's first, which a reboot ends. The first call
// reads a few files, and writes one where the operating system has no machine ID;
// later calls return the same result. Safe for concurrent use.
var ID = sync.OnceValues(func() (string, error) {
	host, err := hostID()
	if err == nil && host == "" {
		path := stateFile()
		if path == "" {
			return "", errors.New("machine identity: this machine has none (/etc/machine-id), and this user no home directory for one: set HOME or XDG_STATE_HOME")
		}
		host, err = generated(path)
	}
	if err != nil {
		return "", fmt.Errorf("machine identity: %w", err)
	}
	namespace, err := networkNamespace()
	if err != nil {
		return "", fmt.Errorf("machine identity: network namespace: %w", err)
	}
	return derive(host, namespace), nil
})

func derive(host, namespace string) string {
	mac := hmac.New(sha256.New, []byte(application))
	mac.Write([]byte(host + "\x00" + namespace))
	return hex.EncodeToString(mac.Sum(nil)[:idBytes])
}

// readID reads a file that holds an ID alone. It returns "" if there is none, or
// if the file is empty or "uninitialized", as on an image before its first boot
// (machine-id(5)).
func readID(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	id := strings.TrimSpace(string(data))
	if id == "uninitialized" {
		id = ""
	}
	return id, err
}

// stateFile is where a generated ID is kept; empty: this user has no directory for it.
func stateFile() string {
	dir := os.Getenv("XDG_STATE_HOME")
	switch {
	case os.Geteuid() == 0:
		dir = "/var/lib"
	case dir == "":
		home, err := os.UserHomeDir()
		if err != nil { // what others can write to is no place for it
			return ""
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "proxima", "machine-id")
}

// generated reads the ID in a file, and makes one if there is none. Processes
// that start at the same time agree on one.
func generated(path string) (string, error) {
	if id, err := readID(path); err != nil || id != "" {
		return id, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	var id [idBytes]byte
	_, _ = rand.Read(id[:]) // never fails
	err := atomicfile.Create(path, fmt.Appendf(nil, "%x\n", id), 0o600)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return readID(path)
}
