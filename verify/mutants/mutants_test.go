package mutants

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ashfaqjani916/gotsem/verify/faults"
)

// A mutant that no longer fits the sources, or names no check, proves nothing.
func TestMutantsFitTheSources(t *testing.T) {
	checks := map[string]bool{}
	for _, c := range faults.Checks() {
		checks[c.Name] = true
	}
	for _, m := range All() {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.File)))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.Old); n != 1 {
			t.Errorf("%s: %s has %d times %q, want once", m.Name, m.File, n, m.Old)
		}
		if !checks[m.Check] {
			t.Errorf("%s: no check is called %q", m.Name, m.Check)
		}
		if !m.lua() && !strings.Contains(m.New, `mutated("`+m.Name+`"`) {
			t.Errorf("%s: its own name is not in %q", m.Name, m.New)
		}
	}
}
