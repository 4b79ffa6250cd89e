package httpshed_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// Callers by gRPC, gRPC-Web and Connect are refused in their own form. That a client of
// grpc-go reads it is tried in module grpcshed.
func TestRefusalsInTheCallersForm(t *testing.T) {
	sem, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sem.Close() }()
	if _, err := sem.Try(context.Background(), "id"); err != nil {
		t.Fatal(err)
	}
	key := httpshed.Fixed("id")
	shed, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: func(r *http.Request) (string, error) {
		if r.URL.Path == "/who" {
			return "", &httpshed.StatusError{Status: 401, Text: "100 % unknown, žluť"}
		}
		return key(r)
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := shed.Handler(http.NotFoundHandler())
	ask := func(path, kind string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", path, strings.NewReader("body"))
		r.Header.Set("Content-Type", kind)
		if strings.HasPrefix(kind, "application/json") {
			r.Header.Set("Connect-Protocol-Version", "1")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, kind := range []string{"application/grpc", "application/grpc+proto", "application/grpc-web-text"} {
		w := ask("/", kind)
		head := w.Header()
		if w.Code != 200 || head.Get("Content-Type") != kind || head.Get("Grpc-Status") != "8" || head.Get("Grpc-Message") != "the limit is reached: 1 of 1 held, 0 waiting" || w.Body.Len() != 0 {
			t.Errorf("%s: %d %v %q", kind, w.Code, head, w.Body)
		}
		if ms := head.Get("Grpc-Retry-Pushback-Ms"); ms == "" || ms[0] == '-' {
			t.Errorf("%s: pushback %q", kind, ms)
		}
		raw, err := base64.RawStdEncoding.DecodeString(head.Get("Grpc-Status-Details-Bin"))
		if err != nil || !strings.Contains(string(raw), "google.rpc.RetryInfo") || !strings.Contains(string(raw), "CONCURRENCY_LIMIT") {
			t.Errorf("%s: details %q, %v", kind, raw, err)
		}
	}
	if w := ask("/who", "application/grpc"); w.Header().Get("Grpc-Status") != "16" || w.Header().Get("Grpc-Message") != "100 %25 unknown, %C5%BElu%C5%A5" || w.Header().Get("Grpc-Retry-Pushback-Ms") != "-1" {
		t.Errorf("401: %v", w.Header())
	}
	type said struct {
		Code, Message string
		Details       []struct{ Type, Value string }
	}
	w := ask("/", "application/json")
	var unary said
	if err := json.Unmarshal(w.Body.Bytes(), &unary); err != nil || w.Code != 429 || unary.Code != "resource_exhausted" || len(unary.Details) != 2 || w.Header().Get("Retry-After") == "" {
		t.Errorf("connect: %d %s, %v", w.Code, w.Body, err)
	}
	w = ask("/", "application/connect+proto")
	body := w.Body.Bytes()
	var stream struct{ Error said }
	if w.Code != 200 || len(body) < 5 || body[0] != 2 || int(binary.BigEndian.Uint32(body[1:5])) != len(body)-5 {
		t.Fatalf("connect stream: %d %q", w.Code, body)
	}
	if err := json.Unmarshal(body[5:], &stream); err != nil || stream.Error.Code != "resource_exhausted" {
		t.Errorf("connect stream: %s, %v", body, err)
	}
	r := httptest.NewRequest("POST", "/", nil) // JSON that is not Connect's
	r.Header.Set("Content-Type", "application/json")
	plain := httptest.NewRecorder()
	if h.ServeHTTP(plain, r); plain.Code != 429 || !strings.HasPrefix(plain.Header().Get("Content-Type"), "text/plain") {
		t.Errorf("plain: %d %v", plain.Code, plain.Header())
	}
	_, _ = io.Copy(io.Discard, plain.Body)
}
