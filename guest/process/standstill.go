package process

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// standstillLimit is how long all processes may take to stop; one that is in a system call stops as that ends.
const standstillLimit = 10 * time.Second

const standstillInterval = 5 * time.Millisecond

// Standstill is what was stopped, and is to go on if the machine does.
type Standstill struct{ stopped map[int]uint64 } // pid to start time, which tells a reused pid apart

// StopAll stops every process below the agent, whoever started it, so that nothing changes a file any more. None can keep
// the signal off, and none is told by it. Errors name a process that does not stop; those that did stay so until
// [Standstill.Continue].
func StopAll(ctx context.Context) (*Standstill, error) {
	s := &Standstill{stopped: map[int]uint64{}}
	for deadline := time.Now().Add(standstillLimit); ; {
		busy := s.stopMore()
		if busy == 0 {
			return s, nil
		}
		if time.Now().After(deadline) {
			return s, fmt.Errorf("process %d did not stop within %v", busy, standstillLimit)
		}
		select {
		case <-time.After(standstillInterval):
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// stopMore stops what has come since, and gives one that still runs, or 0. The leader's state alone tells little: it may have
// ended, or wait in the kernel, while other threads of the process run.
func (s *Standstill) stopMore() int {
	busy := 0
	for _, e := range descendants(ReadEntries(), os.Getpid()) {
		states := threadStates(e)
		if allIn(states, "ZX") {
			continue
		}
		start, known := s.stopped[e.PID]
		isOurs := known && start == e.StartTicks
		// What somebody else has stopped is to stay so.
		wasTold := isOurs || e.State == 'T' || e.State == 't' && allIn(states, "TtZX")
		if wasTold && allIn(states, standing) {
			continue
		}
		busy = e.PID // looked at again: it may fork until it stands
		// Told again where one that ran for longer has let it go on meanwhile.
		if e.State != 'T' && syscall.Kill(e.PID, syscall.SIGSTOP) == nil {
			s.stopped[e.PID] = e.StartTicks
		}
	}
	return busy
}

// Continue lets go on what was stopped: children first, so that no shell finds a job of its own stopped.
func (s *Standstill) Continue() {
	if s == nil {
		return
	}
	var members []Entry
	for _, e := range ReadEntries() {
		if start, known := s.stopped[e.PID]; known && start == e.StartTicks {
			members = append(members, e)
		}
	}
	sort.Slice(members, func(i, j int) bool { return members[i].PID > members[j].PID })
	for _, e := range members {
		_ = syscall.Kill(e.PID, syscall.SIGCONT)
	}
	s.stopped = map[int]uint64{}
}

// standing are the states of a thread of a process that was told to stop in which it runs no code: stopped, ended, or
// waiting in the kernel, as for a child of a vfork, from where it goes on into its stop.
const standing = "TtZXD"

func allIn(states []byte, of string) bool {
	for _, state := range states {
		if strings.IndexByte(of, state) < 0 {
			return false
		}
	}
	return true
}

// threadStates are those of every thread; none of a process that is gone.
func threadStates(e Entry) []byte {
	folder := "/proc/" + strconv.Itoa(e.PID) + "/task"
	threads, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	states := make([]byte, 0, len(threads))
	for _, thread := range threads {
		if entry, ok := readStat(folder+"/"+thread.Name()+"/stat", e.PID); ok {
			states = append(states, entry.State)
		}
	}
	return states
}

// descendants are the processes that come from root; the kernel hands orphans to PID 1, which is the agent.
func descendants(entries []Entry, root int) []Entry {
	in := map[int]bool{root: true}
	for grew := true; grew; {
		grew = false
		for _, e := range entries {
			if !in[e.PID] && in[e.Parent] {
				in[e.PID], grew = true, true
			}
		}
	}
	below := make([]Entry, 0, len(in))
	for _, e := range entries {
		if in[e.PID] && e.PID != root {
			below = append(below, e)
		}
	}
	return below
}
