package demo

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// pod is one of the processes that serve, as its parent sees it.
type pod struct {
	number int
	cmd    *exec.Cmd
	stdin  io.Closer // a pod ends when this is closed, by us or by our death
	addr   string
	killed atomic.Bool
	reaped chan struct{}
}

func (p *pod) label() string { return fmt.Sprintf("pod-%d", p.number) }

// podConfig is the first line that a pod reads. It is not among the arguments,
// where every user of the machine would see the password.
type podConfig struct {
	Where   Where
	Number  int
	Tag     string
	TTL     time.Duration
	Referee string // address
	Token   string // that the referee wants to see
}

// podReady is the line that a pod prints when it serves.
type podReady struct{ Addr string }

// startPods starts the pods, and the referee that they report to.
func (s *show) startPods(ctx context.Context) (addresses func() []string, stop func(), err error) {
	token := rand.Text()
	refereeAddr, stopReferee, err := serve(s.referee.handler(token))
	if err != nil {
		return nil, nil, err
	}
	stop = func() {
		for _, p := range s.pods {
			_ = p.stdin.Close()
		}
		for _, p := range s.pods {
			select {
			case <-p.reaped:
			case <-time.After(5 * time.Second):
				_ = p.cmd.Process.Kill()
				<-p.reaped
			}
		}
		stopReferee()
	}
	for n := 1; n <= s.Pods; n++ {
		p, err := s.startPod(podConfig{
			Where: s.Where, Number: n, Tag: s.tag, TTL: s.ttl(), Referee: refereeAddr, Token: token,
		})
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("demo: pod %d: %w", n, err)
		}
		s.pods = append(s.pods, p)
	}
	return s.alive, stop, nil
}

// alive returns the addresses of the pods that were not killed.
func (s *show) alive() (addrs []string) {
	for _, p := range s.pods {
		if !p.killed.Load() {
			addrs = append(addrs, p.addr)
		}
	}
	return addrs
}

func (s *show) startPod(config podConfig) (*pod, error) {
	p := &pod{number: config.Number, cmd: exec.Command(s.Executable, "pod"), reaped: make(chan struct{})}
	p.cmd.Stderr = s.Err
	p.cmd.SysProcAttr = ownGroup() // Ctrl-C is for the parent
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err = json.NewEncoder(stdin).Encode(config); err == nil {
		var ready podReady
		if err = json.NewDecoder(stdout).Decode(&ready); errors.Is(err, io.EOF) {
			err = errors.New("it ended before it served; what it said is above")
		}
		p.addr = ready.Addr
	}
	go func() {
		defer close(p.reaped)
		_ = p.cmd.Wait()
	}()
	if err != nil {
		_ = stdin.Close()
		_ = p.cmd.Process.Kill()
		<-p.reaped
		return nil, err
	}
	return p, nil
}

// kill kills a pod with -9, and watches its slots lapse.
func (s *show) kill(ctx context.Context) {
	p := s.pods[len(s.pods)/2]
	p.killed.Store(true) // no client is sent there any more
	died := time.Now()
	_ = p.cmd.Process.Kill()
	<-p.reaped
	s.referee.forget(p.label())
	s.lapse(ctx, fmt.Sprintf("pod %d: killed with -9", p.number), died)
}

// handler takes the reports of pods.
func (r *referee) handler(token string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if subtle.ConstantTimeCompare([]byte(req.Header.Get("Demo-Token")), []byte(token)) == 0 {
			http.Error(w, "not one of ours", http.StatusForbidden)
			return
		}
		project, pod := req.PathValue("project"), req.URL.Query().Get("pod")
		if req.URL.Query().Has("end") {
			r.end(project, pod)
		} else if err := r.begin(project, pod); err != nil {
			http.Error(w, err.Error(), http.StatusGone)
		}
	})
}

// reports is a counter at the other end: it reports to the parent.
func (c podConfig) reports() counter {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	report := func(project, what string) error {
		url := fmt.Sprintf("http://%s/work/%s?pod=pod-%d&%s", c.Referee, project, c.Number, what)
		req, err := http.NewRequest(http.MethodPost, url, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Demo-Token", c.Token)
		answer, err := client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("demo: the referee answers %s", answer.Status)
		}
		return nil
	}
	return func(project string) (func(), error) {
		if err := report(project, "begin"); err != nil {
			return nil, err
		}
		return func() { _ = report(project, "end") }, nil
	}
}

// ServePod is a pod: it reads its configuration from in, serves, and ends when in
// does.
func ServePod(in io.Reader, out io.Writer, open func(Where) (store.Store, string, func(), error)) error {
	var config podConfig
	input := bufio.NewReader(in)
	first, err := input.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(first, &config)
	}
	if err != nil {
		return fmt.Errorf("demo: a pod is started by gotsem demo --pods, which tells it what to do: %w", err)
	}
	kept, _, end, err := open(config.Where)
	if err != nil {
		return err
	}
	defer end()
	sem, err := semaphore(kept, config.TTL, fmt.Sprintf("pod-%d", config.Number))
	if err != nil {
		return err
	}
	defer sem.Close()
	addr, stop, err := serve(&service{sem: sem, tag: config.Tag, count: config.reports()})
	if err != nil {
		return err
	}
	defer stop()
	if err := json.NewEncoder(out).Encode(podReady{addr}); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, input)
	return nil
}
