// Package devices is a script; see README.md.
package devices
