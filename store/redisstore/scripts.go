package redisstore

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// script is a Lua file. Its text is constant: what a caller says travels in KEYS
// and ARGV only.
type script struct {
	name, text, sha string
}

// What scripts share is put in as text, over agreed local names, and not called: a
// function made in each call would double the cost of a plain one. A line "-- @prelude"
// stands for prelude.lua, a line "-- @include NAME" for parts/NAME.lua, or for what Go
// prints under that name.
var include = regexp.MustCompile(`(?m)^-- @(prelude|include (\w+))\n`)

//go:embed scripts/parts
var parts embed.FS

// printed are parts that say in Lua what is said in Go already.
var printed = map[string]string{
	"times": fmt.Sprintf("local LIFE, CLAIM, LEAST, PAUSE = %d, %d, %d, %d\n",
		store.Life.Milliseconds(), store.Claim.Milliseconds(), claimLeast.Milliseconds(), store.Pause.Milliseconds()),
}

// claimLeast is how long a grant is kept for a waiter that has not asked for long: for
// being woken in.
const claimLeast = time.Second

func newScript(name, text string) *script {
	text = expand(text)
	sum := sha1.Sum([]byte(text)) // the name that EVALSHA knows it by
	return &script{name: name, text: text, sha: hex.EncodeToString(sum[:])}
}

// expand puts in what text includes. A part that is not there is a mistake in the source.
func expand(text string) string {
	return include.ReplaceAllStringFunc(text, func(line string) string {
		part := include.FindStringSubmatch(line)
		if part[1] == "prelude" {
			return expand(preludeText)
		}
		if text, ok := printed[part[2]]; ok {
			return text
		}
		text, err := parts.ReadFile("scripts/parts/" + part[2] + ".lua")
		if err != nil {
			panic(err)
		}
		return string(text)
	})
}

var (
	//go:embed scripts/prelude.lua
	preludeText string
	//go:embed scripts/acquire.lua
	acquireText string
	//go:embed scripts/joint.lua
	jointText string
	//go:embed scripts/plain.lua
	plainText string
	//go:embed scripts/renew.lua
	renewText string
	//go:embed scripts/release.lua
	releaseText string
	//go:embed scripts/usage.lua
	usageText string
	//go:embed scripts/list.lua
	listText string
	//go:embed scripts/state.lua
	stateText string
	//go:embed scripts/clear.lua
	clearText string
	//go:embed scripts/limit.lua
	limitText string
	//go:embed scripts/peers.lua
	peersText string
	//go:embed scripts/probe.lua
	probeText string
	//go:embed scripts/alone.lua
	aloneText string
	//go:embed scripts/grace.lua
	graceText string
	//go:embed scripts/look.lua
	lookText string

	acquireScript = newScript("acquire", acquireText)
	jointScript   = newScript("joint", jointText)
	plainScript   = newScript("plain", plainText)
	renewScript   = newScript("renew", renewText)
	releaseScript = newScript("release", releaseText)
	usageScript   = newScript("usage", usageText)
	listScript    = newScript("list", listText)
	stateScript   = newScript("state", stateText)
	clearScript   = newScript("clear", clearText)
	limitScript   = newScript("limit", limitText)
	peersScript   = newScript("peers", peersText)
	probeScript   = newScript("probe", probeText)
	aloneScript   = newScript("alone", aloneText)
	lookScript    = newScript("look", lookText)
	graceScript   = newScript("grace", graceText)
)
