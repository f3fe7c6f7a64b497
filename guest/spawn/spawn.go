// Package spawn starts one process for a user, cheaply: Go's fork is a vfork-style clone, so the cost does not
// grow with the agent's memory.
package spawn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"torpor/guest/account"
)

// Request describes the process to start.
type Request struct {
	// Path is the program: absolute, relative to Dir, or a bare name looked up in the PATH of Env.
	Path string
	// Argv is the whole argument vector, argv[0] included.
	Argv []string
	Env  []string
	// Dir is the working directory; it must exist.
	Dir string
	// User is who the process runs as.
	User *account.User
	// Files are the descriptors 0, 1, 2, ... of the child.
	Files []uintptr
	// Terminal makes descriptor 0 the controlling terminal.
	Terminal bool
	// JoinSession keeps the caller's session and group; normally each process leads its own session.
	JoinSession bool
}

// Fork starts the process and returns its pid. Use it inside the reaper's Start.
// Errors: [os.ErrNotExist] and [os.ErrPermission] wrapped with the program's name.
func Fork(request Request) (int, error) {
	path, err := lookPath(request)
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{
		Dir:   request.Dir,
		Env:   request.Env,
		Files: request.Files,
		Sys: &syscall.SysProcAttr{
			Setsid:  !request.JoinSession,
			Setctty: request.Terminal,
		},
	}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: request.User.UID, Gid: request.User.GID, Groups: request.User.Groups}
	}
	pid, err := syscall.ForkExec(path, request.Argv, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		// As execvp and every shell do: a file without an interpreter line is a shell script.
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"/bin/sh", path}, request.Argv[1:]...), attr)
	}
	if err != nil {
		return 0, fmt.Errorf("starting %q in %q as %s failed: %w", path, request.Dir, request.User.Name, err)
	}
	return pid, nil
}

func lookPath(request Request) (string, error) {
	if request.Path == "" {
		return "", fmt.Errorf("no program was named: %w", os.ErrNotExist)
	}
	if strings.Contains(request.Path, "/") {
		return request.Path, nil
	}
	path := DefaultPath
	for _, v := range request.Env {
		if rest, ok := strings.CutPrefix(v, "PATH="); ok {
			path = rest
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		candidate := filepath.Join(dir, request.Path)
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(request.Dir, candidate)
		}
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("program %q is in no folder of PATH (%s): %w", request.Path, path, os.ErrNotExist)
}

// DefaultPath is the PATH of a process that is given none; Debian's own for root.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// OpenFilesMax is the descriptor limit of user processes, soft and hard.
const OpenFilesMax = 65536

// SetOwnLimits gives the agent the limits that its children inherit. Failure is not fatal: the inherited ones stay.
func SetOwnLimits() {
	limit := syscall.Rlimit{Cur: OpenFilesMax, Max: OpenFilesMax}
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	noCore := syscall.Rlimit{}
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &noCore)
}
