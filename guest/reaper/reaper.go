// Package reaper makes one process the parent that PID 1 must be: it collects every child that ends, at once,
// its own and those orphans that the kernel hands to it, and tells whoever started a child how it ended.
//
// Nothing else in the agent may wait for children: a second waiter would steal exit statuses.
package reaper

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Exit says how a child ended.
type Exit struct {
	// Status is the wait status as the kernel reported it.
	Status syscall.WaitStatus
	// Usage is the child's own resource usage, its waited-for descendants included.
	Usage syscall.Rusage
	// At is when the child was reaped.
	At time.Time
}

// Reaper collects ended children. Make one with [New]; it serves until the process ends.
type Reaper struct {
	// mu is held over "fork and register" and over "wait and look up", so a child that ends
	// before its starter has written its pid down is still found.
	mu       sync.Mutex
	watched  map[int]func(Exit)
	newChild chan struct{}
}

// New starts the reaper's loop. There must be one per process.
func New() *Reaper {
	r := &Reaper{watched: map[int]func(Exit){}, newChild: make(chan struct{}, 1)}
	go r.loop()
	return r
}

// Start calls fork, which must create one child and return its pid, and has onExit called once when that child
// has been reaped. onExit runs on the reaper's goroutine and must not block. Errors are fork's own.
func (r *Reaper) Start(fork func() (int, error), onExit func(Exit)) (int, error) {
	r.mu.Lock()
	pid, err := fork()
	if err == nil {
		r.watched[pid] = onExit
	}
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	select {
	case r.newChild <- struct{}{}:
	default:
	}
	return pid, nil
}

// Signal sends signal to the child pid unless it has been reaped, so that a reused pid is never hit.
// It reports whether the child was still there.
func (r *Reaper) Signal(pid int, signal syscall.Signal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.watched[pid]; !ok {
		return false
	}
	return syscall.Kill(pid, signal) == nil
}

const (
	waitAll       = 0          // P_ALL of waitid(2)
	waitExited    = 0x4        // WEXITED
	waitNoReap    = 0x1000000  // WNOWAIT
	waitAnyThread = 0x40000000 // __WALL: also children whose exit signal is not SIGCHLD
)

func (r *Reaper) loop() {
	for {
		// A blocking waitid that leaves the zombie in place costs one parked thread and, unlike
		// SIGCHLD, no signal frames; the reaping itself then happens under the lock.
		var info [128]byte
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, waitAll, 0, uintptr(unsafe.Pointer(&info)),
			waitExited|waitNoReap|waitAnyThread, 0, 0)
		switch errno {
		case 0:
			r.reapEnded()
		case syscall.EINTR:
		case syscall.ECHILD:
			<-r.newChild
		default:
			panic(fmt.Sprintf("reaper: waitid for any child failed: %v; the kernel is not one this agent can be PID 1 on", errno))
		}
	}
}

// Collect reaps the children that have ended, if any have. Nobody needs to call it; it is for whoever knows before the
// reaper does.
func (r *Reaper) Collect() { r.reapEnded() }

func (r *Reaper) reapEnded() {
	for {
		var exit Exit
		r.mu.Lock()
		pid, err := syscall.Wait4(-1, &exit.Status, syscall.WNOHANG|waitAnyThread, &exit.Usage)
		if errors.Is(err, syscall.EINTR) {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			r.mu.Unlock()
			return
		}
		onExit := r.watched[pid]
		delete(r.watched, pid)
		r.mu.Unlock()
		if onExit != nil {
			exit.At = time.Now()
			onExit(exit)
		}
	}
}
