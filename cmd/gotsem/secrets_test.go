//go:build unix

package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A server that does not know a command may repeat its arguments, and with AUTH
// that is the password.
func TestServerThatRepeatsThePassword(t *testing.T) {
	const canary = "c4n4ry"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go parrot(conn)
		}
	}()
	gotsem, err := exec.LookPath("gotsem") // of TestMain
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	for _, args := range []string{"usage job", "ls", "holders job", "limit job 1", "revoke job x", "clear job", "run job --ttl 1s -- true", "demo --seconds 3 --redis $URL"} {
		url := "redis://u:" + canary + "@" + l.Addr().String()
		cmd := exec.Command(gotsem, strings.Fields(strings.ReplaceAll(args, "$URL", url))...)
		cmd.Env = append(os.Environ(), "GOTSEM_REDIS_URL="+url)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s: worked, on no Redis at all", args)
		}
		if strings.Contains(string(out), canary) {
			t.Errorf("%s shows the password: %s", args, out)
		}
		said += string(out)
	}
	if !strings.Contains(said, "unknown command") {
		t.Errorf("no error was that of the server, so that nothing was tried: %s", said)
	}
}

// parrot answers each command with an error that repeats it.
func parrot(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		var n int
		if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
			return
		}
		var words []string
		for range n {
			var size int
			if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
				return
			}
			word := make([]byte, size+2)
			for read := 0; read < len(word); {
				got, err := in.Read(word[read:])
				if err != nil {
					return
				}
				read += got
			}
			words = append(words, fmt.Sprintf("'%s'", word[:size]))
		}
		fmt.Fprintf(conn, "-ERR unknown command %s, with args beginning with: %s\r\n", words[0], strings.Join(words[1:], " "))
	}
}
