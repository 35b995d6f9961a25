package cli

import (
	"bytes"
	"context"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/blob"
)

const secretWord = "correct-horse-battery-staple"

// keeper keeps the state of one control plane after another safe, in a folder of
// its own.
type keeper struct {
	*testing.T
	doc string
	dir string // of the control plane that runs
	end func()
}

// start a control plane on a data directory.
func (k *keeper) start(dir string) *kubernetes.Clientset {
	k.Helper()
	ctx, cancel := context.WithCancel(k.Context())
	ready, done := make(chan app.Serving, 1), make(chan error, 1)
	go func() {
		done <- app.RunControlPlane(ctx, app.ControlPlaneConfig{
			Store: "sqlite:", DataDir: dir, APIAddress: "127.0.0.1:0",
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		}, func(s app.Serving) { ready <- s })
	}()
	k.end = func() {
		k.Helper()
		k.end = func() {}
		cancel()
		if err := <-done; err != nil {
			k.Errorf("control plane: %v", err)
		}
	}
	k.Cleanup(func() { k.end() })
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		k.Fatalf("the control plane ended: %v", err)
	}
	k.dir = dir
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		k.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(cfg)
}

// proxima runs a command and returns its two outputs as one.
func (k *keeper) proxima(want int, args ...string) string {
	k.Helper()
	var out bytes.Buffer
	env := func(name string) (string, bool) {
		if name == "PROXIMA_KUBECONFIG" {
			return filepath.Join(k.dir, "kubeconfig"), true
		}
		return "", false
	}
	s := &settings{io: IO{In: strings.NewReader(""), Out: &out, Err: &out, Env: env}}
	if code := execute(k.Context(), s, args); code != want {
		k.Fatalf("proxima %s: exit code %d, want %d\n%s", strings.Join(args, " "), code, want, &out)
	}
	return out.String()
}

// block runs the commands that the guide has under a mark.
func (k *keeper) block(mark string) (out string) {
	k.Helper()
	_, after, ok := strings.Cut(k.doc, "<!-- test: "+mark+" -->\n```\n")
	if !ok {
		k.Fatalf("the guide has no block %q", mark)
	}
	body, _, _ := strings.Cut(after, "```")
	for line := range strings.Lines(body) {
		words := strings.Fields(line)
		if words[0] == "proxima" {
			out += k.proxima(0, words[1:]...)
		} else if text, err := exec.CommandContext(k.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
			k.Fatalf("%s: %v: %s", line, err, text)
		}
	}
	return out
}

// nowhere fails if a file of the folder shows the secret.
func (k *keeper) nowhere(dir string) {
	k.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte("visible-word")) {
			seen++
		}
		if bytes.Contains(data, []byte(secretWord)) {
			k.Errorf("%s shows the secret", path)
		}
		return err
	})
	if err != nil || seen == 0 {
		k.Errorf("no file shows what is no secret, so this looks in the wrong place: %v", err)
	}
}

func (k *keeper) contains(text string, parts ...string) {
	k.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			k.Errorf("it does not say %q:\n%s", part, text)
		}
	}
}

// TestBackupGuide does what docs/how-to/backup.md says.
func TestBackupGuide(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the guide copies with cp")
	}
	quietKlog()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "how-to", "backup.md"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	k := &keeper{T: t, doc: string(doc), end: func() {}}
	client := k.start("data")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{"password": secretWord}}
	if _, err := client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	plain := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "visible-word"}}
	made, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), plain, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k.nowhere("data")
	metrics, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Error(err)
	}
	k.contains(string(metrics), `proxima_store_operation_seconds_bucket{operation="commit"`, "apiserver_request_total")
	k.contains(k.block("rotate"), "1 records are encrypted", "old        0")
	k.nowhere("data")
	k.contains(k.block("backup"), "checked", "The file contains no keys")
	k.contains(k.proxima(1, "backup", "monday.backup"), "exists already")
	k.block("keys")
	k.contains(k.block("with-keys"), "WARNING: the file contains 3 key files")

	// What comes after the backup is lost, and its resource versions never come again.
	late, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k.contains(k.proxima(1, "restore", "monday.backup", "--data-dir", "data"), "is open already", "stopped")
	k.end()
	k.contains(k.proxima(1, "restore", "monday.backup", "--data-dir", "data"), "a state already", "--force")
	k.contains(k.block("restore"), "WARNING: secrets are encrypted with keys", "WARNING: the folder pki/ca", "secrets.keys")
	k.contains(k.proxima(0, "restore", "monday.backup", "--data-dir", "data", "--force"), "kept what was there")

	t.Run("without keys", func(t *testing.T) {
		k := &keeper{T: t, end: func() {}}
		k.proxima(0, "restore", "monday.backup", "--data-dir", "no-keys")
		checkWithoutKeys(k, k.start("no-keys"))
		k.end()
	})
	t.Run("keys lost for good", func(t *testing.T) {
		k := &keeper{T: t, end: func() {}}
		k.proxima(0, "restore", "monday.backup", "--data-dir", "lost")
		checkDiscard(k, k.start("lost"))
		k.end()
	})
	for _, dir := range []string{"restored", "restored-with-keys", "data"} {
		t.Run(dir, func(t *testing.T) {
			k := &keeper{T: t, end: func() {}}
			checkRestored(t, k.start(dir), made.ResourceVersion, late.ResourceVersion)
			k.nowhere(dir)
			k.end()
		})
	}
}

// TestBackupEvery: backups are repeated until the command is stopped, which is no failure; those older than --keep are deleted, but
// for the newest.
func TestBackupEvery(t *testing.T) {
	quietKlog()
	t.Chdir(t.TempDir())
	k := &keeper{T: t, end: func() {}}
	client := k.start("data")
	target, err := blob.Open("backups")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	made, deleted := 0, 0
	report := writerFunc(func(p []byte) (int, error) {
		deleted += strings.Count(string(p), " backups older than 1ms are deleted\n")
		if !strings.Contains(string(p), ", checked\n") {
			return len(p), nil
		}
		if made++; made == 3 {
			cancel()
		}
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
		return len(p), err
	})
	env := func(name string) (string, bool) {
		return filepath.Join("data", "kubeconfig"), name == "PROXIMA_KUBECONFIG"
	}
	s := &settings{io: IO{In: strings.NewReader(""), Out: report, Err: report, Env: env}}
	// The command line takes no interval below a minute.
	if err := (&backups{settings: s, to: "backups", every: 20 * time.Millisecond, keep: time.Millisecond}).repeat(ctx, target); err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join("backups", "backups", "*.backup"))
	if err != nil || made != 3 || deleted == 0 || len(left) == 0 || len(left) > 2 { // the last one may have been stopped before it deleted the second
		t.Errorf("%d were made, %d times some were deleted, %v are left, %v", made, deleted, left, err)
	}
	k.contains(k.proxima(0, "restore", "--from", "backups", "--data-dir", "restored"), "restored")
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// checkWithoutKeys: all but the secret works, until the file is put back.
func checkWithoutKeys(k *keeper, client *kubernetes.Clientset) {
	k.Helper()
	ctx, secrets := k.Context(), client.CoreV1().Secrets("default")
	if _, err := client.CoreV1().ConfigMaps("default").Get(ctx, "c", metav1.GetOptions{}); err != nil {
		k.Error(err)
	}
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	for what, try := range map[string]func() error{
		"get":    func() error { _, err := secrets.Get(ctx, "db", metav1.GetOptions{}); return err },
		"list":   func() error { _, err := secrets.List(ctx, metav1.ListOptions{}); return err },
		"create": func() error { _, err := secrets.Create(ctx, other, metav1.CreateOptions{}); return err },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), "secrets.keys") {
			k.Errorf("%s without keys: %v", what, err)
		}
	}
	k.contains(k.proxima(0, "secrets", "status"), "MISSING")
	k.contains(k.proxima(1, "secrets", "rotate"), "put it back")
	keys, err := os.ReadFile(filepath.Join("safe-place", "secrets.keys"))
	if err == nil {
		err = os.WriteFile(filepath.Join(k.dir, "pki", "secrets.keys"), keys, 0o600)
	}
	if err != nil {
		k.Fatal(err)
	}
	if got, err := secrets.Get(ctx, "db", metav1.GetOptions{}); err != nil || string(got.Data["password"]) != secretWord {
		k.Errorf("with the file put back: %v, %v", got, err)
	}
	if _, err := secrets.Create(ctx, other, metav1.CreateOptions{}); err != nil {
		k.Errorf("with the file put back: %v", err)
	}
	k.contains(k.proxima(0, "secrets", "rotate"), "2 records are encrypted")
}

// checkDiscard: a secret that cannot be decrypted is in the way until it is
// discarded; one that can be decrypted is not discarded.
func checkDiscard(k *keeper, client *kubernetes.Clientset) {
	k.Helper()
	ctx, secrets := k.Context(), client.CoreV1().Secrets("default")
	if err := secrets.Delete(ctx, "db", metav1.DeleteOptions{}); err == nil {
		k.Error("deleted though it cannot be read: is discard still needed?")
	}
	k.contains(k.proxima(0, "secrets", "status"), "MISSING", "secrets/default/db")
	k.contains(k.proxima(2, "secrets", "discard", "secret", "db"), "add --force")
	k.contains(k.proxima(1, "secrets", "discard", "secret", "other", "--force"), "there is no such object")
	k.contains(k.proxima(1, "secrets", "discard", "configmap", "c", "--force"), `no "configmaps" are encrypted`)
	k.contains(k.proxima(0, "secrets", "discard", "secret", "db", "--force"), "secret/db discarded")
	if list, err := secrets.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		k.Errorf("secrets: %v %v", err, list)
	}
	keys, err := os.ReadFile(filepath.Join("safe-place", "secrets.keys"))
	if err == nil {
		err = os.WriteFile(filepath.Join(k.dir, "pki", "secrets.keys"), keys, 0o600)
	}
	if err != nil {
		k.Fatal(err)
	}
	if _, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}}, metav1.CreateOptions{}); err != nil {
		k.Fatal(err)
	}
	k.contains(k.proxima(1, "secrets", "discard", "secret", "db", "--force"), "it can be decrypted")
}

// checkRestored looks at a restored control plane with the eyes of a client that was
// there before.
func checkRestored(t *testing.T, client *kubernetes.Clientset, made, late string) {
	t.Helper()
	got, err := client.CoreV1().Secrets("default").Get(t.Context(), "db", metav1.GetOptions{})
	if err != nil || string(got.Data["password"]) != secretWord {
		t.Errorf("the secret is %v, %v", got, err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "late", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what came after the backup: %v", err)
	}
	kept, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil || kept.ResourceVersion != made {
		t.Errorf("the ConfigMap is %v, %v", kept, err)
	}
	for _, since := range []string{made, late} {
		watches := map[string]func() (apiwatch.Interface, error){
			"cached": func() (apiwatch.Interface, error) {
				return client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: since})
			},
			"not cached": func() (apiwatch.Interface, error) {
				return client.CoreV1().Secrets("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: since})
			},
		}
		for name, open := range watches {
			w, err := open()
			if err == nil {
				event := <-w.ResultChan()
				err = apierrors.FromObject(event.Object)
				w.Stop()
			}
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("watch, %s, from %s: %v, want 410", name, since, err)
			}
		}
	}
	again, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "again"}}, metav1.CreateOptions{})
	if err != nil || len(again.ResourceVersion) != len("1795238896000000") {
		t.Errorf("a new object is %v, %v", again, err)
	}
}
