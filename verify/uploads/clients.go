package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed client.py
var python []byte

//go:embed client.mjs
var node []byte

// client uploads each of bodies to url, with a length and in chunks, and tells what
// it saw. An error is one of the client's process.
type client struct {
	name   string
	direct bool // HTTP/2 without TLS, which the proxies do not take
	ask    func(ctx context.Context, url string, tell func(answer)) error
}

// each calls once for each upload.
func each(ctx context.Context, once func(body []byte, chunked bool) (int, error), tell func(answer)) error {
	for _, b := range bodies {
		body := make([]byte, b.size)
		for _, chunked := range []bool{false, true} {
			for range b.count {
				status, err := once(body, chunked)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				a := answer{b.size, chunked, status, "-"}
				if err != nil {
					a.status, a.words = 0, err.Error()
				}
				tell(a)
			}
		}
	}
	return nil
}

// all returns the clients that this machine has. Those of `make uploads` are needed:
// what is not there is an error.
func all(dir string) ([]client, error) {
	var missing []error
	find := func(names ...string) string {
		for _, n := range names {
			if p, err := exec.LookPath(n); err == nil {
				return p
			}
		}
		missing = append(missing, fmt.Errorf("no %s here: scripts/deps.sh uploads installs it", names[0]))
		return ""
	}
	curl, py, nodejs := find("curl"), find("python3"), find("node", "nodejs")
	if err := errors.Join(missing...); err != nil {
		return nil, err
	}
	if exec.Command(py, "-c", "import requests").Run() != nil {
		py = "/usr/bin/python3" // the distribution's, for which it is installed
		if err := exec.Command(py, "-c", "import requests").Run(); err != nil {
			return nil, fmt.Errorf("no requests for %s here: scripts/deps.sh uploads installs it: %w", py, err)
		}
	}
	pyFile, nodeFile := filepath.Join(dir, "client.py"), filepath.Join(dir, "client.mjs")
	if err := errors.Join(os.WriteFile(pyFile, python, 0o600), os.WriteFile(nodeFile, node, 0o600)); err != nil {
		return nil, err
	}
	cs := []client{
		{"Go", false, viaGo(false)},
		{"Go h2c", true, viaGo(true)},
		{"curl", false, viaCurl(curl, "--http1.1")},
		{"curl h2c", true, viaCurl(curl, "--http2-prior-knowledge")},
	}
	for _, library := range []string{"http.client", "urllib", "requests"} {
		cs = append(cs, client{"Python " + library, false, viaScript(py, pyFile, library)})
	}
	for _, library := range []string{"http", "fetch"} {
		cs = append(cs, client{"Node " + library, false, viaScript(nodejs, nodeFile, library)})
	}
	return cs, nil
}

// viaGo is net/http's client, with connections that it keeps.
func viaGo(h2 bool) func(context.Context, string, func(answer)) error {
	return func(ctx context.Context, url string, tell func(answer)) error {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(!h2)
		tr.Protocols.SetUnencryptedHTTP2(h2)
		defer tr.CloseIdleConnections()
		c := &http.Client{Transport: tr, Timeout: 30 * time.Second}
		return each(ctx, func(body []byte, chunked bool) (int, error) {
			var in io.Reader = bytes.NewReader(body)
			if chunked {
				in = struct{ io.Reader }{in}
			}
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, in)
			if err != nil {
				return 0, err
			}
			resp, err := c.Do(r)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return resp.StatusCode, err
		}, tell)
	}
}

func viaCurl(curl, version string) func(context.Context, string, func(answer)) error {
	return func(ctx context.Context, url string, tell func(answer)) error {
		return each(ctx, func(body []byte, chunked bool) (status int, err error) {
			args := []string{"-sS", "--max-time", "30", version, "-H", "Expect:", "-o", os.DevNull, "-w", "%{http_code}", "-X", "POST"}
			if chunked {
				args = append(args, "-T", "-") // in chunks, as it arrives
			} else {
				args = append(args, "--data-binary", "@-")
			}
			cmd := exec.CommandContext(ctx, curl, append(args, url)...)
			cmd.Stdin = bytes.NewReader(body)
			out, err := cmd.Output()
			if exit := new(exec.ExitError); errors.As(err, &exit) {
				return 0, fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
			} else if err != nil && !errors.Is(err, io.ErrClosedPipe) {
				return 0, err
			}
			_, err = fmt.Sscan(string(out), &status)
			return status, err
		}, tell)
	}
}

// viaScript has a script make all uploads in one process, so that connections are
// kept from one to the next. A process that dies has failed.
func viaScript(program, file, library string) func(context.Context, string, func(answer)) error {
	return func(ctx context.Context, url string, tell func(answer)) error {
		args := []string{file, library, url}
		want := 0
		for _, b := range bodies {
			args = append(args, fmt.Sprintf("%d:0:%d", b.size, b.count), fmt.Sprintf("%d:1:%d", b.size, b.count))
			want += 2 * b.count
		}
		cmd := exec.CommandContext(ctx, program, args...)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		got := 0
		for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); got++ {
			var a answer
			var chunked int
			if _, err := fmt.Sscan(lines.Text(), &a.size, &chunked, &a.status, &a.words); err != nil {
				return fmt.Errorf("%q: %w", lines.Text(), err)
			}
			a.chunked = chunked == 1
			if a.status == 0 {
				a.words = strings.Join(strings.Fields(lines.Text())[3:], " ")
			}
			tell(a)
		}
		if err != nil {
			return fmt.Errorf("the client died after %d of %d uploads: %w: %s", got, want, err, said.Bytes())
		}
		if got != want {
			return fmt.Errorf("%d uploads of %d", got, want)
		}
		return nil
	}
}
