package pagetest

import (
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Nginx serves below prefix ("/x/") what the server serves at its root, as one without
// settings of its own does: it strips the prefix, rewrites Host, buffers, and speaks
// HTTP/1.0 to the server. It returns the URL of the prefix. That there is no nginx fails
// the test.
func Nginx(t *testing.T, behind *httptest.Server, prefix string) string {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx" // which is in no user's PATH
	}
	dir := t.TempDir()
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;\n" // else its worker may not write here
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	conf := user + "daemon off; master_process off; pid nginx.pid; error_log nginx.log;\nevents {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		conf += kind + "_temp_path " + kind + ";\n"
	}
	conf += fmt.Sprintf("server { listen %s; location %s { proxy_pass http://%s/; } }\n}\n", addr, prefix, strings.TrimPrefix(behind.URL, "http://"))
	file, log := filepath.Join(dir, "nginx.conf"), filepath.Join(dir, "nginx.log")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-p", dir, "-c", file, "-e", log)
	if err := cmd.Start(); err != nil {
		t.Fatalf("nginx does not start: %v; make deps installs it", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return "http://" + addr + prefix
		}
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log)
			t.Fatalf("nginx ended: %v\n%s", err, text)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
