package main

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// spread is what several rounds measured.
type spread struct{ med, min, max float64 }

func spreadOf(xs []float64) spread {
	if len(xs) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	s := slices.Sorted(slices.Values(xs))
	med := s[len(s)/2]
	if len(s)%2 == 0 {
		med = (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return spread{med, s[0], s[len(s)-1]}
}

// String shows the median, and the lowest and the highest.
func (s spread) String() string {
	if math.IsNaN(s.med) {
		return "–"
	}
	if s.min == s.max {
		return number(s.med)
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.med), number(s.min), number(s.max))
}

// number shows three digits or so; nobody measures more here.
func number(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "–"
	case a >= 1000:
		digits := strconv.FormatInt(int64(math.Round(x)), 10)
		var b strings.Builder
		for i, d := range digits {
			if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
				b.WriteByte(',')
			}
			b.WriteRune(d)
		}
		return b.String()
	case a >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case a == 0:
		return "0"
	}
	return strconv.FormatFloat(x, 'f', 2, 64)
}

// histogram counts durations, to within 3 %.
type histogram [64 * 32]uint32

func (h *histogram) add(d time.Duration) {
	h[bucket(uint64(max(d, 0)))]++
}

func bucket(n uint64) int {
	if n < 32 {
		return int(n)
	}
	e := bits.Len64(n) - 6 // n>>e is in [32, 64)
	return (e+1)*32 + int(n>>e) - 32
}

// ofBucket is the middle of a bucket.
func ofBucket(i int) float64 {
	if i < 32 {
		return float64(i)
	}
	e := i/32 - 1
	return (float64(i%32+32) + 0.5) * float64(uint64(1)<<e)
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other {
		h[i] += n
	}
}

// quantile is in nanoseconds.
func (h *histogram) quantile(q float64) float64 {
	var all uint64
	for _, n := range h {
		all += uint64(n)
	}
	rank := uint64(q * float64(all))
	for i, n := range h {
		if rank < uint64(n) {
			return ofBucket(i)
		}
		rank -= uint64(n)
	}
	return math.NaN()
}
