//go:build unix

package devices

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// Of six pipelines each gets a device, and no device is used by two at once.
func TestNoDeviceIsUsedTwiceAtOnce(t *testing.T) {
	_, srv := extest.Semaphore(t, gotsem.Options{Limit: 1})
	bin, used := extest.Command(t), t.TempDir()
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			// mkdir fails if the folder is there: somebody else uses the device.
			cmd := exec.Command("./on-device.sh", "phone", "3", "--", "sh", "-c", `echo $DEVICE; mkdir "$USED/$DEVICE" && sleep 0.1 && rmdir "$USED/$DEVICE" && touch "$USED/was$DEVICE"`)
			cmd.Env = append(os.Environ(), "USED="+used, "PATH="+bin+":"+os.Getenv("PATH"), "GOTSEM_REDIS_URL=redis://"+srv.Addr(), "GOTSEM_FRESH=true")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	if was, _ := filepath.Glob(used + "/was*"); len(was) == 0 || len(was) > 3 {
		t.Errorf("used were %v, want one to three", was)
	}
}
