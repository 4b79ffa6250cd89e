package promsem_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/promsem"
)

func semaphore(t *testing.T, o gotsem.Options) *gotsem.Semaphore {
	t.Helper()
	sem, err := gotsem.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sem.Close() })
	return sem
}

// series returns the names of all series, with their labels.
func series(t *testing.T, r *prometheus.Registry) (all []string) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
			}
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

func TestWhatASemaphoreDoesIsShown(t *testing.T) {
	r := prometheus.NewRegistry()
	sem := semaphore(t, gotsem.Options{Limit: 1})
	stop, err := promsem.Register(r, sem, "captures")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := promsem.Register(r, sem, "captures"); err == nil || !strings.Contains(err.Error(), "captures") {
		t.Errorf("the same name twice: %v", err)
	}
	ctx := context.Background()
	l, err := sem.Try(ctx, "id")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = sem.Try(ctx, "id")
	if _, err := sem.Acquire(ctx, "id", gotsem.MaxWait(10*time.Millisecond)); err == nil {
		t.Fatal("granted")
	}
	want := `
# HELP gotsem_lease_active Leases that this process holds.
# TYPE gotsem_lease_active gauge
gotsem_lease_active{gotsem_semaphore="captures"} 1
# HELP gotsem_store_status 1 for the state that the store, or one server of it, is in, and 0 for the other.
# TYPE gotsem_store_status gauge
gotsem_store_status{gotsem_semaphore="captures",gotsem_store_state="down"} 0
gotsem_store_status{gotsem_semaphore="captures",gotsem_store_state="up"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "gotsem_lease_active", "gotsem_store_status"); err != nil {
		t.Error(err)
	}
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	text := exposition(t, r)
	for _, line := range []string{
		`gotsem_acquires_total{gotsem_outcome="granted",gotsem_semaphore="captures",gotsem_source="store"} 1`,
		`gotsem_acquires_total{gotsem_outcome="full",gotsem_semaphore="captures",gotsem_source="store"} 1`,
		`gotsem_acquires_total{gotsem_outcome="waited_too_long",gotsem_semaphore="captures",gotsem_source="store"} 1`,
		`gotsem_acquires_total{gotsem_outcome="line_full",gotsem_semaphore="captures",gotsem_source="store"} 0`,
		`gotsem_wait_duration_seconds_count{gotsem_outcome="waited_too_long",gotsem_semaphore="captures"} 1`,
		`gotsem_lease_duration_seconds_count{gotsem_end="released",gotsem_semaphore="captures"} 1`,
		`gotsem_store_duration_seconds_count{error_type="",gotsem_operation="acquire",gotsem_semaphore="captures"}`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("nothing of %s in\n%s", line, text)
		}
	}
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	stop()
	if all := series(t, r); len(all) != 0 {
		t.Errorf("after stop: %q", all)
	}
	if _, err := promsem.Register(r, sem, "captures"); err != nil {
		t.Errorf("again after stop: %v", err)
	}
}

// exposition is what Prometheus would read.
func exposition(t *testing.T, r *prometheus.Registry) string {
	t.Helper()
	var all strings.Builder
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			set := "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.Counter != nil:
				fmt.Fprintf(&all, "%s%s %v\n", f.GetName(), set, m.GetCounter().GetValue())
			case m.Gauge != nil:
				fmt.Fprintf(&all, "%s%s %v\n", f.GetName(), set, m.GetGauge().GetValue())
			case m.Histogram != nil:
				fmt.Fprintf(&all, "%s_count%s %v\n", f.GetName(), set, m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all.String()
}

// No id is a label: the number of series does not grow with that of ids.
func TestSeriesDoNotGrowWithIDs(t *testing.T) {
	r := prometheus.NewRegistry()
	sem := semaphore(t, gotsem.Options{Limit: 1, TTL: time.Hour})
	if _, err := promsem.Register(r, sem, "all"); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	ask := func(from, to int) {
		for i := from; i < to; i++ {
			l, err := sem.Try(ctx, fmt.Sprint("id", i))
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				_ = l.Release(ctx)
			}
		}
	}
	ask(0, 10)
	few := series(t, r)
	ask(10, 100_000)
	if many := series(t, r); !slices.Equal(few, many) {
		t.Errorf("%d series with 10 ids, %d with 100,000", len(few), len(many))
	}
}

func TestVerdictsOfAShedderAreShown(t *testing.T) {
	r := prometheus.NewRegistry()
	shed, err := httpshed.New(httpshed.Options{Semaphore: semaphore(t, gotsem.Options{Limit: 1}), Key: httpshed.Fixed("id")})
	if err != nil {
		t.Fatal(err)
	}
	stop, err := promsem.RegisterShedder(r, shed, "door")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var h http.Handler
	inner := httptest.NewRecorder()
	h = shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if inner.Code == 200 && r.URL.Path == "/" {
			h.ServeHTTP(inner, httptest.NewRequest("GET", "/again", nil))
		}
	}))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	text := exposition(t, r)
	for _, line := range []string{
		`gotsem_shed_requests_total{gotsem_shed="door",gotsem_verdict="admitted"} 1`,
		`gotsem_shed_requests_total{gotsem_shed="door",gotsem_verdict="full"} 1`,
		`gotsem_shed_active{gotsem_shed="door"} 0`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("nothing of %s in\n%s", line, text)
		}
	}
	if problems, err := testutil.GatherAndLint(r); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func ExampleRegister() {
	sem, err := gotsem.New(gotsem.Options{Limit: 6})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sem.Close()
	registry := prometheus.NewRegistry()
	stop, err := promsem.Register(registry, sem, "captures")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	if _, err := sem.Try(context.Background(), "browser"); err != nil {
		fmt.Println(err)
		return
	}
	n, err := testutil.GatherAndCount(registry, "gotsem_lease_active")
	fmt.Println(n, err)
	// Output: 1 <nil>
}
