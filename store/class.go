package store

import "fmt"

// Class is how important a request is.
type Class int8

// The classes, from the least important on.
const (
	Sheddable Class = -2
	Batch     Class = -1
	Default   Class = 0
	Critical  Class = 1
)

// Classes is how many classes there are.
const Classes = 4

// Known reports whether c is one of them.
func (c Class) Known() bool { return c >= Sheddable && c <= Critical }

// Index is the place of c among the classes: 0 for Sheddable, to 3 for Critical. A class
// that is not known has that of Default.
func (c Class) Index() int {
	if !c.Known() {
		c = Default
	}
	return int(c - Sheddable)
}

// ClassAt is the class with that Index; Default for any other number.
func ClassAt(index int) Class {
	if c := Sheddable + Class(index); index >= 0 && c.Known() {
		return c
	}
	return Default
}

// String returns the class in a word.
func (c Class) String() string {
	if !c.Known() {
		return fmt.Sprintf("Class(%d)", int8(c))
	}
	return [Classes]string{"sheddable", "batch", "default", "critical"}[c.Index()]
}

// ParseClass returns the class of that name.
func ParseClass(name string) (Class, error) {
	for c := Sheddable; c <= Critical; c++ {
		if c.String() == name {
			return c, nil
		}
	}
	return Default, fmt.Errorf("store: no class is called %q: sheddable, batch, default or critical", name)
}

// WholeShare is a Request.Share that keeps nothing back: shares are in thousandths.
const WholeShare = 1000

// ShareOf is the part of a limit that a request with that share may take: rounded down,
// but 1 at least. Without a share it is all of it.
func ShareOf(limit, share int) int {
	if share <= 0 || share >= WholeShare || limit <= 0 {
		return limit
	}
	whole, rest := limit/WholeShare, limit%WholeShare
	return max(1, whole*share+rest*share/WholeShare)
}
