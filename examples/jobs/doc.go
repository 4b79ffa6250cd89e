// Package jobs is a manifest; see README.md.
package jobs
