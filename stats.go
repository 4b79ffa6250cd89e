package gotsem

import (
	"sync/atomic"
	"time"
)

// Stats are what a semaphore has counted since it was made, and how it stands.
type Stats struct {
	Granted     uint64 // leases and TryAcquire slots that the store granted, and those of Local; not those of FailedOpen
	Refused     uint64 // no room, no place in line, too heavy, or waited too long
	KnownFull   uint64 // of those, refused without asking the store
	QueueFull   uint64 // of those, since the line was full too
	TooHeavy    uint64 // of those, heavier than the limit
	WaitTooLong uint64 // of those, after MaxWait
	Queued      uint64 // stood in line
	Waits       uint64 // of those, granted: Waited / Waits is the mean wait
	GaveUp      uint64 // left the line because their ctx was over
	Released    uint64 // leases and TryAcquire slots that were released, also where the store had to be told later
	Lost        uint64 // leases that ended before they were released, but for those that Close ended
	Revoked     uint64 // of those, taken away by Revoke or Clear
	HeldTooLong uint64 // of those, held for longer than MaxHold
	Expired     uint64 // of those, not renewed in time; the others the store had forgotten
	Renewals    uint64
	Retaken     uint64 // ids of a call for several that were lost while it waited for a further one, and asked for again
	Restored    uint64 // leases that the store had forgotten, and has again
	FailedOpen  uint64 // admitted by Outage Open
	Local       uint64 // admitted by Outage Local, without the store
	Unavailable uint64 // refused because the store could not be asked
	Recovering  uint64 // refused because the store was recovering
	StoreErrors uint64 // calls to the store that failed
	Outages     uint64 // times that the store, or one server of it, was given up for a while
	LeftToLapse uint64 // slots that could not be released, and lapse within a TTL: too many were waiting for it, or Close did

	Held       int           // leases held now
	Waiting    int           // waiters of this process now
	Pending    int           // slots that nobody uses and the store was not told of yet: they count until it is, or they lapse
	OldestWait time.Duration // how long the first of the waiters of this process has waited; 0: nobody waits
	Waited     time.Duration // in line, summed over those who were granted after they stood there: Waits
	Down       bool          // the store, or one server of it, is given up at the moment
}

type stats struct {
	granted, refused, knownFull, queued, gaveUp, released, lost, revoked, expired, renewals, restored,
	failedOpen, local, unavailable, recovering, storeErrors, outages, leftToLapse atomic.Uint64
	queueFull, tooHeavy, waitTooLong, waits, retaken, heldTooLong atomic.Uint64

	held, wait atomic.Int64
}

func (s *stats) waited(d time.Duration) {
	s.waits.Add(1)
	s.wait.Add(int64(d))
}

// Stats returns the counters and gauges of this semaphore. It asks nobody. It looks at
// each waiter of this process.
func (s *Semaphore) Stats() Stats {
	c := &s.stats
	waiting, oldest := s.line.stands()
	return Stats{
		Granted: c.granted.Load(), Refused: c.refused.Load(), KnownFull: c.knownFull.Load(), Queued: c.queued.Load(),
		GaveUp: c.gaveUp.Load(), Released: c.released.Load(), Lost: c.lost.Load(), Revoked: c.revoked.Load(), Expired: c.expired.Load(), Renewals: c.renewals.Load(),
		QueueFull: c.queueFull.Load(), TooHeavy: c.tooHeavy.Load(), WaitTooLong: c.waitTooLong.Load(), Waits: c.waits.Load(),
		HeldTooLong: c.heldTooLong.Load(), Retaken: c.retaken.Load(), Restored: c.restored.Load(), FailedOpen: c.failedOpen.Load(), Local: c.local.Load(),
		Unavailable: c.unavailable.Load(), Recovering: c.recovering.Load(), StoreErrors: c.storeErrors.Load(),
		Outages: c.outages.Load(), Held: int(c.held.Load()), Waiting: waiting, OldestWait: oldest, Waited: time.Duration(c.wait.Load()),
		Pending: s.gate.backlog.len(), LeftToLapse: c.leftToLapse.Load(), Down: s.gate.downs.Load() > 0,
	}
}
