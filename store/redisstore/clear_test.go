package redisstore_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// However many hold an id, clearing it holds up nobody else for long: it goes by pages.
// Nobody who waits is granted before the last, to be taken with the next.
func TestClearGoesByPages(t *testing.T) {
	srv := redistest.Start(t)
	ctx := t.Context()
	s := redisstore.New(srv.Client(), "p:")
	t.Cleanup(func() { _ = s.Close() })
	const held = 2500
	members := make([]redis.Z, held)
	for i := range members {
		members[i] = redis.Z{Score: float64(time.Now().Add(time.Hour + time.Duration(i)*time.Millisecond).UnixMilli()), Member: fmt.Sprint("slot", i)}
	}
	srv.Client().ZAdd(ctx, "p:id", members...)
	ask := func() store.Decision {
		d, err := s.Acquire(ctx, &store.Request{ID: "id", SlotID: "waits", Weight: 1, Limit: held, Queue: 1, TTL: time.Minute, Owner: "host"})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := ask(); d.Outcome != store.Waiting {
		t.Fatalf("%+v", d)
	}
	before := scriptCalls(t, srv)
	if n, err := s.Clear(ctx, store.Clear{ID: "id", TTL: time.Minute}); err != nil || n != held {
		t.Fatalf("%d, %v, want %d taken", n, err, held)
	}
	if n := scriptCalls(t, srv) - before; n < 3 {
		t.Errorf("%d slots were taken by %d calls", held, n)
	}
	if u, err := s.Usage(ctx, "id", held); err != nil || u.Active != 1 || u.Waiting != 0 {
		t.Errorf("%+v, %v, want that who waits was handed the room", u, err)
	}
	if d := ask(); d.Outcome != store.Granted {
		t.Errorf("%+v", d)
	}
}

// scriptCalls is how many script calls the server has carried out.
func scriptCalls(t *testing.T, srv *redistest.Server) (n int) {
	t.Helper()
	for _, line := range strings.Split(srv.Client().Info(t.Context(), "commandstats").Val(), "\r\n") {
		if strings.HasPrefix(line, "cmdstat_eval") {
			text := line[strings.Index(line, "calls=")+len("calls="):]
			calls, _ := strconv.Atoi(text[:strings.IndexByte(text, ',')])
			n += calls
		}
	}
	return n
}
