//go:build unix

package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// reapWithin is how long a killed process may take to be gone.
const reapWithin = 10 * time.Second

// process is one child, from its start until it has been reaped.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when reaped; err is set by then
	err   error
}

// startProcess starts a command whose output is appended to the file log.
//
// A child is to die with us, which on Linux means: with the *thread* that started it. Go ends threads as it likes, so the child
// is started and waited for by a goroutine that keeps one thread for itself until the child is gone.
func startProcess(cmd *exec.Cmd, log string) (*process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close() // the child has a copy
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = dieWithParent()

	p := &process{cmd: cmd, ended: make(chan struct{})}
	began := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		began <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-began; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends the process as kill -9 does and waits until it is gone. It is no error if it was gone before.
func (p *process) kill() error {
	if p.alive() {
		p.cmd.Process.Kill() // an error means that it ended meanwhile
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(reapWithin):
		return fmt.Errorf("process %d is still there %v after kill -9", p.pid(), reapWithin)
	}
}

// stop halts the process and returns once it has halted: a signal alone may leave it the time for one more answer.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return await(fmt.Sprintf("process %d to stop", p.pid()), reapWithin, func() error { return halted(p.pid()) })
}

func (p *process) cont() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
