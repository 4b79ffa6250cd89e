package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image/png"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// SoakResult is what a long overload of the service came to.
type SoakResult struct {
	Time     time.Duration
	Capacity float64 // captures a second
	Offered  float64
	Asked    int
	Captured int // valid pictures of the page asked for
	Wrong    int // answers 200 that are not
	Refused  int
	Failed   int
	P50, P99 time.Duration // of a refusal, from the request to its header
	Worst    time.Duration
	MostTabs int
	Early    int64 // bytes of the browser, the most in the first third
	Late     int64 // the most in the last third
	Server   [2]int64
	Crashes  int
	Left     int // tabs, when it was over
	Cell     string
}

// Soak sends load times what the service can do, from clients that ask once.
func Soak(ctx context.Context, o Options) (*SoakResult, error) {
	pages := httptest.NewServer(o.page())
	defer pages.Close()
	capacity, err := o.capacity(ctx, pages)
	if err != nil {
		return nil, err
	}
	s, err := o.start(Try, pages)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	if err := s.warm(ctx); err != nil {
		return nil, err
	}
	r := &SoakResult{Time: o.Time, Capacity: capacity, Offered: capacity * o.Load, Cell: s.cell.kind}
	run, cancel := context.WithTimeout(ctx, o.Time)
	defer cancel()
	var mu sync.Mutex
	var refusals []time.Duration
	var samples []Sample
	var wg sync.WaitGroup
	wg.Go(func() { samples = s.sample(run, &crowd{}) })
	dice := rand.New(rand.NewPCG(3, 4))
	next := time.Now()
	for run.Err() == nil {
		next = next.Add(time.Duration(dice.ExpFloat64() / r.Offered * float64(time.Second)))
		select {
		case <-time.After(time.Until(next)):
		case <-run.Done():
			continue
		}
		wg.Go(func() {
			a := s.try(ctx, time.Minute) // those under way when time is up may finish
			mu.Lock()
			defer mu.Unlock()
			r.Asked++
			switch a.status {
			case http.StatusOK:
				r.Captured++
				if err := isGreen(a.body); err != nil {
					r.Captured--
					r.Wrong++
					o.Log.Error("lab: a wrong picture", "error", err)
				}
			case http.StatusTooManyRequests:
				r.Refused++
				refusals = append(refusals, a.took)
			default:
				r.Failed++
				o.Log.Error("lab: failed", "status", a.status, "error", a.err)
			}
		})
	}
	wg.Wait()
	told, err := s.told(ctx)
	if err != nil {
		return nil, err
	}
	r.MostTabs, r.Crashes, r.Left = told.MostTabs, told.Crashes, told.Running
	r.P50, r.P99, r.Worst = percentile(refusals, .5), percentile(refusals, .99), percentile(refusals, 1)
	for i, x := range samples {
		switch {
		case i < len(samples)/3:
			r.Early, r.Server[0] = max(r.Early, x.Browser), max(r.Server[0], x.Server)
		case i >= len(samples)*2/3:
			r.Late, r.Server[1] = max(r.Late, x.Browser), max(r.Server[1], x.Server)
		}
	}
	if r.Captured == 0 {
		return r, errors.New("nothing was captured")
	}
	return r, nil
}

// isGreen reports what is wrong with a picture of the lab's page.
func isGreen(data []byte) error {
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return err
	}
	if b := img.Bounds(); b.Dx() != 800 || b.Dy() != 600 {
		return fmt.Errorf("it is %v", b)
	}
	if r, g, b, _ := img.At(799, 1).RGBA(); r != 0 || g>>8 != 128 || b != 0 {
		return fmt.Errorf("its corner is (%d,%d,%d)", r>>8, g>>8, b>>8)
	}
	return nil
}
