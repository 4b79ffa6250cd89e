package gotsem

import (
	"crypto/rand"
	"encoding/base64"
	"strconv"
	"sync"
	"sync/atomic"
)

// slotIDs makes slot ids: a secret of 96 random bits, drawn once per semaphore,
// and a counter. Who does not know the secret cannot guess a slot id, and with
// less than 64 bytes Redis keeps up to 128 of them in its compact form.
//
// Ids are cut from blocks of idBlock, so that making one costs a fraction of an
// allocation and no call to the random source.
type slotIDs struct {
	secret string
	blocks atomic.Uint64 // blocks handed out so far
	pool   sync.Pool     // of *idRun
}

const idBlock = 64

// idRun is a block that is not used up.
type idRun struct {
	text string
	ends [idBlock]uint16
	used int
}

func newSlotIDs() *slotIDs {
	var b [12]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails; it ends the program instead
	return &slotIDs{secret: base64.RawURLEncoding.EncodeToString(b[:])}
}

// next returns a slot id that was never returned before.
func (s *slotIDs) next() string {
	r, _ := s.pool.Get().(*idRun)
	if r == nil || r.used == idBlock {
		r = s.block(r)
	}
	start := uint16(0)
	if r.used > 0 {
		start = r.ends[r.used-1]
	}
	id := r.text[start:r.ends[r.used]]
	r.used++
	s.pool.Put(r)
	return id
}

func (s *slotIDs) block(r *idRun) *idRun {
	if r == nil {
		r = new(idRun)
	}
	n := (s.blocks.Add(1) - 1) * idBlock
	text := make([]byte, 0, idBlock*(len(s.secret)+8))
	for i := range r.ends {
		text = append(text, s.secret...)
		text = strconv.AppendUint(text, n+uint64(i), 36)
		r.ends[i] = uint16(len(text))
	}
	r.text, r.used = string(text), 0
	return r
}
