package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// paths are the ways to a server.
var paths = []string{"direct", "nginx", "nginx unbuffered", "haproxy"}

// proxies starts nginx, as it is without settings and as one that streams, and
// haproxy, in front of each of the servers in addrs, and adds their addresses. The one
// that streams keeps no connections to its clients: an answer that comes before the
// end of a body has it announce that a connection is kept, and close it all the same,
// which the client's next request meets, whoever is behind it.
func proxies(dir string, addrs map[string]string) (stop func(), err error) {
	var cmds []*exec.Cmd
	stop = func() {
		for _, c := range cmds {
			_ = c.Process.Signal(os.Interrupt)
			_ = c.Wait()
		}
	}
	ports, err := freePorts(3 * len(servers))
	if err != nil {
		return stop, err
	}
	next := func(path, server string) string {
		addrs[path+"/"+server], ports = ports[0], ports[1:]
		return addrs[path+"/"+server]
	}
	var ng, ha strings.Builder
	for i, server := range servers {
		up := addrs["direct/"+server]
		fmt.Fprintf(&ng, "upstream u%d { server %s; keepalive 4; }\n", i, up)
		fmt.Fprintf(&ng, "server { listen %s; location / { proxy_pass http://%s; } }\n", next("nginx", server), up)
		fmt.Fprintf(&ng, "server { listen %s; keepalive_timeout 0; location / { proxy_pass http://u%d; proxy_request_buffering off; proxy_http_version 1.1; proxy_set_header Connection \"\"; } }\n",
			next("nginx unbuffered", server), i)
		fmt.Fprintf(&ha, "listen l%d\n bind %s\n server s %s\n", i, next("haproxy", server), up)
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user root;\n" // its workers write bodies into a directory that is ours alone
	}
	ngConf := user + "daemon off; worker_processes 1; pid nginx.pid; error_log nginx.log;\nevents {}\nhttp {\naccess_log off; client_max_body_size 0;\n" +
		"client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n" + ng.String() + "}\n"
	haConf := "global\n maxconn 100\ndefaults\n mode http\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n" + ha.String()
	ngFile, haFile := filepath.Join(dir, "nginx.conf"), filepath.Join(dir, "haproxy.cfg")
	if err := errors.Join(os.WriteFile(ngFile, []byte(ngConf), 0o600), os.WriteFile(haFile, []byte(haConf), 0o600)); err != nil {
		return stop, err
	}
	for _, args := range [][]string{
		{"nginx", "-p", dir, "-c", ngFile, "-e", filepath.Join(dir, "nginx.log")},
		{"haproxy", "-db", "-f", haFile},
	} {
		program, err := exec.LookPath(args[0])
		if err != nil { // not in every user's PATH
			program = "/usr/sbin/" + args[0]
		}
		cmd := exec.Command(program, args[1:]...)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			return stop, fmt.Errorf("%s: scripts/deps.sh uploads installs it: %w", args[0], err)
		}
		cmds = append(cmds, cmd)
	}
	for path, addr := range addrs {
		if err := reach(addr); err != nil {
			return stop, fmt.Errorf("%s: %w", path, err)
		}
	}
	return stop, nil
}

// reach waits until somebody listens.
func reach(addr string) error {
	for ends := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(ends) {
			return err
		}
	}
}

// freePorts returns addresses of loopback on which nobody listens.
func freePorts(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}
