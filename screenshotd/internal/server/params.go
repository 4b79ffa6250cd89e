package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
)

// Limits of one capture. They are checked before it takes a slot, where its
// parameters are in the URL.
type Limits struct {
	MaxPixels  int           // width × height × scale²
	MaxHeight  int           // CSS pixels of a page, full or not
	Timeout    time.Duration // if the request names none
	MaxTimeout time.Duration
}

// DefaultLimits are what one Chromium in 2 GB bears six times at once.
var DefaultLimits = Limits{MaxPixels: 25_000_000, MaxHeight: 16384, Timeout: 15 * time.Second, MaxTimeout: time.Minute}

const (
	maxBody = 16 << 10
	maxURL  = 8 << 10
	minSide = 16
	maxSide = 8192
)

// job is a capture that was asked for.
type job struct {
	browser.Job
	timeout time.Duration
}

// badRequest is a request that cannot be understood, and how it could be. The
// caller is told the text.
type badRequest struct{ text string }

func (e *badRequest) Error() string { return e.text }

func bad(format string, args ...any) error { return &badRequest{fmt.Sprintf(format, args...)} }

var parameters = []string{"url", "width", "height", "scale", "full_page", "format", "quality", "timeout"}

// parse reads the parameters of a capture.
func (l Limits) parse(v url.Values) (*job, error) {
	for name, values := range v {
		if !slices.Contains(parameters, name) {
			return nil, bad("There is no parameter %q; there are %s.", name, strings.Join(parameters, ", "))
		}
		if len(values) > 1 {
			return nil, bad("The parameter %s is there %d times.", name, len(values))
		}
	}
	p := reader{values: v}
	j := &job{Job: browser.Job{
		URL:       p.url("url"),
		Width:     p.integer("width", 1280, minSide, maxSide),
		Height:    p.integer("height", 800, minSide, min(l.MaxHeight, maxSide)),
		Scale:     p.number("scale", 1, 0.1, 4),
		FullPage:  p.boolean("full_page"),
		Format:    browser.Format(p.choice("format", "png", "jpeg", "webp")),
		Quality:   p.integer("quality", 80, 1, 100),
		MaxHeight: l.MaxHeight,
		MaxPixels: l.MaxPixels,
	}}
	j.timeout = p.duration("timeout", l.Timeout, l.MaxTimeout)
	if p.err != nil {
		return nil, p.err
	}
	if px := float64(j.Width) * float64(j.Height) * j.Scale * j.Scale; px > float64(l.MaxPixels) {
		return nil, bad("The picture would have %.0f pixels (width × height × scale²); at most %d are taken.", px, l.MaxPixels)
	}
	return j, nil
}

// reader reads values, and keeps the first error.
type reader struct {
	values url.Values
	err    error
}

func (p *reader) fail(format string, args ...any) {
	if p.err == nil {
		p.err = bad(format, args...)
	}
}

func (p *reader) url(name string) *url.URL {
	s := p.values.Get(name)
	switch {
	case s == "":
		p.fail("The parameter %s is missing: name the page to capture.", name)
		return nil
	case len(s) > maxURL:
		p.fail("The parameter %s has %d bytes; at most %d are taken.", name, len(s), maxURL)
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		p.fail("The parameter %s is not a whole URL, such as https://example.com/.", name)
		return nil
	}
	if err := guard.Scheme(u); err != nil && p.err == nil {
		p.err = err
	}
	return u
}

func (p *reader) number(name string, otherwise, least, most float64) float64 {
	s := p.values.Get(name)
	if s == "" {
		return otherwise
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= least && f <= most) { // NaN is neither
		p.fail("The parameter %s is %.40q; it is a number from %v to %v.", name, s, least, most)
		return otherwise
	}
	return f
}

func (p *reader) integer(name string, otherwise, least, most int) int {
	s := p.values.Get(name)
	if s == "" {
		return min(otherwise, most)
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		p.fail("The parameter %s is %.40q; it is a whole number from %d to %d.", name, s, least, most)
		return otherwise
	}
	return n
}

func (p *reader) boolean(name string) bool {
	s := p.values.Get(name)
	if s == "" {
		return false
	}
	b, err := strconv.ParseBool(s)
	if err != nil {
		p.fail("The parameter %s is %.40q; it is true or false.", name, s)
	}
	return b
}

func (p *reader) choice(name string, of ...string) string {
	s := strings.ToLower(p.values.Get(name))
	switch {
	case s == "":
		return of[0]
	case s == "jpg":
		s = "jpeg"
	}
	if !slices.Contains(of, s) {
		p.fail("The parameter %s is %.40q; it is one of %s.", name, s, strings.Join(of, ", "))
	}
	return s
}

// duration reads seconds, or a duration with its unit: 10, 2.5, 1500ms.
func (p *reader) duration(name string, otherwise, most time.Duration) time.Duration {
	s := p.values.Get(name)
	if s == "" {
		return min(otherwise, most)
	}
	d, err := time.ParseDuration(s)
	if f, ferr := strconv.ParseFloat(s, 64); ferr == nil && f > 0 && f <= most.Seconds() {
		d, err = time.Duration(f*float64(time.Second)), nil
	}
	if err != nil || d <= 0 || d > most {
		p.fail("The parameter %s is %.40q; it is a time such as 10s, of at most %v.", name, s, most)
	}
	return d
}

// bodyTime is how long the body of a POST may take to arrive. Its sender holds a
// slot.
const bodyTime = 2 * time.Second

// readBody reads the parameters of a POST, those in the URL included: a form, or a
// flat JSON object.
func readBody(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	// net/http takes the deadline off when it has seen the body's end.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, bad("The body has more than %d bytes.", maxBody)
		}
		return nil, bad("The body did not arrive within %v.", bodyTime)
	}

	values := r.URL.Query()
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var got url.Values
	switch {
	case len(raw) == 0:
	case kind == "application/x-www-form-urlencoded":
		if got, err = url.ParseQuery(string(raw)); err != nil {
			return nil, bad("The body is not a form: %v.", err)
		}
	case kind == "application/json":
		if got, err = fromJSON(raw); err != nil {
			return nil, err
		}
	default:
		return nil, bad("The body is %.60q; send application/json or application/x-www-form-urlencoded.", kind)
	}
	for name, vs := range got {
		values[name] = append(values[name], vs...)
	}
	return values, nil
}

func fromJSON(raw []byte) (url.Values, error) {
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, bad("The body is not a JSON object: %v.", err)
	}
	v := make(url.Values, len(m))
	for name, value := range m {
		switch value := value.(type) {
		case string:
			v.Set(name, value)
		case float64:
			v.Set(name, strconv.FormatFloat(value, 'f', -1, 64))
		case bool:
			v.Set(name, strconv.FormatBool(value))
		case nil:
		default:
			return nil, bad("The parameter %.40q is neither a text nor a number nor true or false.", name)
		}
	}
	return v, nil
}
