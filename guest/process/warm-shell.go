package process

import (
	"context"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"torpor/guest/account"
	"torpor/guest/reaper"
	"torpor/guest/spawn"
)

const (
	bashPath = "/bin/bash"
	// refillDelay keeps the start of replacements away from the exec that has just begun.
	refillDelay = 50 * time.Millisecond
	// refillPatience is how long running execs may put replacements off.
	refillPatience = time.Second
)

// Shells keeps login shells of the default user waiting, so that a shell command costs neither the start of bash nor
// the reading of the profile. A shell serves one command and is never used again.
type Shells struct {
	table *Table

	mu       sync.Mutex
	want     int
	idle     []*warmShell
	filling  bool
	lastUsed time.Time
	// untouched says that nothing has run or been written since the idle shells read the profile: looking at the nine files
	// that they read costs half a millisecond.
	untouched atomic.Bool
}

// warmShell is one waiting shell.
type warmShell struct {
	pid     int
	user    account.User
	stamp   profileStamp
	env     map[string]string
	control *os.File
	ends    ends
	// waiting is closed once the shell has read the profile and waits for its command, or has ended.
	waiting chan struct{}

	mu     sync.Mutex
	dead   *reaper.Exit
	onExit func(reaper.Exit)
}

func newShells(t *Table) *Shells { return &Shells{table: t} }

// Keep sets how many shells wait and starts them in the background. Zero ends those that wait.
func (s *Shells) Keep(count int) {
	s.mu.Lock()
	s.want = count
	s.mu.Unlock()
	if count == 0 {
		s.Replace()
		return
	}
	s.fill()
}

// Ready is how many shells wait now.
func (s *Shells) Ready() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle)
}

// Complete starts the shells that are missing and returns when all have read the profile and wait; where there is no
// bash, none do.
func (s *Shells) Complete(ctx context.Context) {
	s.fill()
	s.mu.Lock()
	idle := slices.Clone(s.idle)
	s.mu.Unlock()
	for _, w := range idle {
		select {
		case <-w.waiting:
		case <-ctx.Done():
			return
		}
	}
}

// Refit is called when the sandbox has a new identity. Shells that can be turned into what the new settings need are
// kept, since each use reseeds and sets the environment; others are ended and replaced. It reports whether any were.
// Where nothing ran since the shells were started, the files they read cannot differ and are not looked at.
func (s *Shells) Refit(profileMayDiffer bool) (replaced bool) {
	settings := s.table.settings()
	user, err := s.table.accounts.Lookup(settings.DefaultUser)
	if err != nil {
		s.Replace()
		return true
	}
	var stamp profileStamp
	if profileMayDiffer {
		stamp = stampProfile(user)
	}
	s.untouched.Store(!profileMayDiffer)
	env := environment(user, settings.Env, nil)
	s.mu.Lock()
	kept := s.idle[:0]
	var ended []*warmShell
	for _, w := range s.idle {
		if _, _, possible := warmDifference(w.env, env); possible && (!profileMayDiffer || w.fits(user, stamp)) {
			kept = append(kept, w)
		} else {
			ended = append(ended, w)
		}
	}
	s.idle = kept
	s.mu.Unlock()
	for _, w := range ended {
		w.end()
	}
	s.refillLater()
	return len(ended) > 0
}

// Touch says that something may have been written from now on.
func (s *Shells) Touch() {
	if s.untouched.Load() {
		s.untouched.Store(false)
	}
}

// Replace ends all waiting shells; new ones are started in the background.
func (s *Shells) Replace() {
	s.mu.Lock()
	ended := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, w := range ended {
		w.end()
	}
	s.refillLater()
}

func (s *Shells) close() {
	s.mu.Lock()
	s.want = 0
	s.mu.Unlock()
	s.Replace()
}

// take gives a waiting shell that fits, or nil. Shells made stale by a changed profile are ended on the way.
func (s *Shells) take(user *account.User, env map[string]string) (w *warmShell, export map[string]string, unset []string) {
	s.mu.Lock()
	if len(s.idle) == 0 {
		s.lastUsed = time.Now()
		s.mu.Unlock()
		s.refillLater()
		return nil, nil, nil
	}
	if s.idle[0].user.Name != user.Name {
		s.mu.Unlock()
		return nil, nil, nil
	}
	s.mu.Unlock()
	// Only one command is the first: what comes at the same time may find what this one has written.
	isFirst := s.untouched.Swap(false)
	var stamp profileStamp
	if !isFirst {
		stamp = stampProfile(user)
	}
	for {
		s.mu.Lock()
		if len(s.idle) == 0 {
			s.mu.Unlock()
			s.refillLater()
			return nil, nil, nil
		}
		w = s.idle[0]
		var possible bool
		if export, unset, possible = warmDifference(w.env, env); !possible {
			s.mu.Unlock()
			return nil, nil, nil // this call's environment needs a shell of its own
		}
		s.idle = s.idle[1:]
		s.lastUsed = time.Now()
		s.mu.Unlock()
		if isFirst {
			stamp = w.stamp
		}
		if w.fits(user, stamp) {
			s.startNext()
			s.refillLater()
			return w, export, unset
		}
		w.end()
	}
}

func (w *warmShell) fits(user *account.User, stamp profileStamp) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead == nil && w.stamp == stamp && w.user.UID == user.UID && w.user.GID == user.GID && w.user.Home == user.Home
}

func (w *warmShell) end() {
	w.control.Close() // an empty script: the shell ends by itself
	w.ends.close()
	w.mu.Lock()
	if w.dead == nil {
		_ = syscall.Kill(-w.pid, syscall.SIGKILL)
	}
	w.mu.Unlock()
}

func (w *warmShell) onReaped(exit reaper.Exit) {
	w.mu.Lock()
	w.dead = &exit
	onExit := w.onExit
	w.mu.Unlock()
	if onExit != nil {
		onExit(exit)
	}
}

// adopt hands the shell's exit over to onExit; false when the shell has ended before it was used.
func (w *warmShell) adopt(onExit func(reaper.Exit)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead != nil {
		return false
	}
	w.onExit = onExit
	return true
}

// start makes one waiting shell.
func (s *Shells) start(user *account.User, env map[string]string) (*warmShell, error) {
	w := &warmShell{user: *user, env: env, stamp: stampProfile(user), waiting: make(chan struct{})}
	control, controlEnd, err := pipe(toChild, user.UID)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	w.control = controlEnd
	started := false
	defer func() {
		if !started {
			controlEnd.Close()
			w.ends.close()
		}
	}()
	childEnds, err := openPipes(&w.ends, true, user.UID)
	if err != nil {
		return nil, err
	}
	defer childEnds.close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	ready, readyEnd, err := pipe(fromChild, user.UID)
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	files := make([]uintptr, warmControlFD+1)
	for i := range files {
		files[i] = ^uintptr(0)
	}
	files[0], files[1], files[2] = null.Fd(), childEnds.stdout.Fd(), childEnds.stderr.Fd()
	files[warmReadyFD], files[warmStdinFD], files[warmControlFD] = ready.Fd(), childEnds.stdin.Fd(), control.Fd()
	dir := user.Home
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		dir = "/"
	}
	w.pid, err = s.table.reaper.Start(func() (int, error) {
		return spawn.Fork(spawn.Request{Path: bashPath, Argv: []string{bashPath, "-l", "-c", warmStub},
			Env: environ(env), Dir: dir, User: user, Files: files})
	}, w.onReaped)
	if err != nil {
		readyEnd.Close()
		return nil, err
	}
	started = true
	s.table.confine(w.pid)
	go func() {
		_, _ = io.Copy(io.Discard, readyEnd)
		readyEnd.Close()
		close(w.waiting)
	}()
	return w, nil
}

// startNext starts a shell beside the command that has just taken the last one: where commands come one upon the other, the
// next finds it half started at least, which is better than nothing.
func (s *Shells) startNext() {
	s.mu.Lock()
	none := len(s.idle) == 0 && s.want > 0
	s.mu.Unlock()
	if none {
		go s.fillUpTo(1)
	}
}

func (s *Shells) refillLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filling || len(s.idle) >= s.want {
		return
	}
	s.filling = true
	waitUntil := time.Now().Add(refillPatience)
	var attempt func()
	attempt = func() {
		s.mu.Lock()
		tooSoon := time.Since(s.lastUsed) < refillDelay || s.table.Running() > 0
		if tooSoon && time.Now().Before(waitUntil) {
			s.mu.Unlock()
			time.AfterFunc(refillDelay, attempt)
			return
		}
		s.filling = false
		s.mu.Unlock()
		s.fill()
	}
	time.AfterFunc(refillDelay, attempt)
}

// fill starts shells until there are enough; failures are left for the next time a shell is used.
func (s *Shells) fill() { s.fillUpTo(math.MaxInt) }

func (s *Shells) fillUpTo(count int) {
	for {
		s.mu.Lock()
		enough := len(s.idle) >= min(count, s.want)
		s.mu.Unlock()
		if enough {
			return
		}
		settings := s.table.settings()
		user, err := s.table.accounts.Lookup(settings.DefaultUser)
		if err != nil {
			return
		}
		if _, err := os.Stat(bashPath); err != nil {
			s.mu.Lock()
			s.want = 0
			s.mu.Unlock()
			return
		}
		w, err := s.start(user, environment(user, settings.Env, nil))
		if err != nil {
			return
		}
		s.mu.Lock()
		keep := len(s.idle) < s.want
		if keep {
			s.idle = append(s.idle, w)
		}
		s.mu.Unlock()
		if !keep {
			w.end()
		}
	}
}

// profileStamp changes when a file that a login shell reads may have changed.
type profileStamp [9]int64

func stampProfile(user *account.User) profileStamp {
	var stamp profileStamp
	for i, path := range [...]string{
		"/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/passwd", "/etc/group",
		user.Home + "/.bash_profile", user.Home + "/.bash_login", user.Home + "/.profile", user.Home + "/.bashrc",
	} {
		var st syscall.Stat_t
		if syscall.Stat(path, &st) == nil {
			stamp[i] = st.Mtim.Nano() ^ int64(st.Ino)<<1 ^ st.Size<<20
		}
	}
	return stamp
}
