package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"torpor/guest/account"
	"torpor/guest/spawn"
	"torpor/guest/wire"
)

// config is what to run, as List gives it back.
type config struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args"`
	Envs map[string]string `json:"envs"`
	Cwd  *string           `json:"cwd,omitempty"`
}

type terminalSize struct {
	Size *struct {
		Cols wire.Uint32 `json:"cols"`
		Rows wire.Uint32 `json:"rows"`
	} `json:"size"`
}

func (s *terminalSize) dimensions() (cols, rows uint16) {
	cols, rows = 80, 24
	if s.Size != nil {
		cols, rows = uint16(min(s.Size.Cols, 65535)), uint16(min(s.Size.Rows, 65535))
	}
	return cols, rows
}

// extension is Torpor's addition to Start; see the README.
type extension struct {
	ExecID           string     `json:"execId"`
	TimeoutMs        int64      `json:"timeoutMs"`
	KillGraceMs      *int64     `json:"killGraceMs"`
	MaxOutputBytes   int64      `json:"maxOutputBytes"`
	Stdin            wire.Bytes `json:"stdin"`
	KillOnDisconnect bool       `json:"killOnDisconnect"`
	Resumable        bool       `json:"resumable"`
	User             string     `json:"user"`
}

type startRequest struct {
	Process config        `json:"process"`
	Pty     *terminalSize `json:"pty"`
	Tag     string        `json:"tag"`
	Stdin   *bool         `json:"stdin"`
	Torpor  *extension    `json:"torpor"`
}

const (
	killGraceDefault = 2 * time.Second
	timeoutMsMax     = int64(400 * 24 * time.Hour / time.Millisecond)
	// execIDBytesMax keeps what clients may make the agent remember small.
	execIDBytesMax = 256
)

func (s *startRequest) check() error {
	all := append([]string{s.Process.Cmd}, s.Process.Args...)
	for _, text := range all {
		if strings.ContainsRune(text, 0) {
			return wire.Errorf(wire.InvalidArgument, "the command holds a NUL byte, which no program can be given; pass it through standard input or a file")
		}
	}
	if s.Process.Cmd == "" {
		return wire.Errorf(wire.InvalidArgument, "field process.cmd is empty; name the program to run")
	}
	for name, value := range s.Process.Envs {
		if why := badVariable(name, value); why != "" {
			return wire.Errorf(wire.InvalidArgument, "environment variable %q cannot be set: %s", name, why)
		}
	}
	if t := s.Torpor; t != nil {
		switch {
		case t.TimeoutMs < 0 || t.TimeoutMs > timeoutMsMax:
			return wire.Errorf(wire.InvalidArgument, "field torpor.timeoutMs is %d; it must be from 0 (no limit) to %d", t.TimeoutMs, timeoutMsMax)
		case t.MaxOutputBytes < 0:
			return wire.Errorf(wire.InvalidArgument, "field torpor.maxOutputBytes is %d; it must be 0 (no limit) or more", t.MaxOutputBytes)
		case t.KillGraceMs != nil && (*t.KillGraceMs < 0 || *t.KillGraceMs > timeoutMsMax):
			return wire.Errorf(wire.InvalidArgument, "field torpor.killGraceMs is %d; it must be from 0 to %d", *t.KillGraceMs, timeoutMsMax)
		case t.Resumable && t.ExecID == "":
			return wire.Errorf(wire.InvalidArgument, "field torpor.resumable needs torpor.execId, by which the stream is gone on with")
		case len(t.ExecID) > execIDBytesMax:
			return wire.Errorf(wire.InvalidArgument, "field torpor.execId is %d bytes long; at most %d", len(t.ExecID), execIDBytesMax)
		case t.Stdin != nil && s.Pty != nil:
			return wire.Errorf(wire.InvalidArgument, "field torpor.stdin cannot be used with a terminal; send the input with SendInput")
		}
	}
	return nil
}

// launch starts the process a request describes. timeout is the request's Connect-Timeout-Ms.
func (t *Table) launch(request *startRequest, userName string, timeout time.Duration) (*process, error) {
	settings := t.settings()
	if request.Torpor != nil && request.Torpor.User != "" {
		userName = request.Torpor.User
	}
	if userName == "" {
		userName = settings.DefaultUser
	}
	user, err := t.accounts.Lookup(userName)
	if err != nil {
		return nil, wire.Errorf(wire.Unauthenticated, "%v", err)
	}
	dir, err := workingDirectory(request.Process.Cwd, user, settings.DefaultWorkdir)
	if err != nil {
		return nil, err
	}
	if err := t.reserve(); err != nil {
		return nil, err
	}
	l := launching{table: t, request: request, user: user, dir: dir,
		env: environment(user, settings.Env, request.Process.Envs)}
	p, err := l.start()
	if err != nil {
		t.release()
		return nil, startError(err, request.Process.Cmd)
	}
	l.watch(p, timeout)
	return p, nil
}

func startError(err error, cmd string) error {
	code := wire.Internal
	switch {
	case errors.Is(err, os.ErrNotExist):
		code = wire.NotFound
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		code = wire.PermissionDenied
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		code = wire.InvalidArgument
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		code = wire.ResourceExhausted
	}
	if len(cmd) > 200 {
		cmd = cmd[:200] + "..."
	}
	return wire.Errorf(code, "error starting process '%s': %v", cmd, err)
}

func workingDirectory(asked *string, user *account.User, fallback string) (string, error) {
	if asked == nil || *asked == "" {
		for _, dir := range []string{fallback, user.Home} {
			if info, err := os.Stat(dir); dir != "" && err == nil && info.IsDir() {
				return dir, nil
			}
		}
		return "/", nil
	}
	dir := *asked
	if strings.ContainsRune(dir, 0) {
		return "", wire.Errorf(wire.InvalidArgument, "field process.cwd holds a NUL byte")
	}
	if dir == "~" || strings.HasPrefix(dir, "~/") {
		dir = user.Home + dir[1:]
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(user.Home, dir)
	}
	info, err := os.Stat(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "", wire.Errorf(wire.InvalidArgument, "cwd '%s' does not exist", dir)
		}
		return "", wire.Errorf(wire.InvalidArgument, "cwd '%s' cannot be used: %v", dir, err)
	}
	if !info.IsDir() {
		return "", wire.Errorf(wire.InvalidArgument, "cwd '%s' is not a directory", dir)
	}
	return dir, nil
}

type launching struct {
	table   *Table
	request *startRequest
	user    *account.User
	dir     string
	env     map[string]string
}

func (l *launching) outputBytesMax() uint64 {
	if l.request.Torpor == nil {
		return 0
	}
	return uint64(l.request.Torpor.MaxOutputBytes)
}

// wantsStdin: Torpor's execs have none unless they ask, E2B's old clients have it unless they decline.
func (l *launching) wantsStdin() bool {
	if t := l.request.Torpor; t != nil && t.Stdin != nil {
		return true
	}
	if l.request.Stdin == nil {
		return l.request.Torpor == nil
	}
	return *l.request.Stdin
}

func (l *launching) start() (*process, error) {
	if l.request.Pty == nil {
		if p := l.inWarmShell(); p != nil {
			return p, nil
		}
	}
	l.table.shells.Touch()
	if l.request.Pty != nil {
		return l.onTerminal()
	}
	return l.onPipes()
}

// longCommandBytes is where a shell command no longer fits into one argument (128 KiB on Linux).
const longCommandBytes = 128<<10 - 64

// inWarmShell uses a waiting shell for `bash -l -c command`. Nil means that none fits and the ordinary way is to be taken.
func (l *launching) inWarmShell() *process {
	r := l.request.Process
	if len(r.Args) != 3 || r.Args[0] != "-l" || r.Args[1] != "-c" || r.Cmd != bashPath && r.Cmd != "bash" && r.Cmd != "/usr/bin/bash" {
		return nil
	}
	use := warmUse{arg0: r.Cmd, command: r.Args[2], dir: l.dir, stdin: l.wantsStdin()}
	var w *warmShell
	if w, use.export, use.unset = l.table.shells.take(l.user, l.env); w == nil {
		if len(use.command) < longCommandBytes {
			return nil
		}
		var err error
		if w, err = l.table.shells.start(l.user, l.env); err != nil {
			return nil
		}
	}
	script := warmScript(use)
	if !use.stdin {
		w.ends.stdin.Close()
		w.ends.stdin = nil
	}
	p := newProcess(l.table, &w.ends, l.outputBytesMax())
	p.pid, p.startedAt = w.pid, time.Now()
	l.fill(p)
	if !w.adopt(p.onReaped) {
		w.end()
		return nil
	}
	if len(script) <= 60<<10 {
		// It fits into the empty pipe, so this cannot block.
		_, _ = w.control.Write(script)
		w.control.Close()
	} else {
		go func() {
			_, _ = w.control.Write(script) // ends with an error when the shell dies
			w.control.Close()
		}()
	}
	l.table.add(p)
	return p
}

func (l *launching) onPipes() (*process, error) {
	var agent ends
	child, err := openPipes(&agent, l.wantsStdin(), l.user.UID)
	if err != nil {
		return nil, err
	}
	defer child.close()
	if child.stdin == nil {
		if child.stdin, err = os.Open(os.DevNull); err != nil {
			agent.close()
			return nil, fmt.Errorf("opening %s as standard input failed: %w", os.DevNull, err)
		}
	}
	files := []uintptr{child.stdin.Fd(), child.stdout.Fd(), child.stderr.Fd()}
	return l.spawn(&agent, files, false)
}

func (l *launching) onTerminal() (*process, error) {
	cols, rows := l.request.Pty.dimensions()
	master, terminal, err := spawn.OpenTerminal(cols, rows, int(l.user.UID))
	if err != nil {
		return nil, err
	}
	defer terminal.Close()
	fd := terminal.Fd()
	return l.spawn(&ends{terminal: master}, []uintptr{fd, fd, fd}, true)
}

func (l *launching) spawn(agent *ends, files []uintptr, terminal bool) (*process, error) {
	p := newProcess(l.table, agent, l.outputBytesMax())
	l.fill(p)
	p.startedAt = time.Now()
	request := spawn.Request{Path: l.request.Process.Cmd, Argv: append([]string{l.request.Process.Cmd}, l.request.Process.Args...),
		Env: environ(l.env), Dir: l.dir, User: l.user, Files: files, Terminal: terminal}
	if p.extended && request.Path == bashPath {
		if _, err := os.Stat(bashPath); errors.Is(err, os.ErrNotExist) {
			request.Path, request.Argv[0] = "/bin/sh", "/bin/sh" // small images have no bash
		}
	}
	var err error
	p.pid, err = l.table.reaper.Start(func() (int, error) { return spawn.Fork(request) }, p.onReaped)
	if err != nil {
		agent.close()
		return nil, err
	}
	l.table.confine(p.pid)
	l.table.add(p)
	return p, nil
}

func (l *launching) fill(p *process) {
	p.config = l.request.Process
	if p.config.Args == nil {
		p.config.Args = []string{}
	}
	if p.config.Envs == nil {
		p.config.Envs = map[string]string{}
	}
	p.tag, p.userName = l.request.Tag, l.user.Name
	if t := l.request.Torpor; t != nil {
		p.extended, p.execID, p.killOnDisconnect = true, t.ExecID, t.KillOnDisconnect
	}
}

// watch sets deadlines and the given input of a process that has been started, and begins to read its output.
func (l *launching) watch(p *process, timeout time.Duration) {
	grace := time.Duration(0) // E2B's deadline kills at once
	if t := l.request.Torpor; t != nil {
		grace = killGraceDefault
		if t.KillGraceMs != nil {
			grace = time.Duration(*t.KillGraceMs) * time.Millisecond
		}
		if t.TimeoutMs > 0 {
			timeout = time.Duration(t.TimeoutMs) * time.Millisecond
		}
		if t.Stdin != nil {
			go func() {
				_ = p.write(context.Background(), "", t.Stdin, false) // a process need not read its input
				p.closeStdin("")
			}()
		}
	}
	if timeout > 0 {
		p.setTimeout(timeout, grace)
	}
}
