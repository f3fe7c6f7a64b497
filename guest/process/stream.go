package process

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"torpor/guest/wire"
)

// Bounds of a stream.
const (
	keepaliveDefault = 90 * time.Second
	// startHold lets the events of a command that ends at once travel in one packet.
	startHold = 4 * time.Millisecond
)

// keepaliveInterval is the header Keepalive-Ping-Interval, in seconds.
func keepaliveInterval(r *http.Request) time.Duration {
	seconds, err := strconv.Atoi(r.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || seconds < 1 || seconds > 86400 {
		return keepaliveDefault
	}
	return time.Duration(seconds) * time.Second
}

// watching is one client's stream of one process.
type watching struct {
	process  *process
	reader   *logReader
	sender   *wire.Sender
	extended bool
	// from is where a stream that does not begin with the process begins, told at its start.
	from *streamOffsets
	hold time.Duration
	// partBytes is after how much output the stream ends, to be gone on with; zero for never.
	partBytes int
	sentBytes int
}

// errPartSent is what run gives when the stream is to be gone on with in a next part.
var errPartSent = errors.New("the part is sent")

// run sends the process's events until its end, until the part is sent (errPartSent), until the client leaves
// (wire.ErrClientLeft) or until ctx ends.
func (w *watching) run(ctx context.Context, keepalive time.Duration) error {
	w.sender.Append(func(b []byte) []byte {
		b = strconv.AppendInt(append(b, `{"event":{"start":{"pid":`...), int64(w.process.pid), 10)
		if w.from != nil {
			b = fmt.Appendf(b, `,"torpor":{"from":{"stdout":%d,"stderr":%d,"pty":%d}}`, w.from.Stdout, w.from.Stderr, w.from.Pty)
		}
		return append(b, `}}}`...)
	})
	var hold <-chan time.Time
	if w.hold > 0 {
		timer := time.NewTimer(w.hold)
		defer timer.Stop()
		hold = timer.C
	} else if err := w.sender.Flush(); err != nil {
		return err
	}
	ticker := time.NewTicker(keepalive)
	defer ticker.Stop()
	for {
		ended := w.process.isEnded() // asked before the log is read, so that nothing comes after it
		if err := w.sendAvailable(); err != nil {
			return err
		}
		if ended {
			w.appendEnd()
			return nil
		}
		if hold == nil && w.sender.Pending() > 0 {
			if err := w.sender.Flush(); err != nil {
				return err
			}
		}
		select {
		case <-w.reader.wake:
		case <-w.process.ended:
		case <-hold:
			hold = nil
		case <-ticker.C:
			w.sender.Append(func(b []byte) []byte { return append(b, `{"event":{"keepalive":{}}}`...) })
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watching) sendAvailable() error {
	for {
		stream, data, lost, ok := w.reader.take()
		if !ok {
			return nil
		}
		w.sender.Append(func(b []byte) []byte {
			b = append(append(append(b, `{"event":{"data":{"`...), stream.field()...), `":"`...)
			b = base64.StdEncoding.AppendEncode(b, data)
			b = append(b, '"')
			if lost > 0 && w.extended {
				b = append(strconv.AppendUint(append(b, `,"torpor":{"lostBytes":`...), lost, 10), '}')
			}
			return append(b, `}}}`...)
		})
		w.sentBytes += len(data)
		if w.partBytes > 0 && w.sentBytes >= w.partBytes {
			w.sender.Append(func(b []byte) []byte { return append(b, `{"event":{"continue":{}}}`...) })
			return errPartSent
		}
		if w.sender.Pending() >= ChunkBytesMax {
			if err := w.sender.Flush(); err != nil {
				return err
			}
		}
	}
}

type endEvent struct {
	ExitCode int           `json:"exitCode"`
	Exited   bool          `json:"exited"`
	Status   string        `json:"status"`
	Error    string        `json:"error,omitempty"`
	Torpor   *endExtension `json:"torpor,omitempty"`
}

type endExtension struct {
	Outcome         Outcome `json:"outcome"`
	ExitCode        *int    `json:"exitCode"`
	Signal          *string `json:"signal"`
	DurationMs      float64 `json:"durationMs"`
	StdoutBytes     uint64  `json:"stdoutBytes"`
	StderrBytes     uint64  `json:"stderrBytes"`
	PtyBytes        uint64  `json:"ptyBytes,omitempty"`
	StdoutTruncated bool    `json:"stdoutTruncated"`
	StderrTruncated bool    `json:"stderrTruncated"`
	PtyTruncated    bool    `json:"ptyTruncated,omitempty"`
	LostBytes       uint64  `json:"lostBytes,omitempty"`
}

func (w *watching) appendEnd() {
	e := w.process.end
	event := endEvent{ExitCode: -1, Status: describe(e.status)}
	if e.status.Exited() {
		event.ExitCode, event.Exited = e.status.ExitStatus(), true
	}
	if event.ExitCode != 0 {
		event.Error = event.Status
	}
	if w.extended {
		x := &endExtension{
			Outcome: e.outcome, DurationMs: float64(e.duration.Microseconds()) / 1000,
			StdoutBytes: e.total[Stdout], StderrBytes: e.total[Stderr], PtyBytes: e.total[Terminal],
			StdoutTruncated: e.truncated[Stdout], StderrTruncated: e.truncated[Stderr], PtyTruncated: e.truncated[Terminal],
			LostBytes: w.reader.missed(),
		}
		if e.status.Exited() {
			x.ExitCode = &event.ExitCode
		} else {
			name := SignalName(e.status.Signal())
			x.Signal = &name
		}
		event.Torpor = x
	}
	encoded, err := json.Marshal(map[string]any{"event": map[string]any{"end": event}})
	if err != nil {
		panic(fmt.Sprintf("an end event of plain fields could not be encoded: %v", err))
	}
	w.sender.Append(func(b []byte) []byte { return append(b, encoded...) })
}

// describe is a wait status in the words of Go's os/exec, which E2B's clients know.
func describe(status syscall.WaitStatus) string {
	if status.Exited() {
		return "exit status " + strconv.Itoa(status.ExitStatus())
	}
	text := "signal: " + status.Signal().String()
	if status.CoreDump() {
		text += " (core dumped)"
	}
	return text
}

// missed is how much output the reader never got because it was no longer kept.
func (r *logReader) missed() uint64 {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	var missed uint64
	for s := range r.consumed {
		missed += r.log.stored[s] - r.consumed[s]
	}
	return missed
}
