// Package browser keeps one headless Chromium, and takes pictures with it.
//
// The browser is started when it is first needed, and again after it crashed or
// has taken so many pictures. Each picture is taken in a browser context of its
// own, which is gone when Capture returns, whatever happened: so a slot that is
// held for as long as Capture runs is held for as long as there is a tab.
package browser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
)

// Errors that a capture may end with, beside those of its ctx.
var (
	// ErrGone: the browser crashed or was killed under the capture. The next
	// one has a new browser.
	ErrGone = errors.New("the browser ended under the capture")

	// ErrStart: the browser could not be started.
	ErrStart = errors.New("the browser could not be started")

	// ErrClosed: the Browser was closed.
	ErrClosed = errors.New("the browser is closed")

	// ErrCrashed: the page took its renderer down.
	ErrCrashed = errors.New("the page crashed its renderer")

	// ErrLoad: the page could not be loaded.
	ErrLoad = errors.New("the page could not be loaded")

	// ErrTooLarge: the page or the picture has more bytes than allowed.
	ErrTooLarge = errors.New("too large")
)

// Defaults of Options.
const (
	DefaultRestartAfter = 1000
	DefaultStartTimeout = 20 * time.Second
	DefaultMaxPage      = 64 << 20
	DefaultMaxPicture   = 32 << 20
	DefaultNice         = 5
	DefaultMaxMemory    = 512 << 20
)

const (
	// rootTimeout is how long the browser may take to open or close a tab's
	// context. One that does not is stuck, and is killed: only so is the tab
	// known to be gone.
	rootTimeout = 5 * time.Second

	// startPause is how long a failed start is believed before it is tried again.
	startPause = time.Second

	// failureTold is how long it is told of.
	failureTold = 10 * time.Second
)

// Options say how the browser is run.
type Options struct {
	// Path of the browser. Empty: looked for, see Find.
	Path string

	// Guard vets and proxies all that the browser does. It must be started.
	// Nil: the browser goes where it likes, which only a control run of a test
	// may want.
	Guard *guard.Guard

	// RestartAfter is how many captures a browser takes before a fresh one takes
	// its place. 0: DefaultRestartAfter.
	RestartAfter int

	// StartTimeout is the most that a start may take. 0: DefaultStartTimeout.
	StartTimeout time.Duration

	// MaxPage is how many bytes a page may load. 0: DefaultMaxPage.
	MaxPage int64

	// MaxPicture is how many bytes a picture may have. 0: DefaultMaxPicture.
	MaxPicture int

	// MaxMemory is how many bytes of memory the process of one page may have for
	// itself (on Linux). One that has more is killed: else the system would choose,
	// and the browser may be what it ends, with all other captures.
	// 0: DefaultMaxMemory. Negative: any.
	MaxMemory int64

	// NoSandbox turns Chromium's own sandbox off. It needs user namespaces, which the
	// seccomp profiles of containers forbid by default: without them the browser does
	// not start. A page that breaks out of its renderer then has what the browser's
	// user has. As root it is off in any case.
	NoSandbox bool
	// Nice is by how much the browser's priority is below that of this process:
	// a refusal must not wait for the CPU that six pages fight for. 0: DefaultNice.
	// Negative: none.
	Nice int

	// Wrap may change the command that starts the browser, to run it in a
	// cgroup for example. The process that it starts must become the browser.
	Wrap func(*exec.Cmd)

	// Logger is told of starts and ends of the browser. Nil: nothing is logged.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.RestartAfter <= 0 {
		o.RestartAfter = DefaultRestartAfter
	}
	if o.StartTimeout <= 0 {
		o.StartTimeout = DefaultStartTimeout
	}
	if o.MaxPage <= 0 {
		o.MaxPage = DefaultMaxPage
	}
	if o.MaxPicture <= 0 {
		o.MaxPicture = DefaultMaxPicture
	}
	if o.MaxMemory == 0 {
		o.MaxMemory = DefaultMaxMemory
	}
	if o.Nice == 0 {
		o.Nice = DefaultNice
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Browser is one headless browser, whichever process it is at the moment.
type Browser struct {
	opt      Options
	restarts [len(endings)]atomic.Uint64

	mu      sync.Mutex
	cur     *process
	start   *start
	old     *process // retired, and still with captures under way
	failed  time.Time
	failure error
	closed  bool
	wg      sync.WaitGroup // processes that have not ended
}

// start is one start under way. Many wait for it, nobody owns it.
type start struct {
	done chan struct{}
	err  error // valid when done is closed
}

// New makes a Browser. It looks for the program, and does not start it yet.
func New(o Options) (*Browser, error) {
	path, err := Find(o.Path)
	if err != nil {
		return nil, err
	}
	o.Path = path
	b := &Browser{opt: o.withDefaults()}
	if n := sweepProfiles(); n > 0 {
		b.opt.Logger.Info("screenshotd: removed what killed browsers had left", "profiles", n)
	}
	if b.opt.NoSandbox = b.opt.NoSandbox || asRoot(); asRoot() {
		b.opt.Logger.Warn("screenshotd: running as root: Chromium's own sandbox is off (--no-sandbox); run it as another user to have it on")
	}
	return b, nil
}

// asRoot: Chromium refuses to run with its sandbox as root.
func asRoot() bool { return os.Geteuid() == 0 }

// use returns a live process, and counts the caller as one that uses it. It starts
// one if there is none, which goes on if ctx ends meanwhile: the next caller will
// want it.
func (b *Browser) use(ctx context.Context) (*process, error) {
	for {
		b.mu.Lock()
		if b.closed {
			b.mu.Unlock()
			return nil, ErrClosed
		}
		if p := b.cur; p != nil && !p.gone() {
			p.users++
			p.taken++
			// One retired browser at a time, so that there are never three.
			if p.taken >= b.opt.RestartAfter && b.old == nil {
				b.cur, b.old = nil, p
			}
			b.mu.Unlock()
			return p, nil
		}
		if b.failure != nil && time.Since(b.failed) < startPause {
			defer b.mu.Unlock()
			return nil, b.failure
		}
		s := b.start
		if s == nil {
			s = &start{done: make(chan struct{})}
			b.start = s
			b.wg.Go(func() { b.launch(s) })
		}
		b.mu.Unlock()
		select {
		case <-s.done:
			if s.err != nil {
				return nil, s.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// done ends a use. A retired process ends with its last one.
func (b *Browser) done(p *process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.users--
	if b.old == p && p.users == 0 {
		p.end(retired)
	}
}

// launch starts a process, and sees it through to its end.
func (b *Browser) launch(s *start) {
	p, err := b.run()
	b.mu.Lock()
	b.start = nil
	s.err = err
	if err != nil {
		b.failed, b.failure = time.Now(), err
	} else {
		b.cur, b.failure = p, nil
		if b.closed {
			p.end(closed)
		}
	}
	b.mu.Unlock()
	close(s.done)
	if err != nil {
		b.opt.Logger.Error("screenshotd: browser not started", "error", err)
		return
	}
	b.opt.Logger.Info("screenshotd: browser started", "pid", p.pid, "path", b.opt.Path)
	b.wg.Go(func() { b.mind(p) })
	<-p.root.Done()
	p.end(crashed) // unless we ended it
	how := p.ending()
	b.restarts[how].Add(1)
	b.mu.Lock()
	if b.cur == p {
		b.cur = nil
	}
	if b.old == p {
		b.old = nil
	}
	b.mu.Unlock()
	log := b.opt.Logger.Info
	if how == crashed || how == stuck {
		log = b.opt.Logger.Error
	}
	log("screenshotd: browser ended", "pid", p.pid, "how", how.String(), "captures", p.taken)
	p.stop()
	bury(p.pid)
	p.profile.remove()
}

// Failing is why the last start failed, if that was lately; nil if there is a
// browser, or none was needed yet. It is forgotten after a while, since only who
// is sent captures finds out that it works again.
func (b *Browser) Failing() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.failed) > failureTold {
		return nil
	}
	return b.failure
}

// Pid is the process id of the browser; 0 if there is none.
func (b *Browser) Pid() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cur == nil {
		return 0
	}
	return b.cur.pid
}

// Ended counts the browsers that ended, by how they did: crashed, stuck, retired,
// closed.
func (b *Browser) Ended() map[string]uint64 {
	m := make(map[string]uint64, len(endings))
	for i, name := range endings {
		m[name] = b.restarts[i].Load()
	}
	return m
}

// Tabs counts, by asking the browser, the open tabs and the browser contexts. The
// blank tab that a browser starts with does not count. Without a browser there is
// none.
func (b *Browser) Tabs(ctx context.Context) (tabs, contexts int, err error) {
	b.mu.Lock()
	ps := []*process{b.cur, b.old}
	b.mu.Unlock()
	for _, p := range ps {
		if p == nil {
			continue
		}
		t, c, err := p.count(ctx)
		if err != nil && !p.gone() { // what has ended has none
			return 0, 0, err
		}
		tabs, contexts = tabs+t, contexts+c
	}
	return tabs, contexts, nil
}

func (p *process) count(ctx context.Context) (tabs, contexts int, err error) {
	infos, err := p.call(ctx).targets()
	if err != nil {
		return 0, 0, err
	}
	ids, err := p.call(ctx).contexts()
	if err != nil {
		return 0, 0, err
	}
	for _, i := range infos {
		if i.Type == "page" && i.TargetID != p.blank {
			tabs++
		}
	}
	return tabs, len(ids), nil
}

// Close ends the browser, and waits until it is gone. Captures under way fail
// with ErrClosed.
func (b *Browser) Close() error {
	b.mu.Lock()
	b.closed = true
	for _, p := range []*process{b.cur, b.old} {
		if p != nil {
			p.end(closed)
		}
	}
	b.mu.Unlock()
	b.wg.Wait()
	return nil
}

// ending is how a process came to its end.
type ending uint32

const (
	crashed ending = iota
	stuck
	retired
	closed
)

var endings = [...]string{crashed: "crashed", stuck: "stuck", retired: "retired", closed: "closed"}

func (e ending) String() string { return endings[e] }

// process is one running browser.
type process struct {
	root  context.Context // ends when the browser does, and a little later than
	lost  <-chan struct{} // the connection to it
	kill  context.CancelFunc
	stop  context.CancelFunc // waits until all of it is gone
	pid   int
	blank target.ID // the tab that it started with

	profile *profile

	how atomic.Uint32 // 0: not ended; else ending + 1

	users, taken int // under Browser.mu

	mu      sync.Mutex
	fat     time.Time // when a renderer was last killed for its memory
	tabs    map[cdp.BrowserContextID]*tab
	targets map[target.ID]*tab // the pages of those, which are told of by these ids
}

// watch has t told if its renderer crashes, until forget is called. The tab itself
// hears of it only if it was set up by then, and calls to it are never answered.
func (p *process) watch(id cdp.BrowserContextID, t *tab) (forget func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tabs[id] = t
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.tabs, id)
		maps.DeleteFunc(p.targets, func(_ target.ID, of *tab) bool { return of == t })
	}
}

// event sees what the browser tells of its tabs.
func (p *process) event(ev any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch ev := ev.(type) {
	case *target.EventTargetCreated:
		if t := p.tabs[ev.TargetInfo.BrowserContextID]; t != nil && ev.TargetInfo.Type == "page" {
			p.targets[ev.TargetInfo.TargetID] = t
		}
	case *target.EventTargetCrashed:
		if t := p.targets[ev.TargetID]; t != nil {
			t.cancel(p.crash(t.b.opt.MaxMemory))
		}
	}
}

// crash is why a renderer crashed just now. p.mu is held.
func (p *process) crash(maxMemory int64) error {
	if !p.fat.IsZero() && time.Since(p.fat) < toldWithin {
		return fmt.Errorf("%w: the page takes more than %d MB of memory", ErrTooLarge, maxMemory>>20)
	}
	return ErrCrashed
}

// mind looks after a browser until it ends. It kills renderers that have more memory
// than they may: each is of one tab, since browser contexts share none. And it ends what
// a browser's first process has left behind: on Debian that is a shell, at whose end the
// browser itself goes on.
func (b *Browser) mind(p *process) {
	tick := time.NewTicker(weighEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.root.Done():
			return
		case <-tick.C:
		}
		if ended(p.pid) {
			endUsers(p.profile.dir)
			continue
		}
		b.mu.Lock()
		idle := p.users == 0
		b.mu.Unlock()
		if idle || b.opt.MaxMemory < 0 {
			continue
		}
		for pid, size := range heavyRenderers(p.pid, b.opt.MaxMemory) {
			b.opt.Logger.Warn("screenshotd: a page has too much memory, ending its renderer", "pid", pid, "MB", size>>20, "at most", b.opt.MaxMemory>>20)
			p.mu.Lock()
			p.fat = time.Now() // before the crash is told of
			p.mu.Unlock()
			endRenderer(pid)
		}
	}
}

const (
	// weighEvery is how often the memory of renderers is looked at. A page that does
	// nothing else takes some 50 MB in that time.
	weighEvery = 200 * time.Millisecond

	// toldWithin is how long after its renderer was killed a tab may hear of that.
	toldWithin = 2 * time.Second
)

// end kills the process group. The first to call it says how it ended.
func (p *process) end(how ending) {
	p.how.CompareAndSwap(0, uint32(how)+1)
	p.kill()
}

// ending is how it ended, once it has.
func (p *process) ending() ending { return ending(p.how.Load() - 1) }

// gone reports whether it has ended.
func (p *process) gone() bool {
	select {
	case <-p.lost:
		return true
	default:
		return p.root.Err() != nil
	}
}

// run starts a browser.
func (b *Browser) run() (*process, error) {
	out := &tail{max: 2000}
	profile, err := newProfile()
	if err != nil {
		return nil, fmt.Errorf("%w: a directory for its profile: %v", ErrStart, err)
	}
	started := false
	defer func() {
		if !started {
			profile.remove()
		}
	}()
	alloc, stop := chromedp.NewExecAllocator(context.Background(), append(b.flags(),
		chromedp.ExecPath(b.opt.Path),
		chromedp.CombinedOutput(out),
		chromedp.UserDataDir(profile.dir),
		chromedp.Env("TMPDIR="+profile.dir), // it is always killed, and leaves there what it has
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) {
			harness(cmd)
			if b.opt.Wrap != nil {
				b.opt.Wrap(cmd)
			}
		}),
	)...)
	parent, kill := context.WithCancel(alloc)
	root, _ := chromedp.NewContext(parent, // kill ends it
		chromedp.WithLogf(b.debug), chromedp.WithErrorf(b.debug))

	// The ctx of the first call is the life of the browser, so that it must not
	// be one with a deadline.
	late := time.AfterFunc(b.opt.StartTimeout, kill)
	err = chromedp.Do(root)
	if !late.Stop() {
		err = fmt.Errorf("it took more than %v", b.opt.StartTimeout)
	}
	if err != nil {
		kill()
		stop()
		return nil, fmt.Errorf("%w: %v%s", ErrStart, err, out)
	}
	c := chromedp.FromContext(root)
	p := &process{
		root: root, profile: profile, lost: c.Browser.LostConnection, kill: kill, stop: stop,
		pid: c.Browser.Process().Pid, blank: c.Target.TargetID,
		tabs: map[cdp.BrowserContextID]*tab{}, targets: map[target.ID]*tab{},
	}
	if err := chromedp.ListenBrowser(root, p.event); err != nil {
		kill()
		stop()
		return nil, fmt.Errorf("%w: %v", ErrStart, err)
	}
	if b.opt.Nice > 0 {
		if err := yield(p.pid, b.opt.Nice); err != nil {
			b.opt.Logger.Warn("screenshotd: the browser keeps the priority of the service", "error", err)
		}
	}
	started = true
	return p, nil
}

func (b *Browser) debug(format string, args ...any) {
	b.opt.Logger.Debug("chromedp: " + fmt.Sprintf(format, args...))
}

// flags are those of chromedp's defaults (Puppeteer's), and ours.
func (b *Browser) flags() []chromedp.ExecAllocatorOption {
	f := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.Flag("no-sandbox", b.opt.NoSandbox),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("mute-audio", true),
		// A page opens no others: they would be tabs without a slot.
		chromedp.Flag("disable-popup-blocking", false),
		chromedp.Flag("block-new-web-contents", true),
		// Nothing that is not asked for by the page.
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-domain-reliability", true),
		chromedp.Flag("no-pings", true),
		chromedp.Flag("deny-permission-prompts", true),
	)
	if b.opt.Guard == nil {
		return f
	}
	return append(f,
		chromedp.Flag("proxy-server", "http://"+b.opt.Guard.Addr()),
		// Chromium passes by a proxy for loopback and link-local, unless told.
		chromedp.Flag("proxy-bypass-list", "<-loopback>"),
		// QUIC, WebRTC and a resolver of its own would pass it by too.
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("force-webrtc-ip-handling-policy", "disable_non_proxied_udp"),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"),
	)
}

// rootCall makes the calls that concern the browser and not a tab. They are
// bounded, and not cut short by the request that wants them: of what was begun
// the end must be known.
type rootCall struct {
	p   *process
	ctx context.Context
}

// call bounds what is asked of the browser by ctx and rootTimeout.
func (p *process) call(ctx context.Context) rootCall { return rootCall{p, ctx} }

func ask[P, R any](c rootCall, cmd cdp.Command[P, R], params P) (R, error) {
	ctx, cancel := context.WithTimeout(c.p.root, rootTimeout)
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel)
	defer stop()
	return cdp.Call(ctx, chromedp.FromContext(c.p.root).Browser, cmd, params)
}

func (c rootCall) targets() ([]*target.Info, error) {
	r, err := ask(c, target.GetTargets, target.GetTargetsParams{})
	return r.TargetInfos, err
}

func (c rootCall) contexts() ([]cdp.BrowserContextID, error) {
	r, err := ask(c, target.GetBrowserContexts, cdp.Empty{})
	return r.BrowserContextIDs, err
}

func (c rootCall) open() (cdp.BrowserContextID, error) {
	r, err := ask(c, target.CreateBrowserContext, target.CreateBrowserContextParams{})
	return r.BrowserContextID, err
}

func (c rootCall) dispose(id cdp.BrowserContextID) error {
	_, err := ask(c, target.DisposeBrowserContext, target.DisposeBrowserContextParams{BrowserContextID: id})
	return err
}

// tail keeps the end of what a browser prints, for the error of a failed start.
type tail struct {
	mu  sync.Mutex
	buf []byte
	max int
}

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String is what was kept, on a line of its own if there is some.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.buf) == 0 {
		return ""
	}
	return "\n" + string(t.buf)
}
