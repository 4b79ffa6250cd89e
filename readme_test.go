package gotsem_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocsRun: every Go block in README.md and docs is a whole file: a program, which
// compiles, or tests, which pass.
func TestDocsRun(t *testing.T) {
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n := 0
	for _, doc := range append(docs, "README.md") {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(text), "```go\n")[1:] {
			code, _, closed := strings.Cut(block, "\n```")
			if !closed {
				t.Errorf("%s: block %d has no end", doc, i+1)
			}
			n++
			name := fmt.Sprintf("%s_%d", strings.NewReplacer("/", "_", ".", "_").Replace(doc), i+1)
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
			file := "main.go"
			if strings.Contains(code, "\t\"testing\"\n") {
				file = "app_test.go"
			}
			if err := os.WriteFile(filepath.Join(dir, name, file), []byte(code+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n == 0 {
		t.Fatal("no Go blocks: is ```go spelt so?")
	}
	// miniredis is what a reader adds to a go.mod, and ours must not: verify/miniredis
	// says which version the docs are about.
	var sums, requires string
	for _, at := range []string{".", "verify/miniredis", "promsem", "otelsem", "grpcshed"} {
		sum, err := os.ReadFile(filepath.Join(at, "go.sum"))
		if err != nil {
			t.Fatal(err)
		}
		mod, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		sums += string(sum)
		for line := range strings.Lines(string(mod)) {
			if strings.Contains(line, " v") && !strings.Contains(line, module) {
				requires += "require " + strings.TrimPrefix(strings.TrimSpace(line), "require ") + "\n"
			}
		}
	}
	for _, ours := range []string{"", "/promsem", "/otelsem", "/grpcshed"} {
		requires += fmt.Sprintf("require %s v0.0.0\nreplace %[1]s => %s\n", module+ours, root+ours)
	}
	// No module of ours needs gin: this is as much of it as one block uses.
	requires += "require github.com/gin-gonic/gin v0.0.0\nreplace github.com/gin-gonic/gin => ./gin\n"
	if err := os.Mkdir(filepath.Join(dir, "gin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"gin.go": gin, "go.mod": "module github.com/gin-gonic/gin\n\ngo 1.26.0\n"} {
		if err := os.WriteFile(filepath.Join(dir, "gin", name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("module readme\n\ngo 1.26.0\n\n%s", requires)
	for name, data := range map[string]string{"go.mod": text, "go.sum": sums} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, verb := range []string{"vet", "test"} {
		cmd := exec.Command("go", verb, "-mod=mod", "./...")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("the Go blocks of README.md and docs: go %s: %v\n%s", verb, err, out)
		}
	}
}

const gin = `package gin

import "net/http"

type HandlerFunc func(*Context)

type Context struct {
	Request *http.Request
	Writer  http.ResponseWriter
}

func (c *Context) Param(name string) string { return "" }
func (c *Context) Next()                    {}
func (c *Context) Abort()                   {}
`
