package httpshed_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/httpshed"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-One", "a")
	r.Header.Add("X-Two", "a")
	r.Header.Add("X-Two", "b")
	r.Header.Set("X-Empty", "")
	r.SetPathValue("project", "p")
	r.Pattern = "/p/{project}/{other...}"
	for _, c := range []struct {
		name string
		key  func(*http.Request) (string, error)
		want string // empty: refused with 400
	}{
		{"fixed", httpshed.Fixed("x"), "x"},
		{"header", httpshed.ByHeader("x-one"), "a"},
		{"no header", httpshed.ByHeader("X-None"), ""},
		{"empty header", httpshed.ByHeader("X-Empty"), ""},
		{"two headers", httpshed.ByHeader("X-Two"), ""},
		{"path", httpshed.ByPathValue("project"), "p"},
		{"no path", httpshed.ByPathValue("other"), ""},
	} {
		id, err := c.key(r)
		var st *httpshed.StatusError
		if id != c.want || (err == nil) != (c.want != "") || err != nil && (!errors.As(err, &st) || st.Status != 400) {
			t.Errorf("%s: %q, %v", c.name, id, err)
		}
	}
}

func TestHashID(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef")
	if _, err := httpshed.HashID(secret[:15], httpshed.Fixed("a")); err == nil {
		t.Error("a short secret is taken")
	}
	if _, err := httpshed.HashID(secret, nil); err == nil {
		t.Error("no key is taken")
	}
	hash := func(secret, id string) string {
		key, err := httpshed.HashID([]byte(secret), httpshed.Fixed(id))
		if err != nil {
			t.Fatal(err)
		}
		out, err := key(nil)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	one := hash(string(secret), "key")
	if len(one) != 22 || strings.Contains(one, "key") {
		t.Errorf("%q", one)
	}
	if hash(string(secret), "key") != one {
		t.Error("the same key, the same secret, another id")
	}
	if hash(string(secret), "kez") == one || hash("fedcba9876543210", "key") == one {
		t.Error("another key or secret, the same id")
	}
	key, err := httpshed.HashID(secret, httpshed.ByHeader("X-None"))
	if err != nil {
		t.Fatal(err)
	}
	if id, err := key(httptest.NewRequest(http.MethodGet, "/", nil)); id != "" || err == nil {
		t.Errorf("%q, %v: the error of the key is gone", id, err)
	}
	copied := []byte("0123456789abcdef")
	key, err = httpshed.HashID(copied, httpshed.Fixed("key"))
	if err != nil {
		t.Fatal(err)
	}
	copied[0] = 'x'
	if id, _ := key(nil); id != one {
		t.Error("the secret is not copied")
	}
}

// Who makes ids up gets so many limits and no more; who was there before keeps
// theirs; and room comes back when ids are not asked for any more.
func TestOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := httpshed.Overflow(100, httpshed.ByHeader("X-Key"))
		id := func(v string) string {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-Key", v)
			id, err := key(r)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		if id("mine") != "mine" {
			t.Fatal("no room at first")
		}
		flood := func(n int) int {
			own := map[string]bool{}
			for i := range n {
				own[id(fmt.Sprintf("made up at %v: %d", time.Now(), i))] = true
			}
			return len(own)
		}
		if n := flood(10_000); n != 100 { // 99, and the one for the rest
			t.Errorf("10,000 made-up ids became %d", n)
		}
		for range 10 { // kept in use, it keeps its room
			time.Sleep(50 * time.Second)
			if id("mine") != "mine" {
				t.Error("driven out")
			}
			if n := flood(1000); n > 100 {
				t.Errorf("1,000 made-up ids became %d", n)
			}
		}
		if id("new") != httpshed.OverflowID {
			t.Error("there is room, and there should be none")
		}
		time.Sleep(2*time.Minute + time.Second)
		if id("new") != "new" {
			t.Error("no room, though nobody has asked for two minutes")
		}
		if _, err := key(httptest.NewRequest(http.MethodGet, "/", nil)); err == nil {
			t.Error("the error of the key is gone")
		}
	})
}

func TestSkipPaths(t *testing.T) {
	t.Parallel()
	skip := httpshed.SkipPaths("/healthz", "/readyz")
	for path, want := range map[string]bool{"/healthz": true, "/readyz": true, "/healthz/": false, "/": false, "/x/healthz": false} {
		if got := skip(httptest.NewRequest(http.MethodGet, path, nil)); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
