package httpshed_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// show asks a handler, and prints what a client sees of the answer.
func show(h http.Handler, path string, header ...string) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(strings.TrimSpace(fmt.Sprint(path, " ", w.Code, " ", w.Header().Get("Connection"))))
}

// Two captures at once per project; the third gets 429 at once, other projects and
// the probe are not concerned.
func Example_perProject() {
	sem, err := gotsem.New(gotsem.Options{Limit: 2}) // Store: redisstore.New(rdb, "sem:") for a fleet
	if err != nil {
		log.Fatal(err)
	}
	defer sem.Close()
	shed, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: httpshed.ByPathValue("project")})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/p/{project}/capture", shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "a picture")
	})))
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})

	for range 2 { // two captures of project a are under way
		lease, err := sem.Try(context.Background(), "a")
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Release(context.Background())
	}
	show(mux, "/p/a/capture")
	show(mux, "/p/b/capture")
	show(mux, "/healthz")
	// Output:
	// /p/a/capture 429 close
	// /p/b/capture 200
	// /healthz 200
}

// One request at a time per API key. The key is a secret, so its hash is what the
// store and its dashboards see; and clients that make keys up share one limit.
func Example_apiKey() {
	sem, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer sem.Close()
	key := httpshed.Overflow(10_000, httpshed.ByHeader("X-API-Key"))
	hashed, err := httpshed.HashID([]byte("from the configuration, the same on all servers"), key)
	if err != nil {
		log.Fatal(err)
	}
	shed, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: hashed})
	if err != nil {
		log.Fatal(err)
	}
	var h http.Handler
	h = shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/outer" {
			show(h, "/same-key", "X-API-Key", "sk-1") // while this request is under way
			show(h, "/other-key", "X-API-Key", "sk-2")
			for id := range sem.IDs(r.Context()) {
				fmt.Println("the store sees", len(id), "characters, which are the key:", id == "sk-1")
			}
		}
	}))
	show(h, "/outer", "X-API-Key", "sk-1")
	show(h, "/no-key")
	// Output:
	// /same-key 429 close
	// /other-key 200
	// the store sees 22 characters, which are the key: false
	// /outer 200
	// /no-key 400
}

// A short line absorbs a burst: one slot, one place in line, and the third is told
// no at once.
func Example_burstLine() {
	sem, err := gotsem.New(gotsem.Options{Limit: 1, Queue: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer sem.Close()
	shed, err := httpshed.New(httpshed.Options{
		Semaphore: sem,
		Key:       httpshed.Fixed("capture"),
		Wait:      time.Minute, // in earnest a little more than a request takes
	})
	if err != nil {
		log.Fatal(err)
	}
	h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))

	ctx := context.Background()
	busy, err := sem.Try(ctx, "capture")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		show(h, "/waits")
	}()
	for u, _ := sem.Usage(ctx, "capture"); u.Waiting == 0; u, _ = sem.Usage(ctx, "capture") {
		time.Sleep(time.Millisecond)
	}
	show(h, "/too-many")
	_ = busy.Release(ctx)
	<-served
	// Output:
	// /too-many 429 close
	// /waits 200
}

// This server's own cap beside the fleet's: a refusal says whether another server
// would do.
func Example_localAndFleet() {
	fleet, err := gotsem.New(gotsem.Options{Limit: 20}) // Store: redisstore.New(rdb, "sem:")
	if err != nil {
		log.Fatal(err)
	}
	defer fleet.Close()
	local, err := gotsem.New(gotsem.Options{Limit: 6})
	if err != nil {
		log.Fatal(err)
	}
	defer local.Close()
	shed, err := httpshed.New(httpshed.Options{
		Semaphore: fleet,
		Local:     local,
		Key:       httpshed.Fixed("capture"),
		OnRefuse: func(_ *http.Request, no httpshed.Refusal) {
			fmt.Println(no.Reason, "- come back at once:", no.RetryAfter == 0, "- on another connection:", no.Close)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	h := shed.Handler(http.NotFoundHandler())

	ctx := context.Background()
	here, err := local.Try(ctx, httpshed.LocalID, gotsem.Weight(6))
	if err != nil {
		log.Fatal(err)
	}
	show(h, "/this-server-is-full")
	_ = here.Release(ctx)
	everywhere, err := fleet.Try(ctx, "capture", gotsem.Weight(20))
	if err != nil {
		log.Fatal(err)
	}
	show(h, "/the-fleet-is-full")
	_ = everywhere.Release(ctx)
	// Output:
	// server full - come back at once: true - on another connection: true
	// /this-server-is-full 429 close
	// full - come back at once: false - on another connection: false
	// /the-fleet-is-full 429
}

// The slot follows the work: it is held until the picture is there, also if the
// request was answered long before.
func ExampleKeep() {
	sem, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer sem.Close()
	shed, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: httpshed.Fixed("capture")})
	if err != nil {
		log.Fatal(err)
	}
	render := make(chan struct{})
	var work sync.WaitGroup
	h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release := httpshed.Keep(r.Context())
		work.Go(func() { // goes on after the request
			defer release()
			<-render
		})
		w.WriteHeader(http.StatusAccepted)
	}))
	show(h, "/first")
	show(h, "/second")
	close(render)
	work.Wait()
	show(h, "/third")
	// Output:
	// /first 202
	// /second 429 close
	// /third 202
}

// At most two requests at a time to an upstream, from all processes that share the
// semaphore; what the upstream refuses is tried again when it says so.
func ExampleTransport() {
	asked := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = io.WriteString(w, "a picture")
	}))
	defer upstream.Close()
	sem, err := gotsem.New(gotsem.Options{Limit: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer sem.Close()
	client := &http.Client{Transport: &httpshed.Transport{
		Semaphore: sem,
		Wait:      5 * time.Second, // in line for a slot
	}}
	resp, err := client.Get(upstream.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close() // holds its slot until then, or until it is read to the end
	body, err := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(body), err, "after", asked, "tries")
	// Output:
	// 200 a picture <nil> after 2 tries
}
