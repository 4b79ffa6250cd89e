// Package skew gives the Redis servers that package redistest starts wall clocks that
// can be set: a small library, compiled with gcc and preloaded, adds an offset to what
// they read. (libfaketime does not work with redis-server's allocator.)
package skew

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

//go:embed preload/skew.c
var source []byte

const variable = "GOTSEM_REDIS_SERVER" // the server program that redistest starts

// Clocks are the clocks of all servers that are started after Install.
type Clocks struct {
	dir string
	was string
	set bool
}

// Install compiles the library and has every server that this process starts from now
// on use it. It fails if there is no gcc: a clock that cannot be stepped is no test.
func Install() (*Clocks, error) {
	server, err := redistest.Binary()
	if err != nil {
		return nil, err
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return nil, fmt.Errorf("skew: stepping a server's clock needs gcc (make deps installs it): %w", err)
	}
	dir, err := os.MkdirTemp("", "gotsem-skew-")
	if err != nil {
		return nil, err
	}
	c := &Clocks{dir: dir}
	c.was, c.set = os.LookupEnv(variable)
	if err := c.build(gcc, server); err != nil {
		c.Close()
		return nil, err
	}
	return c, os.Setenv(variable, filepath.Join(dir, "server"))
}

func (c *Clocks) build(gcc, server string) error {
	src, lib := filepath.Join(c.dir, "skew.c"), filepath.Join(c.dir, "skew.so")
	if err := os.WriteFile(src, source, 0o600); err != nil {
		return err
	}
	if out, err := exec.Command(gcc, "-O1", "-shared", "-fPIC", "-o", lib, src).CombinedOutput(); err != nil {
		return fmt.Errorf("skew: compiling the clock: %w\n%s", err, out)
	}
	// A server finds its offset by its port.
	script := fmt.Sprintf(`#!/bin/sh
want=
port=
for arg; do
	[ "$want" = 1 ] && port=$arg
	want=
	[ "$arg" = --port ] && want=1
done
file=%[1]s/offset-$port
[ -e "$file" ] || printf '\0\0\0\0\0\0\0\0' >"$file"
SKEW_FILE=$file LD_PRELOAD=%[2]s exec %[3]s "$@"
`, c.dir, lib, server)
	return os.WriteFile(filepath.Join(c.dir, "server"), []byte(script), 0o700)
}

// Set makes a server's clock run ahead by d, or behind if d is negative, at once.
func (c *Clocks) Set(s *redistest.Server, d time.Duration) error {
	_, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(c.dir, "offset-"+port), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	// In place: the server has mapped it.
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(d.Microseconds())), 0)
	return err
}

// Close removes the library. Servers that run keep it.
func (c *Clocks) Close() {
	if c.set {
		_ = os.Setenv(variable, c.was)
	} else {
		_ = os.Unsetenv(variable)
	}
	_ = os.RemoveAll(c.dir)
}
