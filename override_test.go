package gotsem

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A pause ends by itself, and who waited meanwhile is let in within a second.
func TestAPauseEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 2, Queue: 5})
		ctx := context.Background()
		if err := s.SetLimit(ctx, "id", 0, For(time.Hour), By("anna: a migration")); err != nil {
			t.Fatal(err)
		}
		o, err := s.LimitOf(ctx, "id")
		if err != nil || o.Limit != 0 || o.By != "anna: a migration" || !o.Until.Equal(time.Now().Add(time.Hour)) || !o.At.Equal(time.Now()) {
			t.Errorf("%+v, %v", o, err)
		}
		began := time.Now()
		l, err := s.Acquire(ctx, "id")
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < time.Hour || waited > time.Hour+2*time.Second {
			t.Errorf("let in after %v", waited)
		}
		mustRelease(t, l)
		if o, err := s.LimitOf(ctx, "id"); err != nil || o != (Override{}) {
			t.Errorf("%+v, %v: it has ended", o, err)
		}
	})
}

// Of two who change the limit that both have seen, the second is told what is set.
func TestAChangeOfWhatIsNotSetAnyMoreIsRefused(t *testing.T) {
	s := open(t, Options{Limit: 2})
	ctx := context.Background()
	if err := s.SetLimit(ctx, "id", 4, IfVersion(0), By("anna")); err != nil {
		t.Fatal(err)
	}
	err := s.SetLimit(ctx, "id", 5, IfVersion(0))
	var conflict *LimitConflict
	if !errors.As(err, &conflict) || conflict.ID != "id" || conflict.Now.Limit != 4 || conflict.Now.By != "anna" || conflict.Now.Version == 0 {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{`"id"`, "4, set 0s ago", `by "anna"`, "look again"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if err := s.ResetLimit(ctx, "id", IfVersion(conflict.Now.Version+1)); !errors.As(err, &conflict) {
		t.Error(err)
	}
	if err := s.ResetLimit(ctx, "id", IfVersion(conflict.Now.Version)); err != nil {
		t.Error(err)
	}
	if o, err := s.LimitOf(ctx, "id"); err != nil || o != (Override{}) {
		t.Errorf("%+v, %v", o, err)
	}
}
