// Command release builds what is given to users: images, packages, and whole releases. The
// Makefile calls it.
//
//	release -root DIR -version VERSION image|packages|all|check
//
// It is a module of its own, so that the product does not link its libraries.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/proxima-mesh/proxima/internal/release"
	"github.com/proxima-mesh/proxima/internal/secretfile"
	"github.com/proxima-mesh/proxima/tools/release/build"
	"github.com/proxima-mesh/proxima/tools/release/dist"
)

// options of the command line.
type options struct {
	root, version, out, image, builder, keyFile string
	cold                                        bool
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", "../..", "root of the repository")
	flag.StringVar(&o.version, "version", "", "version to build, as in v1.2.3")
	flag.StringVar(&o.out, "out", "", "folder to write to (default: dist in the root)")
	flag.StringVar(&o.image, "image", "ghcr.io/proxima-mesh/proxima", "name of the image, without a tag")
	flag.StringVar(&o.builder, "builder", "https://github.com/proxima-mesh/proxima/tools/release", "URI of who vouches for the release")
	flag.StringVar(&o.keyFile, "signing-key", "", "file with a private key (PEM: Ed25519, or ECDSA P-256 or P-384) that signs the statements")
	flag.BoolVar(&o.cold, "cold", false, "of check: compile the second build from scratch (20 minutes)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// maxKey is more than any private key takes, in bytes.
const maxKey = 64 << 10

func (o options) run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("one of image, packages, all and check is needed")
	}
	var key *release.Key
	if o.keyFile != "" {
		data, err := secretfile.Read(o.keyFile, secretfile.Rule{
			Readers: secretfile.OwnerOnly, Max: maxKey, Advice: "chmod 600 it, and sign with another key if they may have read it", Kind: "it is no private key",
		})
		if err == nil {
			key, err = release.ParseKey(data)
		}
		if err != nil {
			return fmt.Errorf("-signing-key %s: %w", o.keyFile, err)
		}
	}
	if args[0] == "check" {
		return o.check(ctx, key)
	}
	source, err := build.Read(ctx, o.root, o.version)
	if err != nil {
		return err
	}
	out := o.out
	if out == "" {
		out = filepath.Join(source.Root, "dist")
	}
	return o.make(ctx, args[0], source, out, key)
}

// make one of the targets.
func (o options) make(ctx context.Context, target string, source build.Source, out string, key *release.Key) error {
	work, err := os.MkdirTemp("", "proxima-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r := &dist.Release{Source: source, Work: work, ImageName: o.image, Builder: o.builder, Key: key, Log: os.Stderr}
	if source.Changed {
		fmt.Fprintln(os.Stderr, "the tree differs from its commit: nobody else can build these bytes")
	}
	switch target {
	case "image":
		out = filepath.Join(out, "image")
		err = errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755))
		if err == nil {
			err = r.Images(ctx, filepath.Join(out, "layout"), out)
		}
		if err == nil {
			err = r.Components(ctx, out, build.Servers())
		}
	case "packages":
		out = filepath.Join(out, "packages")
		err = errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755))
		if err == nil {
			err = r.Packages(ctx, out)
		}
	case "all":
		err = r.All(ctx, out)
	default:
		return fmt.Errorf("%q: one of image, packages, all and check is needed", target)
	}
	if err == nil {
		fmt.Println(out)
	}
	return err
}
