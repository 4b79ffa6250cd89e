// Command uploads asks a full server with what people use: does whoever uploads
// something see the 429? Clients of Go, curl, Python and Node, bodies of 100 kB to
// 50 MB with a length and in chunks, HTTP/1.1 and HTTP/2, directly and behind nginx
// and haproxy; a Shedder that closes connections, one that keeps them, and beside
// them a bare handler that answers 429.
//
// It fails if a client misses the 429 of a Shedder where it saw each of the bare
// handler's, and if a proxy makes an error of its own of one. All of it is on
// loopback. `make uploads` runs it, and installs the clients and proxies.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// bodies are what is uploaded, and how often in a round.
var bodies = []struct{ size, count int }{{100_000, 3}, {1 << 20, 3}, {10 << 20, 2}, {50 << 20, 1}}

// asked is one kind of upload.
type asked struct {
	path    string // direct, or the proxy
	client  string
	size    int
	chunked bool
}

func (a asked) String() string {
	how := "length"
	if a.chunked {
		how = "chunks"
	}
	size := fmt.Sprintf("%d MB", a.size>>20)
	if a.size < 1<<20 {
		size = fmt.Sprintf("%d kB", a.size/1000)
	}
	return fmt.Sprintf("%s, %s, %s, %s", a.path, a.client, size, how)
}

// answer is what a client saw: 0 is none.
type answer struct {
	size    int
	chunked bool
	status  int
	words   string
}

// seen counts answers of one kind of upload to one server.
type seen struct {
	asked, refused int
	others         map[string]int // what else was seen
}

func main() {
	rounds := flag.Int("rounds", 3, "rounds at most")
	seconds := flag.Int("seconds", 300, "after which no other round is begun, and the first one has failed if it has not ended")
	only := flag.String("only", "", "only where \"path, client,\" contains this")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("uploads: ")
	if err := run(*rounds, time.Duration(*seconds)*time.Second, *only); err != nil {
		log.Fatal(err)
	}
}

// The servers. Bare is what the others are compared with.
const bare = "bare"

var servers = []string{bare, "closing", "keeping"}

func handlers() (map[string]http.Handler, error) {
	sem, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		return nil, err
	}
	if _, err := sem.Try(context.Background(), "capture"); err != nil {
		return nil, err
	}
	shed := func(policy httpshed.ClosePolicy) (http.Handler, error) {
		s, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: httpshed.Fixed("capture"), Close: policy})
		if err != nil {
			return nil, err
		}
		return s.Handler(http.NotFoundHandler()), nil
	}
	closing, err := shed(httpshed.CloseRefused)
	if err != nil {
		return nil, err
	}
	keeping, err := shed(httpshed.CloseNever)
	if err != nil {
		return nil, err
	}
	return map[string]http.Handler{
		bare: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Too many at once.", http.StatusTooManyRequests)
		}),
		"closing": closing,
		"keeping": keeping,
	}, nil
}

func run(rounds int, limit time.Duration, only string) error {
	dir, err := os.MkdirTemp("", "uploads")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	hs, err := handlers()
	if err != nil {
		return err
	}
	addrs := map[string]string{} // path/server
	for name, h := range hs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		srv := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0)}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		defer srv.Close()
		go func() { _ = srv.Serve(l) }()
		addrs["direct/"+name] = l.Addr().String()
	}
	stop, err := proxies(dir, addrs)
	defer stop()
	if err != nil {
		return err
	}
	clients, err := all(dir)
	if err != nil {
		return err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	counts := map[string]map[asked]*seen{} // by server
	done := 0
	for ; done < rounds && ctx.Err() == nil; done++ {
		for _, c := range clients {
			for _, path := range paths {
				if c.direct && path != "direct" || !strings.Contains(path+", "+c.name+",", only) {
					continue
				}
				for _, server := range servers {
					if err := c.ask(ctx, "http://"+addrs[path+"/"+server]+"/", func(a answer) {
						note(counts, server, asked{path, c.name, a.size, a.chunked}, a)
					}); err != nil && ctx.Err() == nil {
						return fmt.Errorf("%s, %s, %s: %w", path, c.name, server, err)
					}
				}
			}
		}
	}
	if ctx.Err() != nil && done <= 1 {
		return fmt.Errorf("not once through all of it in %v: the machine is too busy, or -seconds too few", limit)
	}
	fmt.Printf("%d rounds in %v\n\n", done, time.Since(began).Round(time.Second))
	return report(counts)
}

func note(counts map[string]map[asked]*seen, server string, k asked, a answer) {
	if counts[server] == nil {
		counts[server] = map[asked]*seen{}
	}
	s := counts[server][k]
	if s == nil {
		s = &seen{others: map[string]int{}}
		counts[server][k] = s
	}
	s.asked++
	switch a.status {
	case http.StatusTooManyRequests:
		s.refused++
	case 0:
		s.others[a.words]++
	default:
		s.others[fmt.Sprint(a.status)]++
	}
}

// report prints how many of all saw their 429, and what each missed. It returns an
// error if a rule does not hold.
func report(counts map[string]map[asked]*seen) error {
	type total struct{ path, client string }
	var rows []total
	sums := map[total]map[string][2]int{}
	var kinds []asked
	for server, of := range counts {
		for k, s := range of {
			if server == bare {
				kinds = append(kinds, k)
			}
			t := total{k.path, k.client}
			if sums[t] == nil {
				sums[t] = map[string][2]int{}
				rows = append(rows, t)
			}
			sum := sums[t][server]
			sums[t][server] = [2]int{sum[0] + s.refused, sum[1] + s.asked}
		}
	}
	slices.SortFunc(rows, func(a, b total) int {
		return cmp.Or(slices.Index(paths, a.path)-slices.Index(paths, b.path), cmp.Compare(a.client, b.client))
	})
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "429 seen\tby\tbare handler\tclosing\tkeeping")
	for _, t := range rows {
		fmt.Fprintf(w, "%s\t%s", t.path, t.client)
		for _, server := range servers {
			sum := sums[t][server]
			fmt.Fprintf(w, "\t%d of %d", sum[0], sum[1])
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	fmt.Println()

	slices.SortFunc(kinds, func(a, b asked) int { return cmp.Compare(a.String(), b.String()) })
	var errs []error
	missed := 0
	for _, k := range kinds {
		b := counts[bare][k]
		for _, server := range servers {
			s := counts[server][k]
			if s == nil {
				s = &seen{}
			}
			if s.refused < s.asked && server != bare {
				fmt.Printf("missed: %s: %s: %d of %d saw 429; else %v\n", server, k, s.refused, s.asked, s.others)
			}
			if server == bare {
				continue
			}
			missed += s.asked - s.refused
			if s.asked == 0 || s.refused < s.asked && b.refused == b.asked {
				errs = append(errs, fmt.Errorf("%s: %s: %d of %d saw the 429, and each of the bare handler's %d was seen", server, k, s.refused, s.asked, b.asked))
			}
			for what := range s.others {
				if k.path != "direct" && strings.HasPrefix(what, "50") {
					errs = append(errs, fmt.Errorf("%s: %s: the proxy answered %s", server, k, what))
				}
			}
		}
	}
	if len(kinds) == 0 {
		return errors.New("nothing was asked")
	}
	fmt.Printf("of the Shedders' answers %d were missed\n", missed)
	return errors.Join(errs...)
}
