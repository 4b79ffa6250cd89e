// Package proxy puts a legacy server behind a reverse proxy that lets so many requests through.
package proxy

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// Handler lets as many requests through to the server at target as sem has slots, over all
// proxies. A few more wait for up to two seconds, and the others get 503 and Retry-After.
func Handler(sem *gotsem.Semaphore, target *url.URL) (http.Handler, error) {
	shed, err := httpshed.New(httpshed.Options{
		Semaphore: sem,
		Key:       httpshed.Fixed("legacy"),
		Wait:      2 * time.Second,
		Status:    http.StatusServiceUnavailable,
		Skip:      httpshed.SkipPaths("/healthz"),
	})
	if err != nil {
		return nil, err
	}
	return shed.Handler(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.SetXForwarded()
	}}), nil
}
