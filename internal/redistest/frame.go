//go:build unix

package redistest

import (
	"bytes"
	"strconv"
)

// framer finds out where replies end in the bytes that a server sends: each of RESP2 and RESP3 that a whole reply begins with, arrays
// and attributes with all that is in them. Bytes may come in pieces.
type framer struct {
	line  []byte // of a header, as far as it has come
	skip  int    // bytes of a bulk string that are still to come, its end of line too
	still []int  // how many values each aggregate that is open still lacks
}

// next consumes the bytes of the reply at hand, at most up to its end.
func (f *framer) next(data []byte) (n int, whole bool) {
	for n < len(data) {
		if f.skip > 0 {
			took := min(f.skip, len(data)-n)
			n, f.skip = n+took, f.skip-took
			if f.skip == 0 && f.value() {
				return n, true
			}
			continue
		}
		end := bytes.IndexByte(data[n:], '\n')
		if end < 0 {
			f.line = append(f.line, data[n:]...)
			return len(data), false
		}
		f.line = append(f.line, data[n:n+end+1]...)
		n += end + 1
		if f.header() {
			return n, true
		}
	}
	return n, false
}

// header takes the line that is complete; true if the reply ends with it.
func (f *framer) header() bool {
	line := f.line
	f.line = f.line[:0]
	size := 0
	if len(line) > 3 {
		size, _ = strconv.Atoi(string(line[1 : len(line)-2]))
	}
	switch line[0] {
	case '$', '=', '!':
		if size < 0 {
			return f.value()
		}
		f.skip = size + 2
		return false
	case '%':
		size *= 2
	case '|': // what it is about follows it
		size = size*2 + 1
	case '*', '~', '>':
	default:
		return f.value()
	}
	if size <= 0 {
		return f.value()
	}
	f.still = append(f.still, size)
	return false
}

// value notes that a value is complete; true if the reply is.
func (f *framer) value() bool {
	for len(f.still) > 0 {
		last := len(f.still) - 1
		if f.still[last]--; f.still[last] > 0 {
			return false
		}
		f.still = f.still[:last]
	}
	return true
}
