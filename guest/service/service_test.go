package service

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"torpor/guest/account"
	"torpor/guest/reaper"
)

var theReaper = sync.OnceValue(reaper.New) // one per process

func supervisor(t *testing.T) *Supervisor {
	t.Helper()
	root := t.TempDir()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	passwd, group := filepath.Join(root, "passwd"), filepath.Join(root, "group")
	write(t, passwd, fmt.Sprintf("me:x:%s:%s::%s:/bin/sh\n", me.Uid, me.Gid, root))
	write(t, group, "")
	s := &Supervisor{Root: root, Reaper: theReaper(), Accounts: account.Open(passwd, group), Confine: func(int) {},
		Settings: func() Settings { return Settings{Env: map[string]string{"FLAVOUR": "salt"}, User: "me", Workdir: root} }}
	t.Cleanup(s.Stop)
	return s
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func shell(name, script, ready string) Spec {
	return Spec{Name: name, Command: []string{"/bin/sh", "-c", script}, ReadyURL: ready}
}

func eventually(t *testing.T, what string, look func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if look() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

func contents(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func TestAServiceHasTheSandboxsEnvironmentAndAFolderOfItsOwn(t *testing.T) {
	s := supervisor(t)
	if err := s.Start(context.Background(), []Spec{shell("salty", `echo "$FLAVOUR $USER" > "$TORPOR_RUNTIME_DIR/seen"; exec sleep 60`, "")}); err != nil {
		t.Fatal(err)
	}
	seen := filepath.Join(s.Root, "run/torpor/services/salty/seen")
	eventually(t, "the service's file", func() bool { return contents(seen) == "salt me\n" })
	if info, _ := os.Stat(filepath.Dir(seen)); info.Mode().Perm() != 0o700 {
		t.Errorf("the runtime folder has mode %v", info.Mode())
	}
}

func TestAServiceThatDiesIsStartedAgainLessAndLessOften(t *testing.T) {
	s := supervisor(t)
	began := time.Now()
	if err := s.Start(context.Background(), []Spec{shell("mortal", `echo x >> "$TORPOR_RUNTIME_DIR/starts"`, "")}); err != nil {
		t.Fatal(err)
	}
	starts := filepath.Join(s.Root, "run/torpor/services/mortal/starts")
	eventually(t, "the third start", func() bool { return strings.Count(contents(starts), "x") == 3 })
	if took := time.Since(began); took < 3*restartDelayMin {
		t.Errorf("three starts within %v: it must wait %v and then twice that", took, restartDelayMin)
	}
	log := contents(filepath.Join(s.Root, "var/log/torpor/mortal.log"))
	if !strings.Contains(log, "ended with exit status 0; starting it again in 200ms") {
		t.Errorf("the log does not tell: %q", log)
	}
}

func TestStartWaitsUntilTheServiceAnswers(t *testing.T) {
	s := supervisor(t)
	var asked int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	if err := s.Start(context.Background(), []Spec{shell("slow", "exec sleep 60", server.URL+"/health")}); err != nil {
		t.Fatal(err)
	}
	if asked != 3 {
		t.Errorf("it was asked %d times; the third answer was the first 200", asked)
	}
}

func TestAServiceThatDoesNotBecomeReadyIsAnErrorThatQuotesIt(t *testing.T) {
	s := supervisor(t)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	err = s.Start(ctx, []Spec{shell("broken", "echo no such module; exit 3", "http://"+address+"/")})
	if err == nil || !strings.Contains(err.Error(), "service broken did not become ready") || !strings.Contains(err.Error(), "no such module") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
}

func TestDeclarationsAreChecked(t *testing.T) {
	for _, bad := range []Spec{
		{Name: "../x", Command: []string{"true"}},
		{Name: "x"},
		{Name: "x", Command: []string{""}},
		{Name: "x", Command: []string{"true"}, ReadyURL: "http://example.com:80/"},
		{Name: "x", Command: []string{"true"}, ReadyURL: "https://127.0.0.1:1/"},
		{Name: "x", Command: []string{"true"}, ReadyURL: "http://127.0.0.1/"},
	} {
		if bad.Check() == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestALogStaysSmallWhateverIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.close()
	line := []byte(strings.Repeat("y", 999) + "\n")
	for range 5000 {
		_, _ = log.Write(line)
	}
	var total int64
	for _, name := range []string{path, path + ".1"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 2*logBytesMax {
		t.Errorf("the logs have %d bytes", total)
	}
	if got := log.tail(); len(got) != tailBytesMax || !strings.HasSuffix(got, "y\n") {
		t.Errorf("the tail has %d bytes", len(got))
	}
}
