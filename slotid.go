package gotsem

import (
	crand "crypto/rand"
	"math/rand/v2"
	"time"
)

// slotIDs makes slot ids, for one caller at a time: 84 bits of ChaCha8, a generator that
// is cryptographically strong (https://c2sp.org/chacha8rand), with a seed of 256 bits from
// the system that is never shown. Whoever has seen any number of them can guess none of the others; and at 14
// bytes Redis keeps them in its smallest size, and up to 128 of them in its compact form.
// That two of a billion are alike has a chance of one in forty million.
//
// Ids are cut from blocks of idBlock, so that making one costs a fraction of an
// allocation. The zero value is ready.
type slotIDs struct {
	random *rand.ChaCha8
	text   string // a block
	used   int    // bytes of it

	stamped string        // a block of stamped ids
	at      int           // bytes of it that are used
	len     int           // of one of them
	due     time.Duration // when its stamp is too old
}

const (
	idBlock = 64
	idLen   = 14
	idAlpha = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

	stampAge = time.Second // that a stamp may have
)

// next returns a slot id that was never returned before.
func (s *slotIDs) next() string {
	if s.used == len(s.text) {
		s.text, s.used = s.block("", idBlock), 0
	}
	id := s.text[s.used : s.used+idLen]
	s.used += idLen
	return id
}

// nextStamped is next for an id that begins with a stamp, which says who asks and when. Who
// asks seldom has a new stamp each time, and makes no more ids than it takes.
func (s *slotIDs) nextStamped(now time.Duration, stamp func() string) string {
	if old := now > s.due; s.at == len(s.stamped) || old {
		n := idBlock
		if old {
			n = 1
		}
		text := stamp()
		s.stamped, s.at, s.len = s.block(text, n), 0, len(text)+idLen
		s.due = now + stampAge
	}
	id := s.stamped[s.at : s.at+s.len]
	s.at += s.len
	return id
}

// block makes n ids that begin with stamp. A letter is six bits; of 64 that are drawn ten
// letters are made.
func (s *slotIDs) block(stamp string, n int) string {
	if s.random == nil {
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // crypto/rand.Read never fails; it ends the program instead
		s.random = rand.NewChaCha8(seed)
	}
	var room [(16 + idLen) * idBlock]byte
	text := room[:0]
	var bits uint64
	left := 0
	for range n {
		text = append(text, stamp...)
		for range idLen {
			if left == 0 {
				bits, left = s.random.Uint64(), 10
			}
			text = append(text, idAlpha[bits&63])
			bits >>= 6
			left--
		}
	}
	return string(text)
}
