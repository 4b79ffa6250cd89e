package redistest

import (
	"fmt"
	"os"
	"os/exec"
)

// binaryVariable is the environment variable that names another server: a path, or a name to be found in PATH.
const binaryVariable = "GOTSEM_REDIS_SERVER"

// Binary returns the path of the server program: the one that GOTSEM_REDIS_SERVER names, so that the same tests run against
// another Redis or a Valkey, else redis-server, else valkey-server. The error says what to install.
func Binary() (string, error) {
	if named := os.Getenv(binaryVariable); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("redistest: %s names no server: %w", binaryVariable, err)
		}
		return path, nil
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("redistest: neither redis-server nor valkey-server is in PATH; "+
		"install one (make deps, or apt-get install redis-server), or name one in %s", binaryVariable)
}
