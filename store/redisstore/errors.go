package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// outages are the answers of a Redis that cannot serve for now. Every other error
// that Redis answers is one that asking again will not mend.
var outages = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "OOM", "BUSY", "TRYAGAIN", "MOVED", "ASK", "MISCONF",
	"UNBLOCKED", "ERR max number of clients",
}

// classify makes a configuration error a store.ErrConfig, and leaves others as
// they are.
func classify(err error) error {
	if err == nil {
		return nil
	}
	var answer redis.Error
	if !errors.As(err, &answer) || errors.Is(err, redis.Nil) {
		return err
	}
	for _, code := range outages {
		if strings.HasPrefix(answer.Error(), code) {
			return err
		}
	}
	if strings.Contains(answer.Error(), "unauthenticated") { // what it says to a long command instead of NOAUTH
		return fmt.Errorf("%w: Redis wants a password (NOAUTH): %w", store.ErrConfig, err)
	}
	// A server that does not know a command repeats its arguments, and those of AUTH are
	// the password.
	if text, _, repeats := strings.Cut(answer.Error(), ", with args beginning with"); repeats {
		return fmt.Errorf("%w: Redis answers: %s", store.ErrConfig, text)
	}
	return fmt.Errorf("%w: Redis answers: %w", store.ErrConfig, err)
}

func isNoScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

// isNetwork reports whether err means that a node may be gone, so that it is time
// to ask a Cluster who serves its slots now.
func isNetwork(err error) bool {
	var netErr net.Error
	return errors.Is(err, io.EOF) || errors.As(err, &netErr) || errors.Is(err, context.DeadlineExceeded) ||
		redis.HasErrorPrefix(err, "CLUSTERDOWN") || redis.HasErrorPrefix(err, "READONLY")
}

// isBroken reports whether err means that a connection ended, so that a new one may
// serve.
func isBroken(err error) bool {
	return err != nil && !isTimeout(err) && !errors.Is(err, context.Canceled) && (isNetwork(err) || errors.Is(err, io.ErrUnexpectedEOF))
}

func isConfig(err error) bool { return errors.Is(classify(err), store.ErrConfig) }

// isTimeout reports whether err means that Redis did not answer in time.
func isTimeout(err error) bool {
	var netErr net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout()
}
