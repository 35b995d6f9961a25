package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// completionTime bounds the request to the API, as the user waits for the
// completion.
const completionTime = time.Second

func newCompletion(s *settings) *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:     "completion " + strings.Join(shells, "|"),
		GroupID: "operate",
		Short:   "Print a script that completes commands, flags and names of objects",
		Example: `  # bash, with the package bash-completion: this session, or all to come
  source <(proxima completion bash)
  proxima completion bash > /etc/bash_completion.d/proxima
  # zsh, after compinit
  proxima completion zsh > "${fpath[1]}/_proxima"
  # fish
  proxima completion fish > ~/.config/fish/completions/proxima.fish
  # PowerShell
  proxima completion powershell | Out-String | Invoke-Expression`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(s.io.Out, true)
			case "zsh":
				return root.GenZshCompletion(s.io.Out)
			case "fish":
				return root.GenFishCompletion(s.io.Out, true)
			}
			return root.GenPowerShellCompletionWithDesc(s.io.Out)
		},
	}
}

// isCompletion reports whether cmd is a hidden command that the scripts call.
func isCompletion(cmd *cobra.Command) bool {
	return cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd
}

// completeFlags says for every flag of every command how its value is completed:
// a few from the API, others from a list, the rest not by file names either.
func (s *settings) completeFlags(root *cobra.Command) {
	fixed := func(values ...string) cobra.CompletionFunc {
		return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	}
	files := func(extensions ...string) cobra.CompletionFunc {
		return cobra.FixedCompletions(extensions, cobra.ShellCompDirectiveFilterFileExt)
	}
	byName := map[string]cobra.CompletionFunc{
		"output":     fixed(formats...),
		"namespace":  s.live(namesOf(kind.Namespace)),
		"node-name":  s.live(namesOf(kind.Node)),
		"dry-run":    fixed("none", "server"),
		"kind":       fixed("admin", "read-only", "node", "zone"),
		"log-format": fixed("text", "json"),
		"log-level":  fixed("debug", "info", "warn", "error"),
		"mode":       fixed(modes.Names()...),
		"role":       fixed("standalone"),
		"store":      cobra.FixedCompletions([]cobra.Completion{"memory", "sqlite:", "postgres://", "etcd://"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
		"filename":   files("yaml", "yml", "json"),
		"config":     files("yaml", "yml"),
		"kubeconfig": cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		"token-file": cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		"data-dir":   cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		"dir":        cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
	}
	eachCommand(root, func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			complete := byName[f.Name]
			if complete == nil {
				complete = cobra.NoFileCompletions
			}
			// It fails only for a flag that does not exist, or is registered already.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
		})
		if cmd.ValidArgsFunction == nil && cmd.ValidArgs == nil && cmd.Name() != "run" {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
	})
}

// eachCommand of a tree, from the root down.
func eachCommand(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		eachCommand(sub, visit)
	}
}

// completeTarget completes KIND and then up to so many names; -1: any number.
func (s *settings) completeTarget(names int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		// KIND/NA…, and KIND,KI…
		if kindWord, _, joined := strings.Cut(word, "/"); joined {
			return s.completeJoined(cmd, args, kindWord, word)
		}
		if len(args) == 0 {
			before := word[:strings.LastIndexByte(word, ',')+1]
			var words []string
			for _, name := range kindNames() {
				words = append(words, before+name)
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		}
		d, err := findKind(args[0])
		if err != nil || (names >= 0 && len(args) > names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, directive := s.live(namesOf(d))(cmd, args, word)
		return slices.DeleteFunc(found, func(name string) bool { return slices.Contains(args[1:], name) }), directive
	}
}

// completeJoined completes the name in KIND/NAME.
func (s *settings) completeJoined(cmd *cobra.Command, args []string, kindWord, word string) ([]string, cobra.ShellCompDirective) {
	d, err := findKind(kindWord)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return s.live(func(ctx context.Context, c *connection) ([]string, error) {
		names, err := namesOf(d)(ctx, c)
		for i := range names {
			names[i] = kindWord + "/" + names[i]
		}
		return names, err
	})(cmd, args, word)
}

// live completes from what the API answers in time. It ignores errors: they
// cannot be shown in the middle of a command line.
func (s *settings) live(fetch func(ctx context.Context, c *connection) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		found := func() []string {
			if err := s.load(cmd); err != nil {
				return nil
			}
			namespace, _ := cmd.Flags().GetString("namespace")
			c, err := s.connect(namespace)
			if err != nil {
				return nil
			}
			c.cfg.Timeout, c.cfg.WarningHandler = completionTime, rest.NoWarnings{}
			ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
			defer cancel()
			found, err := fetch(ctx, c)
			if err != nil {
				return nil
			}
			return found
		}()
		found = slices.DeleteFunc(found, func(name string) bool { return !strings.HasPrefix(name, word) })
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// namesOf the objects of a kind, in the namespace in use.
func namesOf(d *resource.Descriptor) func(context.Context, *connection) ([]string, error) {
	return func(ctx context.Context, c *connection) ([]string, error) {
		req, err := c.request(http.MethodGet, d, c.namespace)
		if err != nil {
			return nil, err
		}
		// More than is useful as a completion.
		req.Param("limit", "500").SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
		body, err := perform(ctx, req)
		if err != nil {
			return nil, err
		}
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, err
		}
		var names []string
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return names, nil
	}
}

// tokenIDs are those that can still be revoked, each with whom it is for.
func tokenIDs(ctx context.Context, c *connection) ([]string, error) {
	var list access.TokenList
	if err := callJSON(ctx, c.cfg, http.MethodGet, access.TokensPath, nil, &list); err != nil {
		return nil, err
	}
	var ids []string
	for _, t := range list.Items {
		if t.Revoked.IsZero() {
			ids = append(ids, cobra.CompletionWithDesc(t.ID, string(t.Kind)+" "+t.Name))
		}
	}
	return ids, nil
}
