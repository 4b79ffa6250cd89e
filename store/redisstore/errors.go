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

var (
	errTimeout = fmt.Errorf("redisstore: no answer from Redis in time: %w", context.DeadlineExceeded)
	errClock   = errors.New("redisstore: Redis and this process do not agree on how much time has passed")
)

// hopeless are the answers of a Redis that asking again will not mend. Whatever else
// it, or a proxy before it, answers is an outage: nobody knows all the words for "not
// now".
var hopeless = []string{
	"WRONGTYPE", "NOAUTH", "WRONGPASS", "NOPERM", "NOPROTO", "CROSSSLOT",
	"ERR unknown command", "ERR wrong number of arguments", "ERR invalid password", "ERR AUTH ", "ERR Client sent AUTH",
	"ERR Error running script", "ERR Error compiling script", "ERR The user executing the script can't",
}

// isHopeless reports whether asking again will not mend what Redis answered.
func isHopeless(answer string) bool {
	for _, begin := range hopeless {
		if strings.HasPrefix(answer, begin) {
			return true
		}
	}
	// A script's own fault. What a command answers in a script keeps its code: "OOM … on
	// @user_script: 12".
	return strings.HasPrefix(answer, "ERR ") && strings.Contains(answer, "user_script")
}

// classify makes an error that asking again will not mend a store.ErrConfig, and leaves
// others as they are.
func classify(err error) error {
	if err == nil {
		return nil
	}
	var answer redis.Error
	if !errors.As(err, &answer) || errors.Is(err, redis.Nil) {
		return err
	}
	text := answer.Error()
	if strings.Contains(text, "unauthenticated") { // what it says to a long command instead of NOAUTH
		return fmt.Errorf("%w: Redis wants a password (NOAUTH): %w", store.ErrConfig, err)
	}
	// A server that does not know a command repeats its arguments, and those of AUTH are
	// the password.
	if text, _, repeats := strings.Cut(text, ", with args beginning with"); repeats {
		return fmt.Errorf("%w: Redis answers: %s", store.ErrConfig, text)
	}
	if isHopeless(text) {
		return fmt.Errorf("%w: Redis answers: %w", store.ErrConfig, err)
	}
	return err
}

// isHalfway reports whether err is that of a script which may have done a part of its
// work before a command of it was refused: a right is missing, a key has another type.
func isHalfway(err error) bool {
	return errors.Is(err, store.ErrConfig) && strings.Contains(err.Error(), "script: ")
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
