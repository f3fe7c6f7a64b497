package sudo

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"torpor/guest/account"
	"torpor/guest/reaper"
	"torpor/guest/spawn"
)

// The test program is also the client: tests start it with the socket in this variable.
const socketVariable = "TORPOR_TEST_SUDO_SOCKET"

var theReaper *reaper.Reaper

func TestMain(m *testing.M) {
	if socket := os.Getenv(socketVariable); socket != "" {
		os.Exit(run(os.Args[1:], socket))
	}
	theReaper = reaper.New()
	os.Exit(m.Run())
}

type machine struct {
	t      *testing.T
	dir    string
	socket string
	self   string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, socket: filepath.Join(dir, "s"), self: filepath.Join(dir, "client")}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::" + dir + ":/bin/bash\nother:x:1001:1001::/:/bin/sh\nadmin:x:1002:1002::/:/bin/sh\n",
		"group":  "root:x:0:\nsudo:x:27:admin\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(m.self, program, 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := Listen(m.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &Server{Reaper: theReaper, Accounts: account.Open(filepath.Join(dir, "passwd"), filepath.Join(dir, "group")), Confine: func(int) {},
		AllowedPath: filepath.Join(dir, "sudoers"), Env: func() map[string]string { return map[string]string{"SANDBOX": "yes"} }, DefaultUser: func() string { return "user" }}
	go server.Serve(listener)
	t.Cleanup(func() { listener.Close() })
	return m
}

type outcome struct {
	status         syscall.WaitStatus
	stdout, stderr string
}

type running struct {
	pid    int
	exits  chan reaper.Exit
	output [2]chan string
}

func (r *running) wait(t *testing.T) outcome {
	t.Helper()
	select {
	case exit := <-r.exits:
		return outcome{exit.Status, <-r.output[0], <-r.output[1]}
	case <-time.After(20 * time.Second):
		_ = syscall.Kill(-r.pid, syscall.SIGKILL)
		t.Fatal("the client did not end")
		return outcome{}
	}
}

func (m *machine) start(uid uint32, stdin string, argv ...string) *running {
	m.t.Helper()
	r := &running{exits: make(chan reaper.Exit, 1)}
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	files := []uintptr{inRead.Fd()}
	var closing []*os.File
	for i := range r.output {
		read, write, err := os.Pipe()
		if err != nil {
			m.t.Fatal(err)
		}
		files, closing = append(files, write.Fd()), append(closing, write)
		r.output[i] = make(chan string, 1)
		go func() {
			text, _ := io.ReadAll(read)
			read.Close()
			r.output[i] <- string(text)
		}()
	}
	r.pid, err = theReaper.Start(func() (int, error) {
		return spawn.Fork(spawn.Request{Path: argv[0], Argv: argv, Dir: m.dir, Files: files,
			Env:  []string{"PATH=" + spawn.DefaultPath, "HOME=" + m.dir, "USER=someone", "MINE=kept", "TERM=xterm", "GORACE=atexit_sleep_ms=0", socketVariable + "=" + m.socket},
			User: &account.User{Name: "caller", UID: uid, GID: uid, Groups: []uint32{uid}}})
	}, func(exit reaper.Exit) { r.exits <- exit })
	if err != nil {
		m.t.Fatal(err)
	}
	inRead.Close()
	for _, f := range closing {
		f.Close()
	}
	go func() {
		_, _ = io.WriteString(inWrite, stdin)
		inWrite.Close()
	}()
	return r
}

func (m *machine) sudo(uid uint32, stdin string, args ...string) outcome {
	m.t.Helper()
	return m.start(uid, stdin, append([]string{m.self}, args...)...).wait(m.t)
}

func TestSudoRunsCommandsAsTheTarget(t *testing.T) {
	m := newMachine(t)
	for _, c := range []struct {
		args           string
		stdout, stderr string
		status         int
	}{
		{"id -u", "0\n", "", 0},
		{"-u other id -u", "1001\n", "", 0},
		{"-uother -- id -u", "1001\n", "", 0},
		{"--user=other id -u", "1001\n", "", 0},
		{"-u #1001 id -u", "1001\n", "", 0},
		{"-nSH cat", "input", "", 0},
		{"sh -c exit\\ 7", "", "", 7},
		{"sh -c kill\\ -TERM\\ $$", "", "", 143},
		{"no-such-program", "", "sudo: no-such-program: command not found\n", 127},
		{"./passwd", "", "sudo: unable to execute ./passwd: Permission denied\n", 126},
		{"-u ghost id", "", "sudo: unknown user ghost\n", 1},
		{"pwd", m.dir + "\n", "", 0},
		{"-D / pwd", "/\n", "", 0},
		{"-i pwd", "/root\n", "", 0},
		{"-i echo a\\ \\ b", "a  b\n", "", 0},
		{"-s echo it's\\ $HOME", "it's /root\n", "", 0},
		{"A=1 B=2 printenv A B", "1\n2\n", "", 0},
		{"printenv SUDO_USER SUDO_UID HOME USER TERM SANDBOX", "user\n1000\n/root\nroot\nxterm\nyes\n", "", 0},
		{"printenv MINE", "", "", 1},
		{"-E printenv MINE HOME", "kept\n" + m.dir + "\n", "", 0},
		{"-EH printenv HOME", "/root\n", "", 0},
		{"--preserve-env=MINE printenv MINE", "kept\n", "", 0},
		{"-v", "", "", 0},
		{"-k", "", "", 0},
		{"-k id -u", "0\n", "", 0},
	} {
		words := strings.Split(strings.ReplaceAll(c.args, "\\ ", "\x01"), " ")
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "\x01", " ")
		}
		got := m.sudo(1000, "input", words...)
		if got.stdout != c.stdout || got.stderr != c.stderr || got.status.ExitStatus() != c.status {
			t.Errorf("sudo %s: %q %q %d", c.args, got.stdout, got.stderr, got.status.ExitStatus())
		}
	}
	if got := m.sudo(1000, "", "-l"); !strings.Contains(got.stdout, "NOPASSWD: ALL") {
		t.Errorf("-l: %q", got.stdout)
	}
	for _, bad := range [][]string{{}, {"-u"}, {"-Z"}, {"--wrong"}, {"-e", "f"}} {
		if got := m.sudo(1000, "", bad...); got.status.ExitStatus() != 1 || !strings.Contains(got.stderr, "usage: sudo") {
			t.Errorf("%v: %d %q", bad, got.status.ExitStatus(), got.stderr)
		}
	}
}

func TestSudoRefusesStrangers(t *testing.T) {
	m := newMachine(t)
	expect := func(uid uint32, allowed bool) {
		t.Helper()
		if got := m.sudo(uid, "", "true"); (got.status.ExitStatus() == 0) != allowed {
			t.Errorf("uid %d: %d %q", uid, got.status.ExitStatus(), got.stderr)
		}
	}
	expect(0, true)
	expect(1000, true)
	expect(1001, false)
	expect(1002, true) // in group sudo
	expect(4242, false)
	if err := os.WriteFile(filepath.Join(m.dir, "sudoers"), []byte("other\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	expect(1000, false)
	expect(1001, true)
}

func TestSudoPassesSignalsOnAndDiesWithItsClient(t *testing.T) {
	m := newMachine(t)
	begin := func(script string) (*running, string) {
		t.Helper()
		mark := filepath.Join(m.dir, "mark")
		_ = os.Remove(mark)
		r := m.start(1000, "", m.self, "sh", "-c", script+"; echo $$ > "+mark+"; while :; do sleep 0.02; done")
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if text, err := os.ReadFile(mark); err == nil && bytes.HasSuffix(text, []byte("\n")) {
				return r, strings.TrimSpace(string(text))
			}
			if time.Now().After(deadline) {
				t.Fatal("the command did not start")
			}
		}
	}
	r, _ := begin("trap 'echo got; exit 5' INT")
	_ = syscall.Kill(r.pid, syscall.SIGINT)
	if got := r.wait(t); got.stdout != "got\n" || got.status.ExitStatus() != 5 {
		t.Errorf("%q %d", got.stdout, got.status.ExitStatus())
	}
	r, pid := begin("trap '' TERM")
	_ = syscall.Kill(r.pid, syscall.SIGKILL)
	<-r.exits
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat("/proc/" + pid); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the command outlived its client")
		}
	}
}

func TestGarbageDoesNotEndTheServer(t *testing.T) {
	m := newMachine(t)
	for _, garbage := range []string{"", "x", "\xff\xff\xff\xff", strings.Repeat("y", 100_000)} {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: m.socket}); err != nil {
			t.Fatal(err)
		}
		_, _ = syscall.SendmsgN(fd, []byte(garbage), nil, nil, syscall.MSG_NOSIGNAL)
		syscall.Close(fd)
	}
	if got := m.sudo(1000, "", "echo", "still here"); got.stdout != "still here\n" {
		t.Errorf("%q %q", got.stdout, got.stderr)
	}
}
