package gotsem_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// CONTRIBUTING.md draws the rooms, in blocks "```rooms NAME" of lines "a -> b": a uses b, and
// may use everything that b leads to.

// arrows are who uses whom.
type arrows map[string][]string

func (a arrows) add(from, to string) {
	if from != to && !slices.Contains(a[from], to) {
		a[from] = append(a[from], to)
	}
}

// leads reports whether a path of arrows goes from one to the other.
func (a arrows) leads(from, to string) bool {
	seen := map[string]bool{from: true}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		for _, room := range a[next[0]] {
			if room == to {
				return true
			}
			if !seen[room] {
				seen[room] = true
				next = append(next, room)
			}
		}
	}
	return false
}

// drawn returns a drawing's arrows, and its rooms.
func drawn(t *testing.T, name string) (drawing arrows, rooms map[string]bool) {
	t.Helper()
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n"+strings.TrimSpace("```rooms "+name)+"\n")
	lines, _, ended := strings.Cut(rest, "```\n")
	if !found || !ended {
		t.Fatalf("CONTRIBUTING.md has no block ```rooms %s", name)
	}
	drawing, rooms = make(arrows), make(map[string]bool)
	for line := range strings.Lines(lines) {
		from, to, ok := strings.Cut(strings.TrimSpace(line), " -> ")
		if !ok {
			t.Fatalf("```rooms %s: %q is no arrow \"a -> b\"", name, line)
		}
		from, to = strings.TrimSpace(from), strings.TrimSpace(to)
		drawing.add(from, to)
		rooms[from], rooms[to] = true, true
	}
	return drawing, rooms
}

// compare fails the test for what the code uses without an arrow that leads there, and for
// arrows that the code does not have.
func compare(t *testing.T, drawing, code arrows) {
	t.Helper()
	for _, from := range slices.Sorted(maps.Keys(code)) {
		for _, to := range code[from] {
			if !drawing.leads(from, to) {
				t.Errorf("%s uses %s: no arrow of CONTRIBUTING.md leads there", from, to)
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(drawing)) {
		for _, to := range drawing[from] {
			if !slices.Contains(code[from], to) {
				t.Errorf("CONTRIBUTING.md draws %s -> %s, and the code has it not", from, to)
			}
		}
		if drawing.leads(from, from) {
			t.Errorf("CONTRIBUTING.md: a way leads from %s back to it", from)
		}
	}
}

// TestDrawingOfThePackages: packages, those of the other modules too, import each other as
// drawn. A folder stands for all that is below it.
func TestDrawingOfThePackages(t *testing.T) {
	drawing, rooms := drawn(t, "")
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	room := func(path string) string {
		if path == module {
			return "gotsem"
		}
		path, ours := strings.CutPrefix(path, module+"/")
		for ; ours && path != "."; path = filepath.ToSlash(filepath.Dir(path)) {
			if rooms[path] {
				return path
			}
		}
		return ""
	}
	code := make(arrows)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		from := room(p.ImportPath)
		if from == "" {
			if !strings.Contains(p.ImportPath, "/internal/") {
				t.Errorf("CONTRIBUTING.md does not draw package %s", p.ImportPath)
			}
			continue
		}
		for _, imp := range p.Imports {
			if to := room(imp); to != "" {
				code.add(from, to)
			}
		}
	}
	compare(t, drawing, code)
}

// TestDrawingOfRedisstore: the types of the rooms use each other as drawn. Which files are a
// room's, the table behind the drawing says.
func TestDrawingOfRedisstore(t *testing.T) {
	drawing, rooms := drawn(t, "store/redisstore")
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	of := make(map[string]string) // a file's room
	_, table, _ := strings.Cut(string(text), "| room | files |")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, file := range strings.FieldsFunc(cells[2], func(r rune) bool { return strings.ContainsRune(", ", r) }) {
			if name, ok := strings.CutSuffix(file, ".go"); ok {
				of[file] = strings.TrimSpace(cells[1])
				if !rooms[of[file]] { // a room of its own
					of[file] = name
				}
			}
		}
	}
	compare(t, drawing, roomArrows(t, filepath.Join("store", "redisstore"), of))
}

// roomArrows returns which of a package's rooms use types of which others: by their names,
// or by a field or a method.
func roomArrows(t *testing.T, dir string, of map[string]string) arrows {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	// What other packages have is not looked for: only our own types are drawn.
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection)}
	config := types.Config{Importer: nothingOutside{}, Error: func(error) {}}
	pkg, _ := config.Check(dir, fset, files, info)
	room := func(pos token.Pos) string {
		file := filepath.Base(fset.Position(pos).Filename)
		if of[file] == "" {
			t.Errorf("CONTRIBUTING.md has no room for %s", filepath.Join(dir, file))
			of[file] = file
		}
		return of[file]
	}
	code := make(arrows)
	for _, f := range files {
		from := room(f.Package)
		var see func(n ast.Node) bool
		see = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl: // an option sets what its own room needs
				if r := n.Type.Results; n.Recv == nil && r != nil && len(r.List) == 1 && types.ExprString(r.List[0].Type) == "Option" {
					return false
				}
			case *ast.Ident:
				if obj, ok := info.Uses[n].(*types.TypeName); ok && obj.Pkg() == pkg {
					code.add(from, room(obj.Pos()))
				}
			case *ast.SelectorExpr:
				if s := info.Selections[n]; s != nil {
					if obj := typeObject(s.Recv()); obj != nil && obj.Pkg() == pkg {
						code.add(from, room(obj.Pos()))
					}
				}
				ast.Inspect(n.X, see) // and not n.Sel: a method may be called as one of our types is
				return false
			}
			return true
		}
		ast.Inspect(f, see)
	}
	return code
}

func typeObject(t types.Type) *types.TypeName {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj()
	}
	return nil
}

// nothingOutside imports packages that have nothing.
type nothingOutside struct{}

func (nothingOutside) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(strings.TrimSuffix(path, "/v9")))
	p.MarkComplete()
	return p, nil
}

// TestADrawingSeesWhoUsesWhom: rooms that use each other's types are seen to.
func TestADrawingSeesWhoUsesWhom(t *testing.T) {
	of := make(map[string]string)
	for _, file := range []string{"memstore.go", "entry.go", "wake.go"} {
		of[file] = file
	}
	code := roomArrows(t, filepath.Join("store", "memstore"), of)
	if !slices.Contains(code["memstore.go"], "entry.go") {
		t.Errorf("memstore.go is not seen to use a type of entry.go: %v", code)
	}
}
