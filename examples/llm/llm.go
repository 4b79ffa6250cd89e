// Package llm limits concurrent requests to a language model per API key, tenant and model.
package llm

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// Limit is of an id, for all processes together.
func Limit(_ context.Context, id string) (int, error) {
	kind, _, _ := strings.Cut(id, ":")
	return map[string]int{"key": 4, "tenant": 8, "model": 40}[kind], nil
}

// Client returns a client for an SDK (whose option is called WithHTTPClient, or so). A
// request holds a slot of the key, its tenant and the model until the body of its answer has
// been read or closed: a stream holds it until its last token, not its first. If the
// provider answers 429 with a Retry-After, the request is sent again then, and holds no
// slot meanwhile. keyName is a name or a hash of the key, not the key.
func Client(sem *gotsem.Semaphore, keyName, tenant, model string) *http.Client {
	return &http.Client{Transport: &httpshed.Transport{
		Semaphore: sem,
		Key:       func(*http.Request) (string, error) { return "key:" + keyName, nil },
		Also:      func(*http.Request) []string { return []string{"tenant:" + tenant, "model:" + model} },
		Wait:      20 * time.Second,
	}}
}
