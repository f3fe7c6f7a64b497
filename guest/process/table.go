package process

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"torpor/guest/account"
	"torpor/guest/reaper"
	"torpor/guest/wire"
)

// Bounds of the table.
const (
	// RunningMax is how many processes may be tracked at once.
	RunningMax = 4096
	// endedMax and endedFor bound the records of processes that are over.
	endedMax = 256
	endedFor = 5 * time.Minute
)

// Settings are what the sandbox's identity says about processes.
type Settings struct {
	Env            map[string]string
	DefaultUser    string
	DefaultWorkdir string
}

// Table holds every process started for a client. Make one with [NewTable].
type Table struct {
	reaper   *reaper.Reaper
	accounts *account.Book
	settings func() Settings
	confine  func(pid int)
	shells   *Shells
	budget   budget

	mu      sync.Mutex
	byPID   map[int]*process
	byExec  map[string]*execution
	ended   []*process // oldest first
	running int
	sweep   *time.Timer
	// freezes counts them; frozen is true from one until the thaw after it.
	freezes uint64
	frozen  bool
}

// execution makes starts with an execID happen once: whoever comes second waits for ready and attaches.
type execution struct {
	ready   chan struct{}
	process *process // nil when the start failed
	err     error
}

// NewTable makes an empty table. settings is asked at each start; confine puts a fresh process into the users' cgroup.
func NewTable(r *reaper.Reaper, accounts *account.Book, settings func() Settings, confine func(pid int)) *Table {
	t := &Table{reaper: r, accounts: accounts, settings: settings, confine: confine,
		byPID: map[int]*process{}, byExec: map[string]*execution{}}
	t.shells = newShells(t)
	return t
}

// Shells gives the table's pool of waiting shells.
func (t *Table) Shells() *Shells { return t.shells }

// claim takes the right to start execID; the second result is false when somebody else has it.
func (t *Table) claim(execID string) (*execution, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byExec[execID]; e != nil {
		return e, false
	}
	e := &execution{ready: make(chan struct{})}
	t.byExec[execID] = e
	return e, true
}

// settle publishes the result of a claimed start. A start that failed may be tried again.
func (t *Table) settle(execID string, e *execution, p *process, err error) {
	t.mu.Lock()
	e.process, e.err = p, err
	if p == nil {
		delete(t.byExec, execID)
	}
	t.mu.Unlock()
	close(e.ready)
}

// reserve counts a process before it is started.
func (t *Table) reserve() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running >= RunningMax {
		return wire.Errorf(wire.ResourceExhausted, "the sandbox already runs %d processes for its clients, the most it tracks; end some first", RunningMax)
	}
	t.running++
	return nil
}

func (t *Table) release() {
	t.mu.Lock()
	t.running--
	t.mu.Unlock()
}

func (t *Table) add(p *process) {
	t.mu.Lock()
	t.byPID[p.pid] = p
	t.mu.Unlock()
}

func (t *Table) isReused(p *process) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	current := t.byPID[p.pid]
	return current != nil && current != p
}

func (t *Table) onEnded(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	t.ended = append(t.ended, p)
	t.expire()
}

// expire forgets ended processes that are too old or too many. Call with mu held.
func (t *Table) expire() {
	for len(t.ended) > 0 {
		oldest := t.ended[0]
		age := time.Since(oldest.exit.At)
		if len(t.ended) <= endedMax && age < endedFor {
			if t.sweep == nil {
				t.sweep = time.AfterFunc(endedFor-age+time.Second, func() {
					t.mu.Lock()
					defer t.mu.Unlock()
					t.sweep = nil
					t.expire()
				})
			}
			break
		}
		t.ended = t.ended[1:]
		if t.byPID[oldest.pid] == oldest {
			delete(t.byPID, oldest.pid)
		}
		if e := t.byExec[oldest.execID]; e != nil && e.process == oldest {
			delete(t.byExec, oldest.execID)
		}
		oldest.log.drop()
	}
	// The records stay, so that no command runs twice; their output makes room for that of others.
	for i := 0; i < len(t.ended) && t.budget.add(0) > -replayTotalBytesMax/4; i++ {
		t.ended[i].log.drop()
	}
}

// Selector names a process as clients do: by pid, by tag, or by the execID it was started with.
type Selector struct {
	PID    *wire.Uint32 `json:"pid"`
	Tag    *string      `json:"tag"`
	Torpor *struct {
		ExecID string `json:"execId"`
	} `json:"torpor"`
}

func (s Selector) String() string {
	switch {
	case s.PID != nil:
		return fmt.Sprintf("pid %d", *s.PID)
	case s.Tag != nil:
		return fmt.Sprintf("tag %s", *s.Tag)
	case s.Torpor != nil:
		return fmt.Sprintf("execId %s", s.Torpor.ExecID)
	}
	return "no selector"
}

// find gives the process selected, one that has ended only when alsoEnded. A pid that no client started is looked up by its
// session, so that a background process can be signalled. Errors: not_found, invalid_argument.
func (t *Table) find(s Selector, alsoEnded bool) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	usable := func(p *process) bool { return p != nil && (alsoEnded || !p.isEnded()) }
	switch {
	case s.PID != nil:
		if p := t.byPID[int(*s.PID)]; usable(p) {
			return p, nil
		}
	case s.Tag != nil:
		var found *process
		for _, p := range t.byPID {
			if p.tag == *s.Tag && usable(p) && (found == nil || found.isEnded() && !p.isEnded() || p.startedAt.After(found.startedAt) && !p.isEnded()) {
				found = p
			}
		}
		if found != nil {
			return found, nil
		}
	case s.Torpor != nil && s.Torpor.ExecID != "":
		if e := t.byExec[s.Torpor.ExecID]; e != nil && usable(e.process) {
			return e.process, nil
		}
	default:
		return nil, wire.Errorf(wire.InvalidArgument, "field process names no process; give pid, tag or torpor.execId")
	}
	return nil, wire.Errorf(wire.NotFound, "process with %s not found", s)
}

// bySession finds the started process that the process pid descends from, ended or not.
func (t *Table) bySession(pid int) *process {
	e, ok := ReadEntry(pid)
	if !ok || e.State == 'Z' {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byPID[e.Session]
}

// Running is how many clients' processes have not ended.
func (t *Table) Running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running
}

// ExecOfSession is the execID that a session's processes were started with, if any.
func (t *Table) ExecOfSession(session int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byPID[session]; p != nil {
		return p.execID
	}
	return ""
}

// snapshot lists processes that have not ended and, when asked, those that left something running.
func (t *Table) snapshot() (running, ended []*process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.byPID {
		if p.isEnded() {
			ended = append(ended, p)
		} else {
			running = append(running, p)
		}
	}
	return running, ended
}

// KillAll ends every process started for a client, at once.
func (t *Table) KillAll() {
	running, ended := t.snapshot()
	for _, p := range append(running, ended...) {
		p.signal(syscall.SIGKILL)
	}
	t.shells.close()
}
