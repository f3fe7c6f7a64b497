package wire

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Unary makes an HTTP handler of a call that takes one message and answers one.
func Unary[Request any](call func(*http.Request, *Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !isPost(w, r) {
			return
		}
		if t := mediaType(r); t != "application/json" {
			w.Header().Set("Accept-Post", "application/json")
			WriteJSON(w, http.StatusUnsupportedMediaType, Errorf(Unknown, "content type %q is not supported; send application/json", t))
			return
		}
		body, err := readAll(r.Body)
		if err != nil {
			WriteError(w, err)
			return
		}
		request := new(Request)
		if err := Decode(body, request); err != nil {
			WriteError(w, err)
			return
		}
		answer, err := call(r, request)
		if err != nil {
			WriteError(w, err)
			return
		}
		WriteJSON(w, http.StatusOK, answer)
	}
}

// Stream makes an HTTP handler of a call that takes one message and answers many through send.
// The call's error becomes the end of the stream.
func Stream[Request any](call func(*http.Request, *Request, *Sender) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !isPost(w, r) {
			return
		}
		if t := mediaType(r); t != "application/connect+json" {
			w.Header().Set("Accept-Post", "application/connect+json")
			http.Error(w, "content type must be application/connect+json", http.StatusUnsupportedMediaType)
			return
		}
		sender := newSender(w)
		request := new(Request)
		body, err := ReadEnvelope(r.Body)
		if err == io.EOF {
			err = Errorf(InvalidArgument, "the request stream held no message")
		}
		if err == nil {
			err = Decode(body, request)
		}
		if err == nil {
			// The reading to the end lets the server notice a client that leaves.
			_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, headerBytes+1024))
			err = call(r, request, sender)
		}
		sender.end(err)
	}
}

// Decode reads a JSON message; unknown fields are ignored, as the protocol demands.
func Decode(body []byte, into any) error {
	if len(body) == 0 {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return Errorf(InvalidArgument, "the message is not the JSON expected: %v", err)
	}
	return nil
}

// Timeout is the request's Connect-Timeout-Ms; zero means none. Errors: an [*Error] when it is no number.
func Timeout(r *http.Request) (time.Duration, error) {
	text := r.Header.Get("Connect-Timeout-Ms")
	if text == "" {
		return 0, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || len(text) > 10 {
		return 0, Errorf(InvalidArgument, "header Connect-Timeout-Ms is %q, not milliseconds of at most 10 digits", text)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func readAll(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, MessageBytesMax+1))
	if err != nil {
		return nil, Errorf(InvalidArgument, "the request body was cut off: %v", err)
	}
	if len(body) > MessageBytesMax {
		return nil, Errorf(ResourceExhausted, "the request body is over the limit of %d bytes", MessageBytesMax)
	}
	return body, nil
}

func isPost(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodPost {
		return true
	}
	w.Header().Set("Allow", http.MethodPost)
	http.Error(w, "this is a procedure; call it with POST", http.StatusMethodNotAllowed)
	return false
}

func mediaType(r *http.Request) string {
	t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// ErrClientLeft is what sending to a client that closed its connection gives.
var ErrClientLeft = errors.New("the client closed the stream")
