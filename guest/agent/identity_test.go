package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func steps(answer object) map[string]string {
	outcomes := map[string]string{}
	for _, step := range answer["steps"].([]any) {
		outcomes[step.(object)["name"].(string)] = step.(object)["outcome"].(string)
	}
	return outcomes
}

func TestLockedAgentAnswersOnlyHealthAndInit(t *testing.T) {
	s := newLocked(t)
	response := s.do("GET", "/health", nil, nil)
	response.Body.Close()
	if response.StatusCode != 204 || response.Header.Get("X-Torpor-Locked") != "1" {
		t.Errorf("health: %d %v", response.StatusCode, response.Header)
	}
	for _, path := range []string{"/files?path=x", "/metrics", "/envs", "/torpor/stats", "/torpor/archive?path=x", "/torpor/freeze"} {
		if status, answer := s.fetch("GET", path, nil, nil); status != 423 || !strings.Contains(answer, `"code":"locked"`) {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	if _, answer := s.call("/process.Process/List", object{}); answer["code"] != "unavailable" {
		t.Errorf("List: %v", answer)
	}
	if r := s.exec("true", nil); r.code() != "unavailable" {
		t.Errorf("Start: %v", r.fail)
	}
}

func TestInitGivesTheMachineItsIdentity(t *testing.T) {
	s := newLocked(t)
	s.put("etc/hosts", "127.0.0.1 localhost\n127.0.1.1\told\n10.0.0.9 mine\n")
	s.put("etc/machine-id", strings.Repeat("0", 32)+"\n")
	s.put("var/lib/dbus/machine-id", "old\n")
	s.put("etc/torpor/on-restore.d/10-hook", "#!/bin/sh\necho $TORPOR_SANDBOX_ID $TORPOR_GENERATION > "+s.root+"/hooked\n")
	s.put("etc/torpor/on-restore.d/README", "not executable")
	if err := os.Chmod(filepath.Join(s.root, "etc/torpor/on-restore.d/10-hook"), 0o755); err != nil {
		t.Fatal(err)
	}
	status, answer := s.init(object{"generation": 3, "tenant": "acme", "deadline_unix_ms": 12345})
	if status != 200 || answer["complete"] != true || answer["generation"] != float64(3) {
		t.Fatalf("%d %v", status, answer)
	}
	want := map[string]string{"clock": "not_needed", "monotonic_clock": "not_needed", "processes": "not_needed", "entropy": "done", "hostname": "done", "machine_id": "done", "resolv_conf": "done", "pids_limit": "not_needed",
		"info": "done", "ssh_host_keys": "not_needed", "shells": "done", "on_restore_hooks": "done"}
	if got := steps(answer); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("steps %v", got)
	}
	id := strings.Repeat("ab", 16) + "\n"
	for name, content := range map[string]string{
		"etc/hostname": "box-1\n", "etc/machine-id": id, "var/lib/dbus/machine-id": id, "etc/resolv.conf": "nameserver 10.0.0.1\n",
		"etc/hosts": "127.0.0.1 localhost\n10.0.0.9 mine\n127.0.1.1\tbox-1\n", "hooked": "sbx00000000000000000a 3\n",
	} {
		if got := s.get(name); got != content {
			t.Errorf("%s: %q", name, got)
		}
	}
	var info object
	if err := json.Unmarshal([]byte(s.get("run/torpor/info.json")), &info); err != nil || info["tenant"] != "acme" || info["deadline_unix_ms"] != float64(12345) {
		t.Errorf("%v %v", info, err)
	}
	if s.hostname != "box-1" || len(s.entropy) != 64 {
		t.Errorf("hostname %q, %d bytes of entropy", s.hostname, len(s.entropy))
	}
	if status, answer := s.init(nil); status != 409 {
		t.Errorf("second init: %d %v", status, answer)
	}
	_, envs := s.fetch("GET", "/envs", nil, nil)
	if !strings.Contains(envs, `"GREETING":"hello"`) || !strings.Contains(envs, `"E2B_SANDBOX_ID":"sbx00000000000000000a"`) {
		t.Error(envs)
	}
}

func TestOnlyWhoBroughtAFreshMachineItsFilesSaysWhoseItIs(t *testing.T) {
	s := newLocked(t)
	key := map[string]string{"X-Torpor-Host-Key": testHostKey}
	// What is no stream of changes touches nothing.
	if status, answer := s.fetch("PUT", "/torpor/changes", strings.NewReader("x"), map[string]string{"X-Torpor-Host-Key": ""}); status != 403 {
		t.Errorf("files without a key: %d %s", status, answer)
	}
	if status, answer := s.fetch("PUT", "/torpor/changes", strings.NewReader("x"), key); status != 500 {
		t.Fatalf("files: %d %s", status, answer)
	}
	if status, answer := s.fetch("PUT", "/torpor/changes", strings.NewReader("x"), key); status != 409 {
		t.Errorf("files again: %d %s", status, answer)
	}
	if status, answer := s.fetch("POST", "/torpor/prepare", strings.NewReader("{}"), map[string]string{"X-Torpor-Host-Key": "another-another-another"}); status != 403 {
		t.Errorf("prepare of another: %d %s", status, answer)
	}
	if status, answer := s.fetch("POST", "/torpor/prepare", strings.NewReader("{}"), key); status != 200 {
		t.Errorf("prepare: %d %s", status, answer)
	}
	for _, previous := range []object{nil, {"previous_host_key": "another-another-another"}} {
		if status, answer := s.init(previous); status != 403 {
			t.Errorf("init of another: %d %v", status, answer)
		}
	}
	if status, answer := s.init(object{"previous_host_key": testHostKey}); status != 200 {
		t.Errorf("init: %d %v", status, answer)
	}
}

func TestOnlyWhoPreparedAMachineFirstSaysWhoseItIs(t *testing.T) {
	s := newLocked(t)
	key := map[string]string{"X-Torpor-Host-Key": testHostKey}
	if status, answer := s.fetch("POST", "/torpor/prepare", strings.NewReader("{}"), key); status != 200 {
		t.Fatalf("prepare: %d %s", status, answer)
	}
	for _, other := range []map[string]string{{"X-Torpor-Host-Key": ""}, {"X-Torpor-Host-Key": "another-another-another"}} {
		if status, answer := s.fetch("POST", "/torpor/prepare", strings.NewReader("{}"), other); status != 403 {
			t.Errorf("prepare of another: %d %s", status, answer)
		}
	}
	if status, answer := s.init(nil); status != 403 {
		t.Errorf("init of another: %d %v", status, answer)
	}
	if status, answer := s.fetch("POST", "/torpor/prepare", strings.NewReader("{}"), key); status != 200 {
		t.Errorf("prepare of a copy: %d %s", status, answer)
	}
	if status, answer := s.init(object{"previous_host_key": testHostKey}); status != 200 {
		t.Errorf("init: %d %v", status, answer)
	}
}

func TestAMachineInWhichThingsWereStartedTakesNoFiles(t *testing.T) {
	s := newLocked(t)
	if status, answer := s.fetch("POST", "/torpor/prepare", strings.NewReader("{}"), nil); status != 200 {
		t.Fatalf("prepare: %d %s", status, answer)
	}
	key := map[string]string{"X-Torpor-Host-Key": testHostKey}
	if status, answer := s.fetch("PUT", "/torpor/changes", strings.NewReader("x"), key); status != 409 {
		t.Errorf("files: %d %s", status, answer)
	}
}

func TestBadInitIsRefusedAndLeavesTheAgentLocked(t *testing.T) {
	s := newLocked(t)
	for field, value := range map[string]any{
		"generation": 0, "sandbox_id": "", "now_unix_ns": 0, "entropy_base64": "AAAA", "hostname": "a b", "machine_id": "XYZ", "access_token": "short", "host_key": nil,
		"env": object{"A=B": "c"}, "default_user": "ghost", "default_workdir": "relative", "pids_limit": -1,
	} {
		if status, answer := s.init(object{field: value}); status != 400 || !strings.Contains(fmt.Sprint(answer["message"]), field) {
			t.Errorf("%s: %d %v", field, status, answer)
		}
	}
	for _, body := range []string{"", "{", "[]", strings.Repeat("x", 2<<20)} {
		if status, _ := s.fetch("POST", "/torpor/init", strings.NewReader(body), nil); status != 400 {
			t.Errorf("%.10q: %d", body, status)
		}
	}
	if !s.agent.gate.Locked() {
		t.Error("open")
	}
}

func TestFailedMandatoryStepKeepsTheAgentLocked(t *testing.T) {
	s := newLocked(t)
	hook := filepath.Join(s.root, "etc/torpor/on-restore.d/hook")
	s.put("etc/torpor/on-restore.d/hook", "#!/bin/sh\necho why; exit 3\n")
	if err := os.Chmod(hook, 0o755); err != nil {
		t.Fatal(err)
	}
	status, answer := s.init(nil)
	if status != 500 || answer["complete"] != false || steps(answer)["on_restore_hooks"] != "failed" || !strings.Contains(fmt.Sprint(answer), "why") {
		t.Errorf("%d %v", status, answer)
	}
	if !s.agent.gate.Locked() || s.agent.gate.Identity() != nil {
		t.Error("a failed init left something behind")
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	if status, answer := s.init(nil); status != 200 {
		t.Errorf("after the repair: %d %v", status, answer)
	}
}

func TestFreezeLocksAndOnlyTheHostUnlocks(t *testing.T) {
	s := newSandbox(t)
	for name, script := range map[string]string{"10-good": "exit 0", "20-bad": "exit 1", "30-slow": "sleep 100"} {
		s.put("etc/torpor/before-freeze.d/"+name, "#!/bin/sh\n"+script+"\n")
		if err := os.Chmod(filepath.Join(s.root, "etc/torpor/before-freeze.d", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if status, _ := s.fetch("POST", "/torpor/freeze", strings.NewReader("{}"), map[string]string{"X-Torpor-Host-Key": "guess"}); status != 403 {
		t.Errorf("freeze by somebody else: %d", status)
	}
	open := s.open("/process.Process/Start", object{"process": shell("echo $$; exec sleep 300"), "torpor": object{"execId": "kept"}}, nil)
	r := &result{}
	for len(r.stdout) == 0 {
		message, _, err := open.next()
		if err != nil {
			t.Fatal(err)
		}
		r.add(message["event"].(object))
	}
	status, answer := s.call("/torpor/freeze", object{"hook_timeout_ms": 200})
	var outcomes []string
	for _, hook := range answer["hooks"].([]any) {
		outcomes = append(outcomes, hook.(object)["outcome"].(string))
	}
	if status != 200 || answer["locked"] != true || strings.Join(outcomes, " ") != "done failed timed_out" {
		t.Errorf("%d %v", status, answer)
	}
	if _, _, err := open.next(); err == nil {
		t.Error("a stream outlived the freeze")
	}
	if status, _ := s.fetch("GET", "/torpor/stats", nil, nil); status != 423 {
		t.Errorf("stats: %d", status)
	}
	for _, key := range []any{nil, "", "wrong-wrong-wrong-wrong"} {
		if status, answer := s.init(object{"previous_host_key": key}); status != 403 {
			t.Errorf("key %v: %d %v", key, status, answer)
		}
	}
	if !alive(r.pid) {
		t.Error("the process ended with the freeze")
	}
	if status, answer := s.init(object{"generation": 2, "previous_host_key": testHostKey, "host_key": "another-host-key-123"}); status != 200 {
		t.Fatalf("%d %v", status, answer)
	}
	if status, _ := s.fetch("GET", "/torpor/stats", nil, nil); status != 403 {
		t.Errorf("the old host key still works: %d", status)
	}
	if status, answer := s.call("/process.Process/SendSignal", object{"process": object{"pid": r.pid}, "signal": 9}); status != 200 {
		t.Errorf("%v", answer)
	}
}

func TestOneThatWakesStaysAsItsOwnerLeftItAndACopyDoesNot(t *testing.T) {
	s := newSandbox(t)
	again := func(with object) map[string]string {
		t.Helper()
		if status, answer := s.call("/torpor/freeze", object{}); status != 200 {
			t.Fatalf("%d %v", status, answer)
		}
		with["previous_host_key"] = testHostKey
		status, answer := s.init(with)
		if status != 200 {
			t.Fatalf("%d %v", status, answer)
		}
		return steps(answer)
	}
	s.put("etc/hosts", "127.0.0.1 localhost\n127.0.1.1\tmine\n")
	s.put("etc/hostname", "mine\n")
	woken := again(object{"generation": 2})
	if woken["hostname"] != "not_needed" || woken["machine_id"] != "not_needed" || woken["resolv_conf"] != "not_needed" || woken["info"] != "done" {
		t.Errorf("%v", woken)
	}
	if s.get("etc/hostname") != "mine\n" || !strings.Contains(s.get("etc/hosts"), "\tmine\n") {
		t.Errorf("%q %q", s.get("etc/hostname"), s.get("etc/hosts"))
	}
	resolvers := again(object{"generation": 3, "resolv_conf": "nameserver 10.0.0.2\n"})
	if resolvers["resolv_conf"] != "done" || resolvers["hostname"] != "not_needed" {
		t.Errorf("%v", resolvers)
	}
	copied := again(object{"generation": 1, "sandbox_id": "sbx00000000000000000b", "resolv_conf": "nameserver 10.0.0.2\n"})
	if copied["hostname"] != "done" || copied["machine_id"] != "done" || copied["resolv_conf"] != "done" {
		t.Errorf("%v", copied)
	}
	if s.get("etc/hostname") != "box-1\n" {
		t.Errorf("%q", s.get("etc/hostname"))
	}
	// What could not be given is tried again, and not said to be there.
	resolvConf := filepath.Join(s.root, "etc/resolv.conf")
	if err := errors.Join(os.Remove(resolvConf), os.Mkdir(resolvConf, 0o755)); err != nil {
		t.Fatal(err)
	}
	for generation := 2; generation < 4; generation++ {
		tried := again(object{"generation": generation, "sandbox_id": "sbx00000000000000000b", "resolv_conf": "nameserver 10.0.0.3\n"})
		if tried["resolv_conf"] != "failed" {
			t.Errorf("%v", tried)
		}
	}
}

func TestTokenIsNeededEverywhere(t *testing.T) {
	s := newSandbox(t)
	for _, token := range []string{"", "wrong"} {
		header := map[string]string{"X-Access-Token": token, "Content-Type": "application/json"}
		for _, path := range []string{"/process.Process/List", "/filesystem.Filesystem/ListDir", "/metrics", "/envs", "/nothing"} {
			if status, _ := s.fetch("POST", path, strings.NewReader("{}"), header); status != 401 {
				t.Errorf("%s: %d", path, status)
			}
		}
	}
	for _, path := range []string{"/torpor/stats", "/torpor/archive?path=/", "/torpor/freeze"} {
		if status, _ := s.fetch("GET", path, nil, map[string]string{"X-Torpor-Host-Key": ""}); status != 403 {
			t.Errorf("%s: %d", path, status)
		}
	}
	status, text := s.fetch("GET", "/torpor/stats", nil, nil)
	if status != 200 || !strings.Contains(text, `"total_bytes"`) {
		t.Errorf("%d %s", status, text)
	}
	if status, text := s.fetch("GET", "/metrics", nil, nil); status != 200 || !strings.Contains(text, `"mem_total"`) {
		t.Errorf("%d %s", status, text)
	}
}

func TestEnvironmentFollowsTheIdentity(t *testing.T) {
	s := newSandbox(t)
	eventually(t, "shells wait", func() bool { return s.agent.table.Shells().Ready() == 2 })
	if status, _ := s.call("/torpor/freeze", object{}); status != 200 {
		t.Fatal(status)
	}
	change := object{"generation": 2, "previous_host_key": testHostKey, "env": object{"NEW": "n"}}
	if status, answer := s.init(change); status != 200 {
		t.Fatal(answer)
	}
	for range 3 {
		if r := s.exec("echo [$GREETING] [$NEW]", nil); string(r.stdout) != "[] [n]\n" {
			t.Errorf("%q", r.stdout)
		}
	}
}

func TestPreparedCopyNeedsLessAtInit(t *testing.T) {
	s := newLocked(t)
	machine := strings.Repeat("cd", 16)
	if status, answer := s.call("/torpor/prepare", object{"machine_id": machine, "default_user": "user", "resolv_conf": "nameserver 10.0.0.1\n"}); status != 200 {
		t.Fatalf("%d %v", status, answer)
	}
	if s.agent.table.Running() != 0 || !s.agent.gate.Locked() {
		t.Error("prepare left a process or unlocked the agent")
	}
	if status, answer := s.init(object{"machine_id": nil, "previous_host_key": testHostKey}); status != 200 || s.get("etc/machine-id") != machine+"\n" {
		t.Errorf("%d %v", status, answer)
	}
	if status, _ := s.call("/torpor/prepare", object{}); status != 409 {
		t.Errorf("prepare after init: %d", status)
	}
	if r := s.exec("echo $HOSTNAME $GREETING", nil); !strings.HasSuffix(string(r.stdout), " hello\n") {
		t.Errorf("%q", r.stdout)
	}
}

func TestCodeInsideCannotKeepTheHostOut(t *testing.T) {
	s := newLocked(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /torpor/init HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
	time.Sleep(50 * time.Millisecond) // the agent is reading the rest, which never comes
	if status, answer := s.init(nil); status != 200 {
		t.Errorf("%d %v", status, answer)
	}
	held := []net.Conn{}
	for range localConnectionsMax + 50 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	_ = held[0].SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := held[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the longest silent of more than the bound: %v", err)
	}
	newest := held[len(held)-1]
	fmt.Fprintf(newest, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	_ = newest.SetReadDeadline(time.Now().Add(5 * time.Second))
	if response, err := http.ReadResponse(bufio.NewReader(newest), nil); err != nil || response.StatusCode != 204 {
		t.Errorf("the newest of more than the bound: %v", err)
	}
	for _, c := range held {
		c.Close()
	}
	s.client.CloseIdleConnections()
	eventually(t, "room again", func() bool {
		response, err := http.Get(s.url + "/health")
		if err == nil {
			response.Body.Close()
		}
		return err == nil
	})
}
