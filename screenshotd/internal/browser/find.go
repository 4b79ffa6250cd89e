package browser

import (
	"fmt"
	"os/exec"
)

// names are where a browser is looked for, the best first: the headless shell
// makes three times the captures of the full browser in half its memory.
var names = []string{
	"chromium-headless-shell", "chrome-headless-shell", "headless-shell", "headless_shell",
	"chromium", "chromium-browser", "google-chrome-stable", "google-chrome",
}

// Find returns the path of the browser: the one that is named, or else the first
// that PATH has. The error says what to install.
func Find(path string) (string, error) {
	if path != "" {
		found, err := exec.LookPath(path)
		if err != nil {
			return "", fmt.Errorf("the browser %q cannot be run: %w; %s", path, err, install)
		}
		return found, nil
	}
	for _, n := range names {
		if found, err := exec.LookPath(n); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("no browser found: %s", install)
}

const install = "on Debian: apt-get install chromium-headless-shell; elsewhere install Chromium or Chrome, and name its path with --chromium (or SCREENSHOTD_CHROMIUM)"
