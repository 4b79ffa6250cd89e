package redisstore

import "time"

// WithoutPlainPath has every call go by the general scripts, so that the suite passes
// through those too where the plain path would answer.
func WithoutPlainPath() Option { return func(s *Store) { s.codec.general = true } }

// IdleAfter has the connections of a store's own closed sooner.
func IdleAfter(d time.Duration) Option { return func(s *Store) { s.client.open.after = d } }
