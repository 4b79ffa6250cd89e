package gotsem_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

func TestSmoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem, err := gotsem.New(gotsem.Options{Limit: 2, Queue: 10, TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		a, err := sem.Try(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := sem.Try(ctx, "x")
		_, err = sem.Try(ctx, "x")
		if !errors.Is(err, gotsem.ErrFull) {
			t.Fatal(err)
		}
		t.Log(err)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				l, err := sem.Acquire(ctx, "x")
				t.Log(i, err, time.Now())
				time.Sleep(time.Second)
				l.Release(ctx)
			})
		}
		time.Sleep(time.Minute)
		t.Log(sem.Usage(ctx, "x"))
		a.Release(ctx)
		b.Release(ctx)
		wg.Wait()
		t.Log(sem.Usage(ctx, "x"))
		l, _ := sem.Acquire(ctx, "x")
		hs, err := sem.Holders(ctx, "x")
		t.Log(hs, err)
		ok, err := sem.Revoke(ctx, "x", l.SlotID())
		t.Log(ok, err)
		<-l.Context().Done()
		t.Log(context.Cause(l.Context()), time.Now())
		_, err = sem.Acquire(ctx, "x", gotsem.Weight(3))
		t.Log(err)
		l, _ = sem.Acquire(ctx, "x", gotsem.Weight(2))
		_, err = sem.Acquire(ctx, "x", gotsem.MaxWait(2*time.Second))
		t.Log(err)
		t.Logf("%+v", sem.Stats())
		sem.Close()
		t.Log(context.Cause(l.Context()))
		t.Logf("%+v", sem.Stats())
	})
}

func BenchmarkTry(b *testing.B) {
	sem, _ := gotsem.New(gotsem.Options{Limit: 2})
	defer sem.Close()
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := sem.Try(ctx, "x")
		if err != nil {
			b.Fatal(err)
		}
		l.Release(ctx)
	}
}
