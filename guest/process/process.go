// Package process runs users' processes and lets clients watch, feed and end them: E2B's process service with
// Torpor's additions (exactly-once starts, timeouts that keep output, replay, output caps).
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"torpor/guest/reaper"
	"torpor/guest/spawn"
	"torpor/guest/wire"
)

// Outcome says how a process came to its end.
type Outcome string

// The outcomes the guest can tell apart. Whether a kill was the kernel's for want of memory only the host knows.
const (
	Exited    Outcome = "exited"
	Signalled Outcome = "signalled"
	TimedOut  Outcome = "timed_out"
)

// end is everything there is to say about a process that is over.
type end struct {
	outcome   Outcome
	status    syscall.WaitStatus
	duration  time.Duration
	total     [streamCount]uint64
	truncated [streamCount]bool
}

// process is one started command. Its fields are fixed at start, apart from those below mu.
type process struct {
	table     *Table
	pid       int
	execID    string
	tag       string
	config    config
	userName  string
	extended  bool // started with Torpor's fields: its end does not wait for background children
	startedAt time.Time
	log       *outputLog
	sources   []*source
	terminal  *os.File

	killOnDisconnect bool
	// disowned is set in a copy and after a sleep: whoever started the process is not attached to this incarnation.
	disowned atomic.Bool
	seat     seat

	reaped      chan struct{}
	exit        reaper.Exit   // set when reaped is closed
	endEarly    chan struct{} // closed when a kill makes waiting for end of file pointless
	ended       chan struct{}
	end         end // set when ended is closed
	deadline    *runningTime
	terminated  chan struct{} // closed when the deadline's work is done
	killedEarly sync.Once

	writing  sync.Mutex    // held by the one who writes to stdin or the terminal
	inputs   inputProgress // guarded by writing
	mu       sync.Mutex
	stdin    *os.File // nil when closed or never opened
	closedBy string   // the id of the call that closed stdin; empty for none
	timedOut bool
}

// ends are the agent's ends of a new process's pipes or terminal.
type ends struct {
	stdin, stdout, stderr *os.File // nil where there is none
	terminal              *os.File
}

func (e *ends) close() {
	for _, f := range []*os.File{e.stdin, e.stdout, e.stderr, e.terminal} {
		if f != nil {
			f.Close()
		}
	}
}

func newProcess(table *Table, e *ends, outputBytesMax uint64) *process {
	p := &process{
		table:      table,
		log:        newOutputLog(&table.budget),
		reaped:     make(chan struct{}),
		endEarly:   make(chan struct{}),
		ended:      make(chan struct{}),
		terminated: make(chan struct{}),
		stdin:      e.stdin,
		terminal:   e.terminal,
	}
	if e.terminal != nil {
		p.sources = []*source{newSource(Terminal, e.terminal, p.log, outputBytesMax)}
	} else {
		p.sources = []*source{newSource(Stdout, e.stdout, p.log, outputBytesMax), newSource(Stderr, e.stderr, p.log, outputBytesMax)}
	}
	return p
}

// run begins reading output and watches for the end; the process must have been started.
func (p *process) run() {
	open := int32(len(p.sources))
	for _, s := range p.sources {
		go func() {
			s.pump()
			// Most processes end with their output: whoever has seen that looks for itself, since the reaper's own thread,
			// which sleeps in the kernel, takes a while to be woken.
			if atomic.AddInt32(&open, -1) == 0 && !p.isReaped() {
				p.table.reaper.Collect()
			}
		}()
	}
	go p.finish()
}

// onReaped is called by the reaper and must not block.
func (p *process) onReaped(exit reaper.Exit) {
	p.exit = exit
	close(p.reaped)
}

func (p *process) finish() {
	<-p.reaped
	if p.deadline != nil && !p.deadline.stop() {
		<-p.terminated // the deadline has passed: the rest of the tree ends first, its last output included
	}
	p.closeStdin("")
	if !p.extended {
		p.awaitEndOfFile()
	}
	e := end{outcome: Exited, status: p.exit.Status, duration: p.exit.At.Sub(p.startedAt)}
	for _, s := range p.sources {
		s.drain()
		e.total[s.stream], e.truncated[s.stream] = s.counts()
	}
	if e.status.Signaled() {
		e.outcome = Signalled
	}
	p.mu.Lock()
	if p.timedOut {
		e.outcome = TimedOut
	}
	p.mu.Unlock()
	p.end = e
	close(p.ended)
	p.table.onEnded(p)
}

// awaitEndOfFile keeps E2B's rule: the end comes after all output, background children's too, unless the process was killed.
func (p *process) awaitEndOfFile() {
	done := make(chan struct{})
	go func() {
		for _, s := range p.sources {
			s.mu.Lock()
			for !s.eof {
				s.advanced.Wait()
			}
			s.mu.Unlock()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-p.endEarly:
	}
}

func (p *process) isReaped() bool {
	select {
	case <-p.reaped:
		return true
	default:
		return false
	}
}

func (p *process) isEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// signal sends a signal to the process's group; one that ends goes to everything the process started. It reports
// whether anything was there.
func (p *process) signal(signal syscall.Signal) bool {
	ends := signal == syscall.SIGKILL || signal == syscall.SIGTERM
	if ends {
		p.killedEarly.Do(func() { close(p.endEarly) })
	}
	if p.table.isReused(p) {
		return false // a session's number stays taken while it has members, so none are left
	}
	if ends {
		return newTree(p.pid).signal(signal)
	}
	return syscall.Kill(-p.pid, signal) == nil
}

// terminate asks the whole tree to end, and makes what is left of it end after grace.
func (p *process) terminate(grace time.Duration) {
	p.killedEarly.Do(func() { close(p.endEarly) })
	if !p.table.isReused(p) {
		EndSession(p.pid, grace)
	}
}

// setTimeout ends the process after timeout, counted from now while the machine runs. It must be called before run.
func (p *process) setTimeout(timeout, grace time.Duration) {
	p.deadline = afterRunning(timeout, func() {
		p.mu.Lock()
		p.timedOut = !p.isReaped()
		timedOut := p.timedOut
		p.mu.Unlock()
		if timedOut {
			p.terminate(grace)
		}
		close(p.terminated)
	})
}

// closeStdin closes the process's input, once; id is that of the call which asks for it.
func (p *process) closeStdin(id string) {
	p.mu.Lock()
	stdin := p.stdin
	p.stdin = nil
	if stdin != nil {
		p.closedBy = id
	}
	p.mu.Unlock()
	if stdin != nil {
		stdin.Close()
	}
}

func (p *process) wasClosedBy(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return id != "" && p.closedBy == id
}

// hasWritten reports whether all of the piece of input with this id was written.
func (p *process) hasWritten(id string, in processInput) bool {
	p.writing.Lock()
	defer p.writing.Unlock()
	return p.inputs.knows(id) && p.inputs.written(id) == in.size()
}

// write gives the process input. Errors: [*wire.Error] when it takes none.
// A process that does not read holds the writer up until ctx ends. What has an id is written once, however often and in
// however many attempts it is sent; empty for none.
func (p *process) write(ctx context.Context, id string, data []byte, toTerminal bool) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return wire.Errorf(wire.Canceled, "the caller left before process %d had read its input", p.pid)
	}
	written := min(p.inputs.written(id), len(data))
	if id != "" && written == len(data) && p.inputs.knows(id) {
		return nil
	}
	target := p.terminal
	if !toTerminal {
		p.mu.Lock()
		target = p.stdin
		p.mu.Unlock()
	}
	switch {
	case target == nil && toTerminal:
		return wire.Errorf(wire.Internal, "error writing to pty: process %d has no terminal; send it as stdin", p.pid)
	case target == nil:
		return wire.Errorf(wire.Internal, "error writing to stdin: stdin not enabled or closed")
	}
	stop := context.AfterFunc(ctx, func() { _ = target.SetWriteDeadline(time.Unix(1, 0)) })
	n, err := target.Write(data[written:])
	p.inputs.note(id, written+n)
	if !stop() {
		_ = target.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		if ctx.Err() != nil {
			return wire.Errorf(wire.Canceled, "the caller left before process %d had read its input", p.pid)
		}
		if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO) {
			return wire.Errorf(wire.Internal, "error writing to stdin: stdin not enabled or closed")
		}
		return fmt.Errorf("writing %d bytes to process %d failed: %w", len(data), p.pid, err)
	}
	return nil
}

func (p *process) resize(cols, rows uint16) error {
	if p.terminal == nil {
		return wire.Errorf(wire.Internal, "process %d has no terminal to resize", p.pid)
	}
	if err := spawn.ResizeTerminal(p.terminal, cols, rows); err != nil && !errors.Is(err, os.ErrClosed) {
		return wire.Errorf(wire.Internal, "%v", err)
	}
	return nil
}
