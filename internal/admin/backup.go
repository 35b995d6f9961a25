package admin

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/proxima-mesh/proxima/internal/store/backup"
	"github.com/proxima-mesh/proxima/internal/version"
)

// Paths that answer a backup of the store to GET, while everything goes on. Only
// admins get here.
const (
	BackupPath = "/proxima/v1/backup"
	// BackupKeysPath: the keys of the authority and of secrets are in it too.
	BackupKeysPath = "/proxima/v1/backup/with-keys"
)

// LongPaths are those whose answers may take longer than requests otherwise may.
func LongPaths() []string {
	return []string{BackupPath, BackupKeysPath, FeedOffloadPath, FeedVerifyPath, FeedRedactionsPath, StreamPath}
}

type backupHandler struct {
	Config
	withKeys bool
}

// ServeHTTP implements http.Handler.
func (h backupHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	opts := backup.WriteOptions{Program: "proxima " + version.Get().Version}
	if h.withKeys {
		var err error
		if opts.Files, err = keyFiles(h.DataDir); err != nil {
			h.Logger.Error("backup", "error", err)
			http.Error(w, "the keys cannot be read; see the control plane's log", http.StatusInternalServerError)
			return
		}
	}
	audit.AddAuditAnnotation(r.Context(), "mesh.proxima.dev/keys", strconv.FormatBool(h.withKeys))
	user := ""
	if u, ok := request.UserFrom(r.Context()); ok {
		user = u.GetName()
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	summary, err := backup.Write(r.Context(), w, h.Store, opts)
	if err != nil {
		// The client notices by the checksum that is missing at the end.
		h.Logger.Error("backup not finished", "user", user, "error", err)
		return
	}
	h.Logger.Info("backup made", "user", user, "revision", summary.Revision, "records", summary.Records, "keys", h.withKeys)
}

// keyFiles are all files in the directory of keys, except those half written.
func keyFiles(dataDir string) ([]backup.File, error) {
	var files []backup.File
	err := filepath.WalkDir(filepath.Join(dataDir, "pki"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			return err
		}
		name, err := filepath.Rel(dataDir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		files = append(files, backup.File{Name: filepath.ToSlash(name), Data: data})
		return err
	})
	return files, err
}
