package semui

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
)

// Slot ids are what gives a slot back, so they do not leave the server: a browser gets them
// sealed, with a key of this page that lives as long as it does.
type seal struct{ cipher.AEAD }

func newSeal() seal {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it does not fail
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has the right length
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // as has the block
	}
	return seal{aead}
}

// close seals text, for use with id alone.
func (s seal) close(id, text string) string {
	return base64.RawURLEncoding.EncodeToString(s.Seal(nil, nil, []byte(text), []byte(id)))
}

var errSealed = errors.New("it is not what this page gave out: reload it")

// open returns what was sealed.
func (s seal) open(id, sealed string) (string, error) {
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		return "", errSealed
	}
	text, err := s.Open(nil, nil, raw, []byte(id))
	if err != nil {
		return "", errSealed
	}
	return string(text), nil
}
