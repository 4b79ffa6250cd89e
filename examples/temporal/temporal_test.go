package temporal

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// An activity that finds no slot fails with the time of its next try; one that finds a slot
// holds it while it runs, and no longer. The environment is Temporal's own for tests.
func TestAnActivityHoldsASlot(t *testing.T) {
	sem, _ := extest.Semaphore(t, gotsem.Options{Limit: 1})
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{
		&Interceptor{Semaphore: sem, Key: func(info activity.Info) string { return "activity:" + info.ActivityType.Name }},
	}})
	held := 0
	render := func(context.Context) error { held = sem.Stats().Held; return nil }
	env.RegisterActivityWithOptions(render, activity.RegisterOptions{Name: "render"})
	if _, err := env.ExecuteActivity("render"); err != nil || held != 1 {
		t.Fatalf("%v, and it held %d slots", err, held)
	}
	lease, err := sem.Try(t.Context(), "activity:render")
	if err != nil {
		t.Fatal(err)
	}
	_, err = env.ExecuteActivity("render")
	var no *temporal.ApplicationError
	if !errors.As(err, &no) || no.Type() != "NoSlot" || no.NextRetryDelay() < time.Second || no.NonRetryable() {
		t.Errorf("without a slot: %v", err)
	}
	_ = lease.Release(t.Context())
	if _, err := env.ExecuteActivity("render"); err != nil {
		t.Errorf("with one again: %v", err)
	}
}
