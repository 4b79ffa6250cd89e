// Package plainpath has tests outside of package redisstore see the store without its
// plain path, which must answer as the general scripts do.
package plainpath

import "sync/atomic"

// Off has every redisstore.Store that is made while it is set go by the general scripts.
var Off atomic.Bool
