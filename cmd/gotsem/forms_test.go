//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// Every kind of Redis that a URL can name does the job.
func TestEachKindOfRedis(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	single := redistest.Start(t, redistest.WithArgs("--unixsocket", socket, "--requirepass", "s3cret"))
	cluster := redistest.StartCluster(t, 3, 0)
	sentinel := redistest.StartSentinel(t)
	for name, url := range map[string]string{
		"single":   "redis://default:s3cret@" + single.Addr() + "/3",
		"socket":   "unix://" + socket + "?db=2", // and the password from a file
		"cluster":  "redis+cluster://" + strings.Join(cluster.Addrs(), ","),
		"one node": "redis+cluster://" + cluster.Addrs()[0],
		"sentinel": "redis+sentinel://" + strings.Join(sentinel.Addrs(), ",") + "/" + redistest.MasterName,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "socket" {
				file := filepath.Join(t.TempDir(), "password")
				if err := os.WriteFile(file, []byte("s3cret\nand more\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				t.Setenv("GOTSEM_REDIS_PASSWORD_FILE", file)
			}
			t.Setenv("GOTSEM_REDIS_URL", url)
			out, err := exec.Command("gotsem", "run", "a{b}c", "-n", "2", "--", "sh", "-c",
				"gotsem ls && gotsem limit 'a{b}c' 5 && gotsem holders 'a{b}c' && gotsem limit 'a{b}c' --reset").CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, want := range []string{"     1      -        0  a{b}c", "a{b}c: limit 5 (since ", ", 1 held, 0 waiting", "LAPSES IN", "limit not set"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in:\n%s", want, out)
				}
			}
		})
	}
}
