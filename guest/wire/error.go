// Package wire is the Connect protocol as E2B's clients speak it: JSON only, unary calls and server streams.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// Code is a Connect error code by its wire name.
type Code string

// The codes the agent answers with.
const (
	Canceled           Code = "canceled"
	Unknown            Code = "unknown"
	InvalidArgument    Code = "invalid_argument"
	DeadlineExceeded   Code = "deadline_exceeded"
	NotFound           Code = "not_found"
	AlreadyExists      Code = "already_exists"
	PermissionDenied   Code = "permission_denied"
	ResourceExhausted  Code = "resource_exhausted"
	FailedPrecondition Code = "failed_precondition"
	Unimplemented      Code = "unimplemented"
	Internal           Code = "internal"
	Unavailable        Code = "unavailable"
	Unauthenticated    Code = "unauthenticated"
)

// HTTPStatus is the status of a unary answer with this code, from the Connect specification.
func (c Code) HTTPStatus() int {
	switch c {
	case Canceled:
		return 499
	case InvalidArgument, FailedPrecondition:
		return http.StatusBadRequest
	case DeadlineExceeded:
		return http.StatusGatewayTimeout
	case NotFound:
		return http.StatusNotFound
	case AlreadyExists:
		return http.StatusConflict
	case PermissionDenied:
		return http.StatusForbidden
	case ResourceExhausted:
		return http.StatusTooManyRequests
	case Unimplemented:
		return http.StatusNotImplemented
	case Unavailable:
		return http.StatusServiceUnavailable
	case Unauthenticated:
		return http.StatusUnauthorized
	}
	return http.StatusInternalServerError
}

// Error is a failure with its Connect code.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Error gives the message alone.
func (e *Error) Error() string { return e.Message }

// Errorf makes an [*Error].
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AsError finds the [*Error] in err's chain, or wraps err as internal.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: Internal, Message: err.Error()}
}

// WriteError answers a unary call with a failure.
func WriteError(w http.ResponseWriter, err error) {
	e := AsError(err)
	WriteJSON(w, e.Code.HTTPStatus(), e)
}

// WriteJSON answers with a JSON body and its exact length.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	encoded, err := json.Marshal(body)
	if err != nil {
		status, encoded = http.StatusInternalServerError, []byte(`{"code":"internal","message":"the answer could not be encoded as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encoded)
}
