package redisstore

import (
	"strconv"
	"strings"
	"sync"
)

// Every key name is made in this file. docs/wire.md tells operators the same.
//
//	prefix+id                     S: the holders, a sorted set
//	gotsem:{T}:m  or  …:m:prefix+id   M: meta, a hash
//	gotsem:{T}:q  or  …:q:prefix+id   Q: the line, a sorted set
//	gotsem:{T}:l  or  …:l:prefix+id   L: a limit set by hand, a hash
//	gotsem:{T}:t  or  …:t:prefix+id   what a probe tries, and removes
//	gotsem:e:prefix               E: the marker; on a Cluster gotsem:{tag}:e:prefix, one per cluster slot
//	gotsem:p:prefix               P: the processes that live, a sorted set
//
// T is what Redis hashes of prefix+id, so that all keys of an id share a cluster
// slot. The second form is for a T that is not the whole of it, and for one that
// contains "}", in whose place stands a short tag of the same slot.

// keys are the four keys of an id, and its slot on a Cluster.
type keys struct {
	s, m, q, l string
	slot       uint16
}

// keysOf makes the keys of an id: one string, cut into four.
func keysOf(prefix, id string) (k keys) {
	base := prefix + id
	tag := hashTag(base)
	k.slot = crc16(tag)
	suffix := ""
	if tag != base || strings.Contains(tag, "}") {
		suffix = base
	}
	if strings.Contains(tag, "}") {
		tag = slotTag(k.slot)
	}
	one := len("gotsem:{") + len(tag) + len("}:m") + len(suffix)
	if suffix != "" {
		one++
	}
	var buf [512]byte
	b := append(buf[:0], base...)
	for _, kind := range [...]byte{'m', 'q', 'l'} {
		b = append(b, "gotsem:{"...)
		b = append(b, tag...)
		b = append(b, "}:"...)
		b = append(b, kind)
		if suffix != "" {
			b = append(b, ':')
			b = append(b, suffix...)
		}
	}
	all := string(b)
	n := len(base)
	k.s, k.m, k.q, k.l = all[:n], all[n:n+one], all[n+one:n+2*one], all[n+2*one:]
	return k
}

// baseOf returns of which prefix+id key is M ('m'), Q ('q') or L ('l'); 0: of none.
func baseOf(key string) (base string, kind byte) {
	rest, ours := strings.CutPrefix(key, "gotsem:{")
	tag, rest, found := strings.Cut(rest, "}:")
	if !ours || !found || rest == "" {
		return "", 0
	}
	switch kind := rest[0]; {
	case len(rest) == 1:
		return tag, kind
	case rest[1] == ':' && kind != 'e':
		return rest[2:], kind
	}
	return "", 0
}

// probe is the key that a probe tries.
func (k keys) probe() string {
	at := strings.Index(k.m, "}:m") // T contains no "}"
	return k.m[:at] + "}:t" + k.m[at+len("}:m"):]
}

// shardChannel is the shard channel on which waiters of an id are woken.
func (k keys) shardChannel(token string) string {
	return k.m[:strings.Index(k.m, "}")+1] + ":wake:" + token
}

// wakeChannel is the channel of a process.
func wakeChannel(token string) string { return "gotsem:wake:" + token }

func markerKey(prefix string, cluster bool, slot uint16) string {
	if !cluster {
		return "gotsem:e:" + prefix
	}
	return "gotsem:{" + slotTag(slot) + "}:e:" + prefix
}

func peersKey(prefix string) string { return "gotsem:p:" + prefix }

// hashTag returns what Redis hashes of a key: what stands between the first "{"
// and the next "}", if that is not empty; else all of it.
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags
func hashTag(key string) string {
	if i := strings.IndexByte(key, '{'); i >= 0 {
		if n := strings.IndexByte(key[i+1:], '}'); n > 0 {
			return key[i+1 : i+1+n]
		}
	}
	return key
}

const clusterSlots = 16384

// crc16 is CRC-16/XMODEM, modulo the number of cluster slots.
func crc16(s string) uint16 {
	var crc uint16
	for i := range len(s) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^s[i]]
	}
	return crc % clusterSlots
}

var crcTable = func() (t [256]uint16) {
	for i := range t {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		t[i] = crc
	}
	return t
}()

// slotTag returns a short string that hashes to slot: the first number that does.
func slotTag(slot uint16) string { return slotTags()[slot] }

var slotTags = sync.OnceValue(func() *[clusterSlots]string {
	var tags [clusterSlots]string
	for n, left := uint64(0), clusterSlots; left > 0; n++ {
		tag := strconv.FormatUint(n, 36)
		if slot := crc16(tag); tags[slot] == "" {
			tags[slot] = tag
			left--
		}
	}
	return &tags
})
