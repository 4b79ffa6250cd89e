package gotsem

import (
	crand "crypto/rand"
	"math/rand/v2"
	"sync"
)

// slotIDs makes slot ids: 84 bits of ChaCha8, a generator that is cryptographically
// strong (https://c2sp.org/chacha8rand), with a seed of 256 bits from the system that is never
// shown. Whoever has seen any number of them can guess none of the others; and at 14
// bytes Redis keeps them in its smallest size, and up to 128 of them in its compact form.
// That two of a billion are alike has a chance of one in forty million.
//
// Ids are cut from blocks of idBlock, so that making one costs a fraction of an
// allocation.
type slotIDs struct {
	pool sync.Pool // of *idRun
}

const (
	idBlock = 64
	idLen   = 14
	idAlpha = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
)

// idRun is a generator, and the block of it that is not used up.
type idRun struct {
	random *rand.ChaCha8
	text   string
	used   int
}

func newSlotIDs() *slotIDs {
	return &slotIDs{pool: sync.Pool{New: func() any {
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // crypto/rand.Read never fails; it ends the program instead
		return &idRun{random: rand.NewChaCha8(seed), used: idBlock}
	}}}
}

// next returns a slot id that was never returned before.
func (s *slotIDs) next() string {
	r := s.pool.Get().(*idRun)
	if r.used == idBlock {
		r.fill()
	}
	id := r.text[idLen*r.used : idLen*(r.used+1)]
	r.used++
	s.pool.Put(r)
	return id
}

// fill makes a new block. A letter is six bits; of 64 that are drawn ten letters are
// made.
func (r *idRun) fill() {
	var text [idLen * idBlock]byte
	var bits uint64
	for i := range text {
		if i%10 == 0 {
			bits = r.random.Uint64()
		}
		text[i] = idAlpha[bits&63]
		bits >>= 6
	}
	r.text, r.used = string(text[:]), 0
}
