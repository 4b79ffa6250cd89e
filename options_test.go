package gotsem

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

func TestOptionsAreValidatedTogether(t *testing.T) {
	_, err := New(Options{TTL: time.Millisecond, StoreTimeout: -1, KnownFull: -1, Outage: 7, Label: strings.Repeat("x", 101)})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"Options.Limit is 0: give the number of slots per id, at least 1 (or a LimitFunc)",
		"Options.TTL is 1ms: at least 200ms, so that a lease can be renewed in time",
		"Options.StoreTimeout is -1ns: between 0 and the TTL (1ms), since a lease must outlive the call that asks for it",
		"Options.KnownFull is -1ns: 0 or more",
		"Options.Outage is 7: Local, Open or Closed",
		"Options.Label has 101 bytes: at most 100, every lease carries it",
	} {
		if !strings.Contains(err.Error(), "gotsem: "+want) {
			t.Errorf("%v\n  does not say %q", err, want)
		}
	}
	if n := strings.Count(err.Error(), "gotsem:"); n != 6 {
		t.Errorf("%d complaints, want 6:\n%v", n, err)
	}
}

func TestOptionsThatAreWrong(t *testing.T) {
	limitFunc := func(context.Context, string) (int, error) { return 1, nil }
	for _, c := range []struct {
		name string
		o    Options
		ok   bool
	}{
		{"only a limit", Options{Limit: 1}, true},
		{"only a LimitFunc", Options{LimitFunc: limitFunc}, true},
		{"no limit", Options{}, false},
		{"a negative limit", Options{Limit: -1}, false},
		{"a negative limit beside a LimitFunc", Options{Limit: -1, LimitFunc: limitFunc}, false},
		{"the shortest TTL", Options{Limit: 1, TTL: MinTTL, StoreTimeout: MinTTL}, true},
		{"too short a TTL", Options{Limit: 1, TTL: MinTTL - 1, StoreTimeout: time.Millisecond}, false},
		{"a negative TTL", Options{Limit: 1, TTL: -time.Second}, false},
		{"a StoreTimeout above the TTL", Options{Limit: 1, TTL: time.Second, StoreTimeout: time.Second + 1}, false},
		{"the shortest TTL with the default StoreTimeout", Options{Limit: 1, TTL: MinTTL}, true},
		{"the longest TTL", Options{Limit: 1, TTL: store.MaxTTL}, true},
		{"too long a TTL", Options{Limit: 1, TTL: store.MaxTTL + 1}, false},
		{"too long a grace", Options{Limit: 1, Grace: math.MaxInt64}, false},
		{"no limit to speak of", Options{Limit: math.MaxInt, Queue: math.MaxInt, KnownFull: math.MaxInt64}, true},
		{"a store that is a nil pointer", Options{Limit: 1, Store: (*memstore.Store)(nil)}, false},
		{"a negative queue", Options{Limit: 1, Queue: -1}, true},
		{"a negative grace", Options{Limit: 1, Grace: -1}, true},
		{"the last policy", Options{Limit: 1, Outage: Closed}, true},
		{"a negative policy", Options{Limit: 1, Outage: -1}, false},
		{"a label of 100 bytes", Options{Limit: 1, Label: strings.Repeat("x", 100)}, true},
	} {
		s, err := New(c.o)
		if (err == nil) != c.ok || (s != nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if s != nil {
			_ = s.Close()
		}
	}
}

func TestOptionsAreFilledIn(t *testing.T) {
	given := Options{Limit: 3}
	s := open(t, given)
	if given.Store != nil || given.TTL != 0 || given.Logger != nil {
		t.Errorf("New wrote into its Options: %+v", given)
	}
	if s.opt.TTL != DefaultTTL || s.opt.StoreTimeout != DefaultStoreTimeout || s.opt.Outage != Local || s.opt.Grace != DefaultTTL+time.Second || s.opt.Store == nil || s.opt.Logger == nil {
		t.Errorf("%+v", s.opt)
	}
	for _, c := range []struct {
		o    Options
		want time.Duration
	}{
		{Options{Limit: 1, Outage: Open, Grace: time.Minute}, 0},
		{Options{Limit: 1, Grace: -1, Outage: Closed}, 0},
		{Options{Limit: 1, Grace: -1}, time.Millisecond}, // the pause after an outage needs it
		{Options{Limit: 1, Grace: time.Minute}, time.Minute},
		{Options{Limit: 1, TTL: time.Minute, Outage: Closed}, time.Minute + time.Second},
	} {
		if got := open(t, c.o).opt.Grace; got != c.want {
			t.Errorf("%+v: grace %v, want %v", c.o, got, c.want)
		}
	}
}

func TestOutagesHaveNames(t *testing.T) {
	for o, want := range map[Outage]string{Local: "local", Open: "open", Closed: "closed", 9: "Outage(9)"} {
		if got := o.String(); got != want {
			t.Errorf("%d is %q, want %q", int(o), got, want)
		}
	}
}

func TestRequestsThatSayNothingSensible(t *testing.T) {
	s := open(t, Options{Limit: 3})
	ctx := context.Background()
	for name, want := range map[string]string{
		"":                           "the id is empty: name what is limited, such as a project",
		strings.Repeat("x", MaxID+1): "the id has 4097 bytes, at most 4096 are taken: hash what is longer",
	} {
		_, errTry := s.Try(ctx, name)
		_, errAcquire := s.Acquire(ctx, name)
		errDo := s.Do(ctx, name, func(context.Context) error { t.Error("done"); return nil })
		_, errUsage := s.Usage(ctx, name)
		_, errHolders := s.Holders(ctx, name)
		_, errRevoke := s.Revoke(ctx, name, "x")
		for verb, err := range map[string]error{
			"try": errTry, "acquire": errAcquire, "do": errDo, "usage": errUsage, "holders": errHolders, "revoke": errRevoke,
			"set limit": s.SetLimit(ctx, name, 1), "reset limit": s.ResetLimit(ctx, name),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %.10q: %v", verb, name, err)
			}
		}
		if r := s.TryAcquire(ctx, name); r.Acquired || r.SlotID != "" || r.FailedOpen() || r.Max != 3 {
			t.Errorf("%+v", r)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := s.Try(ctx, "id", Weight(n)); err == nil || !strings.Contains(err.Error(), "at least 1") {
			t.Errorf("weight %d: %v", n, err)
		}
		if _, err := s.Acquire(ctx, "id", Weight(n)); err == nil {
			t.Errorf("weight %d: no error", n)
		}
	}
	if err := s.SetLimit(ctx, "id", -1); err == nil || !strings.Contains(err.Error(), "0 pauses") {
		t.Errorf("%v", err)
	}
	if _, err := s.Revoke(ctx, "id", ""); err == nil || !strings.Contains(err.Error(), "Holders lists them") {
		t.Errorf("%v", err)
	}
	stands(t, s, "id", 0, 0)
	l := mustTry(t, s, strings.Repeat("x", MaxID))
	mustRelease(t, l)
	if s.Stats().StoreErrors != 0 {
		t.Errorf("%+v", s.Stats())
	}
}
