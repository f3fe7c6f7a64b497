package process

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Entry is one process as /proc shows it.
type Entry struct {
	PID, Parent, Group, Session int
	State                       byte
	Name                        string
	// CPUTicks is user plus system time in clock ticks (100 a second); ResidentPages counts 4 KiB pages.
	CPUTicks, ResidentPages uint64
	StartTicks              uint64 // when it started, in ticks since boot
	Threads                 int
}

// ReadEntry reads one process's line; ok is false when it is gone.
func ReadEntry(pid int) (entry Entry, ok bool) {
	return readStat("/proc/"+strconv.Itoa(pid)+"/stat", pid)
}

func readStat(path string, pid int) (entry Entry, ok bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return entry, false
	}
	// The name is in brackets and may itself hold brackets and spaces.
	open, closing := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || closing < open {
		return entry, false
	}
	f := bytes.Fields(data[closing+1:])
	if len(f) < 22 {
		return entry, false
	}
	number := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	entry = Entry{
		PID: pid, Name: string(data[open+1 : closing]), State: f[0][0],
		Parent: number(1), Group: number(2), Session: number(3), Threads: number(17),
		CPUTicks: uint64(number(11)) + uint64(number(12)), ResidentPages: uint64(number(21)), StartTicks: uint64(number(19)),
	}
	return entry, true
}

// ReadEntries lists all processes.
func ReadEntries() []Entry {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	entries := make([]Entry, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if e, ok := ReadEntry(pid); ok {
				entries = append(entries, e)
			}
		}
	}
	return entries
}

// tree is a set of processes that belong together: a session, everything below it, and what has been seen below it
// before, since a child whose parent has ended no longer shows where it came from.
type tree struct {
	session int
	seen    map[int]uint64 // pid to start time, which tells a reused pid apart
}

func newTree(session int) *tree { return &tree{session: session, seen: map[int]uint64{}} }

// alive looks at all processes and gives those of the tree that run.
func (t *tree) alive(entries []Entry) []Entry {
	in := map[int]bool{}
	for grew := true; grew; {
		grew = false
		for _, e := range entries {
			if in[e.PID] || e.PID <= 1 {
				continue
			}
			start, known := t.seen[e.PID]
			if e.Session == t.session || in[e.Parent] || known && start == e.StartTicks {
				in[e.PID] = true
				grew = true
			}
		}
	}
	running := make([]Entry, 0, len(in))
	for _, e := range entries {
		if in[e.PID] {
			t.seen[e.PID] = e.StartTicks
			if e.State != 'Z' {
				running = append(running, e)
			}
		}
	}
	return running
}

// killRounds bounds the passes over /proc that catch children forked while the killing goes on.
const killRounds = 8

// signal signals the session's leading group at once and then, one by one, what is in other groups.
// It reports whether anything was there.
func (t *tree) signal(signal syscall.Signal) bool {
	members := t.alive(ReadEntries()) // before the signal: afterwards some may be orphans
	found := syscall.Kill(-t.session, signal) == nil
	for _, e := range members {
		if e.Group != t.session { // a second signal would make a shell's trap run twice
			found = syscall.Kill(e.PID, signal) == nil || found
		}
	}
	if signal == syscall.SIGKILL {
		for range killRounds {
			late := t.alive(ReadEntries())
			for _, e := range late {
				_ = syscall.Kill(e.PID, signal)
			}
			if len(late) == 0 {
				break
			}
		}
	}
	return found
}

// end asks everything in the tree to end, and makes what is left of it end after grace.
func (t *tree) end(grace time.Duration) {
	t.signal(syscall.SIGTERM)
	until := time.Now().Add(grace)
	for pause := 2 * time.Millisecond; len(t.alive(ReadEntries())) > 0; pause = min(2*pause, 100*time.Millisecond) {
		left := time.Until(until)
		if left <= 0 {
			t.signal(syscall.SIGKILL)
			return
		}
		time.Sleep(min(pause, left))
	}
}

// EndSession ends a session and everything below it: SIGTERM, and SIGKILL for what is left after grace.
func EndSession(session int, grace time.Duration) { newTree(session).end(grace) }
