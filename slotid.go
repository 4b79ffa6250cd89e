package gotsem

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// slotIDs makes slot ids: a counter, enciphered under a secret key of 128 bits that is
// drawn once per semaphore, and cut to 84 bits. Whoever has seen any number of them can
// guess none of the others; and at 14 bytes Redis keeps them in its smallest size, and
// up to 128 of them in its compact form. That two of a billion are alike has a chance of
// one in forty million.
//
// Ids are cut from blocks of idBlock, so that making one costs a fraction of an
// allocation.
type slotIDs struct {
	cipher cipher.Block
	blocks atomic.Uint64 // blocks handed out so far
	pool   sync.Pool     // of *idRun
}

const (
	idBlock = 64
	idLen   = 14
)

// idRun is a block that is not used up.
type idRun struct {
	text string
	used int
}

func newSlotIDs() *slotIDs {
	var key [16]byte
	_, _ = rand.Read(key[:]) // crypto/rand.Read never fails; it ends the program instead
	c, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has the right length
	}
	return &slotIDs{cipher: c}
}

// next returns a slot id that was never returned before.
func (s *slotIDs) next() string {
	r, _ := s.pool.Get().(*idRun)
	if r == nil || r.used == idBlock {
		r = s.block(r)
	}
	id := r.text[idLen*r.used : idLen*(r.used+1)]
	r.used++
	s.pool.Put(r)
	return id
}

func (s *slotIDs) block(r *idRun) *idRun {
	if r == nil {
		r = new(idRun)
	}
	first := (s.blocks.Add(1) - 1) * idBlock
	var text [idLen * idBlock]byte
	var block [aes.BlockSize]byte
	var letters [16]byte // of 12 bytes
	for i := range uint64(idBlock) {
		clear(block[:])
		binary.LittleEndian.PutUint64(block[:], first+i)
		s.cipher.Encrypt(block[:], block[:])
		base64.RawURLEncoding.Encode(letters[:], block[:12])
		copy(text[idLen*i:], letters[:idLen])
	}
	r.text, r.used = string(text[:]), 0
	return r
}
