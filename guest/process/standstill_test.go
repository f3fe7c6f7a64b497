package process

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleVariable makes this binary one of the processes that are stopped.
const roleVariable = "TORPOR_STANDSTILL_ROLE"

func init() {
	if os.Getenv(roleVariable) == "" {
		return
	}
	runtime.LockOSThread() // the first thread, which is the leader
	go func() {
		for i := 0; ; i++ {
			fmt.Println(i)
			time.Sleep(time.Millisecond)
		}
	}()
	time.Sleep(20 * time.Millisecond)
	_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0) // of this thread alone
}

func TestAProcessWhoseLeaderHasEndedIsStoppedByItsThreads(t *testing.T) {
	counter := exec.Command(os.Args[0])
	counter.Env = append(os.Environ(), roleVariable+"=counter")
	out, err := counter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := counter.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = counter.Process.Kill(); _ = counter.Wait() }()
	pid := counter.Process.Pid
	lines := make(chan string, 1<<20)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	awaitState(t, pid, 'Z')
	stopped, err := StopAll(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	e, _ := ReadEntry(pid)
	if states := string(threadStates(e)); strings.Trim(states, "TZ") != "" || !strings.Contains(states, "T") {
		t.Errorf("threads %q", states)
	}
	stopped.Continue()
	for len(lines) > 0 {
		<-lines
	}
	select {
	case <-lines:
	case <-time.After(10 * time.Second):
		t.Error("it does not go on")
	}
}

func TestWhatSomebodyElseHasStoppedStaysSo(t *testing.T) {
	sleeper := exec.Command("sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	pid := sleeper.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitState(t, pid, 'T')
	stopped, err := StopAll(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stopped.Continue()
	if e, _ := ReadEntry(pid); e.State != 'T' {
		t.Errorf("it is %c", e.State)
	}
}

func awaitState(t *testing.T, pid int, state byte) {
	t.Helper()
	until := time.Now().Add(10 * time.Second)
	for e, _ := ReadEntry(pid); e.State != state; e, _ = ReadEntry(pid) {
		if time.Now().After(until) {
			t.Fatalf("process %d is %c and not %c", pid, e.State, state)
		}
		time.Sleep(time.Millisecond)
	}
}
