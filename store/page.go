package store

import (
	"context"
	"time"
)

type pageTimeout struct{}

// WithPageTimeout has a list that is asked for with ctx take at most d for each piece of
// it: the list as a whole is as long as the store is large, and a store that hangs is
// found out by the piece under way.
func WithPageTimeout(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, pageTimeout{}, d)
}

// PageTimeout returns what WithPageTimeout said, or otherwise.
func PageTimeout(ctx context.Context, otherwise time.Duration) time.Duration {
	if d, ok := ctx.Value(pageTimeout{}).(time.Duration); ok {
		return d
	}
	return otherwise
}
