package queues

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// A job that finds its tenant busy is put off, counts no attempt, and is run in the end; a
// tenant that is not busy is served meanwhile.
func TestAsynqPutsOffWhatIsTooMuch(t *testing.T) {
	sem, redis := extest.Semaphore(t, gotsem.Options{Limit: 1})
	opt := asynq.RedisClientOpt{Addr: redis.Addr()}
	var done, other, again atomic.Int64
	end := make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Use(Middleware(sem, func(task *asynq.Task) string { return string(task.Payload()) }))
	mux.HandleFunc("job", func(ctx context.Context, task *asynq.Task) error {
		if string(task.Payload()) == "other" {
			other.Add(1)
			return nil
		}
		if n, _ := asynq.GetRetryCount(ctx); n > 0 {
			again.Add(1)
		}
		select {
		case <-end:
		case <-ctx.Done():
			return ctx.Err()
		}
		done.Add(1)
		return nil
	})
	srv := asynq.NewServer(opt, Config(asynq.Config{Concurrency: 4, LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: 100 * time.Millisecond, TaskCheckInterval: 20 * time.Millisecond}))
	if err := srv.Start(mux); err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	client := asynq.NewClient(opt)
	defer client.Close()
	for _, tenant := range []string{"busy", "busy", "busy", "other"} {
		if _, err := client.Enqueue(asynq.NewTask("job", []byte(tenant)), asynq.MaxRetry(1)); err != nil {
			t.Fatal(err)
		}
	}
	extest.Await(t, "the other tenant is served", func() bool { return other.Load() == 1 })
	extest.Await(t, "jobs were put off", func() bool { return sem.Stats().Refused > 0 })
	close(end)
	extest.Await(t, "all were run", func() bool { return done.Load() == 3 })
	if n := again.Load(); n != 0 {
		t.Errorf("%d jobs were counted an attempt, though they were never run", n)
	}
}

// Without a store a job is put off too, and tells why.
func TestWithoutAStoreJobsArePutOff(t *testing.T) {
	sem, redis := extest.Semaphore(t, gotsem.Options{Limit: 1, Outage: gotsem.Closed})
	redis.Stop()
	t.Cleanup(redis.Cont)
	err := Run(t.Context(), sem, "a", func(context.Context) error { t.Error("it was run"); return nil })
	var busy *Busy
	if !errors.As(err, &busy) || !errors.Is(err, gotsem.ErrUnavailable) || busy.In <= 0 {
		t.Errorf("%v", err)
	}
}
