package redisstore

// WithoutPlainPath has every call go by the general scripts, so that the suite passes
// through those too where the plain path would answer.
func WithoutPlainPath() Option { return func(s *Store) { s.codec.general = true } }
