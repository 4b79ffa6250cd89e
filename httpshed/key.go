package httpshed

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fixed limits all requests together, under one id: so many captures at once.
func Fixed(id string) func(*http.Request) (string, error) {
	return func(*http.Request) (string, error) { return id, nil }
}

// ByPathValue limits by a wildcard of the route, such as {project}. The Shedder has
// to stand behind the router that sets it (http.ServeMux, or one that calls
// Request.SetPathValue, such as chi), around the route's handler. Where it does not,
// the answer is 500, and the log says so. A request of a route that has the wildcard,
// and leaves it empty, is answered 400.
func ByPathValue(name string) func(*http.Request) (string, error) {
	empty := &StatusError{Status: http.StatusBadRequest, Text: fmt.Sprintf("The path has no %s.", name)}
	unset := fmt.Errorf("httpshed: ByPathValue(%q): no router before the Shedder has set this path value: "+
		"put shed.Handler around the handler of a route with {%s}, not around or before the router, "+
		"and with routers that set no path values (gin, echo) take the value from their own context: %w",
		name, name, &StatusError{Status: http.StatusInternalServerError, Text: "This server is set up wrongly: its log says how."})
	return func(r *http.Request) (string, error) {
		switch {
		case r.PathValue(name) != "":
			return r.PathValue(name), nil
		case strings.Contains(r.Pattern, "{"+name+"}"), strings.Contains(r.Pattern, "{"+name+"...}"), strings.Contains(r.Pattern, "{"+name+":"):
			return "", empty
		}
		return "", unset
	}
}

// ByHeader limits by a header field. Anyone can write a header: it identifies a
// client only behind a layer that authenticates it and overwrites what clients send. A request
// without it, or with more than one, is answered 400. Wrap it in HashID if it is a
// secret, and in Overflow if it is not checked.
func ByHeader(name string) func(*http.Request) (string, error) {
	name = http.CanonicalHeaderKey(name)
	missing := &StatusError{Status: http.StatusBadRequest, Text: fmt.Sprintf("The header field %s is missing.", name)}
	several := &StatusError{Status: http.StatusBadRequest, Text: fmt.Sprintf("The header field %s is there more than once.", name)}
	return func(r *http.Request) (string, error) {
		switch v := r.Header[name]; {
		case len(v) == 0 || len(v) == 1 && v[0] == "":
			return "", missing
		case len(v) > 1:
			return "", several
		default:
			return v[0], nil
		}
	}
}

// minSecret is the shortest secret of HashID, in bytes.
const minSecret = 16

// HashID wraps a key whose ids are secrets, such as API keys: the id is then a
// keyed hash (HMAC-SHA-256, 128 bits of it, 22 characters), so that the secret is
// not in the store, its dashboards and its logs. Processes that share a store need
// the same secret, of at least 16 bytes. A hash costs about a microsecond.
func HashID(secret []byte, key func(*http.Request) (string, error)) (func(*http.Request) (string, error), error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("httpshed: HashID: the secret has %d bytes, at least %d are needed: a short one can be guessed from the hashes", len(secret), minSecret)
	}
	if key == nil {
		return nil, errors.New("httpshed: HashID: key is nil: say what is to be hashed, such as ByHeader(\"X-API-Key\")")
	}
	secret = slices.Clone(secret)
	macs := sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}
	return func(r *http.Request) (string, error) {
		id, err := key(r)
		if err != nil || id == "" {
			return "", err
		}
		mac := macs.Get().(hash.Hash)
		defer macs.Put(mac)
		mac.Reset()
		_, _ = mac.Write([]byte(id)) // a hash never fails
		var sum [sha256.Size]byte
		return base64.RawURLEncoding.EncodeToString(mac.Sum(sum[:0])[:16]), nil
	}, nil
}

// OverflowID is the one id of all that Overflow has no room for.
const OverflowID = "~overflow"

// overflowIdle is how long an id that is not asked for keeps its room, at least.
const overflowIdle = time.Minute

// Overflow bounds how many ids a key makes: the first n keep their own, and
// those that come while these are in use share OverflowID, with one limit for all of them.
// So a client that makes ids up gets n limits and no more, and neither drives out
// nor locks out the ids that were there before. An id gives up its room one to two
// minutes after it was last asked for. It costs about 40 bytes per id.
func Overflow(n int, key func(*http.Request) (string, error)) func(*http.Request) (string, error) {
	o := &overflow{max: n, seed: maphash.MakeSeed(), now: map[uint64]struct{}{}, start: time.Now()}
	return func(r *http.Request) (string, error) {
		id, err := key(r)
		if err != nil || id == "" || o.room(id) {
			return id, err
		}
		return OverflowID, nil
	}
}

// overflow remembers hashes of ids in two generations: now, and those asked for
// before. What was not asked for in a whole generation goes.
type overflow struct {
	max   int
	seed  maphash.Seed
	start time.Time

	mu     sync.Mutex
	now    map[uint64]struct{}
	before map[uint64]struct{} // less those that are in now
	began  time.Duration       // of the generation
}

// room reports whether id has room of its own, and takes it if there is some.
func (o *overflow) room(id string) bool {
	h := maphash.String(o.seed, id)
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := time.Since(o.start); t-o.began >= overflowIdle {
		o.before, o.now = o.now, map[uint64]struct{}{}
		if t-o.began >= 2*overflowIdle {
			o.before = nil
		}
		o.began = t
	}
	if _, ok := o.now[h]; ok {
		return true
	}
	_, old := o.before[h]
	if !old && len(o.now)+len(o.before) >= o.max {
		return false
	}
	delete(o.before, h)
	o.now[h] = struct{}{}
	return true
}

// SkipPaths is an Options.Skip for probes: it lets through requests for exactly
// these paths.
func SkipPaths(paths ...string) func(*http.Request) bool {
	paths = slices.Clone(paths)
	return func(r *http.Request) bool { return slices.Contains(paths, r.URL.Path) }
}
