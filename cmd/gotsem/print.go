package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// cleanWriter takes the credentials out of what is written to stderr.
type cleanWriter struct {
	w      io.Writer
	redact func(string) string // nil until there is something to take out
}

func (c *cleanWriter) Write(p []byte) (int, error) {
	s := string(p)
	if c.redact != nil {
		s = c.redact(s)
	}
	if _, err := io.WriteString(c.w, s); err != nil {
		return 0, err
	}
	return len(p), nil
}

// troubles prints what a semaphore logs that is a warning or worse.
type troubles struct {
	w  io.Writer
	on atomic.Bool
}

func (t *troubles) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && t.on.Load()
}

func (t *troubles) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf("; %s: %s", a.Key, a.Value)
		return true
	})
	_, err := fmt.Fprintln(t.w, printable(text))
	return err
}

func (t *troubles) WithAttrs([]slog.Attr) slog.Handler { return t }
func (t *troubles) WithGroup(string) slog.Handler      { return t }

// printable makes s harmless for a terminal. Control characters (C0, C1), those
// that turn the direction of text round, and whatever else does not show are
// escaped as in Go source, and so is the backslash, so that two ids never look the
// same. Ids are chosen by strangers: a header, a path.
func printable(s string) string {
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// printJSON prints v on one line, whatever does not show escaped.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// rawID is an id in JSON. JSON has no bytes that are not UTF-8: an id that has some
// is there a second time, in base64.
type rawID struct {
	ID     string `json:"id"`
	Base64 []byte `json:"id_base64,omitempty"`
}

func rawIDOf(id string) rawID {
	if utf8.ValidString(id) {
		return rawID{ID: id}
	}
	return rawID{ID: id, Base64: []byte(id)}
}

// plural is "1 slot", "2 slots".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
