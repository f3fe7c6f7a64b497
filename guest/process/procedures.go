package process

import (
	"context"
	"errors"
	"io"
	"net/http"
	"syscall"
	"time"

	"torpor/guest/wire"
)

// StartPath is the route that starts a process.
const StartPath = "/process.Process/Start"

// Register adds the procedures of process.Process to mux.
func (t *Table) Register(mux *http.ServeMux) {
	const prefix = "/process.Process/"
	mux.HandleFunc(prefix+"List", wire.Unary(t.list))
	mux.HandleFunc(prefix+"Start", wire.Stream(t.start))
	mux.HandleFunc(prefix+"Connect", wire.Stream(t.connect))
	mux.HandleFunc(prefix+"Update", wire.Unary(t.update))
	mux.HandleFunc(prefix+"SendInput", wire.Unary(t.sendInput))
	mux.HandleFunc(prefix+"StreamInput", t.streamInput)
	mux.HandleFunc(prefix+"SendSignal", wire.Unary(t.sendSignal))
	mux.HandleFunc(prefix+"CloseStdin", wire.Unary(t.closeStdin))
}

// requestUser is the user a call asks for in its Authorization header; empty means the default.
func requestUser(r *http.Request) string {
	user, _, _ := r.BasicAuth()
	return user
}

func (t *Table) start(r *http.Request, request *startRequest, sender *wire.Sender) error {
	timeout, err := wire.Timeout(r)
	if err != nil {
		return err
	}
	if err := request.check(); err != nil {
		return err
	}
	execID := ""
	if request.Torpor != nil {
		execID = request.Torpor.ExecID
	}
	if execID != "" {
		claimed, mine := t.claim(execID)
		if !mine {
			return t.attachToExecution(r, claimed, request.Torpor.Resumable, sender)
		}
		settled := false
		defer func() {
			if !settled { // only after a panic: nobody may wait for ever
				t.settle(execID, claimed, nil, wire.Errorf(wire.Internal, "the start of %s failed", execID))
			}
		}()
		p, err := t.launch(request, requestUser(r), timeout)
		settled = true
		t.settle(execID, claimed, p, err)
		if err != nil {
			return err
		}
		return t.watchStarted(r, request, p, sender, timeout)
	}
	p, err := t.launch(request, requestUser(r), timeout)
	if err != nil {
		return err
	}
	return t.watchStarted(r, request, p, sender, timeout)
}

func (t *Table) watchStarted(r *http.Request, request *startRequest, p *process, sender *wire.Sender, timeout time.Duration) error {
	epoch := t.epoch()
	w := &watching{process: p, sender: sender, extended: p.extended}
	if p.extended {
		w.hold = startHold
	}
	if request.Torpor != nil && request.Torpor.Resumable {
		w.reader, _ = p.log.readerFrom([streamCount]uint64{})
		p.seat.take(w.reader, epoch, false)
		p.run()
		return t.sit(r, w, epoch)
	}
	w.reader = p.log.reader(true, true)
	p.run()
	err := w.run(r.Context(), keepaliveInterval(r))
	w.reader.close()
	if err != nil {
		if p.killOnDisconnect && t.epoch() == epoch { // a freeze is nobody's leaving
			p.terminate(killGraceDefault)
		}
		return err
	}
	if !p.extended && p.end.outcome == TimedOut {
		return wire.Errorf(wire.DeadlineExceeded, "the process ran for longer than its limit of %v and was killed", timeout)
	}
	return nil
}

// sit serves one part of the stream that the process is held up for. When its client leaves, what holds for the process
// then is done; when a freeze cuts it, the seat waits for it to come back.
func (t *Table) sit(r *http.Request, w *watching, epoch uint64) error {
	p := w.process
	w.partBytes = t.budget.partBytes()
	err := w.run(r.Context(), keepaliveInterval(r))
	within := time.Duration(0)
	if err == errPartSent {
		if t.handOver(r, w) {
			return nil
		}
		err, within = nil, nextPartWithin
	} else if err == nil {
		p.seat.leave(w.reader)
		return nil
	}
	switch {
	case t.epoch() != epoch && p.disowned.Load():
		p.seat.leave(w.reader)
	case t.epoch() != epoch:
		p.reserve(w.reader, returnWithin)
	case within > 0:
		p.reserve(w.reader, within)
	default:
		p.abandon(w.reader)
	}
	return err
}

// handOver ends a part and waits for its client, who may be slow, to have read it and to come for the next. False when it has
// let go of this part and not come yet.
func (t *Table) handOver(r *http.Request, w *watching) bool {
	vacated := w.process.seat.offer(w.reader) // before its client knows, who may be quick
	if w.sender.Flush() != nil {
		return false
	}
	select {
	case <-vacated:
		return true
	case <-r.Context().Done():
		return false
	}
}

// resume goes on with a stream of which the client has the bytes said.
func (t *Table) resume(r *http.Request, p *process, from streamOffsets, sender *wire.Sender) error {
	epoch := t.epoch()
	reader, ok := p.log.readerFrom(from.array())
	if !ok {
		return wire.Errorf(wire.InvalidArgument, "field torpor.from claims more bytes than process %d has written", p.pid)
	}
	if !p.seat.take(reader, epoch, true) {
		reader.close()
		return wire.Errorf(wire.FailedPrecondition, "process %d is followed by the one who started it; connect without torpor.hold", p.pid)
	}
	return t.sit(r, &watching{process: p, reader: reader, sender: sender, extended: true}, epoch)
}

// attachToExecution serves a repeated start: the command is not run again. One that may be a second attempt of the first
// takes the seat if it is free.
func (t *Table) attachToExecution(r *http.Request, e *execution, resumable bool, sender *wire.Sender) error {
	select {
	case <-e.ready:
	case <-r.Context().Done():
		return r.Context().Err()
	}
	if e.process == nil {
		return e.err
	}
	p, epoch := e.process, t.epoch()
	if resumable && !p.isEnded() {
		if reader, ok := p.log.readerFrom([streamCount]uint64{}); ok && p.seat.take(reader, epoch, false) {
			return t.sit(r, &watching{process: p, reader: reader, sender: sender, extended: true}, epoch)
		} else if ok {
			reader.close()
		}
	}
	return t.follow(r, &watching{process: p, reader: p.log.reader(true, false), sender: sender, extended: true})
}

func (t *Table) follow(r *http.Request, w *watching) error {
	defer w.reader.close()
	return w.run(r.Context(), keepaliveInterval(r))
}

type connectRequest struct {
	Process Selector `json:"process"`
	Torpor  *struct {
		Replay bool `json:"replay"`
		// From is what the client has of each stream already.
		From streamOffsets `json:"from"`
		// Hold goes on with a resumable start's stream.
		Hold bool `json:"hold"`
		// Lossless holds the process up for the client, as for one that asks for none of this.
		Lossless bool `json:"lossless"`
	} `json:"torpor"`
}

type streamOffsets struct {
	Stdout uint64 `json:"stdout"`
	Stderr uint64 `json:"stderr"`
	Pty    uint64 `json:"pty"`
}

func (s streamOffsets) array() [streamCount]uint64 {
	return [streamCount]uint64{Stdout: s.Stdout, Stderr: s.Stderr, Terminal: s.Pty}
}

func (t *Table) connect(r *http.Request, request *connectRequest, sender *wire.Sender) error {
	timeout, err := wire.Timeout(r)
	if err != nil {
		return err
	}
	p, err := t.find(request.Process, true)
	if err != nil {
		return err
	}
	if timeout > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	extended := request.Torpor != nil || request.Process.Torpor != nil
	if request.Torpor != nil && request.Torpor.Hold {
		err = t.resume(r, p, request.Torpor.From, sender)
	} else {
		reader := p.log.reader(request.Torpor != nil && request.Torpor.Replay, !extended || request.Torpor != nil && request.Torpor.Lossless)
		if request.Torpor != nil && request.Torpor.Replay {
			reader.skip(request.Torpor.From.array())
		}
		w := &watching{process: p, reader: reader, sender: sender, extended: extended}
		if !extended { // of where it begins nothing else tells whoever is to go on with it
			w.from = reader.position()
		}
		err = t.follow(r, w)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return wire.Errorf(wire.DeadlineExceeded, "the connection to process %d reached its limit of %v; the process goes on", p.pid, timeout)
	}
	return err
}

type listedProcess struct {
	Config config       `json:"config"`
	PID    int          `json:"pid"`
	Tag    string       `json:"tag,omitempty"`
	Torpor listedDetail `json:"torpor"`
}

type listedDetail struct {
	ExecID    string    `json:"execId,omitempty"`
	StartedAt time.Time `json:"startedAt"`
	User      string    `json:"user"`
	// Background marks a process whose starter has ended and left it behind.
	Background bool `json:"background,omitempty"`
}

func (t *Table) list(_ *http.Request, _ *struct{}) (any, error) {
	running, ended := t.snapshot()
	listed := make([]listedProcess, 0, len(running))
	add := func(p *process, pid int, background bool) {
		listed = append(listed, listedProcess{Config: p.config, PID: pid, Tag: p.tag,
			Torpor: listedDetail{ExecID: p.execID, StartedAt: p.startedAt.UTC(), User: p.userName, Background: background}})
	}
	for _, p := range running {
		add(p, p.pid, false)
	}
	if len(ended) > 0 {
		entries := ReadEntries()
		for _, p := range ended {
			if members := newTree(p.pid).alive(entries); len(members) > 0 {
				add(p, members[0].PID, true)
			}
		}
	}
	return map[string]any{"processes": listed}, nil
}

type processInput struct {
	Stdin *wire.Bytes `json:"stdin"`
	Pty   *wire.Bytes `json:"pty"`
}

func (i processInput) size() int {
	switch {
	case i.Pty != nil:
		return len(*i.Pty)
	case i.Stdin != nil:
		return len(*i.Stdin)
	}
	return 0
}

func (p *process) input(ctx context.Context, id string, in processInput) error {
	switch {
	case in.Pty != nil:
		return p.write(ctx, id, *in.Pty, true)
	case in.Stdin != nil:
		if p.terminal != nil {
			return wire.Errorf(wire.Internal, "error writing to stdin: process %d is on a terminal; send the input as pty", p.pid)
		}
		return p.write(ctx, id, *in.Stdin, false)
	}
	return wire.Errorf(wire.InvalidArgument, "field input holds neither stdin nor pty")
}

type sendInputRequest struct {
	Process Selector     `json:"process"`
	Input   processInput `json:"input"`
	Torpor  inputName    `json:"torpor"`
}

// inputName makes sure that what is sent again is done once, and is answered as done also when the process has ended since.
type inputName struct {
	InputID string `json:"inputId"`
}

func (n inputName) check() error {
	if len(n.InputID) > execIDBytesMax {
		return wire.Errorf(wire.InvalidArgument, "field torpor.inputId is %d bytes long; at most %d", len(n.InputID), execIDBytesMax)
	}
	return nil
}

func (t *Table) sendInput(r *http.Request, request *sendInputRequest) (any, error) {
	if err := request.Torpor.check(); err != nil {
		return nil, err
	}
	id := request.Torpor.InputID
	p, err := t.find(request.Process, false)
	if err != nil {
		if ended, _ := t.find(request.Process, true); ended != nil && ended.hasWritten(id, request.Input) {
			return struct{}{}, nil
		}
		return nil, err
	}
	return struct{}{}, p.input(r.Context(), id, request.Input)
}

type streamInputMessage struct {
	Start *struct {
		Process Selector `json:"process"`
	} `json:"start"`
	Data *struct {
		Input processInput `json:"input"`
	} `json:"data"`
}

// streamInput takes a stream of messages and answers once: the Connect client-stream form.
func (t *Table) streamInput(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/connect+json")
	answer := wire.AppendEnvelope(nil, []byte("{}"))
	err := t.readInputs(r)
	if err != nil {
		answer = nil
	}
	_, _ = w.Write(wire.AppendEndStream(answer, err))
}

func (t *Table) readInputs(r *http.Request) error {
	var p *process
	for {
		body, err := wire.ReadEnvelope(r.Body)
		if err == io.EOF {
			return nil
		}
		var message streamInputMessage
		if err == nil {
			err = wire.Decode(body, &message)
		}
		switch {
		case err != nil:
		case message.Start != nil:
			p, err = t.find(message.Start.Process, false)
		case message.Data != nil && p == nil:
			err = wire.Errorf(wire.InvalidArgument, "the first message must be start")
		case message.Data != nil:
			err = p.input(r.Context(), "", message.Data.Input)
		}
		if err != nil {
			return err
		}
	}
}

type sendSignalRequest struct {
	Process Selector    `json:"process"`
	Signal  signalField `json:"signal"`
}

func (t *Table) sendSignal(_ *http.Request, request *sendSignalRequest) (any, error) {
	if request.Signal == 0 {
		return nil, wire.Errorf(wire.InvalidArgument, "field signal is missing; give SIGNAL_SIGTERM or SIGNAL_SIGKILL")
	}
	p, err := t.find(request.Process, false)
	if err != nil {
		// What a command left running in the background is still its owner's to end.
		if request.Process.PID == nil {
			return nil, err
		}
		if p = t.bySession(int(*request.Process.PID)); p == nil {
			return nil, err
		}
	}
	if !p.signal(syscall.Signal(request.Signal)) && p.isReaped() {
		return nil, wire.Errorf(wire.NotFound, "process with %s not found", request.Process)
	}
	return struct{}{}, nil
}

type closeStdinRequest struct {
	Process Selector  `json:"process"`
	Torpor  inputName `json:"torpor"`
}

func (t *Table) closeStdin(_ *http.Request, request *closeStdinRequest) (any, error) {
	if err := request.Torpor.check(); err != nil {
		return nil, err
	}
	p, err := t.find(request.Process, false)
	if err != nil {
		if ended, _ := t.find(request.Process, true); ended != nil && ended.wasClosedBy(request.Torpor.InputID) {
			return struct{}{}, nil
		}
		return nil, err
	}
	if p.terminal != nil {
		return nil, wire.Errorf(wire.Unknown, "cannot close stdin for PTY process — send Ctrl+D (0x04) instead")
	}
	p.closeStdin(request.Torpor.InputID)
	return struct{}{}, nil
}

type updateRequest struct {
	Process Selector      `json:"process"`
	Pty     *terminalSize `json:"pty"`
}

func (t *Table) update(_ *http.Request, request *updateRequest) (any, error) {
	p, err := t.find(request.Process, false)
	if err != nil {
		return nil, err
	}
	if request.Pty == nil || request.Pty.Size == nil {
		return struct{}{}, nil
	}
	cols, rows := request.Pty.dimensions()
	return struct{}{}, p.resize(cols, rows)
}
