package gotsem

import (
	crand "crypto/rand"
	"math/rand/v2"
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
}

const (
	idBlock = 64
	idLen   = 14
	idAlpha = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
)

// next returns a slot id that was never returned before.
func (s *slotIDs) next() string {
	if s.used == len(s.text) {
		s.fill()
	}
	id := s.text[s.used : s.used+idLen]
	s.used += idLen
	return id
}

// fill makes a new block. A letter is six bits; of 64 that are drawn ten letters are
// made.
func (s *slotIDs) fill() {
	if s.random == nil {
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // crypto/rand.Read never fails; it ends the program instead
		s.random = rand.NewChaCha8(seed)
	}
	var text [idLen * idBlock]byte
	var bits uint64
	for i := range text {
		if i%10 == 0 {
			bits = s.random.Uint64()
		}
		text[i] = idAlpha[bits&63]
		bits >>= 6
	}
	s.text, s.used = string(text[:]), 0
}
