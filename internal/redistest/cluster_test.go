//go:build unix

package redistest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestSlot(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{"123456789": 0x31c3, "": 0, "foo": 12182, "{foo}:bar": 12182, "a{foo}{bar}": 12182} {
		if got := Slot(key); got != want {
			t.Errorf("Slot(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestClusterMigratesAndFailsOver(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := StartCluster(t, 3, 1)
	t.Logf("ready after %v", time.Since(began))

	for _, key := range []string{"", "{}", "}{", "a}b", "{}x{y}", "a{b}c", "{{a}}", "ключ", "{a"} {
		if want, err := c.Nodes()[0].Do("CLUSTER", "KEYSLOT", key); want != int64(Slot(key)) {
			t.Errorf("Slot(%q) = %d, the server says %v, %v", key, Slot(key), want, err)
		}
	}

	const keys = 20
	slot := Slot("{tag}")
	rdb := c.Client()
	for i := range keys {
		must(t, rdb.Set(t.Context(), fmt.Sprint("{tag}:", i), i, 0).Err())
	}

	from := c.NodeFor(slot)
	var to *Server
	for _, node := range c.Nodes()[:3] {
		if node != from {
			to = node
		}
	}
	began = time.Now()
	m := c.BeginMigration(slot, from, to)
	if got := m.Move(keys / 2); got != keys/2 {
		t.Errorf("moved %d keys, want %d", got, keys/2)
	}
	if got := counted(t, from, slot); got != keys/2 {
		t.Errorf("%d keys are left at the source, want %d", got, keys/2)
	}
	if c.NodeFor(slot) != from {
		t.Error("the slot changed hands half-way")
	}
	if _, err := from.Do("SET", "{tag}:new", "x"); err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
		t.Errorf("a new key in a migrating slot: %v, want ASK", err)
	}
	m.Finish()
	t.Logf("migrated after %v", time.Since(began))
	if c.NodeFor(slot) != to || counted(t, to, slot) != keys {
		t.Errorf("owner %s with %d keys, want %s with %d", c.NodeFor(slot).Addr(), counted(t, to, slot), to.Addr(), keys)
	}
	if _, err := from.Do("GET", "{tag}:0"); err == nil || !strings.HasPrefix(err.Error(), "MOVED ") {
		t.Errorf("the old owner says %v, want MOVED", err)
	}
	c.MigrateSlot(slot, to, from)

	// A node that handed a slot on before it had heard of the latest epoch lost it for good.
	for range 10 {
		c.MigrateSlot(slot, from, to)
		c.MigrateSlot(slot, to, from)
	}

	setEverywhere(t, from.Client(), "{tag}:0", "0", 1)
	began = time.Now()
	dead := c.KillMaster(slot)
	primary := c.AwaitPromotion(slot, dead)
	t.Logf("promoted after %v", time.Since(began))
	if dead != from || primary == dead || c.NodeFor(slot) != primary {
		t.Fatalf("%s was killed, owner now %s", dead.Addr(), primary.Addr())
	}
	if got := counted(t, primary, slot); got != keys {
		t.Errorf("%d of %d keys survived", got, keys)
	}

	began = time.Now()
	c.Heal()
	t.Logf("healed after %v", time.Since(began))
	if role := dead.Info("replication")["role"]; role != "slave" {
		t.Errorf("the old primary came back as a %s", role)
	}

	began = time.Now()
	asleep := c.StopMaster(slot)
	c.AwaitPromotion(slot, asleep)
	t.Logf("promoted after %v, the other asleep", time.Since(began))
}

func counted(t *testing.T, node *Server, slot int) int64 {
	t.Helper()
	n, err := node.Do("CLUSTER", "COUNTKEYSINSLOT", slot)
	must(t, err)
	return n.(int64)
}
