package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestDocumentedCommands: every command line of ours, in the pages and in the examples of help, is of a command that
// there is, with flags that it has and arguments that it takes. Nothing is run.
func TestDocumentedCommands(t *testing.T) {
	root := filepath.Join("..", "..")
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		if strings.HasSuffix(page, filepath.Join("reference", "commands.md")) {
			continue // synopses; its examples are below
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$").FindAllStringSubmatch(string(text), -1) {
			if label := block[1]; label == "" || label == "sh" || label == "console" {
				checked += checkCommands(t, page, block[2])
			}
		}
	}
	var examples func(cmd *cobra.Command)
	examples = func(cmd *cobra.Command) {
		checked += checkCommands(t, cmd.CommandPath(), cmd.Example)
		for _, sub := range cmd.Commands() {
			examples(sub)
		}
	}
	examples(newRoot(&settings{}))
	if checked < 200 {
		t.Errorf("%d command lines: they are not recognised", checked)
	}
}

var (
	hereDocument = regexp.MustCompile(`(?ms)^([^\n]*<<'?(\w+)'?[^\n]*\n).*?^\s*(EOF|END)$`)
	continued    = regexp.MustCompile(`\\\n\s*`)
	beforeName   = regexp.MustCompile(`^(\$ |sudo |\(|[A-Z_]+=\S* )+`)
)

// checkCommands of a block, and return how many there are.
func checkCommands(t *testing.T, where, block string) (n int) {
	t.Helper()
	block = continued.ReplaceAllString(hereDocument.ReplaceAllString(block, "$1"), " ")
	for line := range strings.Lines(block) {
		for _, words := range splitLine(beforeName.ReplaceAllString(strings.TrimSpace(line), "")) {
			for i, word := range words { // the command itself, or what another one is told to run: exec … -- proxima …
				if i > 0 && words[i-1] != "--" && words[i-1] != "sudo" {
					continue
				}
				if base := filepath.Base(word); base != "proxima" && base != "proxima.exe" || len(words) == i+1 {
					continue
				}
				n++
				if err := checkCommand(words[i+1:]); err != nil {
					t.Errorf("%s: %s\n\t%v", where, strings.TrimSpace(line), err)
				}
				break
			}
		}
	}
	return n
}

func checkCommand(words []string) error {
	cmd, rest, err := newRoot(&settings{}).Find(words)
	if err != nil || cmd.DisableFlagParsing {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// splitLine is a line of a shell as commands of words, without redirections and comments.
func splitLine(line string) (commands [][]string) {
	var words []string
	var word strings.Builder
	quote, inWord, redirected := rune(0), false, false
	endWord := func() {
		if inWord && word.String() != "…" && !redirected {
			words = append(words, word.String())
		}
		if inWord {
			redirected = false
		}
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		endWord()
		if redirected = false; len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}
	for i, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == '#' && !inWord:
			endCommand()
			return commands
		case r == ' ' || r == '\t':
			endWord()
		case strings.ContainsRune("|;&)`", r), r == '(' && i > 0 && line[i-1] == '$':
			endCommand()
		case r == '>' || r == '<':
			if s := word.String(); s == "2" {
				word.Reset()
				inWord = false
			}
			endWord()
			redirected = true
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	endCommand()
	return commands
}
