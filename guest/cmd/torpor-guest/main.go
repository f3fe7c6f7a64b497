// torpor-guest is Torpor's program inside a sandbox: the agent that runs as PID 1, and the sandbox's sudo.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"

	"torpor/guest/agent"
	"torpor/guest/identity"
	"torpor/guest/procfs"
	"torpor/guest/reaper"
	"torpor/guest/spawn"
	"torpor/guest/sudo"
)

const usage = `usage: torpor-guest agent [--listen 0.0.0.0:49983] [--warm-shells 2]
       torpor-guest sudo [options] command...
       torpor-guest version
`

func main() {
	if filepath.Base(os.Args[0]) == "sudo" { // by way of a link in /usr/bin
		os.Exit(sudo.Main(os.Args[1:]))
	}
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	switch verb {
	case "agent":
		os.Exit(runAgent(os.Args[2:]))
	case "sudo":
		os.Exit(sudo.Main(os.Args[2:]))
	case "version":
		fmt.Println("torpor-guest", agent.Version)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
}

func runAgent(args []string) int {
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	listen := flags.String("listen", "0.0.0.0:49983", "address to listen on")
	shells := flags.Int("warm-shells", 2, "how many login shells wait")
	user := flags.String("default-user", "user", "whose shells wait before init")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	// Each page touched is paid for at every restore, so the heap is kept small at the price of more collecting.
	debug.SetGCPercent(40)
	debug.SetMemoryLimit(128 << 20)
	// One thread runs Go code at a time. With a second, each wake-up of a goroutine and each timer also wakes a thread, which
	// costs more in gVisor than what is shared out; threads that wait in system calls do not count.
	runtime.GOMAXPROCS(1)
	surviveSignals()
	if os.Getpid() == 1 {
		if err := procfs.MountSmall(); err != nil {
			fmt.Fprintf(os.Stderr, "torpor-guest: mounting /proc failed: %v\n", err)
			return 1
		}
	}
	spawn.SetOwnLimits()
	listener, err := net.Listen("tcp4", *listen)
	if err != nil {
		fmt.Fprintf(os.Stderr, "torpor-guest: listening on %s failed: %v\n", *listen, err)
		return 1
	}
	a := agent.New(agent.Options{
		Platform: identity.Machine(), PasswdPath: "/etc/passwd", GroupPath: "/etc/group", CgroupRoot: "/sys/fs/cgroup",
		WarmShells: *shells, DefaultUser: *user, Reaper: reaper.New(),
	})
	if socket, err := sudo.Listen(sudo.SocketPath); err == nil {
		go a.ServeSudo(socket)
	} else {
		fmt.Fprintf(os.Stderr, "torpor-guest: sudo will not work: %v\n", err)
	}
	if err := a.Serve(context.Background(), listener); err != nil {
		fmt.Fprintf(os.Stderr, "torpor-guest: %v\n", err)
		return 1
	}
	return 0
}

// surviveSignals keeps user code from ending or stopping PID 1 by a signal. The signals are received and dropped rather than
// ignored: what is ignored stays ignored in every process started from here. Faults of the agent's own still crash it.
func surviveSignals() {
	const lastSignal = 64
	var all []os.Signal
	for number := syscall.Signal(1); number <= lastSignal; number++ {
		switch number {
		case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGCONT, syscall.SIGWINCH: // harmless as they are, and SIGURG is the Go runtime's own
		default:
			all = append(all, number)
		}
	}
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, all...)
	go func() {
		for range dropped {
		}
	}()
}
