package sudo

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

const usage = `usage: sudo -h | -V | -v | -k | -l
usage: sudo [-bEHinPSs] [-u user] [-D directory] [VAR=value] [--] [command [argument ...]]

This is the sandbox's own sudo: it needs no password, and the sandbox's agent starts the command.
`

// Main is the client. It returns the command's status, or sudo's own: 1 when refused, 126 or 127 when the command
// cannot be run or is not there.
func Main(args []string) int {
	return run(args, SocketPath)
}

func complain(format string, args ...any) int {
	fmt.Fprintf(os.Stderr, "sudo: "+format+"\n", args...)
	return statusRefused
}

func run(args []string, socketPath string) int {
	q, m, err := parse(args)
	switch {
	case err != nil:
		complain("%v", err)
		fmt.Fprint(os.Stderr, usage)
		return statusRefused
	case m == modeHelp:
		fmt.Print(usage)
		return 0
	case m == modeVersion:
		fmt.Println("Sudo version 1.9.13 (the Torpor sandbox's)")
		return 0
	}
	q.Query = m != modeRun
	q.Env = os.Environ()
	here, err := os.Getwd()
	if err != nil {
		here = "/"
	}
	switch {
	case q.Dir == "":
		q.Dir = here
	case !filepath.IsAbs(q.Dir):
		q.Dir = filepath.Join(here, q.Dir)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socketPath, Net: "unix"})
	if err != nil {
		return complain("the sandbox's agent does not answer at %s: %v", socketPath, err)
	}
	defer conn.Close()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGALRM)
	fds := []int{0, 1, 2}
	var screen *screen
	if !q.Query && !q.Background {
		if screen = openScreen(); screen != nil {
			q.Terminal = true
			for i := range fds {
				if isTerminal(i) {
					fds[i] = int(screen.terminal.Fd())
				}
			}
		}
	}
	if err := sendFiles(conn, fds...); err == nil {
		err = writeMessage(conn, q)
	}
	if err != nil {
		return complain("asking the sandbox's agent failed: %v", err)
	}
	if screen != nil {
		screen.begin()
		defer screen.end()
	}
	go passOn(conn, signals, screen)
	for {
		var answer reply
		if err := readMessage(conn, &answer); err != nil {
			if screen != nil {
				screen.end()
			}
			if errors.Is(err, io.EOF) {
				return complain("the sandbox's agent closed the connection")
			}
			return complain("the connection to the sandbox's agent broke: %v", err)
		}
		if answer.Started && q.Background {
			return 0
		}
		if !answer.Done {
			continue
		}
		if screen != nil {
			screen.end()
		}
		if answer.Error != "" {
			fmt.Fprintf(os.Stderr, "sudo: %s\n", answer.Error)
		} else if m == modeList {
			host, _ := os.Hostname()
			fmt.Printf("User %s may run the following commands on %s:\n    (ALL : ALL) NOPASSWD: ALL\n", os.Getenv("USER"), host)
		}
		return answer.Status
	}
}

// passOn relays signals to the command. Stopping is done to both, so that a shell's job control sees it.
func passOn(conn *net.UnixConn, signals <-chan os.Signal, screen *screen) {
	for s := range signals {
		number, ok := s.(syscall.Signal)
		if !ok {
			continue
		}
		switch {
		case number == syscall.SIGWINCH && screen != nil:
			screen.resize()
		case number == syscall.SIGTSTP:
			_ = writeMessage(conn, event{Signal: int(syscall.SIGSTOP)})
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		default:
			_ = writeMessage(conn, event{Signal: int(number)})
		}
	}
}
