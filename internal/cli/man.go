package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/proxima-mesh/proxima/internal/version"
)

// manPages of all commands, by the names of their files, in section 1. Like the reference
// they depend on the commands and the version alone.
func manPages(root *cobra.Command) map[string][]byte {
	pages := map[string][]byte{}
	eachCommand(root, func(cmd *cobra.Command) {
		if !cmd.Hidden {
			pages[manName(cmd)+".1"] = manPage(cmd)
		}
	})
	return pages
}

// manName of a command: proxima-node-drain.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage is one page in the macros of man(7).
func manPage(cmd *cobra.Command) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, ".TH \"%s\" 1 \"\" \"proxima %s\" \"Proxima\"\n", strings.ToUpper(manName(cmd)), version.Get().Version)
	fmt.Fprintf(&out, ".SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	usage := cmd.CommandPath() + strings.TrimPrefix(cmd.Use, cmd.Name())
	if cmd.HasAvailableSubCommands() && cmd.Use == cmd.Name() {
		usage += " COMMAND"
	}
	fmt.Fprintf(&out, ".SH SYNOPSIS\n.B %s\n", roff(strings.TrimSuffix(usage, " [flags]")))
	out.WriteString(".SH DESCRIPTION\n")
	manText(&out, sentence(cmp.Or(cmd.Long, cmd.Short)))
	if cmd.HasAvailableSubCommands() {
		out.WriteString(".SH COMMANDS\n")
		for _, sub := range cmd.Commands() {
			if !sub.Hidden {
				fmt.Fprintf(&out, ".TP\n.BR %s (1)\n%s\n", roff(manName(sub)), roff(sentence(sub.Short)))
			}
		}
	}
	manFlags(&out, "OPTIONS", cmd.NonInheritedFlags())
	manFlags(&out, "OPTIONS OF ALL COMMANDS", cmd.InheritedFlags())
	if cmd.Example != "" {
		out.WriteString(".SH EXAMPLES\n.nf\n")
		for line := range strings.Lines(cmd.Example) {
			out.WriteString(roffLine(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "  ")) + "\n")
		}
		out.WriteString(".fi\n")
	}
	out.WriteString(`.SH ENVIRONMENT
Every option can be given as a variable: PROXIMA_ and its name in capitals, with
underscores, as in PROXIMA_DATA_DIR. An option on the command line wins over its
variable, and that over the file of \-\-config.
.SH EXIT STATUS
0 success, 1 failure, 2 wrong usage.
`)
	out.WriteString(".SH SEE ALSO\n")
	if cmd.HasParent() {
		fmt.Fprintf(&out, ".BR %s (1)\n", roff(manName(cmd.Parent())))
	}
	if manName(cmd) != "proxima-docs" {
		out.WriteString(".BR proxima\\-docs (1)\nshows the documentation of this version.\n")
	}
	return out.Bytes()
}

// manText writes paragraphs.
func manText(out *bytes.Buffer, text string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			out.WriteString(".PP\n")
			continue
		}
		out.WriteString(roffLine(line) + "\n")
	}
}

func manFlags(out *bytes.Buffer, heading string, flags *pflag.FlagSet) {
	first := true
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if first {
			fmt.Fprintf(out, ".SH %s\n", heading)
			first = false
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(out, ".TP\n.B %s\n%s\n", roff(name), roffLine(sentence(f.Usage)))
		if d := yamlDefault(f); d != `""` && d != "[]" && d != "false" {
			fmt.Fprintf(out, "Default: %s.\n", roff(strings.Trim(d, `"`)))
		}
	})
}

// roff escapes text within a line. A hyphen is a minus, as what is shown is typed; what is
// not ASCII is named by its code point (groff_char(7)).
func roff(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			out.WriteString(`\e`)
		case r == '-':
			out.WriteString(`\-`)
		case r > 0x7e:
			fmt.Fprintf(&out, `\[u%04X]`, r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// roffLine escapes a line of text: a period or an apostrophe at its beginning is no request.
func roffLine(text string) string {
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + roff(text)
	}
	return roff(text)
}
