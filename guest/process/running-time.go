package process

import (
	"sync"
	"time"
)

const (
	// sliceMax is how often a limit looks at the clock.
	sliceMax = time.Second
	// lateMax is how late a look may be on a machine that runs, busy as it may be; beyond it the machine stood still.
	lateMax = time.Second
)

// runningTime calls back once the machine has run for a while. Time in which it stood still does not count: a pause, a
// snapshot being written, a sleep on disk, after which gVisor's monotonic clock has gone on with the world's. It counts in
// slices of a second and leaves out a slice that took more than twice that, so a stop costs at most two seconds.
type runningTime struct {
	mu      sync.Mutex
	left    time.Duration
	slice   time.Duration
	began   time.Time
	timer   *time.Timer
	stopped bool
	fire    func()
}

func afterRunning(d time.Duration, fire func()) *runningTime {
	r := &runningTime{left: d, fire: fire}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next()
	return r
}

// next arms a slice. Call with mu held.
func (r *runningTime) next() {
	r.slice, r.began = min(r.left, sliceMax), time.Now()
	r.timer = time.AfterFunc(r.slice, r.look)
}

func (r *runningTime) look() {
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		return
	}
	r.left -= counted(r.slice, time.Since(r.began))
	if r.left > 0 {
		r.next()
		r.mu.Unlock()
		return
	}
	r.stopped = true
	r.mu.Unlock()
	r.fire()
}

// counted is what of the time a slice took the machine has run.
func counted(slice, took time.Duration) time.Duration {
	if took > slice+lateMax {
		// The stop may have come at any point of it: the smaller part is given to whoever is limited.
		return slice / 2
	}
	return took
}

// stop reports whether it came before the call back.
func (r *runningTime) stop() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	r.stopped = true
	r.timer.Stop()
	return true
}
