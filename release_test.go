package gotsem_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// releasing is a repository that has what scripts/release.sh reads: modules in three layers,
// and one that only judges. The import path leads to a hub of its own, which has a tag of the
// original.
type releasing struct {
	t         *testing.T
	hub, tree string
	env       []string
}

func newReleasing(t *testing.T) *releasing {
	t.Helper()
	dir := t.TempDir()
	r := &releasing{t: t, hub: filepath.Join(dir, "hub"), tree: filepath.Join(dir, "tree")}
	r.env = append(os.Environ(),
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+r.hub+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+module,
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_ALLOW_PROTOCOL=file:https",
		"GOPROXY=off", "GOPRIVATE="+module, "GOFLAGS=-modcacherw", "GOWORK=", "GOTOOLCHAIN=local")
	files := map[string]string{
		"go.mod":              "module " + module + "\n\ngo 1.26.0\n",
		"root.go":             "package gotsem\n\nconst Said = \"root\"\n",
		"mid/go.mod":          "module " + module + "/mid\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n",
		"mid/mid.go":          "package mid\n\nimport \"" + module + "\"\n\nconst Said = gotsem.Said + \" mid\"\n",
		"cmd/tool/go.mod":     "module " + module + "/cmd/tool\n\ngo 1.26.0\n\nrequire (\n\t" + module + " v0.0.0\n\t" + module + "/mid v0.0.0\n)\n",
		"cmd/tool/main.go":    "package main\n\nimport (\n\t\"fmt\"\n\t\"runtime/debug\"\n\n\t\"" + module + "\"\n\t\"" + module + "/mid\"\n)\n\nfunc main() {\n\tinfo, _ := debug.ReadBuildInfo()\n\tfmt.Println(gotsem.Said, mid.Said, info.Main.Version, \"!\")\n}\n",
		"verify/go.mod":       "module " + module + "/verify\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n",
		"verify/verify.go":    "package verify\n\nimport _ \"" + module + "\"\n",
		"go.work":             "go 1.26.0\n\nuse (\n\t.\n\t./cmd/tool\n\t./mid\n\t./verify\n)\n\nreplace " + module + " v0.0.0 => ./\n\nreplace " + module + "/mid v0.0.0 => ./mid\n",
		"README.md":           "# x\n\n<!-- until the first tag -->\nNothing is tagged.\n<!-- end -->\nInstall it.\n",
		"CHANGELOG.md":        "# Changelog\n\n## Unreleased\n\n- News.\n",
		"Makefile":            "MODULES := . ./cmd/tool ./mid ./verify\n",
		"scripts/release.sh":  r.read("scripts/release.sh"),
		"scripts/modules.sh":  r.read("scripts/modules.sh"),
		"scripts/tidy.sh":     r.read("scripts/tidy.sh"),
		"docs/not-a-module.x": "x\n",
	}
	for name, text := range files {
		file := filepath.Join(r.tree, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.git("init", "-q", "-b", "main")
	r.git("config", "user.name", "somebody")
	r.git("config", "user.email", "somebody@example.com")
	r.git("add", "-A")
	r.git("commit", "-q", "-m", "all")
	r.run(r.tree, "git", "clone", "-q", "--bare", r.tree, r.hub)
	r.run(r.hub, "git", "tag", "v0.2.0") // the original's
	return r
}

func (r *releasing) read(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// try runs a command, and returns what it printed.
func (r *releasing) try(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, r.env
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (r *releasing) run(dir, name string, args ...string) string {
	r.t.Helper()
	out, err := r.try(dir, name, args...)
	if err != nil {
		r.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

func (r *releasing) git(args ...string) string {
	r.t.Helper()
	return r.run(r.tree, "git", args...)
}

// TestAReleaseIsOneCommitWithAllTags: modules that need each other in three layers are tagged
// on one commit, whose sums are right, and a stranger can install the command by its version.
func TestAReleaseIsOneCommitWithAllTags(t *testing.T) {
	r := newReleasing(t)
	out := r.run(r.tree, "scripts/release.sh", "v0.3.0")
	if n := r.git("rev-list", "--count", "HEAD"); n != "2" {
		t.Errorf("%s commits after the release, want the one before it and one more", n)
	}
	head := r.git("rev-parse", "HEAD")
	if tags := r.git("tag", "--list"); tags != "cmd/tool/v0.3.0\nmid/v0.3.0\nv0.3.0" {
		t.Fatalf("tags are %q: those of all modules but verify are wanted", tags)
	}
	for _, tag := range []string{"v0.3.0", "mid/v0.3.0", "cmd/tool/v0.3.0"} {
		if at := r.git("rev-parse", tag+"^{commit}"); at != head {
			t.Errorf("%s is at %s, want HEAD, %s", tag, at, head)
		}
	}
	for name, want := range map[string]string{
		"CHANGELOG.md": "## Unreleased\n\n## v0.3.0 (", "README.md": "# x\n\nInstall it.", "verify/go.mod": module + " v0.3.0",
		"go.work": module + "/mid v0.3.0 => ./mid", "cmd/tool/go.sum": module + "/mid v0.3.0 h1:",
	} {
		if text := r.git("show", "HEAD:"+name); !strings.Contains(text, want) {
			t.Errorf("%s at the release has no %q:\n%s", name, want, text)
		}
	}
	if out := r.run(r.tree, "scripts/tidy.sh", "--check"); out != "" {
		t.Errorf("something is left for make tidy: %s", out)
	}

	// As it says, and then as somebody else.
	if !strings.Contains(out, "git push --atomic origin HEAD cmd/tool/v0.3.0 mid/v0.3.0") {
		t.Errorf("it does not say what to push:\n%s", out)
	}
	r.git("push", "-q", "--atomic", r.hub, "HEAD", "cmd/tool/v0.3.0", "mid/v0.3.0")
	r.git("push", "-q", r.hub, "v0.3.0")
	elsewhere := t.TempDir()
	r.env = append(r.env, "GOMODCACHE="+filepath.Join(elsewhere, "mod"), "GOBIN="+elsewhere, "GOWORK=off")
	r.run(elsewhere, "go", "install", module+"/cmd/tool@latest")
	if said := r.run(elsewhere, filepath.Join(elsewhere, "tool")); said != "root root mid v0.3.0 !" {
		t.Errorf("the command that was installed says %q", said)
	}
	r.run(elsewhere, "git", "clone", "-q", "-b", "cmd/tool/v0.3.0", "https://"+module, "clone")
	r.run(filepath.Join(elsewhere, "clone", "cmd", "tool"), "go", "build", "-mod=readonly", "-o", os.DevNull, ".")
}

// TestAReleaseThatCannotBeLeavesNothing: what is wrong is said, and the repository is as it
// was.
func TestAReleaseThatCannotBeLeavesNothing(t *testing.T) {
	r := newReleasing(t)
	head := r.git("rev-parse", "HEAD")
	refused := func(version, want string) {
		t.Helper()
		out, err := r.try(r.tree, "scripts/release.sh", version)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("release.sh %s: %v, want a refusal with %q:\n%s", version, err, want, out)
		}
		if tags := r.git("tag", "--list"); tags != "" {
			t.Errorf("release.sh %s left tags: %s", version, tags)
		}
		if now := r.git("rev-parse", "HEAD"); now != head {
			t.Errorf("release.sh %s left a commit", version)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.tree, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	refused("0.3.0", "give one such as")
	refused("v2.0.0", "another import path")
	refused("v0.2.0", "not above v0.2.0")
	refused("v0.2.0-rc.1", "not above v0.2.0")
	write("root.go", "package gotsem\n\nconst Said = 1\n")
	refused("v0.3.0", "the tree has changes")
	r.git("commit", "-q", "-am", "a constant that mid cannot use")
	head = r.git("rev-parse", "HEAD")
	refused("v0.3.0", "does not build")
	write("root.go", "package gotsem\n\nconst Said = \"root\"\n")
	write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n")
	r.git("commit", "-q", "-am", "no news")
	head = r.git("rev-parse", "HEAD")
	refused("v0.3.0", "has nothing under")
}
