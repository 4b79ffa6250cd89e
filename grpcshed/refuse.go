package grpcshed

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/internal/door"
)

// What refusals are known by to programs: errdetails.ErrorInfo.
const (
	Domain = "gotsem"
	Reason = "CONCURRENCY_LIMIT"
)

// pushback is the trailer that grpc's retries obey: in so many ms, or, below zero, never.
// https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback
const pushback = "grpc-retry-pushback-ms"

// elsewhere is when a call that only this server has no room for is to come back: on
// another connection there may be room at once.
const elsewhere = 20 * time.Millisecond

// verdict is a refusal before it is written.
type verdict struct {
	reason httpshed.Reason
	code   codes.Code
	text   string
	wait   time.Duration // until it is worth coming back; below zero: never
	full   *gotsem.FullError
}

// refuse tells a call no.
func (s *Shedder) refuse(ctx context.Context, method string, a door.Asker, atLocal bool, err error) error {
	v := verdict{reason: httpshed.Unavailable, code: codes.Unavailable, text: "the limit could not be asked", wait: time.Second}
	over := ctx.Err()
	var recovering *gotsem.RecoveringError
	switch {
	case errors.As(err, &v.full):
		s.full(ctx, a, atLocal, &v)
	case errors.As(err, &recovering):
		v.reason, v.text, v.wait = httpshed.Recovering, "the store of the limits recovers", max(recovering.RetryAfter, time.Second)
	case errors.Is(err, gotsem.ErrTooHeavy):
		v.reason, v.code, v.text, v.wait = httpshed.TooHeavy, codes.FailedPrecondition, "heavier than the whole limit", -1
	case errors.Is(err, gotsem.ErrUnavailable) && over == nil:
	case over != nil:
		s.stats.gone.Add(1)
		return status.FromContextError(over).Err()
	case errors.Is(err, gotsem.ErrOrder), errors.Is(err, gotsem.ErrIDs):
		return s.fault(ctx, method, err)
	}
	return s.answer(ctx, method, v, err)
}

// full is refuse where there is no room.
func (s *Shedder) full(ctx context.Context, a door.Asker, atLocal bool, v *verdict) {
	v.code, v.text = codes.ResourceExhausted, "the limit is reached"
	switch full := v.full; {
	case full.Is(gotsem.ErrQueueFull):
		v.reason = httpshed.LineFull
	case full.Is(gotsem.ErrWaitTooLong):
		v.reason = httpshed.WaitedTooLong
	default:
		v.reason = httpshed.Full
	}
	if atLocal {
		if standing, usage := s.door.Standing(ctx, a.ID, a.Weight); standing != door.Full {
			v.reason, v.code, v.text, v.wait = httpshed.ServerFull, codes.Unavailable, "this server is full", door.Spread(elsewhere, elsewhere)
			return
		} else { // no other server would do, and the fleet's numbers count
			v.reason = httpshed.Full
			v.full = &gotsem.FullError{ID: a.ID, Active: usage.Active, Limit: usage.Limit, Waiting: usage.Waiting, NextLapse: usage.NextIn}
		}
	}
	wait, _ := s.door.RetryIn(v.full)
	v.wait = door.Spread(wait, 10*time.Millisecond)
}

// notAccepted answers an error of Before, Key or Weight.
func (s *Shedder) notAccepted(ctx context.Context, method string, err error) error {
	st, ok := status.FromError(err) // one that is wrapped counts too
	if !ok {
		st = status.New(codes.InvalidArgument, err.Error())
	}
	switch st.Code() {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return s.fault(ctx, method, err)
	}
	s.count(ctx, method, Refusal{Reason: httpshed.BadRequest, RetryAfter: -1, Err: err})
	return st.Err()
}

// fault answers what is this server's own fault: the client is not told which.
func (s *Shedder) fault(ctx context.Context, method string, err error) error {
	s.opt.Logger.ErrorContext(ctx, "grpcshed: a call could not be judged", "method", method, "error", err)
	s.count(ctx, method, Refusal{Reason: httpshed.ServerFault, RetryAfter: -1, Err: err})
	return status.Error(codes.Internal, "the server could not judge this call")
}

func (s *Shedder) count(ctx context.Context, method string, no Refusal) {
	s.stats.refused[no.Reason].Add(1)
	if s.opt.OnRefuse != nil {
		s.opt.OnRefuse(ctx, method, no)
	}
}

// answer makes the status of a refusal, with its details, and sends the trailer.
func (s *Shedder) answer(ctx context.Context, method string, v verdict, err error) error {
	no := Refusal{Reason: v.reason, RetryAfter: -1, Err: err}
	if full := v.full; full != nil && v.reason != httpshed.ServerFull {
		no.ID, no.Level = full.ID, full.Level
		v.text += ": " + strconv.Itoa(full.Active) + " of " + strconv.Itoa(full.Limit) + " held, " + strconv.Itoa(full.Waiting) + " waiting"
	}
	said := &spb.Status{Code: int32(v.code), Message: v.text, Details: make([]*anypb.Any, 1, 3)}
	said.Details[0] = infos[v.reason]
	ms := int64(-1)
	if v.wait >= 0 {
		ms = max(v.wait.Milliseconds(), 1)
		no.RetryAfter = int((ms + 999) / 1000)
		said.Details = append(said.Details, detail(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(ms) * time.Millisecond)}))
	}
	if no.ID != "" {
		said.Details = append(said.Details, detail(&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{Subject: strings.ToValidUTF8(no.ID, "\ufffd")}}}))
	}
	_ = grpc.SetTrailer(ctx, metadata.MD{pushback: []string{strconv.FormatInt(ms, 10)}})
	s.count(ctx, method, no)
	return status.ErrorProto(said)
}

// infos are the ErrorInfos, made ahead: they say the verdict, and nothing of the call.
var infos = func() (all [httpshed.ServerFault + 1]*anypb.Any) {
	for r := range all {
		all[r] = detail(&errdetails.ErrorInfo{Reason: Reason, Domain: Domain, Metadata: map[string]string{"verdict": httpshed.Reason(r).String()}})
	}
	return all
}()

func detail(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err) // our own messages can be marshalled: their texts are UTF-8
	}
	return a
}
