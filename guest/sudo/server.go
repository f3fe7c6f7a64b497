package sudo

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"torpor/guest/account"
	"torpor/guest/process"
	"torpor/guest/reaper"
	"torpor/guest/spawn"
)

// Server starts commands for sudo's clients.
type Server struct {
	Reaper   *reaper.Reaper
	Accounts *account.Book
	// Confine puts a process under the users' limits: sudo is no way out of them.
	Confine func(pid int)
	// AllowedPath is a file that names the users who may, one a line, or ALL; without it the default user may.
	// Root and members of the group sudo always may.
	AllowedPath string
	Env         func() map[string]string
	DefaultUser func() string
}

const (
	sessionsMax  = 512
	requestLimit = 10 * time.Second
	killGrace    = 2 * time.Second
	// The statuses of a shell for what cannot be run.
	statusRefused     = 1
	statusNotRunnable = 126
	statusNotFound    = 127
)

// Serve answers clients until the listener is closed.
func (s *Server) Serve(listener *net.UnixListener) {
	slots := make(chan struct{}, sessionsMax)
	for {
		slots <- struct{}{}
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		go func() {
			defer func() {
				conn.Close()
				<-slots
				_ = recover() // one client's bad request must not end PID 1
			}()
			s.session(conn)
		}()
	}
}

func (s *Server) session(conn *net.UnixConn) {
	_ = conn.SetDeadline(time.Now().Add(requestLimit))
	fail := func(status int, format string, args ...any) {
		_ = writeMessage(conn, reply{Done: true, Status: status, Error: fmt.Sprintf(format, args...)})
	}
	if err := askForCredentials(conn); err != nil {
		fail(statusRefused, "the kernel does not tell who is asking: %v", err)
		return
	}
	files, credentials, err := receiveFiles(conn, 3)
	if err != nil {
		fail(statusRefused, "the client did not hand over its standard descriptors: %v", err)
		return
	}
	defer closeAll(files)
	caller, err := s.caller(credentials)
	if err != nil {
		fail(statusRefused, "%v", err)
		return
	}
	var q request
	if err := readMessage(conn, &q); err != nil {
		fail(statusRefused, "the client's request is malformed: %v", err)
		return
	}
	if !s.allowed(caller) {
		fail(statusRefused, "%s is not in the sudoers file", caller.Name)
		return
	}
	if q.Query {
		_ = writeMessage(conn, reply{Done: true})
		return
	}
	target, err := s.Accounts.Lookup(strings.TrimPrefix(q.User, "#"))
	if err != nil {
		fail(statusRefused, "unknown user %s", q.User)
		return
	}
	exits := make(chan reaper.Exit, 1)
	pid, status, err := s.start(&q, caller, target, files, exits)
	closeAll(files) // the command's ends must be the only ones left
	if err != nil {
		fail(status, "%v", err)
		return
	}
	_ = conn.SetDeadline(time.Time{})
	_ = writeMessage(conn, reply{Started: true})
	gone := make(chan struct{})
	go s.relay(conn, pid, gone)
	var exit reaper.Exit
	select {
	case exit = <-exits:
	case <-gone:
		if !q.Background {
			exit = s.end(pid, exits)
		}
	}
	_ = writeMessage(conn, reply{Done: true, Status: shellStatus(exit.Status)})
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// caller is the user that the kernel says sent the message.
func (s *Server) caller(credentials *syscall.Ucred) (*account.User, error) {
	user, err := s.Accounts.Lookup(strconv.Itoa(int(credentials.Uid)))
	if err != nil {
		return nil, fmt.Errorf("you do not exist in the passwd database")
	}
	return user, nil
}

func (s *Server) allowed(caller *account.User) bool {
	if caller.UID == 0 || s.Accounts.InGroup(caller, "sudo") {
		return true
	}
	list, err := os.ReadFile(s.AllowedPath)
	if err != nil {
		return caller.Name == s.DefaultUser() || caller.Name == "user"
	}
	for _, line := range strings.Split(string(list), "\n") {
		if line = strings.TrimSpace(line); line == caller.Name || line == "ALL" {
			return true
		}
	}
	return false
}

func (s *Server) start(q *request, caller, target *account.User, files []*os.File, exits chan<- reaper.Exit) (pid, status int, err error) {
	env := targetEnv(q, caller, target, s.Env())
	path, argv := commandOf(q, target, env)
	if len(argv) == 0 {
		return 0, statusRefused, fmt.Errorf("no command was given")
	}
	dir := q.Dir
	if q.Login {
		dir = target.Home
	}
	if info, statErr := os.Stat(dir); statErr != nil || !info.IsDir() {
		if q.Login {
			dir = "/"
		} else {
			return 0, statusRefused, fmt.Errorf("the folder %s cannot be entered", dir)
		}
	}
	request := spawn.Request{Path: path, Argv: argv, Env: env, Dir: dir, User: target, Terminal: q.Terminal,
		Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()}}
	pid, err = s.Reaper.Start(func() (int, error) { return spawn.Fork(request) }, func(exit reaper.Exit) { exits <- exit })
	switch {
	case err == nil:
		s.Confine(pid)
		return pid, 0, nil
	case os.IsPermission(err) || strings.Contains(err.Error(), "permission denied"):
		return 0, statusNotRunnable, fmt.Errorf("unable to execute %s: Permission denied", path)
	case strings.Contains(path, "/") && isFile(path):
		return 0, statusNotRunnable, fmt.Errorf("unable to execute %s: %v", path, err)
	}
	return 0, statusNotFound, fmt.Errorf("%s: command not found", filepath.Clean(path))
}

func isFile(path string) bool { _, err := os.Stat(path); return err == nil }

// relay passes the client's signals on until it goes.
func (s *Server) relay(conn *net.UnixConn, pid int, gone chan<- struct{}) {
	defer close(gone)
	for {
		var e event
		if err := readMessage(conn, &e); err != nil {
			return
		}
		if e.Signal > 0 && e.Signal < 32 {
			_ = syscall.Kill(-pid, syscall.Signal(e.Signal))
		}
	}
}

// end ends the command of a client that was killed.
func (s *Server) end(pid int, exits <-chan reaper.Exit) reaper.Exit {
	_ = syscall.Kill(-pid, syscall.SIGCONT)
	process.EndSession(pid, killGrace)
	return <-exits
}

func shellStatus(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
