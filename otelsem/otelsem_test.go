package otelsem_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/internal/leaktest"
	"github.com/ashfaqjani916/gotsem/otelsem"
	"github.com/ashfaqjani916/gotsem/promsem"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func semaphore(tb testing.TB, o gotsem.Options) *gotsem.Semaphore {
	tb.Helper()
	sem, err := gotsem.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = sem.Close() })
	return sem
}

// must returns a stop that is called when the test ends.
func must(tb testing.TB) func(stop func(), err error) {
	return func(stop func(), err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(stop)
	}
}

// flaky is a store that can be told to fail.
type flaky struct {
	store.Store
	fails error
}

func (f *flaky) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	if f.fails != nil {
		return store.Decision{}, f.fails
	}
	return f.Store.Acquire(ctx, r)
}

// lists adds what RegisterIDs asks for.
type lists struct {
	*flaky
	store.Lister
	store.LimitSetter
}

// work is a bit of everything that a semaphore and a Shedder can tell of.
func work(t *testing.T, sem *gotsem.Semaphore, shed *httpshed.Shedder, st *flaky) {
	t.Helper()
	ctx := t.Context()
	time.Sleep(time.Millisecond) // an instant of 0 is not known
	l, err := sem.Try(ctx, "hot")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sem.Try(ctx, "hot"); !errors.Is(err, gotsem.ErrFull) {
		t.Fatal(err)
	}
	if _, err := sem.Acquire(ctx, "hot", gotsem.MaxWait(time.Second)); !errors.Is(err, gotsem.ErrWaitTooLong) {
		t.Fatal(err)
	}
	if ok, err := sem.Revoke(ctx, "hot", l.SlotID()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	<-l.Context().Done()
	if err := sem.SetLimit(ctx, "hot", 2); err != nil {
		t.Fatal(err)
	}
	if l, err = sem.Try(ctx, "hot"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	st.fails = errors.New("nobody is there")
	if _, err := sem.Try(ctx, "hot"); !errors.Is(err, gotsem.ErrUnavailable) {
		t.Fatal(err)
	}
	st.fails = context.DeadlineExceeded
	if _, err := sem.Try(ctx, "hot"); !errors.Is(err, gotsem.ErrUnavailable) {
		t.Fatal(err)
	}
	st.fails = nil
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if l, err = sem.Try(ctx, "hot"); err != nil { // it is held while the metrics are read
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Release(context.Background()) })
	time.Sleep(time.Second)
	shed.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	synctest.Wait()
}

// shapes are the metrics of r: name, type, help and labels, in one line a series, and the
// values of labels too. Labels that are empty are left out, as Prometheus does.
func shapes(t *testing.T, r prometheus.Gatherer, values bool) (all []string) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			line := fmt.Sprintf("%s | %v | %s |", f.GetName(), f.GetType(), f.GetHelp())
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					line += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
				}
			}
			if values {
				line += " | "
				switch {
				case m.Counter != nil:
					line += fmt.Sprint(m.GetCounter().GetValue())
				case m.Gauge != nil:
					line += fmt.Sprint(m.GetGauge().GetValue())
				case m.Histogram != nil:
					line += fmt.Sprint(m.GetHistogram().GetSampleCount(), " in ", len(m.GetHistogram().GetBucket()), ":")
					for _, b := range m.GetHistogram().GetBucket() {
						line += fmt.Sprint(" ", b.GetUpperBound(), "=", b.GetCumulativeCount())
					}
				}
			}
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}

// The one rule of the two packages: what Prometheus sees of the same work is the same,
// whichever of them it was told by. testdata/golden.txt has it, for both to keep.
func TestBothSayTheSameToPrometheus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New()
		st := &flaky{Store: m}
		sem := semaphore(t, gotsem.Options{Store: lists{st, m, m}, Limit: 1, Queue: 5, Outage: gotsem.Closed, TTL: time.Hour})
		shed, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: httpshed.Fixed("web")})
		if err != nil {
			t.Fatal(err)
		}
		direct := prometheus.NewRegistry()
		must(t)(promsem.Register(direct, sem, "captures"))
		must(t)(promsem.RegisterIDs(direct, sem, "captures", []string{"hot"}))
		must(t)(promsem.RegisterShedder(direct, shed, "door"))
		exported := prometheus.NewRegistry()
		reader, err := exporter.New(exporter.WithRegisterer(exported), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo(),
			exporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
		if err != nil {
			t.Fatal(err)
		}
		provider := metric.NewMeterProvider(metric.WithReader(reader))
		must(t)(otelsem.Register(sem, "captures", otelsem.WithMeterProvider(provider)))
		must(t)(otelsem.RegisterIDs(sem, "captures", []string{"hot"}, otelsem.WithMeterProvider(provider)))
		must(t)(otelsem.RegisterShedder(shed, "door", otelsem.WithMeterProvider(provider)))

		work(t, sem, shed, st)

		one, other := shapes(t, direct, true), shapes(t, exported, true)
		for i := range max(len(one), len(other)) {
			if i >= len(one) || i >= len(other) || one[i] != other[i] {
				t.Fatalf("they differ:\npromsem %s\notelsem %s", at(one, i), at(other, i))
			}
		}
		got := strings.Join(shapes(t, direct, false), "\n") + "\n"
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile("testdata/golden.txt", []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile("testdata/golden.txt")
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("the metrics are not those of testdata/golden.txt; if that is meant, run UPDATE_GOLDEN=1 go test -run Both ./otelsem, and see to docs/metrics.md and deploy:\n%s", got)
		}
		if problems, err := testutil.GatherAndLint(exported); err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	})
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "has no more"
}

// No id is an attribute: the number of series does not grow with that of ids.
func TestSeriesDoNotGrowWithIDs(t *testing.T) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	sem := semaphore(t, gotsem.Options{Limit: 1, TTL: time.Hour})
	must(t)(otelsem.Register(sem, "all", otelsem.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))))
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
	few := shapes(t, registry, false)
	ask(10, 100_000)
	if many := shapes(t, registry, false); !slices.Equal(few, many) {
		t.Errorf("%d series with 10 ids, %d with 100,000", len(few), len(many))
	}
}

// collect is what the SDK has of each instrument.
func collect(t *testing.T, r *metric.ManualReader) map[string]metricdata.Aggregation {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	by := make(map[string]metricdata.Aggregation)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			by[m.Name] = m.Data
		}
	}
	return by
}

func TestAfterStopNothingIsTold(t *testing.T) {
	reader := metric.NewManualReader()
	provider := otelsem.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	sem := semaphore(t, gotsem.Options{Limit: 1})
	stop, err := otelsem.Register(sem, "captures", provider)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := otelsem.Register(sem, "captures", provider); err == nil || !strings.Contains(err.Error(), "captures") {
		t.Errorf("the same name twice: %v", err)
	}
	other := semaphore(t, gotsem.Options{Limit: 1})
	must(t)(otelsem.Register(other, "other", provider))
	l, err := sem.Try(t.Context(), "id")
	if err != nil {
		t.Fatal(err)
	}
	held := func() map[string]int64 {
		by := make(map[string]int64)
		for _, p := range collect(t, reader)["gotsem.lease.active"].(metricdata.Sum[int64]).DataPoints {
			name, _ := p.Attributes.Value("gotsem.semaphore")
			by[name.AsString()] = p.Value
		}
		return by
	}
	if got := held(); len(got) != 2 || got["captures"] != 1 || got["other"] != 0 {
		t.Errorf("%v", got)
	}
	stop()
	stop() // twice is safe
	if got := held(); len(got) != 1 {
		t.Errorf("after stop: %v", got)
	}
	_ = l.Release(t.Context())
	if ended, ok := collect(t, reader)["gotsem.lease.duration"]; ok {
		t.Errorf("after stop: %v", ended)
	}
	must(t)(otelsem.Register(sem, "captures", provider)) // the name is free again
}

func TestTheDearestHistogramCanBeLeftOut(t *testing.T) {
	for _, without := range []bool{false, true} {
		reader := metric.NewManualReader()
		opts := []otelsem.Option{otelsem.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))}
		if without {
			opts = append(opts, otelsem.WithoutStoreDuration())
		}
		sem := semaphore(t, gotsem.Options{Limit: 1})
		must(t)(otelsem.Register(sem, "captures", opts...))
		l, err := sem.Try(t.Context(), "id")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Release(t.Context())
		all := collect(t, reader)
		if _, ok := all["gotsem.store.duration"]; ok == without {
			t.Errorf("without: %v; it is there: %v", without, ok)
		}
		if _, ok := all["gotsem.lease.duration"]; !ok {
			t.Error("the others are gone too")
		}
	}
}

func TestWhatCannotBeRegisteredIsSaid(t *testing.T) {
	sem := semaphore(t, gotsem.Options{Limit: 1})
	provider := otelsem.WithMeterProvider(metric.NewMeterProvider())
	if _, err := otelsem.Register(sem, "", provider); err == nil {
		t.Error("no name")
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for _, ids := range [][]string{nil, many, {""}, {"a", "a"}, {"\xff"}} {
		if _, err := otelsem.RegisterIDs(sem, "x", ids, provider); err == nil {
			t.Errorf("%q", ids)
		}
		if _, err := promsem.RegisterIDs(prometheus.NewRegistry(), sem, "x", ids); err == nil {
			t.Errorf("%q", ids)
		}
	}
	must(t)(otelsem.RegisterIDs(sem, "x", many[:100], provider)) // an error took no name
}

// spans are those of what f does, by a tracer that keeps all.
func spans(t *testing.T, sem *gotsem.Semaphore, f func(ctx context.Context), opts ...otelsem.Option) tracetest.SpanStubs {
	t.Helper()
	out := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(out))
	stop, err := otelsem.Register(sem, "captures", append(opts, otelsem.WithTracerProvider(provider), otelsem.WithMeterProvider(metric.NewMeterProvider()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, request := provider.Tracer("test").Start(t.Context(), "request")
	f(ctx)
	synctest.Wait()
	request.End()
	return out.GetSpans()
}

func attributes(s tracetest.SpanStub) map[attribute.Key]string {
	all := make(map[attribute.Key]string)
	for _, a := range s.Attributes {
		all[a.Key] = a.Value.String()
	}
	return all
}

func TestOnlyWhoWaitedHasASpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, gotsem.Options{Limit: 1, Queue: 3})
		began := time.Now()
		got := spans(t, sem, func(ctx context.Context) {
			l, err := sem.Acquire(ctx, "a|b") // at once
			if err != nil {
				t.Fatal(err)
			}
			_, _ = sem.Try(ctx, "a|b") // refused at once
			_, _ = sem.Acquire(ctx, "a|b", gotsem.MaxWait(3*time.Second), gotsem.As(gotsem.Critical))
			time.AfterFunc(2*time.Second, func() { _ = l.Release(context.Background()) })
			if l, err = sem.Acquire(ctx, "a|b"); err != nil {
				t.Fatal(err)
			}
			_ = l.Release(ctx)
		})
		if len(got) != 3 {
			t.Fatalf("%d spans, want that of the request and two that waited: %v", len(got), got)
		}
		request := got[2].SpanContext
		for i, want := range []struct {
			from, to time.Duration
			outcome  string
			class    string
		}{{0, 3 * time.Second, "waited_too_long", "critical"}, {3 * time.Second, 5 * time.Second, "granted", "default"}} {
			s := got[i]
			if s.Name != "gotsem.acquire" || s.Parent.SpanID() != request.SpanID() || s.StartTime.Sub(began) != want.from || s.EndTime.Sub(began) != want.to || s.Status.Code != codes.Unset {
				t.Errorf("%s from %v to %v, below %v, %v", s.Name, s.StartTime.Sub(began), s.EndTime.Sub(began), s.Parent, s.Status)
			}
			if a := attributes(s); a["gotsem.outcome"] != want.outcome || a["gotsem.class"] != want.class || a["gotsem.id"] != "a|b" || a["gotsem.semaphore"] != "captures" || a["gotsem.line.place"] != "1" || a["error.type"] != "" {
				t.Errorf("%v", a)
			}
		}
	})
}

func TestSpansOfAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New()
		st := &flaky{Store: m}
		sem := semaphore(t, gotsem.Options{Store: st, Limit: 1, Queue: 3, Outage: gotsem.Closed})
		do := func(ctx context.Context) {
			l, err := sem.Try(ctx, "secret")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = sem.Acquire(ctx, "secret", gotsem.MaxWait(time.Second))
			st.fails = errors.New("nobody is there")
			_, _ = sem.Try(ctx, "secret")
			st.fails = nil
			_ = l.Release(ctx)
		}
		if got := spans(t, sem, do, otelsem.WithSpans(otelsem.NoSpans)); len(got) != 1 {
			t.Errorf("%d spans, want that of the request alone", len(got))
		}
		got := spans(t, sem, do, otelsem.WithSpans(otelsem.All), otelsem.WithoutID())
		if len(got) != 4 {
			t.Fatalf("%d spans, want 3 and that of the request", len(got))
		}
		for _, s := range got {
			if text := fmt.Sprint(s.Attributes, s.Events); strings.Contains(text, "secret") {
				t.Errorf("the id is told: %s", text)
			}
		}
		failed := got[2]
		if a := attributes(failed); failed.Status.Code != codes.Error || a["error.type"] != "unavailable" || a["gotsem.outcome"] != "unavailable" {
			t.Errorf("%v %v", failed.Status, a)
		}
	})
}

func TestALossIsAnEventOfTheSpanThatAcquired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, gotsem.Options{Limit: 1})
		got := spans(t, sem, func(ctx context.Context) {
			l, err := sem.Try(ctx, "id")
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := sem.Revoke(ctx, "id", l.SlotID()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			<-l.Context().Done()
		})
		if len(got) != 1 || len(got[0].Events) != 1 || got[0].Events[0].Name != "gotsem.lease.lost" || !strings.Contains(fmt.Sprint(got[0].Events[0].Attributes), "revoked") {
			t.Errorf("%+v", got)
		}
	})
}

// Exemplars come from the SDK, by the ctx that it is given.
func TestALongWaitLeadsToItsTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		sem := semaphore(t, gotsem.Options{Limit: 1, Queue: 1})
		tracers := trace.NewTracerProvider()
		must(t)(otelsem.Register(sem, "captures", otelsem.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))), otelsem.WithTracerProvider(tracers)))
		ctx, request := tracers.Tracer("test").Start(t.Context(), "request")
		defer request.End()
		if _, err := sem.Try(ctx, "id"); err != nil {
			t.Fatal(err)
		}
		_, _ = sem.Acquire(ctx, "id", gotsem.MaxWait(time.Second))
		points := collect(t, reader)["gotsem.wait.duration"].(metricdata.Histogram[float64]).DataPoints
		trace := request.SpanContext().TraceID()
		if len(points) != 1 || len(points[0].Exemplars) != 1 || string(points[0].Exemplars[0].TraceID) != string(trace[:]) || points[0].Exemplars[0].Value != 1 {
			t.Errorf("%+v", points)
		}
	})
}

// A program that uses otelsem decides which SDK it has.
func TestTheSDKIsNotImported(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(path, "go.opentelemetry.io/otel/sdk") || strings.HasPrefix(path, "go.opentelemetry.io/otel/exporters") || strings.HasPrefix(path, "github.com/prometheus/") {
			t.Errorf("otelsem imports %s", path)
		}
	}
}
