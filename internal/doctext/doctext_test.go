package doctext_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ashfaqjani916/gotsem/internal/doctext"
)

func TestCommandsAreFoundWhereverTheyStand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.md")
	text := "Run `make test`, or\n`gotsem run x\n--wait 3s -- a`.\n\n" +
		"    A=1 cd verify && go run . check   # a comment\n    source <(gotsem completion bash) | cat\n\n" +
		"```go\nmake(x)\n```\n\n```sh\ngo test -run 'A|B' . >out '>x'\n```\n\n| `go test -run 'A\\|B' .` |\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := doctext.Commands(path)
	if err != nil {
		t.Fatal(err)
	}
	var all string
	for _, c := range got {
		all += fmt.Sprintf("%s:%q ", c.Dir, c.Words)
	}
	want := `:["go" "test" "-run" "A|B" "." ">x"] :["cd" "verify"] verify:["go" "run" "." "check"] ` +
		`:["gotsem" "completion" "bash"] :["source"] :["cat"] :["make" "test"] :["gotsem" "run" "x" "--wait" "3s" "--" "a"] :["go" "test" "-run" "A|B" "."] `
	if all != want {
		t.Errorf("found\n%s, want\n%s", all, want)
	}
}
