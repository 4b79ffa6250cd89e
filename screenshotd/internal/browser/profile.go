package browser

import (
	"os"
	"path/filepath"
	"time"
)

// profile is the directory in which one browser keeps all that it writes. It is removed
// with the browser; what is left when this process is killed too, the next one removes.
type profile struct {
	dir  string
	lock *os.File // held for as long as somebody uses it
}

const (
	profileNames = "screenshotd-profile-*"
	lockName     = "in-use"

	// profileYoung is how old one without a lock must be: it may be about to get one.
	profileYoung = time.Minute
)

func newProfile() (*profile, error) {
	dir, err := os.MkdirTemp("", profileNames)
	if err != nil {
		return nil, err
	}
	p := &profile{dir: dir}
	if p.lock, err = os.Create(filepath.Join(dir, lockName)); err == nil {
		_, err = tryLock(p.lock)
	}
	if err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

// remove removes it. Processes of the browser that have just been killed may still be
// writing.
func (p *profile) remove() {
	endUsers(p.dir)
	for range removeTries {
		if os.RemoveAll(p.dir) == nil {
			break
		}
		time.Sleep(buryPause)
	}
	if p.lock != nil {
		_ = p.lock.Close()
	}
}

const removeTries = 200

// sweepProfiles removes the profiles of processes that are gone, and says how many.
func sweepProfiles() (removed int) {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), profileNames))
	for _, dir := range dirs {
		lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
		if err != nil {
			info, err := os.Stat(dir)
			if err != nil || !info.IsDir() || time.Since(info.ModTime()) < profileYoung {
				continue
			}
		} else if mine, err := tryLock(lock); !mine || err != nil {
			_ = lock.Close()
			continue
		}
		endUsers(dir) // its service was killed, and it may go on
		if os.RemoveAll(dir) == nil {
			removed++
		}
		if lock != nil {
			_ = lock.Close()
		}
	}
	return removed
}
