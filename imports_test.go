package gotsem_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ashfaqjani916/gotsem"

// allowed says which packages outside the standard library a package may import
// itself, and forbidden which of the standard library it may not, with the reason.
var imports = map[string]struct {
	allowed   []string
	forbidden []string
	reason    string
}{
	module: {
		allowed:   []string{module + "/store", module + "/store/memstore", module + "/store/redisstore", "github.com/redis/go-redis/v9", "go.uber.org/zap"},
		forbidden: []string{"net/http", "testing"},
		reason:    "the root is what everybody links: it speaks no HTTP and carries no test code",
	},
	module + "/store": {
		reason: "the contract names nobody's client",
	},
	module + "/store/memstore": {
		allowed: []string{module + "/store"},
		reason:  "the embedded store works where there is no Redis",
	},
	module + "/store/redisstore": {
		allowed:   []string{module + "/store", module + "/internal/plainpath", "github.com/redis/go-redis/v9", "github.com/redis/go-redis/v9/maintnotifications"},
		forbidden: []string{"net/http", "testing"},
		reason:    "a store knows the contract and its client, and nothing of who uses it",
	},
	module + "/store/storetest": {
		allowed: []string{module + "/store"},
		reason:  "the suite must not know the stores that it judges",
	},
	module + "/httpshed": {
		allowed: []string{module, module + "/internal/door"},
		reason:  "the quick no is net/http and the semaphore, for every router",
	},
	module + "/internal/watch": {
		allowed:   []string{module, module + "/store"},
		forbidden: []string{"testing", "net/http"},
		reason:    "it looks, for whoever shows what it sees",
	},
	module + "/semui": {
		allowed:   []string{module, module + "/store", module + "/internal/watch"},
		forbidden: []string{"testing"},
		reason:    "the page is net/http, the semaphore and files of its own",
	},
	module + "/internal/door": {
		allowed:   []string{module},
		forbidden: []string{"net/http", "testing"},
		reason:    "what all doors share names no protocol",
	},
	module + "/internal/plainpath": {
		forbidden: []string{"testing"},
		reason:    "it is one switch, that tests turn",
	},
	module + "/internal/tally": {
		allowed:   []string{module},
		forbidden: []string{"testing", "net/http"},
		reason:    "it is what promsem and otelsem have in common, and knows neither of their libraries",
	},
	module + "/internal/redistest": {
		allowed:   []string{"github.com/redis/go-redis/v9", "github.com/redis/go-redis/v9/maintnotifications"},
		forbidden: []string{"testing"},
		reason:    "benchmarks and verify start servers too, outside of tests",
	},
	module + "/internal/doctext": {
		forbidden: []string{"testing", "net/http"},
		reason:    "it reads documents, for the tests of several modules",
	},
	module + "/internal/leaktest": {
		forbidden: []string{"testing"},
		reason:    "it is for tests, and needs of them only what can be said in an interface",
	},
	module + "/internal/integration": {
		reason: "it has no code but tests",
	},
	module + "/internal/redisurl": {
		allowed:   []string{"github.com/redis/go-redis/v9"},
		forbidden: []string{"testing"},
		reason:    "programs read addresses with it, and want no more than the client",
	},
}

// TestArrows: imports between our packages run one way, and the root stays light.
func TestArrows(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	seen := 0
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		rule, ok := imports[p.ImportPath]
		if !ok {
			t.Errorf("%s has no rule here: say what it may import, and why", p.ImportPath)
			continue
		}
		seen++
		for _, imp := range p.Imports {
			outside := strings.Contains(strings.Split(imp, "/")[0], ".")
			if outside && !slices.Contains(rule.allowed, imp) || slices.Contains(rule.forbidden, imp) {
				t.Errorf("%s imports %s: %s", p.ImportPath, imp, rule.reason)
			}
		}
	}
	if seen != len(imports) {
		t.Errorf("%d packages found, %d have rules: take out those that are gone", seen, len(imports))
	}
}
