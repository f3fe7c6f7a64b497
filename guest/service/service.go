// Package service keeps programs running that belong to a template, such as its notebook server: started while the golden
// snapshot is baked, so that every copy restored from it has them up already, and started anew when they die.
package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"sync"
	"syscall"
	"time"

	"torpor/guest/account"
	"torpor/guest/reaper"
	"torpor/guest/spawn"
)

// Spec is one service, as the template declares it.
type Spec struct {
	// Name is a file name too: that of the log and of the runtime folder.
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// User is who it runs as; empty is the template's default user.
	User string `json:"user"`
	// ReadyURL answers 2xx once the service serves, e.g. http://127.0.0.1:49999/health. Empty: ready when started.
	ReadyURL string `json:"ready_url"`
}

// Settings are what a service gets of its sandbox.
type Settings struct {
	Env     map[string]string
	User    string
	Workdir string
}

const (
	readyInterval = 20 * time.Millisecond
	// A service that dies at once is started again after 0.2 s, and each further time after twice as long.
	restartDelayMin = 200 * time.Millisecond
	restartDelayMax = 30 * time.Second
	// One that lived this long was in order: its next end starts the count anew.
	healthyAfter = time.Minute
	serviceLimit = 16
)

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// Check says what is wrong with a service's declaration, or nothing.
func (s *Spec) Check() error {
	if !nameForm.MatchString(s.Name) {
		return fmt.Errorf("a service is named %q; a name has lower-case letters, digits and hyphens, 63 at most", s.Name)
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return fmt.Errorf("service %s has no command", s.Name)
	}
	if s.ReadyURL != "" {
		if _, err := parseReadyURL(s.ReadyURL); err != nil {
			return fmt.Errorf("service %s: %w", s.Name, err)
		}
	}
	return nil
}

// Supervisor runs services until it is stopped.
type Supervisor struct {
	// Root is put before /run and /var/log; empty is the machine itself.
	Root     string
	Reaper   *reaper.Reaper
	Accounts *account.Book
	// Settings are asked for at every start, so that a service started anew has the environment of the day.
	Settings func() Settings
	// Confine puts a started process into the users' cgroup: what a service starts for users counts as theirs.
	Confine func(pid int)

	mu      sync.Mutex
	running map[string]*running
	stopped bool
}

// running is one service; its fields are guarded by Supervisor.mu.
type running struct {
	spec    Spec
	pid     int
	exits   chan reaper.Exit
	delay   time.Duration
	stop    chan struct{}
	lastEnd string
	log     *logFile
}

// Any says whether there are services.
func (s *Supervisor) Any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running) > 0
}

// Start starts the services and waits until all are ready. Services that run already under their names are left alone.
// Errors name the service and the end of what it said.
func (s *Supervisor) Start(ctx context.Context, specs []Spec) error {
	for i := range specs {
		if err := specs[i].Check(); err != nil {
			return err
		}
	}
	started := make([]*running, 0, len(specs))
	for _, spec := range specs {
		r, err := s.launch(spec)
		if err != nil {
			return fmt.Errorf("starting service %s failed: %w", spec.Name, err)
		}
		if r != nil {
			started = append(started, r)
		}
	}
	for _, r := range started {
		if err := s.waitReady(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (s *Supervisor) launch(spec Spec) (*running, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return nil, errors.New("the agent is ending")
	case s.running[spec.Name] != nil:
		return nil, nil
	case len(s.running) >= serviceLimit:
		return nil, fmt.Errorf("there are %d services already", serviceLimit)
	}
	log, err := openLog(filepath.Join("/", s.Root, "/var/log/torpor", spec.Name+".log"))
	if err != nil {
		return nil, err
	}
	r := &running{spec: spec, exits: make(chan reaper.Exit, 1), delay: restartDelayMin, stop: make(chan struct{}), log: log}
	if err := s.spawn(r); err != nil {
		log.close()
		return nil, err
	}
	if s.running == nil {
		s.running = map[string]*running{}
	}
	s.running[spec.Name] = r
	go s.keep(r)
	return r, nil
}

// spawn starts the process of a service. s.mu is held.
func (s *Supervisor) spawn(r *running) error {
	settings := s.Settings()
	name := r.spec.User
	if name == "" {
		name = settings.User
	}
	user, err := s.Accounts.Lookup(name)
	if err != nil {
		return err
	}
	runtimeDir := filepath.Join("/", s.Root, "/run/torpor/services", r.spec.Name)
	if err := makeOwned(runtimeDir, user); err != nil {
		return err
	}
	dir := "/"
	for _, candidate := range []string{settings.Workdir, user.Home} {
		if info, err := os.Stat(candidate); candidate != "" && err == nil && info.IsDir() {
			dir = candidate
			break
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	request := spawn.Request{Path: r.spec.Command[0], Argv: r.spec.Command, Env: environ(user, settings.Env, runtimeDir), Dir: dir, User: user,
		Files: []uintptr{null.Fd(), in.Fd(), in.Fd()}}
	pid, err := s.Reaper.Start(func() (int, error) { return spawn.Fork(request) }, func(exit reaper.Exit) { r.exits <- exit })
	if err != nil {
		out.Close()
		return err
	}
	s.Confine(pid)
	r.pid = pid
	go r.log.copy(out)
	return nil
}

// keep starts a service anew whenever it ends, less and less often while it does not stay up.
func (s *Supervisor) keep(r *running) {
	defer r.log.close()
	began := time.Now()
	for {
		exit := <-r.exits
		s.mu.Lock()
		r.pid, r.lastEnd = 0, describe(exit.Status)
		stopped := s.stopped
		s.mu.Unlock()
		if stopped {
			return
		}
		if time.Since(began) > healthyAfter {
			r.delay = restartDelayMin
		}
		r.log.say(fmt.Sprintf("%s; starting it again in %v", describe(exit.Status), r.delay))
		for {
			select {
			case <-time.After(r.delay):
			case <-r.stop:
				return
			}
			r.delay = min(2*r.delay, restartDelayMax)
			began = time.Now()
			s.mu.Lock()
			err := errors.New("the agent is ending")
			if !s.stopped {
				err = s.spawn(r)
			}
			s.mu.Unlock()
			if err == nil {
				break
			}
			r.log.say("starting it failed: " + err.Error())
		}
	}
}

func (s *Supervisor) waitReady(ctx context.Context, r *running) error {
	if r.spec.ReadyURL == "" {
		return nil
	}
	for {
		err := askReady(ctx, r.spec.ReadyURL)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(readyInterval):
		case <-ctx.Done():
			s.mu.Lock()
			ended := r.lastEnd
			s.mu.Unlock()
			if ended != "" {
				ended = "; it " + ended
			}
			return fmt.Errorf("service %s did not become ready at %s in time (%v)%s; its output ends with: %q", r.spec.Name, r.spec.ReadyURL, err, ended, r.log.tail())
		}
	}
}

// Stop kills all services for good.
func (s *Supervisor) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	for _, r := range s.running {
		close(r.stop)
		if r.pid != 0 {
			_ = syscall.Kill(-r.pid, syscall.SIGKILL)
		}
	}
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "was ended by " + status.Signal().String()
	}
	return fmt.Sprintf("ended with exit status %d", status.ExitStatus())
}

func environ(user *account.User, sandbox map[string]string, runtimeDir string) []string {
	env := map[string]string{"PATH": spawn.DefaultPath, "HOME": user.Home, "USER": user.Name, "LOGNAME": user.Name}
	for name, value := range sandbox {
		env[name] = value
	}
	env["TORPOR_RUNTIME_DIR"] = runtimeDir
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	sort.Strings(list)
	return list
}

// makeOwned makes a folder that is the user's alone, new if need be.
func makeOwned(dir string, user *account.User) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(dir, int(user.UID), int(user.GID))
}
