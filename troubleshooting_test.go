package gotsem_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTroubleshootingHasEveryError: docs/troubleshooting.md names every exported error of
// the packages that a service links, and has the text of every error and every line of the
// log that they make. So whoever searches it for what they see finds it. Of a text with
// values in it, the longest piece between two of them is looked for. Left out is what New
// says of Options: that names the field, and what to give.
func TestTroubleshootingHasEveryError(t *testing.T) {
	const doc = "docs/troubleshooting.md"
	page := strings.Join(strings.Fields(read(t, doc)), " ")
	n := 0
	for _, dir := range []string{".", "store", "store/redisstore", "store/memstore", "httpshed"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for name, texts := range errorsOf(f) {
				if name != "" && !strings.Contains(page, "`"+name+"`") {
					t.Errorf("%s: %s is not in %s", file, name, doc)
				}
				for _, text := range texts {
					n++
					if piece := longest(text); len(piece) > 7 && !strings.Contains(page, piece) {
						t.Errorf("%s: %q is not in %s", file, piece, doc)
					}
				}
			}
		}
	}
	for _, m := range regexp.MustCompile(`say\("([^"]+)"`).FindAllStringSubmatch(read(t, "store/redisstore/check.go")+read(t, "store/redisstore/trial.go"), -1) {
		n++
		if !strings.Contains(page, "`"+m[1]+"`") {
			t.Errorf("doctor's check %q is not in %s", m[1], doc)
		}
	}
	if n < 80 {
		t.Errorf("%d texts found: are they made so?", n)
	}
}

// longest returns the longest piece of a format between its verbs.
func longest(format string) (piece string) {
	for _, p := range regexp.MustCompile(`%[^a-zA-Z%]*[a-zA-Z%]`).Split(format, -1) {
		if p = strings.Trim(strings.Join(strings.Fields(p), " "), ` :;,()"`); len(p) > len(piece) {
			piece = p
		}
	}
	return piece
}

// errorsOf returns the exported errors of a file, and under the empty name the texts of all
// errors and lines of the log that it makes.
func errorsOf(f *ast.File) map[string][]string {
	found := make(map[string][]string)
	var within string // the function
	see := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			within = n.Name.Name
			if within == "validate" {
				return false
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				if strings.HasPrefix(name.Name, "Err") {
					found[name.Name] = nil
				}
			}
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) > 0 {
				of, _ := s.X.(*ast.Ident)
				makes := of != nil && (of.Name == "errors" && s.Sel.Name == "New" || of.Name == "fmt" && (s.Sel.Name == "Errorf" || s.Sel.Name == "Sprintf" && within == "Error"))
				logs := s.Sel.Name == "Warn" || s.Sel.Name == "Error" || s.Sel.Name == "Info"
				if text := literal(n.Args[0]); text != "" && (makes || logs) {
					found[""] = append(found[""], text)
				}
			}
		}
		return true
	}
	ast.Inspect(f, see)
	return found
}

// literal returns a string that is written out, also one of several parts, with %v for what
// stands between them; "" if it begins with a value.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		first, second := literal(e.X), literal(e.Y)
		if first == "" {
			return ""
		}
		if second == "" {
			second = "%v"
		}
		return first + second
	}
	return ""
}
