package identity

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"torpor/guest/account"
	"torpor/guest/reaper"
	"torpor/guest/spawn"
)

// HookResult says how one hook went.
type HookResult struct {
	Name       string `json:"name"`
	Outcome    string `json:"outcome"` // done, failed or timed_out
	Detail     string `json:"detail,omitempty"`
	DurationUs int64  `json:"duration_us"`
}

// runner runs the platform's own programs as root.
type runner struct{ reaper *reaper.Reaper }

// hookOutputBytesMax is how much of a hook's output is told when it fails.
const hookOutputBytesMax = 4096

// run executes a program to its end or until the limit, when its whole group is killed.
func (r runner) run(argv []string, env []string, limit time.Duration) HookResult {
	began := time.Now()
	result := HookResult{Name: filepath.Base(argv[0]), Outcome: "done"}
	defer func() { result.DurationUs = time.Since(began).Microseconds() }()
	fail := func(outcome, detail string) HookResult {
		result.Outcome, result.Detail = outcome, detail
		result.DurationUs = time.Since(began).Microseconds()
		return result
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fail("failed", err.Error())
	}
	defer null.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return fail("failed", err.Error())
	}
	defer out.Close()
	ended := make(chan reaper.Exit, 1)
	pid, err := r.reaper.Start(func() (int, error) {
		return spawn.Fork(spawn.Request{Path: argv[0], Argv: argv, Env: env, Dir: "/",
			User: &account.User{Name: "root", Groups: []uint32{0}}, Files: []uintptr{null.Fd(), in.Fd(), in.Fd()}})
	}, func(exit reaper.Exit) { ended <- exit })
	in.Close()
	if err != nil {
		return fail("failed", err.Error())
	}
	output := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(io.LimitReader(out, hookOutputBytesMax))
		_, _ = io.Copy(io.Discard, out)
		output <- strings.TrimSpace(strings.ToValidUTF8(string(text), "?"))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var exit reaper.Exit
	timedOut := false
	select {
	case exit = <-ended:
	case <-ctx.Done():
		timedOut = true
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		exit = <-ended
	}
	_ = out.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // a hook may leave a daemon behind that holds the pipe
	text := <-output
	switch {
	case timedOut:
		return fail("timed_out", fmt.Sprintf("killed after its limit of %v; output: %q", limit, text))
	case exit.Status.Signaled():
		return fail("failed", fmt.Sprintf("ended by %v; output: %q", exit.Status.Signal(), text))
	case exit.Status.ExitStatus() != 0:
		return fail("failed", fmt.Sprintf("exit status %d; output: %q", exit.Status.ExitStatus(), text))
	}
	result.DurationUs = time.Since(began).Microseconds()
	return result
}

// runFolder runs every executable of a folder in the order of their names.
func (r runner) runFolder(dir string, env []string, limit time.Duration) []HookResult {
	results := []HookResult{}
	children, err := os.ReadDir(dir)
	if err != nil {
		return results
	}
	for _, child := range children {
		info, err := os.Stat(filepath.Join(dir, child.Name()))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || strings.HasPrefix(child.Name(), ".") {
			continue
		}
		results = append(results, r.run([]string{filepath.Join(dir, child.Name())}, env, limit))
	}
	return results
}

func hookEnv(id *Identity) []string {
	env := []string{"PATH=" + spawn.DefaultPath, "HOME=/root", "LANG=C.UTF-8"}
	if id != nil {
		env = append(env, "TORPOR_SANDBOX_ID="+id.SandboxID, "TORPOR_GENERATION="+strconv.FormatInt(id.Generation, 10))
	}
	return env
}
