package wire

import (
	"encoding/json"
	"net/http"
)

// Sender writes the messages of one stream. It is for one goroutine. A client that does not read blocks it,
// which is what carries backpressure to the process behind.
type Sender struct {
	w       http.ResponseWriter
	flush   *http.ResponseController
	pending []byte
	failed  bool
}

func newSender(w http.ResponseWriter) *Sender {
	w.Header().Set("Content-Type", "application/connect+json")
	return &Sender{w: w, flush: http.NewResponseController(w)}
}

// Append adds a message by letting build append its JSON; it is sent by [Sender.Flush] at the latest.
func (s *Sender) Append(build func([]byte) []byte) {
	start := len(s.pending)
	s.pending = EndEnvelope(build(BeginEnvelope(s.pending)), start)
}

// AppendJSON adds a message that is encoded by reflection.
func (s *Sender) AppendJSON(message any) error {
	encoded, err := json.Marshal(message)
	if err != nil {
		return err
	}
	s.pending = AppendEnvelope(s.pending, encoded)
	return nil
}

// Pending is how many bytes wait for a flush.
func (s *Sender) Pending() int { return len(s.pending) }

// Flush sends what waits. Errors: [ErrClientLeft].
func (s *Sender) Flush() error {
	if s.failed {
		return ErrClientLeft
	}
	if _, err := s.w.Write(s.pending); err != nil {
		s.failed = true
		return ErrClientLeft
	}
	s.pending = s.pending[:0]
	if cap(s.pending) > 128<<10 {
		s.pending = nil
	}
	if err := s.flush.Flush(); err != nil {
		s.failed = true
		return ErrClientLeft
	}
	return nil
}

func (s *Sender) end(err error) {
	if s.failed {
		return
	}
	// No flush: the server sends this together with the end of the body.
	s.pending = AppendEndStream(s.pending, err)
	_, _ = s.w.Write(s.pending)
}
