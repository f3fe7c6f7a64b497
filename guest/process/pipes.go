package process

import (
	"fmt"
	"os"
	"syscall"
)

type direction bool

const (
	toChild   direction = true
	fromChild direction = false
)

// pipe makes a pipe; the agent's end does not block, the child's does. It belongs to uid: a process that opens
// /dev/stdin or /dev/stderr opens the pipe anew, and needs the right to.
func pipe(d direction, uid uint32) (child, agent *os.File, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("making a pipe for a process failed: %w", err)
	}
	_ = syscall.Fchown(fds[0], int(uid), -1) // both ends are one inode
	childFD, agentFD := fds[1], fds[0]
	if d == toChild {
		childFD, agentFD = fds[0], fds[1]
	}
	if err := syscall.SetNonblock(agentFD, true); err != nil {
		syscall.Close(childFD)
		syscall.Close(agentFD)
		return nil, nil, err
	}
	return os.NewFile(uintptr(childFD), "child's end of a pipe"), os.NewFile(uintptr(agentFD), "agent's end of a pipe"), nil
}

// openPipes makes the standard pipes of a process: the agent's ends go into agent, the child's are returned.
func openPipes(agent *ends, stdin bool, uid uint32) (child *ends, err error) {
	child = &ends{}
	defer func() {
		if err != nil {
			child.close()
			agent.close()
			*agent = ends{}
		}
	}()
	if stdin {
		if child.stdin, agent.stdin, err = pipe(toChild, uid); err != nil {
			return nil, err
		}
	}
	if child.stdout, agent.stdout, err = pipe(fromChild, uid); err != nil {
		return nil, err
	}
	if child.stderr, agent.stderr, err = pipe(fromChild, uid); err != nil {
		return nil, err
	}
	return child, nil
}
