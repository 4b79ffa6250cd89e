//go:build unix

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

var oddIDs = []string{
	"a", "b", "a{b}c", "a{b}d", "{b}", "{}", "}{", "{a", "a}", "{}a", "{}{a}", "{a}{b}", "{{a}}", "{a}", "a{b}", "x:y", ":", " ", "%s", "*",
	strings.Repeat("long", 256), "ümläut-日本語", "new\nline", "nul\x00byte", "\xff\xfe", "a:q", "a:m", "}:m", "a}:m", "a}:m:b", "a}:m:a}",
}

// FuzzKeys: all keys of an id share a cluster slot, and two ids share no key.
func FuzzKeys(f *testing.F) {
	for i, id := range oddIDs {
		f.Add("sem:", id, oddIDs[(i+1)%len(oddIDs)])
		f.Add("", id, "gotsem:{"+id+"}:m")
		f.Add("{tag}", id, "gotsem:{tag}:m:{tag}"+id)
		f.Add("got", id, "sem:e:got")
	}
	f.Fuzz(func(t *testing.T, prefix, one, two string) {
		s := &Store{prefix: prefix}
		s.guardKeys()
		ctx := context.Background()
		names := make(map[string]string)
		for i, id := range []string{one, two} {
			if s.check(ctx, id, "slot") != nil || i == 1 && one == two {
				continue
			}
			k := keysOf(prefix, id)
			if k.s != prefix+id {
				t.Fatalf("S of %q is %q", id, k.s)
			}
			slot := redistest.Slot(k.s)
			for kind, key := range map[string]string{"S": k.s, "M": k.m, "Q": k.q, "L": k.l} {
				if redistest.Slot(key) != slot {
					t.Errorf("%s of %q, %q, has slot %d, S %d", kind, id, key, redistest.Slot(key), slot)
				}
				what := fmt.Sprintf("%s of %q", kind, id)
				if other, taken := names[key]; taken {
					t.Errorf("%q is %s and %s", key, what, other)
				}
				names[key] = what
			}
			for kind, key := range map[byte]string{'m': k.m, 'q': k.q, 'l': k.l} {
				if base, got := baseOf(key); base != k.s || got != kind {
					t.Errorf("%q is read as %c of %q, and is %c of %q", key, got, base, kind, k.s)
				}
			}
			if int(k.slot) != slot || redistest.Slot(markerKey(prefix, true, k.slot)) != slot {
				t.Errorf("%q: slot %d, marker %q, want slot %d", id, k.slot, markerKey(prefix, true, k.slot), slot)
			}
			if c := k.shardChannel("token"); redistest.Slot(c) != slot {
				t.Errorf("%q: its channel %q has slot %d, want %d", id, c, redistest.Slot(c), slot)
			}
			for _, own := range []string{markerKey(prefix, true, k.slot), markerKey(prefix, false, 0), peersKey(prefix)} {
				if what, taken := names[own]; taken {
					t.Errorf("%q is the store's own and %s", own, what)
				}
			}
		}
	})
}

// No id can name a key of the store's own, whatever the prefix.
func TestOwnKeysAreReserved(t *testing.T) {
	srv := redistest.Start(t)
	ctx := t.Context()
	for prefix, id := range map[string]string{"": "gotsem:{victim}:m", "go": "tsem:e:go", "gotsem": ":{x}:q", "gotsem:": "x", "gotsem:{": "x}:m"} {
		s := New(srv.Client(), prefix)
		t.Cleanup(func() { _ = s.Close() })
		_, err := s.Acquire(ctx, &store.Request{ID: id, SlotID: "slot", Weight: 1, Limit: 1, TTL: time.Minute, Plain: true})
		if !errors.Is(err, store.ErrConfig) {
			t.Errorf("prefix %q, id %q: %v, want ErrConfig", prefix, id, err)
		}
		if strings.HasPrefix(prefix, ownKeys) {
			continue
		}
		if d, err := s.Acquire(ctx, &store.Request{ID: "victim", SlotID: "slot", Weight: 1, Limit: 1, TTL: time.Minute, Plain: true}); err != nil || d.Outcome != store.Granted {
			t.Errorf("prefix %q: another id: %v, %v", prefix, d, err)
		}
		_, _ = s.Release(ctx, &store.Release{ID: "victim", SlotID: "slot"})
	}
}

// Our idea of a key's slot is Redis's.
func TestSlotsAreRedisSlots(t *testing.T) {
	// http://www.zorc.breitbandkatze.de/crc.html: CRC-16/XMODEM of the check string.
	if got := crc16("123456789"); got != 0x31C3 {
		t.Errorf("crc16 of 123456789 is %#x, want 0x31c3", got)
	}
	srv := redistest.Start(t, redistest.WithArgs("--cluster-enabled", "yes"))
	ctx := t.Context()
	rdb := srv.Client()
	ask := func(keys []string) []int64 {
		cmds, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				p.ClusterKeySlot(ctx, key)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slots := make([]int64, len(cmds))
		for i, cmd := range cmds {
			slots[i] = cmd.(*redis.IntCmd).Val()
		}
		return slots
	}
	for i, slot := range ask(oddIDs) {
		if got := keysOf("", oddIDs[i]).slot; int64(got) != slot {
			t.Errorf("%q has slot %d, Redis says %d", oddIDs[i], got, slot)
		}
	}
	tags := slotTags()
	for i, slot := range ask(tags[:]) {
		if int64(i) != slot {
			t.Fatalf("the tag of slot %d, %q, has slot %d", i, tags[i], slot)
		}
	}
}
