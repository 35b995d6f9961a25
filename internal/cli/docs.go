package cli

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	proxima "github.com/proxima-mesh/proxima"
	"github.com/proxima-mesh/proxima/internal/docs"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/version"
)

// docsFlags of "proxima docs".
type docsFlags struct {
	address, export string
	search          bool
	markdown        bool
	noBrowser       bool
}

// docsTimeout of the header of a request.
const docsTimeout = 10 * time.Second

// newDocs shows the documentation of this version.
func newDocs(s *settings) *cobra.Command {
	var f docsFlags
	cmd := &cobra.Command{
		Use:     "docs [PAGE | WORD…]",
		GroupID: "operate",
		Short:   "Read the documentation of this version, without a network",
		Long: `Docs serves the documentation of this version to a browser on this machine, and
opens it. It needs no network and no control plane. PAGE is a page such as
how-to/backup, or its last part alone.

With --search it lists the pages that answer a question, with --markdown it prints
a page, and with --export it writes the whole site, below a folder named like the
version, for any web server.`,
		Example: `  proxima docs
  proxima docs how-to/zones
  proxima docs --search why does traffic leave its zone
  proxima docs --markdown traffic-costs | less
  proxima docs --export /srv/www/proxima`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.search {
				return cobra.MinimumNArgs(1)(cmd, args)
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return s.showDocs(cmd.Context(), f, args) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			site, err := newSite()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			var out []string
			for _, p := range site.Pages {
				out = append(out, p.Path+"\t"+p.Title)
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.address, "address", "127.0.0.1:0", "address to serve at; port 0: any free one")
	_ = flags.SetAnnotation("address", commandLineOnly, nil) // run has another one; the flag is there
	flags.StringVar(&f.export, "export", "", "write the site into this directory instead, below a folder named like the version")
	flags.BoolVar(&f.search, "search", false, "list the pages that answer a question")
	flags.BoolVar(&f.markdown, "markdown", false, "print the page as it was written")
	flags.BoolVar(&f.noBrowser, "no-browser", false, "open no browser")
	return cmd
}

func newSite() (*docs.Site, error) {
	return docs.New(proxima.Documentation, "v"+strings.TrimPrefix(version.Get().Version, "v"))
}

// maxFound pages are listed.
const maxFound = 8

func (s *settings) showDocs(ctx context.Context, f docsFlags, args []string) error {
	if f.search && f.markdown || f.export != "" && (f.search || f.markdown || len(args) > 0) {
		return usagef("--search, --markdown and --export: give one of them; --export takes no page")
	}
	site, err := newSite()
	if err != nil {
		return err
	}
	switch {
	case f.search:
		return s.printFound(site, strings.Join(args, " "))
	case f.export != "":
		to, err := site.Export(f.export)
		if err == nil {
			fmt.Fprintf(s.io.Out, "%d pages are in %s; begin with index.html\n", len(site.Pages), to)
		}
		return err
	}
	page, _ := site.Page(docs.Home)
	if len(args) > 0 {
		var ok bool
		if page, ok = site.Page(args[0]); !ok {
			return unknownPage(site, args[0])
		}
	}
	if f.markdown {
		_, err := s.io.Out.Write(page.Markdown())
		return err
	}
	return s.serveDocs(ctx, site, page, f)
}

func (s *settings) printFound(site *docs.Site, question string) error {
	found := site.Search(question, maxFound)
	if len(found) == 0 {
		return &problem.Error{Code: problem.Usage, Err: fmt.Errorf("no page has the words %q", question), Hint: "use other words, or see all pages with \"proxima docs\""}
	}
	for _, p := range found {
		fmt.Fprintf(s.io.Out, "%s\n  %s\n", p.Path, p.Title)
	}
	return nil
}

func unknownPage(site *docs.Site, name string) error {
	hint := "see all pages with \"proxima docs\""
	if found := site.Search(strings.NewReplacer("/", " ", "-", " ").Replace(name), 3); len(found) > 0 {
		var names []string
		for _, p := range found {
			names = append(names, p.Path)
		}
		hint = "did you mean " + strings.Join(names, " or ") + "?"
	}
	return &problem.Error{Code: problem.Usage, Err: fmt.Errorf("there is no page %q", name), Hint: hint}
}

// serveDocs until ctx ends.
func (s *settings) serveDocs(ctx context.Context, site *docs.Site, page *docs.Page, f docsFlags) error {
	handler, err := site.Handler()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.address)
	if err != nil {
		return &problem.Error{Code: problem.ListenFailed, Err: fmt.Errorf("--address %s: %w", f.address, err), Hint: "choose another port, or 0 for any"}
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: docsTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // readers come again
	defer stop()
	url := fmt.Sprintf("http://%s/%s.html", listener.Addr(), page.Path)
	fmt.Fprintf(s.io.Out, "the documentation is at %s; Ctrl-C ends it\n", url)
	if command := browserCommand(); command != nil && !f.noBrowser {
		cmd := exec.CommandContext(ctx, command[0], append(command[1:], url)...)
		if err := cmd.Start(); err == nil {
			go func() { _ = cmd.Wait() }() // what the browser says is not ours
		}
	}
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}
