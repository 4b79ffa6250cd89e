package httpshed

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Callers by gRPC, gRPC-Web and Connect are refused in their own form, known by the
// Content-Type of the request; a plain 429 is "unavailable" to them, and says not when to
// come back. So a Shedder may stand in front of grpc-go's ServeHTTP, connect-go, or a
// gateway. On HTTP/2 alone a server of grpc-go itself is better off with package grpcshed.

// rpcForm is how a caller reads a refusal.
type rpcForm uint8

const (
	noRPC         rpcForm = iota
	gRPC                  // and gRPC-Web: a status in the header, and no body ("trailers-only")
	connectUnary          // an HTTP status, and the error as JSON
	connectStream         // 200, and the error in the message that ends the stream
)

func rpcOf(r *http.Request) rpcForm {
	kind := r.Header.Get("Content-Type")
	switch {
	case strings.HasPrefix(kind, "application/grpc"):
		return gRPC
	case strings.HasPrefix(kind, "application/connect+"):
		return connectStream
	case r.Header.Get("Connect-Protocol-Version") != "" && (strings.HasPrefix(kind, "application/proto") || strings.HasPrefix(kind, "application/json")):
		return connectUnary
	}
	return noRPC
}

// rpcCode is a code of https://grpc.io/docs/guides/status-codes/, and its name in Connect.
type rpcCode struct {
	number int
	name   string
}

var rpcCodes = map[int]rpcCode{ // by HTTP status, of a StatusError
	http.StatusBadRequest:   {3, "invalid_argument"},
	http.StatusNotFound:     {5, "not_found"},
	http.StatusForbidden:    {7, "permission_denied"},
	http.StatusUnauthorized: {16, "unauthenticated"},
}

// rpcCodeOf is the code of a refusal, whose HTTP answer would have that status.
func rpcCodeOf(reason Reason, status int) rpcCode {
	switch reason {
	case Full, LineFull, WaitedTooLong:
		return rpcCode{8, "resource_exhausted"}
	case TooHeavy:
		return rpcCode{9, "failed_precondition"}
	case BadRequest:
		if code, ok := rpcCodes[status]; ok {
			return code
		}
		return rpcCodes[http.StatusBadRequest]
	case ServerFault:
		return rpcCode{13, "internal"}
	}
	return rpcCode{14, "unavailable"} // another server may have room, or this one in a moment
}

// answerRPC writes the refusal's header, and returns its status and body.
func (s *Shedder) answerRPC(h http.Header, r *http.Request, form rpcForm, v *verdict, no *Refusal) (status int, body []byte) {
	code, text := rpcCodeOf(v.reason, no.Status), problemOf(v.reason, s.opt).Title
	var chosen *StatusError
	if errors.As(v.err, &chosen) {
		text = chosen.Text
	}
	if v.full != nil && v.reason != ServerFull {
		text = fmt.Sprintf("the limit is reached: %d of %d held, %d waiting", v.full.Active, v.full.Limit, v.full.Waiting)
	}
	info, retry := errorInfo(v.reason), []byte(nil)
	pushback := "-1" // never
	if no.RetryAfter >= 0 {
		wait := max(time.Duration(no.RetryAfter)*time.Second, 20*time.Millisecond)
		pushback = strconv.FormatInt(wait.Milliseconds(), 10)
		retry = retryInfo(wait)
	}
	kind := r.Header.Get("Content-Type")
	if form == gRPC {
		h["Content-Type"] = []string{kind}
		h["Grpc-Status"] = []string{strconv.Itoa(code.number)}
		h["Grpc-Message"] = []string{percent(text)}
		h["Grpc-Retry-Pushback-Ms"] = []string{pushback} // grpc's proposal A6
		h["Grpc-Status-Details-Bin"] = []string{base64.RawStdEncoding.EncodeToString(rpcStatus(code.number, text, info, retry))}
		return http.StatusOK, nil
	}
	type detail struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	}
	said := struct {
		Code    string   `json:"code"`
		Message string   `json:"message"`
		Details []detail `json:"details"`
	}{code.name, text, []detail{{"google.rpc.ErrorInfo", base64.RawStdEncoding.EncodeToString(info)}}}
	if retry != nil {
		said.Details = append(said.Details, detail{"google.rpc.RetryInfo", base64.RawStdEncoding.EncodeToString(retry)})
	}
	if form == connectUnary {
		body, _ = json.Marshal(said) // strings: it cannot fail
		h["Content-Type"] = []string{"application/json"}
		return no.Status, body
	}
	body, _ = json.Marshal(map[string]any{"error": said})
	h["Content-Type"] = []string{kind}
	// An envelope: flags (2: the end of the stream), length, message.
	// https://connectrpc.com/docs/protocol/#error-end-stream
	return http.StatusOK, append(binary.BigEndian.AppendUint32([]byte{2}, uint32(len(body))), body...)
}

// percent encodes a grpc-message: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
func percent(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// The messages of google/rpc/error_details.proto and status.proto that a refusal has, written
// by hand, as a few bytes need no library.

// field appends a field that has a length: bytes, a text, a message.
func field(b []byte, number int, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(number)<<3|2)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

func varint(b []byte, number int, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(number)<<3), value)
}

func errorInfo(reason Reason) []byte {
	entry := field(field(nil, 1, []byte("verdict")), 2, []byte(reason.String()))
	return field(field(field(nil, 1, []byte("CONCURRENCY_LIMIT")), 2, []byte("gotsem")), 3, entry)
}

func retryInfo(wait time.Duration) []byte {
	var d []byte
	if s := wait / time.Second; s > 0 {
		d = varint(d, 1, uint64(s))
	}
	if ns := wait % time.Second; ns > 0 {
		d = varint(d, 2, uint64(ns))
	}
	return field(nil, 1, d)
}

func rpcStatus(code int, text string, info, retry []byte) []byte {
	packed := func(name string, value []byte) []byte {
		return field(field(nil, 1, []byte("type.googleapis.com/google.rpc."+name)), 2, value)
	}
	b := field(varint(nil, 1, uint64(code)), 2, []byte(strings.ToValidUTF8(text, "\ufffd")))
	b = field(b, 3, packed("ErrorInfo", info))
	if retry != nil {
		b = field(b, 3, packed("RetryInfo", retry))
	}
	return b
}
