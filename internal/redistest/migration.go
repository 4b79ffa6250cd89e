//go:build unix

package redistest

import (
	"fmt"
	"time"
)

// moveWithin is how long one MIGRATE may take; keys are small here.
const moveWithin = 5 * time.Second

// Migration is a slot on its way from one primary to another, as redis-cli would move it: some keys here, some there, new ones
// there, and clients sent about by MOVED, ASK and TRYAGAIN.
type Migration struct {
	c        *Cluster
	slot     int
	from, to *Server
	fromID   string
	toID     string
}

// MigrateSlot moves a slot with all its keys between two primaries and returns when every running node knows the new owner.
func (c *Cluster) MigrateSlot(slot int, from, to *Server) {
	c.tb.Helper()
	c.BeginMigration(slot, from, to).Finish()
}

// BeginMigration opens a slot at both ends (IMPORTING there, MIGRATING here) and moves no key yet. Both must be primaries, from the
// slot's owner.
func (c *Cluster) BeginMigration(slot int, from, to *Server) *Migration {
	c.tb.Helper()
	m := &Migration{c: c, slot: slot, from: from, to: to}
	c.check(m.begin())
	return m
}

func (m *Migration) begin() error {
	for _, end := range []struct {
		server *Server
		id     *string
	}{{m.from, &m.fromID}, {m.to, &m.toID}} {
		sees, err := view(end.server)
		if err != nil {
			return err
		}
		*end.id = sees.self().id
	}
	// The target first, or a client could be sent to a node that does not expect it.
	if _, err := m.to.Do("CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.fromID); err != nil {
		return err
	}
	_, err := m.from.Do("CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.toID)
	return err
}

// Move moves at most n keys of the slot and returns how many there were to move.
func (m *Migration) Move(n int) int {
	m.c.tb.Helper()
	moved, err := m.move(n)
	m.c.check(err)
	return moved
}

func (m *Migration) move(n int) (int, error) {
	reply, err := m.from.Do("CLUSTER", "GETKEYSINSLOT", m.slot, n)
	if err != nil {
		return 0, err
	}
	keys, _ := reply.([]any)
	if len(keys) == 0 {
		return 0, nil
	}
	command := []any{"MIGRATE", "127.0.0.1", m.to.port, "", 0, moveWithin.Milliseconds(), "KEYS"}
	_, err = m.from.Do(append(command, keys...)...)
	return len(keys), err
}

// Finish moves the keys that are left, gives the slot to its new owner, and returns when every running node knows it.
func (m *Migration) Finish() {
	m.c.tb.Helper()
	m.c.check(m.finish())
}

func (m *Migration) finish() error {
	for {
		moved, err := m.move(100)
		if err != nil {
			return err
		}
		if moved == 0 {
			break
		}
	}
	// The new owner first: the old one forgets the slot when told, and nobody would answer for it.
	for _, server := range []*Server{m.to, m.from} {
		if _, err := server.Do("CLUSTER", "SETSLOT", m.slot, "NODE", m.toID); err != nil {
			return err
		}
	}
	return m.c.nodes.explain(await(fmt.Sprintf("every node to know the new owner of slot %d", m.slot), formedWithin, func() error {
		return m.c.agreed(m.slot, m.to)
	}))
}
