//go:build unix

package main

import (
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/ashfaqjani916/gotsem/internal/doctext"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// TestDoctorIsContentWithProduction: a primary with two replicas that was set up as
// docs/production.md says, by its own commands, has nothing that doctor complains of, and
// before that it had. To the user of that page doctor says what that user may not look up,
// and nothing else.
func TestDoctorIsContentWithProduction(t *testing.T) {
	sentinel := redistest.StartSentinel(t)
	primary := sentinel.Primary()
	// As a cache may be.
	for _, setting := range [][]any{{"maxmemory", "64mb"}, {"maxmemory-policy", "allkeys-lru"}, {"min-replicas-to-write", "0"}} {
		if _, err := primary.Do("CONFIG", "SET", setting[0], setting[1]); err != nil {
			t.Fatal(err)
		}
	}
	doctor := func(user *url.Userinfo) (string, error) {
		at := url.URL{Scheme: "redis", User: user, Host: primary.Addr()}
		out, err := exec.Command("gotsem", "doctor", "--redis", at.String(), "--ttl", "30s").CombinedOutput()
		return string(out), err
	}
	if out, err := doctor(nil); err == nil || !strings.Contains(out, "BAD  eviction") {
		t.Fatalf("doctor does not mind a cache: %v\n%s", err, out)
	}
	commands, err := doctext.Commands("../../docs/production.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range commands {
		if c.Words[0] != "redis-cli" || len(c.Words) < 4 {
			continue
		}
		n++
		args := make([]any, len(c.Words)-1)
		for i, w := range c.Words[1:] {
			args[i] = w
		}
		if _, err := primary.Do(args...); err != nil {
			t.Errorf("%s: %v", c.Text, err)
		}
	}
	if n < 5 {
		t.Fatalf("%d commands found", n)
	}
	_, _ = primary.Do("ACL", "SETUSER", "app", "+client|setinfo") // Redis 7.0 does not know it, nor asks for it
	if out, err := doctor(nil); err != nil || strings.Contains(out, "BAD") {
		t.Errorf("as an administrator: %v\n%s", err, out)
	}
	out, _ := doctor(url.UserPassword("app", "change-me"))
	if strings.Count(out, "BAD") != 1 || !strings.Contains(out, "min-replicas-to-write could not be read") {
		t.Errorf("as the user:\n%s", out)
	}
}
