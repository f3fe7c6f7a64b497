package process

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// Entry is one process as /proc shows it.
type Entry struct {
	PID, Parent, Group, Session int
	State                       byte
	Name                        string
	// CPUTicks is user plus system time in clock ticks (100 a second); ResidentPages counts 4 KiB pages.
	CPUTicks, ResidentPages uint64
	Threads                 int
}

// ReadEntry reads one process's line; ok is false when it is gone.
func ReadEntry(pid int) (entry Entry, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
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
		CPUTicks: uint64(number(11)) + uint64(number(12)), ResidentPages: uint64(number(21)),
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

// family gives the living members of a session and all their descendants, also those that made sessions of their own.
func family(entries []Entry, session int) []int {
	in := map[int]bool{}
	for grew := true; grew; {
		grew = false
		for _, e := range entries {
			if !in[e.PID] && e.PID > 1 && (e.Session == session || in[e.Parent]) {
				in[e.PID] = true
				grew = true
			}
		}
	}
	pids := make([]int, 0, len(in))
	for _, e := range entries {
		if in[e.PID] && e.State != 'Z' {
			pids = append(pids, e.PID)
		}
	}
	return pids
}

// SignalSession signals a session's leading group, and everything else in the session and below it.
func SignalSession(session int, signal syscall.Signal) {
	_ = syscall.Kill(-session, signal)
	for _, pid := range family(ReadEntries(), session) {
		if e, ok := ReadEntry(pid); ok && e.Group != session {
			_ = syscall.Kill(pid, signal)
		}
	}
}

// killRounds bounds the passes over /proc that catch children forked while the killing goes on.
const killRounds = 8

// signalTree signals p's process group and, to end it, everything in its session and below. A session's number is not
// reused while it has members, so only a pid that the table has given to a newer process is left alone.
func (t *Table) signalTree(p *process, signal syscall.Signal) bool {
	if t.isReused(p) {
		return false
	}
	found := syscall.Kill(-p.pid, signal) == nil
	if signal != syscall.SIGKILL && signal != syscall.SIGTERM {
		return found
	}
	rounds := 1
	if signal == syscall.SIGKILL {
		rounds = killRounds
	}
	for range rounds {
		members := family(ReadEntries(), p.pid)
		if len(members) == 0 {
			break
		}
		for _, pid := range members {
			// The group has had its signal; a second one would make a shell's trap run twice.
			if signal == syscall.SIGTERM {
				if e, ok := ReadEntry(pid); !ok || e.Group == p.pid {
					continue
				}
			}
			found = syscall.Kill(pid, signal) == nil || found
		}
	}
	return found
}
