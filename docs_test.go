package gotsem_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ashfaqjani916/gotsem/internal/doctext"
)

// documents are those that people read.
func documents(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal("no documents: ", err)
	}
	return append(docs, "README.md", "CONTRIBUTING.md", "screenshotd/README.md", "verify/bench/TARGETS.md")
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDocsLinkToWhatIsThere: each link within this repository leads to a file, and to a
// heading of it.
func TestDocsLinkToWhatIsThere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	n := 0
	for _, doc := range documents(t) {
		_, text := doctext.Blocks(read(t, doc))
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			n++
			file, anchor, _ := strings.Cut(m[1], "#")
			file = path.Join(filepath.ToSlash(filepath.Dir(doc)), file)
			if m[1][0] == '#' {
				file = doc
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(read(t, file)), anchor) {
				t.Errorf("%s links to %s: there is no such heading", doc, m[1])
			}
		}
	}
	if n < 50 {
		t.Errorf("%d links found: are they written so?", n)
	}
}

// anchors are what GitHub makes of the headings of a text.
func anchors(text string) (all []string) {
	_, text = doctext.Blocks(text)
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			heading = strings.ToLower(strings.TrimSpace(heading))
			heading = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(heading, "")
			all = append(all, strings.ReplaceAll(heading, " ", "-"))
		}
	}
	return all
}

// TestDocsHaveGoInBlocksOnly: where code of Go is shown it is a block that TestDocsRun
// compiles, and never a piece that nobody does.
func TestDocsHaveGoInBlocksOnly(t *testing.T) {
	looks := regexp.MustCompile(`:= |^func |^if err|^defer |^import |^\}\)?$|^return `)
	for _, doc := range documents(t) {
		for _, line := range doctext.Lines(read(t, doc)) {
			// A word or two within a sentence are no code that one copies.
			if looks.MatchString(line) && !strings.Contains(line, "\t#") && strings.Contains(read(t, doc), "    "+line) {
				t.Errorf("%s: %q: make it a block ```go of a whole file", doc, line)
			}
		}
	}
}

// TestDocsNameCommandsThatRun: what documents tell people to run is there. Targets of make,
// folders, programs with their subcommands and flags, tests and benchmarks, files. What
// gotsem and screenshotd take, cmd/gotsem and screenshotd test themselves.
func TestDocsNameCommandsThatRun(t *testing.T) {
	commands, err := doctext.Commands(documents(t)...)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]int)
	for _, c := range commands {
		seen[c.Words[0]]++
		if problem := missing(c); problem != "" {
			t.Errorf("%s: %q: %s", c.At, c.Text, problem)
		}
	}
	for _, name := range []string{"make", "go", "cd", "docker", "kubectl", "-run"} {
		if seen[name] == 0 {
			t.Errorf("no command %q: are they found?", name)
		}
	}
}

// missing says what a command names that is not there; "" if all is.
func missing(c doctext.Command) string {
	dirs := []string{c.Dir}
	switch c.At {
	case "docs/faults.md":
		dirs = append(dirs, "verify") // as it says at its head
	case "docs/performance.md":
		dirs = append(dirs, "verify/bench")
	case "verify/bench/TARGETS.md":
		dirs = []string{"verify/bench"}
	}
	for i, w := range c.Words {
		// Files of ours that are arguments.
		if i > 0 && regexp.MustCompile(`^(\./)?(deploy|scripts|docs|verify|cmd)/`).MatchString(w) && exists(dirs, w) == "" {
			return w + ": no such file"
		}
	}
	if strings.HasPrefix(c.Words[0], "scripts/") && strings.HasSuffix(c.Words[0], ".sh") && exists(dirs, c.Words[0]) == "" {
		return "no such script"
	}
	switch c.Words[0] {
	case "cd":
		// The last is a clone of this repository, from outside.
		if len(c.Words) == 2 && exists([]string{""}, c.Words[1]) == "" && !strings.HasPrefix(c.Words[1], "gotsem") {
			return "no such folder"
		}
	case "make":
		for _, w := range c.Words[1:] {
			if !strings.Contains(w, "=") && !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(w)+`:`).MatchString(mustRead("Makefile")) {
				return "no such target"
			}
		}
	case "-run", "-bench":
		if len(c.Words) == 2 {
			return noTest(c.Words, ".", "httpshed", "internal/integration", "store/redisstore")
		}
	case "go":
		return missingOfGo(c.Words[1:], dirs)
	}
	return ""
}

func missingOfGo(words, dirs []string) string {
	if len(words) < 2 {
		return ""
	}
	switch words[0] {
	case "test":
		in, named := []string(nil), false
		for _, w := range words[1:] {
			if w[0] == '.' {
				named = true
				if at := exists(dirs, w); at != "" {
					in = append(in, at)
				}
			}
		}
		if !named {
			in = dirs
		}
		if len(in) == 0 {
			return "no such package"
		}
		return noTest(words, in...)
	case "run":
		at := ""
		for _, dir := range dirs {
			if exists([]string{path.Join(dir, words[1])}, "main.go") != "" {
				at = path.Join(dir, words[1])
			}
		}
		if strings.Contains(words[1], "@") { // another's
			return ""
		}
		if at == "" {
			return "no such program"
		}
		if at == "cmd/gotsem" || at == "screenshotd" {
			return ""
		}
		all, err := filepath.Glob(filepath.Join(at, "*.go"))
		if err != nil {
			return err.Error()
		}
		var code strings.Builder
		for _, file := range all {
			code.WriteString(mustRead(file))
		}
		for i, w := range words[2:] {
			name, isFlag := strings.CutPrefix(w, "-")
			if isFlag || i == 0 {
				if name, _, _ = strings.Cut(name, "="); !strings.Contains(code.String(), `"`+name+`"`) {
					return w + ": it takes no such argument"
				}
			}
		}
	case "install":
		if rest, ours := strings.CutPrefix(words[1], module+"/"); ours {
			rest, _, _ = strings.Cut(rest, "@")
			if exists([]string{""}, rest) == "" {
				return "no such program"
			}
		}
	}
	return ""
}

// exists returns the path from here of a file that is named from one of dirs; "" if there
// is none.
func exists(dirs []string, name string) string {
	for _, dir := range dirs {
		if at := path.Join(dir, name); at == "." || filepath.IsLocal(at) {
			if _, err := os.Stat(at); err == nil {
				return at
			}
		}
	}
	return ""
}

// noTest says which of the tests and benchmarks that words name after -run and -bench no
// folder of dirs has.
func noTest(words []string, dirs ...string) string {
	var code strings.Builder
	for _, dir := range dirs {
		files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
		for _, file := range files {
			code.WriteString(mustRead(file))
		}
	}
	for i, w := range words[:len(words)-1] {
		if w != "-run" && w != "-bench" {
			continue
		}
		kind := map[string]string{"-run": "(Test|Example)", "-bench": "Benchmark"}[w]
		for name := range strings.SplitSeq(words[i+1], "|") {
			name, _, _ = strings.Cut(name, "/")
			if name == "-" || name == "^$" || name == "NONE" {
				continue
			}
			if !regexp.MustCompile(`(?m)^func ` + kind + `\w*` + regexp.QuoteMeta(strings.TrimPrefix(name, "Test"))).MatchString(code.String()) {
				return fmt.Sprintf("no test or benchmark in %s is called %s", strings.Join(dirs, ", "), name)
			}
		}
	}
	return ""
}

func mustRead(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	return string(text)
}
