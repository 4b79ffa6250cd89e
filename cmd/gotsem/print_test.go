package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain:id@host-1":  "plain:id@host-1",
		"käse 日本":          "käse 日本",
		`quo"ted`:          `quo"ted`,
		`back\slash`:       `back\\slash`,
		`\"`:               `\\"`,
		"a\x00b\x1b[2Jc\n": `a\x00b\x1b[2Jc\n`,
		"\x7f\u009b31m":    `\x7f\u009b31m`,
		"\u202eevil\u2066": `\u202eevil\u2066`,
		"\u200f\u061c":     `\u200f\u061c`,
		"\xff":             `\xff`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestPrintJSON(t *testing.T) {
	in := "a\x1b\u009b\u202e\x7f\U000e0001<é"
	var b bytes.Buffer
	if err := printJSON(&b, rawIDOf(in)); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b\u009b\u202e\x7f\U000e0001") || !strings.Contains(b.String(), "<é") {
		t.Errorf("printed %q", &b)
	}
	var back rawID
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || back.ID != in {
		t.Errorf("read back %q, %v", back.ID, err)
	}
	b.Reset()
	in = "\xff\xfe"
	if err := printJSON(&b, rawIDOf(in)); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || string(back.Base64) != in {
		t.Errorf("read back %q, %v", back.Base64, err)
	}
}
