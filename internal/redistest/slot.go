package redistest

import "strings"

// Slots is the number of slots of a Cluster.
const Slots = 16384

// Slot returns the cluster slot of a key: CRC16 (XMODEM) of what is between the first { and the next }, if that is not empty, else
// of the whole key; modulo 16384. It is written out here, and plainly, so that tests do not check a client against itself.
func Slot(key string) int {
	if _, tail, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(tail, "}"); closed && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % Slots
}
