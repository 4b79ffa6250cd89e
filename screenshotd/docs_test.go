package main

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/ashfaqjani916/gotsem/internal/doctext"
)

// TestDocsShowWhatIsTaken: each screenshotd command in the documents is one that this
// program takes.
func TestDocsShowWhatIsTaken(t *testing.T) {
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := doctext.Commands(append(docs, "../README.md", "README.md")...)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range lines {
		args := c.Words[1:]
		switch {
		case len(c.Words) > 2 && slices.Equal(c.Words[:3], []string{"go", "run", "./screenshotd"}):
			args = c.Words[3:]
		case c.Words[0] != "screenshotd":
			continue
		}
		n++
		k, err := newParser(new(cli), kong.Exit(func(int) {}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Parse(args); err != nil {
			t.Errorf("%s: %q: %v", filepath.Base(c.At), c.Text, err)
		}
	}
	if n < 3 {
		t.Errorf("%d commands found: are they written so?", n)
	}
}
