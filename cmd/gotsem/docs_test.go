package main

import (
	"path/filepath"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/ashfaqjani916/gotsem/internal/doctext"
)

// TestDocsShowWhatIsTaken: each gotsem command in the documents is one that this program
// takes: its subcommand, its flags and their values, and how many arguments. The name of a
// subcommand alone is none.
func TestDocsShowWhatIsTaken(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := doctext.Commands(append(docs, "../../README.md", "../../CONTRIBUTING.md")...)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range lines {
		args := c.Words[1:]
		switch {
		case c.Words[0] == "gotsem":
		case len(c.Words) > 2 && c.Words[0] == "go" && c.Words[1] == "run" && c.Words[2] == "./cmd/gotsem":
			args = c.Words[3:]
		default:
			continue
		}
		if len(args) == 0 {
			continue
		}
		n++
		k, err := kong.New(new(commands), kong.Name("gotsem"), kong.Vars{"version": "", "refused": "75"}, kong.Exit(func(int) {}))
		if err != nil {
			t.Fatal(err)
		}
		if len(args) == 1 && (known(k, args[0]) || args[0] == "--version" || args[0] == "--help") {
			continue
		}
		if _, err := k.Parse(args); err != nil {
			t.Errorf("%s: %q: %v", filepath.Base(c.At), c.Text, err)
		}
	}
	if n < 20 {
		t.Errorf("%d commands found: are they written so?", n)
	}
}

func known(k *kong.Kong, name string) bool {
	for _, n := range k.Model.Children {
		if n.Name == name && !n.Hidden {
			return true
		}
	}
	return false
}
