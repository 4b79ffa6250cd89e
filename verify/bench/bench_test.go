package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// A table that has no place in its document would fail at the end of a long run.
func TestEveryTableHasItsPlace(t *testing.T) {
	for _, table := range tables {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", table.doc))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := splice(string(text), table.name, "x\n"); err != nil {
			t.Errorf("%s: %v", table.doc, err)
		}
	}
}

func TestSpliceLeavesTheRest(t *testing.T) {
	const text = "before\n<!-- bench:a -->\nold\n<!-- /bench -->\nbetween\n<!-- bench:b -->\n<!-- /bench -->\nafter\n"
	got, err := splice(text, "a", "new\n")
	if want := strings.Replace(text, "old", "new", 1); err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	if again, _ := splice(got, "a", "new\n"); again != got {
		t.Errorf("a second time: %q", again)
	}
	if _, err := splice(text, "c", "new\n"); err == nil {
		t.Error("no error without a marker")
	}
}

// Which tables have targets is known when they have run: a new one gets its place then.
func TestRewriteMakesAPlaceForNewTargets(t *testing.T) {
	path := filepath.Join(t.TempDir(), filepath.Base(targetsDoc))
	if err := os.WriteFile(path, []byte("# Targets\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"old\n", "new\n"} {
		if err := rewrite(path, map[string]string{"a": text}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if want := "# Targets\n\n## a\n\n<!-- bench:a -->\nnew\n<!-- /bench -->\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func TestHistogramIsRight(t *testing.T) {
	var h histogram
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Microsecond)
	}
	for q, want := range map[float64]float64{0.5: 500e3, 0.99: 990e3} {
		if got := h.quantile(q); got < want*0.96 || got > want*1.04 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	for _, n := range []uint64{0, 1, 31, 32, 33, 1000, 1 << 40, 1<<63 - 1} {
		if got := ofBucket(bucket(n)); got < float64(n)*0.96 || got > float64(n)*1.04+1 {
			t.Errorf("%d is kept as %v", n, got)
		}
	}
}

func TestTargets(t *testing.T) {
	r := new(report)
	r.atLeast(2, 1, "few")
	r.atMost(2, 1, "little")
	r.atLeast(2, spreadOf(nil).med, "nothing")
	for i, want := range []bool{false, true, false} {
		if r.targets[i].held() != want {
			t.Errorf("%v: held is %v", r.targets[i], !want)
		}
	}
	if s := r.targets[0].String(); !strings.Contains(s, "50 %") {
		t.Errorf("%q does not say by how much", s)
	}
}

// A rival that does not keep its limit, or refuses what it has room for, would be no
// rival.
func TestTheBaselineKeepsItsLimit(t *testing.T) {
	srv := redistest.Start(t)
	s := &baseline{rdb: srv.Client(), prefix: "sem:", limit: 1}
	slotID, ok := s.tryAcquire(t.Context(), "id")
	if !ok || len(slotID) != 37 {
		t.Fatalf("%v %q", ok, slotID)
	}
	if _, ok := s.tryAcquire(t.Context(), "id"); ok {
		t.Error("granted above the limit")
	}
	s.release(t.Context(), "id", slotID)
	if !s.pair("id") {
		t.Error("refused what was released")
	}
}

func TestEveryContenderRuns(t *testing.T) {
	srv := redistest.Start(t)
	for _, r := range []contender{ours, ourLeases, asynchronous, theMinimal, theBaseline, baselineAutoPipelined, twoEvalSha, limiter, lockOfBSM, lockOfRedsync, lockOfRueidis, shared(3)} {
		run, err := r.enter(entry{addr: srv.Addr(), prefix: r.name + ":", limit: 1, ids: ids(2)})
		if err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		pair := run.pair
		if run.pairOf != nil {
			pair = run.pairOf(1)
		}
		for i := range 3 { // the second finds what the first gave back
			if !pair(ids(2)[i%2]) {
				t.Errorf("%s: pair %d was refused", r.name, i)
			}
			if run.drain != nil {
				run.drain()
			}
		}
		run.close()
	}
}
