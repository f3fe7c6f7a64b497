package agent

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"torpor/guest/process"
)

func TestShellCommandsBehaveAsInALoginShell(t *testing.T) {
	s := newSandbox(t)
	if err := os.WriteFile(filepath.Join(s.home, "noshebang"), []byte("echo from $0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, command  string
		stdout, stderr string
		exit           int
	}{
		{"a builtin", "echo hi", "hi\n", "", 0},
		{"a lone program", "printf %s 'a  b' \"c d\"", "a  bc d", "", 0},
		{"an external lone program", "/bin/echo 'it''s' fine", "its fine\n", "", 0},
		{"streams apart", "echo out; echo err >&2", "out\n", "err\n", 0},
		{"exit", "echo a; exit 7; echo b", "a\n", "", 7},
		{"status of the last command", "true; false", "", "", 1},
		{"exec", "exec sh -c 'exit 9'", "", "", 9},
		{"unknown command", "no-such-command 2>/dev/null", "", "", 127},
		{"not executable", "/etc/passwd 2>/dev/null", "", "", 126},
		{"set -e", "set -e; false; echo no", "", "", 1},
		{"trap on exit", "trap 'echo bye' EXIT; exit 3", "bye\n", "", 3},
		{"here-document", "cat <<X\na $((1+1))\nX", "a 2\n", "", 0},
		{"several lines", "x=1\nif [ $x = 1 ]; then\n  echo one\nfi\n", "one\n", "", 0},
		{"name of the shell", "echo $0", "/bin/bash\n", "", 0},
		{"flags", "case $- in *c*) echo c;; esac; case $- in *i*) echo i;; esac", "c\n", "", 0},
		{"login shell", "shopt -q login_shell && echo login", "login\n", "", 0},
		{"no arguments", "echo $#", "0\n", "", 0},
		{"quotes", `echo 'a"b' "c'd" e\'f`, "a\"b c'd e'f\n", "", 0},
		{"the sandbox's variables", "echo $GREETING $E2B_SANDBOX", "hello true\n", "", 0},
		{"no leftovers", "set | grep -c '__torpor_ex[e]c'; echo $OLDPWD", "0\n\n", "", 0},
		{"no extra descriptors", "for n in 8 9; do readlink /proc/self/fd/$n; done; true", "", "", 0},
		{"standard input is empty", "wc -c", "0\n", "", 0},
		{"the standard streams can be opened by name", "echo e >/dev/stderr; echo o >/dev/stdout", "o\n", "e\n", 0},
		{"empty", "", "", "", 0},
		{"a comment", "# nothing", "", "", 0},
		{"a script without interpreter line", "./noshebang", "from ./noshebang\n", "", 0},
		{"trailing newline", "echo x\n\n", "x\n", "", 0},
		{"keyword", "time true 2>/dev/null; ! false", "", "\nreal", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			eventually(t, "a shell waits", func() bool { return s.agent.table.Shells().Ready() > 0 })
			r := s.exec(c.command, nil)
			if string(r.stdout) != c.stdout || r.exit() != c.exit || !strings.HasPrefix(string(r.stderr), c.stderr) || c.stderr == "" && len(r.stderr) > 0 {
				t.Errorf("%q gave stdout %q, stderr %q, exit %d", c.command, r.stdout, r.stderr, r.exit())
			}
		})
	}
	t.Run("syntax error", func(t *testing.T) {
		r := s.exec("if", nil)
		if r.exit() != 2 || !bytes.Contains(r.stderr, []byte("syntax error")) {
			t.Errorf("exit %d, stderr %q", r.exit(), r.stderr)
		}
	})
}

func TestWarmShellsShareNoRandomSequence(t *testing.T) {
	s := newSandbox(t)
	seen := map[string]bool{}
	for range 4 {
		eventually(t, "a shell waits", func() bool { return s.agent.table.Shells().Ready() > 0 })
		seen[string(s.exec("echo $RANDOM$RANDOM$RANDOM", nil).stdout)] = true
	}
	if len(seen) != 4 {
		t.Errorf("repeated sequences: %v", seen)
	}
}

func TestChangedProfileIsReadByTheNextCommand(t *testing.T) {
	s := newSandbox(t)
	eventually(t, "shells wait", func() bool { return s.agent.table.Shells().Ready() == 2 })
	profile := filepath.Join(s.home, ".profile")
	if err := os.WriteFile(profile, []byte("export FROM_PROFILE=yes\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := s.exec("echo $FROM_PROFILE", nil); string(r.stdout) != "yes\n" {
		t.Errorf("stdout %q", r.stdout)
	}
}

func TestTheFirstCommandOfAPreparedCopySeesWhatWasWrittenBefore(t *testing.T) {
	for name, write := range map[string]func(*sandbox, string){
		"by a file": func(s *sandbox, line string) {
			path := filesURL(filepath.Join(s.home, ".profile"))
			if status, text := s.fetch("POST", path, strings.NewReader(line), map[string]string{"Content-Type": "application/octet-stream"}); status != 200 {
				t.Fatalf("%d %s", status, text)
			}
		},
		"by a command": func(s *sandbox, line string) {
			s.exec("printf '%s' '"+line+"' >>~/.profile", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLocked(t)
			prepared := object{"machine_id": strings.Repeat("cd", 16), "default_user": "user", "entropy_base64": base64.StdEncoding.EncodeToString(make([]byte, 64))}
			if status, answer := s.call("/torpor/prepare", prepared); status != 200 {
				t.Fatalf("%d %v", status, answer)
			}
			if status, answer := s.init(object{"machine_id": nil, "previous_host_key": testHostKey}); status != 200 {
				t.Fatalf("%d %v", status, answer)
			}
			eventually(t, "shells wait", func() bool { return s.agent.table.Shells().Ready() == 2 })
			write(s, "export FROM_PROFILE=yes\n")
			if r := s.exec("echo $FROM_PROFILE", nil); string(r.stdout) != "yes\n" {
				t.Errorf("stdout %q", r.stdout)
			}
		})
	}
}

func TestKilledWarmShellIsReplacedByAnOrdinaryOne(t *testing.T) {
	s := newSandbox(t)
	eventually(t, "shells wait", func() bool { return s.agent.table.Shells().Ready() == 2 })
	for _, e := range process.ReadEntries() {
		if e.Parent == os.Getpid() && e.Name == "bash" {
			_ = syscall.Kill(e.PID, syscall.SIGKILL)
			eventually(t, "the shell is reaped", func() bool { _, there := process.ReadEntry(e.PID); return !there })
		}
	}
	for range 3 {
		if r := s.exec("echo ok", nil); string(r.stdout) != "ok\n" || r.exit() != 0 {
			t.Fatalf("stdout %q %v", r.stdout, r.end)
		}
	}
}

func TestSurroundingsOfACommand(t *testing.T) {
	s := newSandbox(t)
	run := func(p object, rest object) *result {
		body := object{"process": p, "torpor": object{}}
		for k, v := range rest {
			body[k] = v
		}
		return s.open("/process.Process/Start", body, nil).collect()
	}
	withs := func(command string, change object) object {
		p := shell(command)
		for k, v := range change {
			p[k] = v
		}
		return p
	}
	dir := filepath.Join(s.root, "a 'b'$c")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if r := run(withs("pwd", object{"cwd": dir}), nil); string(r.stdout) != dir+"\n" {
		t.Errorf("cwd: %q %v", r.stdout, r.fail)
	}
	if r := run(withs("pwd; id -u; id -G; echo $HOME $USER", nil), nil); string(r.stdout) != s.home+"\n1000\n1000 1500\n"+s.home+" user\n" {
		t.Errorf("defaults: %q", r.stdout)
	}
	if r := run(withs("pwd", object{"cwd": "/no/such"}), nil); r.code() != "invalid_argument" || r.fail["message"] != "cwd '/no/such' does not exist" {
		t.Errorf("missing cwd: %v", r.fail)
	}
	if r := run(withs(`printf %s "$V|$GREETING|$PATH"`, object{"envs": object{"V": "a'b\n\"$(id)", "GREETING": "x"}}), nil); !strings.HasPrefix(string(r.stdout), "a'b\n\"$(id)|x|") {
		t.Errorf("envs: %q", r.stdout)
	}
	if r := run(object{"cmd": "env", "envs": object{"PATH": "/usr/bin:/bin", "A-B": "c"}}, nil); !strings.Contains(string(r.stdout), "A-B=c\n") {
		t.Errorf("odd names: %q", r.stdout)
	}
	if r := s.open("/process.Process/Start", object{"process": shell("id -un")}, map[string]string{"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte("root:"))}).collect(); string(r.stdout) != "root\n" {
		t.Errorf("user by header: %q", r.stdout)
	}
	if r := s.exec("id -u", object{"user": "other"}); string(r.stdout) != "1001\n" {
		t.Errorf("user by field: %q", r.stdout)
	}
	if r := s.exec("true", object{"user": "ghost"}); r.code() != "unauthenticated" || r.fail["message"] != "invalid username: 'ghost'" {
		t.Errorf("unknown user: %v", r.fail)
	}
	for name, p := range map[string]object{
		"NUL":           shell("a\x00b"),
		"empty command": {"cmd": ""},
		"bad variable":  {"cmd": "true", "envs": object{"A=B": "c"}},
		"NUL in value":  {"cmd": "true", "envs": object{"A": "\x00"}},
	} {
		if r := run(p, nil); r.code() != "invalid_argument" {
			t.Errorf("%s: %v", name, r.fail)
		}
	}
	if r := run(object{"cmd": "no-such-program"}, nil); r.code() != "not_found" {
		t.Errorf("missing program: %v", r.fail)
	}
}

func TestInputReachesTheProcessAndEnds(t *testing.T) {
	s := newSandbox(t)
	data := make([]byte, 300_000)
	for i := range data {
		data[i] = byte(i * 7)
	}
	encoded := base64.StdEncoding.EncodeToString(data)
	if r := s.exec("cat", object{"stdin": encoded}); !bytes.Equal(r.stdout, data) {
		t.Errorf("%d bytes came back of %d", len(r.stdout), len(data))
	}
	if r := s.exec("true", object{"stdin": encoded}); r.exit() != 0 {
		t.Errorf("unread input: %v", r.end)
	}
	st := s.open("/process.Process/Start", object{"process": shell("cat; sleep 0.5; echo end"), "stdin": true}, nil)
	first, _, err := st.next()
	if err != nil {
		t.Fatal(err)
	}
	pid := object{"pid": first["event"].(object)["start"].(object)["pid"]}
	if status, answer := s.call("/process.Process/SendInput", object{"process": pid, "input": object{"stdin": "aGkK"}}); status != 200 {
		t.Errorf("SendInput: %v", answer)
	}
	for range 2 {
		if status, answer := s.call("/process.Process/CloseStdin", object{"process": pid}); status != 200 {
			t.Errorf("CloseStdin: %v", answer)
		}
	}
	if _, answer := s.call("/process.Process/SendInput", object{"process": pid, "input": object{"stdin": "aGkK"}}); answer["code"] != "internal" && answer["code"] != "not_found" {
		t.Errorf("SendInput after the end: %v", answer)
	}
	if r := st.collect(); string(r.stdout) != "hi\nend\n" {
		t.Errorf("stdout %q", r.stdout)
	}
}

func TestBinaryOutputIsExact(t *testing.T) {
	s := newSandbox(t)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i>>8) ^ byte(i*31)
	}
	if err := os.WriteFile(filepath.Join(s.home, "data"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	r := s.exec("cat data; cat data >&2", nil)
	if !bytes.Equal(r.stdout, data) || !bytes.Equal(r.stderr, data) {
		t.Errorf("stdout %d and stderr %d bytes, or not the same", len(r.stdout), len(r.stderr))
	}
	if r.largest > process.ChunkBytesMax {
		t.Errorf("an event of %d bytes", r.largest)
	}
}

func TestTimeoutKeepsPartialOutputAndEndsTheTree(t *testing.T) {
	s := newSandbox(t)
	began := time.Now()
	r := s.exec("echo part; (trap '' TERM; sleep 300) & echo $!; setsid sleep 301 & echo $!; sleep 302", object{"timeoutMs": 300, "killGraceMs": 200})
	if r.torpor["outcome"] != "timed_out" || r.fail != nil {
		t.Fatalf("%v %v", r.torpor, r.fail)
	}
	lines := strings.Fields(string(r.stdout))
	if len(lines) != 3 || lines[0] != "part" {
		t.Fatalf("stdout %q", r.stdout)
	}
	for _, text := range lines[1:] {
		pid, _ := strconv.Atoi(text)
		eventually(t, "child "+text+" is gone", func() bool { return !alive(pid) })
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestE2BTimeoutIsADeadlineError(t *testing.T) {
	s := newSandbox(t)
	r := s.open("/process.Process/Start", object{"process": shell("echo part; sleep 300")}, map[string]string{"Connect-Timeout-Ms": "300"}).collect()
	if r.code() != "deadline_exceeded" || string(r.stdout) != "part\n" {
		t.Errorf("%v, stdout %q", r.fail, r.stdout)
	}
	if r := s.open("/process.Process/Start", object{"process": shell("true")}, map[string]string{"Connect-Timeout-Ms": "soon"}).collect(); r.code() != "invalid_argument" {
		t.Errorf("bad timeout: %v", r.fail)
	}
}

func TestOutputBeyondTheLimitIsCountedAndThrownAway(t *testing.T) {
	s := newSandbox(t)
	r := s.exec("head -c 3000000 /dev/zero; echo err >&2", object{"maxOutputBytes": 1000})
	if len(r.stdout) != 1000 || r.torpor["stdoutBytes"] != 3e6 || r.torpor["stdoutTruncated"] != true || r.torpor["stderrTruncated"] != false || r.exit() != 0 {
		t.Errorf("%d bytes, %v", len(r.stdout), r.torpor)
	}
}

func TestSignalsReachTheWholeGroup(t *testing.T) {
	s := newSandbox(t)
	st := s.open("/process.Process/Start", object{"process": shell("sleep 300 & sh -c 'sh -c \"sleep 301 & echo \\$!; wait\" & wait' & wait"), "tag": "t1"}, nil)
	r := &result{}
	for len(r.stdout) == 0 {
		message, _, err := st.next()
		if err != nil {
			t.Fatal(err)
		}
		r.add(message["event"].(object))
	}
	grandchild, _ := strconv.Atoi(strings.TrimSpace(string(r.stdout)))
	if status, answer := s.call("/process.Process/SendSignal", object{"process": object{"tag": "t1"}, "signal": "SIGNAL_SIGKILL"}); status != 200 {
		t.Fatal(answer)
	}
	last := st.collect()
	if last.exit() != -1 || last.end["status"] != "signal: killed" || last.end["exited"] != false {
		t.Errorf("%v", last.end)
	}
	eventually(t, "the grandchild is gone", func() bool { return !alive(grandchild) })
	if _, answer := s.call("/process.Process/SendSignal", object{"process": object{"pid": r.pid}, "signal": "SIGNAL_SIGKILL"}); answer["code"] != "not_found" {
		t.Errorf("second signal: %v", answer)
	}
	if _, answer := s.call("/process.Process/SendSignal", object{"process": object{"pid": 999999}, "signal": "SIGNAL_SIGTERM"}); answer["code"] != "not_found" || answer["message"] != "process with pid 999999 not found" {
		t.Errorf("unknown pid: %v", answer)
	}
	if status, answer := s.call("/process.Process/SendSignal", object{"process": object{"pid": 1}, "signal": "SIGFOO"}); status != 400 {
		t.Errorf("unknown signal: %v", answer)
	}
}

func TestBackgroundProcessDoesNotHoldTheEndAndLivesOn(t *testing.T) {
	s := newSandbox(t)
	began := time.Now()
	r := s.exec("(for i in $(seq 50); do head -c 20000 /dev/zero; sleep 0.01; done; sleep 300) & echo $!", nil)
	if time.Since(began) > 3*time.Second {
		t.Errorf("the end came after %v", time.Since(began))
	}
	pid := strings.TrimRight(strings.Trim(string(r.stdout), "\x00"), "\n")
	_, answer := s.call("/process.Process/List", object{})
	listed := answer["processes"].([]any)
	if len(listed) != 1 || listed[0].(object)["torpor"].(object)["background"] != true {
		t.Fatalf("listed %v (child %s)", listed, pid)
	}
	if status, answer := s.call("/process.Process/SendSignal", object{"process": object{"pid": listed[0].(object)["pid"]}, "signal": "SIGNAL_SIGKILL"}); status != 200 {
		t.Errorf("%v", answer)
	}
	eventually(t, "nothing is left", func() bool {
		_, answer := s.call("/process.Process/List", object{})
		return len(answer["processes"].([]any)) == 0
	})
}

func TestE2BEndWaitsForBackgroundOutput(t *testing.T) {
	s := newSandbox(t)
	r := s.open("/process.Process/Start", object{"process": shell("(sleep 0.3; echo late) & echo early")}, nil).collect()
	if string(r.stdout) != "early\nlate\n" {
		t.Errorf("stdout %q", r.stdout)
	}
}

func TestZombiesAreReaped(t *testing.T) {
	s := newSandbox(t)
	r := s.exec("for i in 1 2 3 4 5; do (sh -c 'sleep 0.05 & exec sleep 0.01' &); done; echo done", nil)
	if r.exit() != 0 {
		t.Fatal(r.end)
	}
	eventually(t, "no zombies are ours", func() bool {
		for _, e := range process.ReadEntries() {
			if e.State == 'Z' && e.Parent == os.Getpid() {
				return false
			}
		}
		return true
	})
}

func TestSameExecIDRunsOnce(t *testing.T) {
	s := newSandbox(t)
	var group sync.WaitGroup
	results := make([]*result, 8)
	for i := range results {
		group.Add(1)
		go func() {
			defer group.Done()
			results[i] = s.exec("echo x >> count; sleep 0.2; wc -l < count", object{"execId": "e1"})
		}()
	}
	group.Wait()
	again := s.exec("echo never", object{"execId": "e1"})
	for i, r := range append(results, again) {
		if string(r.stdout) != "1\n" || r.pid != results[0].pid || r.exit() != 0 {
			t.Errorf("start %d: %q %v", i, r.stdout, r.end)
		}
	}
	if r := s.exec("true", object{"execId": "bad", "user": "ghost"}); r.code() != "unauthenticated" {
		t.Error(r.fail)
	}
	if r := s.exec("echo now", object{"execId": "bad"}); string(r.stdout) != "now\n" {
		t.Errorf("a failed start must be repeatable: %q", r.stdout)
	}
}

func TestConnectReplaysOrGivesOnlyWhatIsNew(t *testing.T) {
	s := newSandbox(t)
	st := s.open("/process.Process/Start", object{"process": shell("echo one; read x; echo two"), "stdin": true, "torpor": object{"execId": "r"}}, nil)
	r := &result{}
	for len(r.stdout) == 0 {
		message, _, err := st.next()
		if err != nil {
			t.Fatal(err)
		}
		r.add(message["event"].(object))
	}
	st.close() // the process lives on
	pid := object{"pid": r.pid}
	plain := s.open("/process.Process/Connect", object{"process": pid}, nil)
	if message, _, err := plain.next(); err != nil || message["event"].(object)["start"].(object)["pid"] != float64(r.pid) {
		t.Fatalf("%v %v", message, err)
	}
	replay := s.open("/process.Process/Connect", object{"process": object{"torpor": object{"execId": "r"}}, "torpor": object{"replay": true}}, nil)
	if status, answer := s.call("/process.Process/SendInput", object{"process": pid, "input": object{"stdin": "Cg=="}}); status != 200 {
		t.Fatal(answer)
	}
	if got := plain.collect(); string(got.stdout) != "two\n" || got.torpor != nil {
		t.Errorf("without replay: %q %v", got.stdout, got.torpor)
	}
	if got := replay.collect(); string(got.stdout) != "one\ntwo\n" || got.torpor["outcome"] != "exited" {
		t.Errorf("with replay: %q %v", got.stdout, got.torpor)
	}
	late := s.open("/process.Process/Connect", object{"process": pid, "torpor": object{"replay": true}}, nil).collect()
	if string(late.stdout) != "one\ntwo\n" {
		t.Errorf("after the end: %q", late.stdout)
	}
	if got := s.open("/process.Process/Connect", object{"process": object{"pid": 999999}}, nil).collect(); got.code() != "not_found" {
		t.Error(got.fail)
	}
}

func TestReplayTellsHowMuchIsLost(t *testing.T) {
	s := newSandbox(t)
	r := s.exec("head -c 2500000 /dev/zero; echo end", object{"execId": "big"})
	if len(r.stdout) != 2_500_004 {
		t.Fatalf("%d bytes", len(r.stdout))
	}
	st := s.open("/process.Process/Connect", object{"process": object{"torpor": object{"execId": "big"}}, "torpor": object{"replay": true}}, nil)
	var lost float64
	got := &result{}
	for {
		message, last, err := st.next()
		if err != nil {
			t.Fatal(err)
		}
		if last {
			break
		}
		event := message["event"].(object)
		got.add(event)
		if data, ok := event["data"].(object); ok {
			if x, ok := data["torpor"].(object); ok {
				lost += x["lostBytes"].(float64)
			}
		}
	}
	if len(got.stdout) > 1<<20 || len(got.stdout) < 1<<19 || int(lost)+len(got.stdout) != 2_500_004 || !bytes.HasSuffix(got.stdout, []byte("end\n")) {
		t.Errorf("%d bytes replayed, %v lost", len(got.stdout), lost)
	}
}

func TestSlowReaderHoldsTheProcessUpInFlatMemory(t *testing.T) {
	s := newSandbox(t)
	st := s.open("/process.Process/Start", object{"process": object{"cmd": "/bin/sh", "args": []string{"-c", "head -c 100000000 /dev/zero | tee progress"}}, "torpor": object{}}, nil)
	defer st.close()
	r := &result{}
	message, _, err := st.next()
	if err != nil {
		t.Fatal(err)
	}
	r.add(message["event"].(object))
	size := func() int64 {
		info, err := os.Stat(filepath.Join(s.home, "progress"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	// It stops of itself once the buffers between are full.
	held := int64(-1)
	eventually(t, "the process is held up", func() bool {
		now := size()
		time.Sleep(100 * time.Millisecond)
		same := now > 0 && now == held
		held = now
		return same
	})
	if held > 20<<20 {
		t.Errorf("%d bytes were written before the process was held up", held)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	total := 0
	header := make([]byte, 5)
	for header[0]&2 == 0 {
		if _, err := io.ReadFull(st.response.Body, header); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:]))
		if _, err := io.ReadFull(st.response.Body, body); err != nil {
			t.Fatal(err)
		}
		// Not parsed as JSON: that would take most of the test's time.
		if _, rest, ok := bytes.Cut(body, []byte(`"stdout":"`)); ok {
			encoded, _, _ := bytes.Cut(rest, []byte(`"`))
			total += base64.StdEncoding.DecodedLen(len(encoded)) - bytes.Count(encoded, []byte("="))
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if total != 100_000_000-len(r.stdout) {
		t.Errorf("%d bytes arrived", total)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestClientThatLeavesHoldsNobodyUp(t *testing.T) {
	s := newSandbox(t)
	st := s.open("/process.Process/Start", object{"process": shell("head -c 20000000 /dev/zero; touch finished"), "torpor": object{}}, nil)
	if _, _, err := st.next(); err != nil {
		t.Fatal(err)
	}
	st.close()
	eventually(t, "the command finished", func() bool { _, err := os.Stat(filepath.Join(s.home, "finished")); return err == nil })
	st = s.open("/process.Process/Start", object{"process": shell("echo $$; sleep 300"), "torpor": object{"killOnDisconnect": true}}, nil)
	r := &result{}
	for len(r.stdout) == 0 {
		message, _, err := st.next()
		if err != nil {
			t.Fatal(err)
		}
		r.add(message["event"].(object))
	}
	st.close()
	eventually(t, "the command was ended", func() bool { return !alive(r.pid) })
}

func TestTerminal(t *testing.T) {
	s := newSandbox(t)
	st := s.open("/process.Process/Start", object{"process": object{"cmd": "/bin/bash", "args": []string{"--norc", "--noprofile", "-i"}, "envs": object{"TERM": "xterm", "PS1": "> "}}, "pty": object{"size": object{"cols": 91, "rows": 33}}}, nil)
	message, _, err := st.next()
	if err != nil {
		t.Fatal(err)
	}
	r := &result{}
	r.add(message["event"].(object))
	pid := object{"pid": r.pid}
	until := func(text string) {
		t.Helper()
		for !bytes.Contains(r.pty, []byte(text)) {
			message, last, err := st.next()
			if err != nil || last {
				t.Fatalf("%v %v after %q", message, err, r.pty)
			}
			r.add(message["event"].(object))
		}
	}
	send := func(text string) {
		t.Helper()
		if status, answer := s.call("/process.Process/SendInput", object{"process": pid, "input": object{"pty": base64.StdEncoding.EncodeToString([]byte(text))}}); status != 200 {
			t.Fatal(answer)
		}
	}
	send("stty size\n")
	until("33 91")
	if status, answer := s.call("/process.Process/Update", object{"process": pid, "pty": object{"size": object{"cols": 50, "rows": 20}}}); status != 200 {
		t.Fatal(answer)
	}
	send("stty size\n")
	until("20 50")
	send("sleep 300\n")
	until("sleep 300\r\n")
	time.Sleep(100 * time.Millisecond) // the terminal must have the sleep in its foreground before ^C
	send("\x03")                       // not every kernel echoes it
	time.Sleep(100 * time.Millisecond)
	send("echo st$?\n")
	until("st130")
	if _, answer := s.call("/process.Process/CloseStdin", object{"process": pid}); answer["code"] != "unknown" {
		t.Errorf("CloseStdin: %v", answer)
	}
	send("exit 4\n")
	if last := st.collect(); last.exit() != 4 {
		t.Errorf("%v", last.end)
	}
}

func TestAThousandStartsAtOnce(t *testing.T) {
	s := newSandbox(t)
	const count, atOnce = 1000, 100
	var group sync.WaitGroup
	failures := make(chan string, count)
	slots := make(chan struct{}, atOnce)
	for i := range count {
		group.Add(1)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots; group.Done() }()
			r := s.open("/process.Process/Start", object{"process": object{"cmd": "/bin/echo", "args": []string{strconv.Itoa(i)}}, "torpor": object{}}, nil).collect()
			if want := fmt.Sprintf("%d\n", i); string(r.stdout) != want || r.fail != nil {
				failures <- fmt.Sprintf("%d: %q %v", i, r.stdout, r.fail)
			}
		}()
	}
	group.Wait()
	close(failures)
	for f := range failures {
		t.Error(f)
	}
	if n := s.agent.table.Running(); n != 0 {
		t.Errorf("%d still counted as running", n)
	}
}

func TestALongCommandRuns(t *testing.T) {
	s := newSandbox(t)
	for range 4 { // with waiting shells and after they are used up
		if r := s.exec("echo "+strings.Repeat("x", 1<<20)+" | wc -c", nil); string(r.stdout) != "1048577\n" {
			t.Fatalf("stdout %q stderr %.200q %v", r.stdout, r.stderr, r.fail)
		}
	}
}
