package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/proxima-mesh/proxima/internal/release"
)

// check builds the commit that is checked out twice, in two folders and under different
// circumstances, and compares all files.
func (o options) check(ctx context.Context, key *release.Key) error {
	work, err := os.MkdirTemp("", "proxima-release-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	caches, err := output(ctx, "go", "env", "GOCACHE", "GOMODCACHE")
	if err != nil {
		return err
	}
	cache, modules, _ := strings.Cut(caches, "\n")
	if o.cold {
		cache = filepath.Join(work, "cache")
	}
	first, second := filepath.Join(work, "a"), filepath.Join(work, "another", "folder")
	if err := o.clone(ctx, o.root, first, nil, 0o022); err != nil {
		return err
	}
	circumstances := []string{
		"HOME=" + work, "GOCACHE=" + cache, "GOMODCACHE=" + modules, "TZ=Pacific/Kiritimati", "LC_ALL=C", "GOMAXPROCS=1",
		// They are set as a release needs them.
		"GOFLAGS=", "CGO_ENABLED=1",
	}
	// Of the clone, so that both are of one commit, whatever is committed meanwhile.
	if err := o.clone(ctx, first, second, circumstances, 0o077); err != nil {
		return err
	}
	if err := same(filepath.Join(first, "dist"), filepath.Join(second, "dist")); err != nil {
		return err
	}
	return verify(filepath.Join(second, "dist"), key)
}

// clone a repository to a folder, as it is checked out, and build a release there by this
// program.
func (o options) clone(ctx context.Context, from, dir string, environment []string, umask int) error {
	defer syscall.Umask(syscall.Umask(umask))
	from, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	if _, err := output(ctx, "git", "clone", "--quiet", "--no-local", from, dir); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"-root", dir, "-version", o.version, "-image", o.image, "-builder", o.builder}
	if o.keyFile != "" {
		args = append(args, "-signing-key", o.keyFile)
	}
	cmd := exec.CommandContext(ctx, self, append(args, "all")...)
	cmd.Env, cmd.Stderr = append(os.Environ(), environment...), os.Stderr
	return cmd.Run()
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// same compares the files of two folders.
func same(a, b string) error {
	names, err := list(a)
	if err != nil {
		return err
	}
	others, err := list(b)
	if err != nil {
		return err
	}
	if !slices.Equal(names, others) {
		return fmt.Errorf("two builds have different files:\n%s\n%s", strings.Join(names, " "), strings.Join(others, " "))
	}
	var errs []error
	for _, name := range names {
		one, err := os.ReadFile(filepath.Join(a, name))
		if err != nil {
			return err
		}
		other, err := os.ReadFile(filepath.Join(b, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(one, other) {
			errs = append(errs, fmt.Errorf("%s: two builds of it differ", name))
		}
	}
	if len(errs) == 0 {
		fmt.Printf("two builds of %d files are equal\n", len(names))
	}
	return errors.Join(errs...)
}

func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// verify as users do.
func verify(dir string, key *release.Key) error {
	report, err := release.Verify(dir, key.Public())
	if err != nil {
		return err
	}
	return report.Err()
}
