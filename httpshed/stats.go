package httpshed

import "sync/atomic"

// Stats are what a Shedder has counted since it was made, and how it stands.
type Stats struct {
	Admitted uint64 // requests that got a slot
	Skipped  uint64 // let through by Options.Skip

	// Refused, by reason. With Options.Shadow: would have been.
	Full          uint64
	LineFull      uint64
	WaitedTooLong uint64
	ServerFull    uint64
	TooHeavy      uint64
	BadRequest    uint64
	Unavailable   uint64
	Recovering    uint64
	ServerFault   uint64

	ClientGone uint64 // hung up before they were let in or refused
	Shadowed   uint64 // let through without a slot, by Options.Shadow
	Closed     uint64 // refusals that closed their connection
	Spared     uint64 // refusals that did not, since ClosesPerSecond was used up
	Cut        uint64 // refused bodies that were not read to their end: too slow, too long, or too many at once

	Held      int // requests that hold a slot now
	Lingering int // refused ones whose body is still arriving
}

// Refused is how many were refused in all.
func (s Stats) Refused() uint64 {
	return s.Full + s.LineFull + s.WaitedTooLong + s.ServerFull + s.TooHeavy + s.BadRequest + s.Unavailable + s.Recovering + s.ServerFault
}

type stats struct {
	skipped, gone, shadowed, closed, spared, cut atomic.Uint64
	refused                                      [reasons]atomic.Uint64
}

// Stats returns the counters and gauges of this Shedder. It asks nobody.
func (s *Shedder) Stats() Stats {
	c := &s.stats
	admitted, held := s.door.Counts()
	return Stats{
		Admitted: admitted, Skipped: c.skipped.Load(),
		Full: c.refused[Full].Load(), LineFull: c.refused[LineFull].Load(), WaitedTooLong: c.refused[WaitedTooLong].Load(),
		ServerFull: c.refused[ServerFull].Load(), TooHeavy: c.refused[TooHeavy].Load(), BadRequest: c.refused[BadRequest].Load(),
		Unavailable: c.refused[Unavailable].Load(), Recovering: c.refused[Recovering].Load(), ServerFault: c.refused[ServerFault].Load(),
		ClientGone: c.gone.Load(), Shadowed: c.shadowed.Load(), Closed: c.closed.Load(), Spared: c.spared.Load(), Cut: c.cut.Load(),
		Held: held, Lingering: int(s.lingering.Load()),
	}
}
