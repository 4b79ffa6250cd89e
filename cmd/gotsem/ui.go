package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/ashfaqjani916/gotsem/semui"
)

var loopbackHosts = []string{"127.0.0.1", "localhost", "::1"}

type uiCmd struct {
	connection
	Listen  string        `default:"127.0.0.1:7788" help:"Where the page is served: a loopback address (default ${default}; port 0: any that is free)."`
	Operate bool          `help:"Limits can be changed, and slots revoked, by who opens the URL that is printed."`
	Limit   int           `default:"0" placeholder:"N" help:"The limit that your programs bring along; 0: not known, so that only limits set by hand are shown."`
	Pin     []string      `placeholder:"ID" sep:"none" help:"An id that is always looked at. May be given again."`
	Timeout time.Duration `default:"1s" help:"Give up a call when Redis does not answer for so long (default ${default})."`
}

func (*uiCmd) Help() string {
	return `Serves a page of what hurts: which ids have a line or are full, who holds them and who waits, and what their limit is. Redis is asked only while somebody looks, 150 times a second at most; large prefixes are walked over minutes, and the page says how far it is. Every user of this machine can look; with --operate, only who has the URL that is printed, once, can change limits and revoke slots. It is not meant for other machines: to share it, mount package semui in a service of yours behind its login.`
}

func (c *uiCmd) Validate() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen %s: the page has no login, so it is served on a loopback address only", printable(c.Listen))
	}
	if c.Limit < 0 {
		return fmt.Errorf("--limit %d: 1 or more, or 0 for not known", c.Limit)
	}
	return nil
}

func (c *uiCmd) Run(a *app) error {
	link, err := c.open(a)
	if err != nil {
		return err
	}
	defer link.close()
	sem, err := link.semaphore(max(c.Limit, 1), c.Timeout, 0)
	if err != nil {
		return fmt.Errorf("--timeout or --limit: %w", err)
	}
	defer sem.Close()
	key := &operator{once: rand.Text(), cookie: rand.Text()}
	page, err := semui.New(semui.Options{
		Semaphore: sem, LimitUnknown: c.Limit == 0, Pinned: c.Pin, Hosts: loopbackHosts,
		Authorize: func(r *http.Request) (string, semui.Access) {
			if c.Operate && key.has(r) {
				return "operator", semui.Operate
			}
			return "", semui.View
		},
		Logger: slog.New(slog.NewTextHandler(a.stderr, nil)),
	})
	if err != nil {
		return err
	}
	defer page.Close()
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	url := "http://" + listener.Addr().String() + "/"
	if c.Operate {
		fmt.Fprintf(a.stdout, "%s?token=%s (once, to operate; without the token: to look)\n", url, key.once)
	} else {
		fmt.Fprintln(a.stdout, url)
	}
	return serve(listener, key.exchange(page), page)
}

// serve serves until Ctrl-C comes; then it closes the page, whose streams would go on.
func serve(listener net.Listener, h http.Handler, page io.Closer) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	srv.RegisterOnShutdown(func() { _ = page.Close() })
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := srv.Shutdown(bounded); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// operator is who opened the URL with the token. Other users of the machine reach a
// loopback address too, and the token counts once.
type operator struct {
	mu           sync.Mutex
	once, cookie string
}

// operatorCookie does not tell ports apart, as no cookie does.
const operatorCookie = "gotsem_operator"

func (o *operator) has(r *http.Request) bool {
	c, err := r.Cookie(operatorCookie)
	return err == nil && subtle.ConstantTimeCompare([]byte(c.Value), []byte(o.cookie)) == 1
}

// exchange takes the token for a cookie.
func (o *operator) exchange(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.URL.Query().Get("token")
		if r.URL.Path != "/" || token == "" {
			page.ServeHTTP(w, r)
			return
		}
		o.mu.Lock()
		ok := o.once != "" && subtle.ConstantTimeCompare([]byte(token), []byte(o.once)) == 1
		if ok {
			o.once = ""
		}
		o.mu.Unlock()
		if !ok {
			http.Error(w, "this token is wrong, or was used before: start gotsem ui --operate again", http.StatusForbidden)
			return
		}
		http.SetCookie(w, &http.Cookie{Name: operatorCookie, Value: o.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Location", "/")
		w.WriteHeader(http.StatusSeeOther)
	})
}
