package redisstore

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
)

// script is a Lua file. Its text is constant: what a caller says travels in KEYS
// and ARGV only.
type script struct {
	name, text, sha string
}

// marker is the line of a verb's file at which the prelude is put in.
const preludeMarker = "-- @prelude\n"

func newScript(name, text string) *script {
	text = strings.Replace(text, preludeMarker, preludeText, 1)
	sum := sha1.Sum([]byte(text)) // the name that EVALSHA knows it by
	return &script{name: name, text: text, sha: hex.EncodeToString(sum[:])}
}

var (
	//go:embed scripts/prelude.lua
	preludeText string
	//go:embed scripts/acquire.lua
	acquireText string
	//go:embed scripts/plain.lua
	plainText string
	//go:embed scripts/renew.lua
	renewText string
	//go:embed scripts/release.lua
	releaseText string
	//go:embed scripts/usage.lua
	usageText string
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
	plainScript   = newScript("plain", plainText)
	renewScript   = newScript("renew", renewText)
	releaseScript = newScript("release", releaseText)
	usageScript   = newScript("usage", usageText)
	clearScript   = newScript("clear", clearText)
	limitScript   = newScript("limit", limitText)
	peersScript   = newScript("peers", peersText)
	probeScript   = newScript("probe", probeText)
	aloneScript   = newScript("alone", aloneText)
	lookScript    = newScript("look", lookText)
)
