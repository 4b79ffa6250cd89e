package deployed

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../../"

// tool runs a program that `make deps` installs. That it is missing is a failure.
func tool(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is not in PATH: make deps installs it", name)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(root + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// matches are the first groups of all matches, sorted, each once.
func matches(pattern, text string) (all []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func alerts(t *testing.T) []string {
	t.Helper()
	all := matches(`(?m)^ +- alert: (\w+)$`, read(t, "deploy/prometheus/gotsem.rules.yml"))
	if len(all) == 0 {
		t.Fatal("no alerts are found")
	}
	return all
}

func TestPrometheusTakesTheRules(t *testing.T) {
	tool(t, root+"deploy/prometheus", "promtool", "check", "rules", "--lint=all", "--lint-fatal", "gotsem.rules.yml")
}

// Each alert has a case that fires, with its texts, and one that does not.
func TestEachAlertFiresWhenItShouldAndNotElse(t *testing.T) {
	tool(t, root+"deploy/prometheus", "promtool", "test", "rules", "gotsem.rules.test.yml")
	cases := read(t, "deploy/prometheus/gotsem.rules.test.yml")
	for _, name := range alerts(t) {
		for _, want := range []string{
			`(?m)^        alertname: (` + name + `)\n        exp_alerts:\n          - exp_labels:$`,
			`(?m)^        alertname: (` + name + `)\n        exp_alerts: \[\]$`,
		} {
			if len(matches(want, cases)) == 0 {
				t.Errorf("%s: gotsem.rules.test.yml has no case that matches %s", name, want)
			}
		}
	}
}

func TestEachAlertHasARunbook(t *testing.T) {
	headings := matches(`(?m)^## (\w+)$`, read(t, "docs/runbooks.md"))
	if all := alerts(t); !slices.Equal(all, headings) {
		t.Errorf("alerts %v\nheadings of docs/runbooks.md %v", all, headings)
	}
	rules := read(t, "deploy/prometheus/gotsem.rules.yml")
	for _, name := range alerts(t) {
		if !strings.Contains(rules, "/docs/runbooks.md#"+strings.ToLower(name)+"\n") {
			t.Errorf("%s: its runbook_url does not lead to its heading", name)
		}
	}
}

// What rules, dashboard and docs ask for is what both modules export, and the docs leave
// none of that out.
func TestEveryMetricThatIsAskedForExists(t *testing.T) {
	exported := matches(`(?m)^(gotsem_\w+) \|`, read(t, "otelsem/testdata/golden.txt"))
	for _, path := range []string{"deploy/prometheus/gotsem.rules.yml", "deploy/prometheus/gotsem.rules.test.yml", "deploy/grafana/gotsem.json", "docs/metrics.md"} {
		for _, name := range matches(`\b(gotsem_(?:acquires|wait|lease|waiter|release|level|store|shed|slot|line|limit)_\w+)\b`, read(t, path)) {
			base := regexp.MustCompile(`_seconds_(bucket|sum|count)$`).ReplaceAllString(name, "_seconds")
			if !slices.Contains(exported, base) && name != "gotsem_store_state" {
				t.Errorf("%s names %s, which nobody exports", path, name)
			}
		}
	}
	docs := read(t, "docs/metrics.md")
	for _, name := range exported {
		if !strings.Contains(docs, "`"+name+"`") {
			t.Errorf("docs/metrics.md says nothing of %s", name)
		}
	}
}

// The mixin is the same files in another form.
func TestTheMixinEvaluates(t *testing.T) {
	out := tool(t, root+"deploy/mixin", "jsonnet", "-e", `
		local m = import 'mixin.libsonnet';
		local names = [r.alert for g in m.prometheusAlerts.groups for r in g.rules];
		{ names: names, uid: m.grafanaDashboards['gotsem.json'].uid, severe: (m + { _config+:: { severity+: { critical: 'page' } } }).prometheusAlerts.groups[0].rules[0].labels.severity }`)
	for _, name := range alerts(t) {
		if !strings.Contains(out, `"`+name+`"`) {
			t.Errorf("%s is not in the mixin", name)
		}
	}
	if !strings.Contains(out, `"uid": "gotsem"`) || !strings.Contains(out, `"severe": "page"`) {
		t.Error(out)
	}
}
