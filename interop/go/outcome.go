package main

import (
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"mainstay/interop/history"
)

// outcome says what an error means for the effect of a write.
//
// The clients that record histories send a write once (see
// cluster.ClientWithoutRetries), so one call is at most one write. What is left
// is whether it was one:
//
//   - Unknown: the client's own deadline; a connection that broke; every
//     "request timed out" of the server, because its proposal stays in the raft
//     log whoever waits for it; "server stopped"; and everything not named here.
//   - Refused: errors that servers give before they propose anything (too many
//     requests, no leader, no space, bad arguments, not capable), and
//     connections that never came about, so that nothing was sent.
//
// Reads have no effect; for them it does not matter. The checker requires that
// refused writes never happen, and allows both for unknown ones.
func outcome(err error) history.Outcome {
	if err == nil {
		return history.Acknowledged
	}
	for _, refused := range []error{
		rpctypes.ErrTooManyRequests, rpctypes.ErrNoLeader, rpctypes.ErrNoSpace, rpctypes.ErrRequestTooLarge,
		rpctypes.ErrEmptyKey, rpctypes.ErrDuplicateKey, rpctypes.ErrTooManyOps, rpctypes.ErrNotCapable,
	} {
		if errors.Is(err, refused) || err.Error() == refused.Error() {
			return history.Refused
		}
	}
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable {
		text := s.Message()
		if strings.Contains(text, "Error while dialing") && strings.Contains(text, "connection refused") {
			return history.Refused
		}
	}
	return history.Unknown
}

// errorKind is a short name of an error for counting: its text without what
// differs from one time to the next.
func errorKind(err error) string {
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Code().String() + ": " + s.Message()
	}
	for _, part := range []string{"connection refused", "connection reset by peer", "error reading from server: EOF", "broken pipe", "transport is closing"} {
		if strings.Contains(text, part) {
			return "connection: " + part
		}
	}
	if len(text) > 90 {
		text = text[:90]
	}
	return text
}
