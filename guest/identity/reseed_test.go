package identity

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// registered listens as a process would and answers each message.
func registered(t *testing.T, p *Platform, name string, answer string) <-chan reseedMessage {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(p.path(ReseedFolder), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	messages := make(chan reseedMessage, 8)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(conn).ReadBytes('\n')
			var message reseedMessage
			if json.Unmarshal(line, &message) == nil {
				messages <- message
			}
			if answer != "" {
				fmt.Fprint(conn, answer)
				conn.Close()
			}
		}
	}()
	return messages
}

func reseedPlatform(t *testing.T) *Platform {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "reseed") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	p := &Platform{Root: root}
	if err := p.makeReseedFolder(); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEveryRegisteredProcessGetsEntropyOfItsOwn(t *testing.T) {
	p := reseedPlatform(t)
	one, two := registered(t, p, "one.99999991.sock", "ok\n"), registered(t, p, "two.99999992.sock", "ok\n")
	detail, err := p.reseed([]byte("seed"), 7, "sbx", map[string]string{"A": "b"}, time.Second)
	if err != nil || detail != "2 reseeded" {
		t.Fatalf("got %q, %v", detail, err)
	}
	a, b := <-one, <-two
	if a.EntropyBase64 == b.EntropyBase64 || len(a.EntropyBase64) < 80 {
		t.Errorf("entropy %q and %q", a.EntropyBase64, b.EntropyBase64)
	}
	if a.Generation != 7 || a.SandboxID != "sbx" || a.Env["A"] != "b" {
		t.Errorf("got %+v", a)
	}
	if _, err := p.reseed([]byte("other"), 8, "sbx", nil, time.Second); err != nil {
		t.Fatal(err)
	}
	if again := <-one; again.EntropyBase64 == a.EntropyBase64 {
		t.Error("another restore's entropy is the same")
	}
}

func TestASocketLeftByADeadProcessIsRemoved(t *testing.T) {
	p := reseedPlatform(t)
	path := filepath.Join(p.path(ReseedFolder), "gone.99999991.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	detail, err := p.reseed([]byte("seed"), 1, "sbx", nil, time.Second)
	if err != nil || detail != "" {
		t.Errorf("got %q, %v", detail, err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("the socket is still there")
	}
}

func TestAProcessThatDoesNotAnswerIsEnded(t *testing.T) {
	for _, answer := range []string{"", "no\n", strings.Repeat("x", 1000)} {
		p := reseedPlatform(t)
		child := exec.Command("sleep", "60")
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		registered(t, p, fmt.Sprintf("deaf.%d.sock", child.Process.Pid), answer)
		well := registered(t, p, "well.99999991.sock", "ok\n")
		detail, err := p.reseed([]byte("seed"), 1, "sbx", nil, 300*time.Millisecond)
		if err != nil || !strings.HasPrefix(detail, "1 reseeded; ended for not answering: deaf.") {
			t.Errorf("answer %.10q: got %q, %v", answer, detail, err)
		}
		<-well
		if err := child.Wait(); err == nil {
			t.Errorf("answer %.10q: the process was not killed", answer)
		}
	}
}

func TestWhatCanBeNeitherReseededNorEndedFailsTheInit(t *testing.T) {
	for _, pid := range []int{0, 1, os.Getpid()} {
		p := reseedPlatform(t)
		registered(t, p, fmt.Sprintf("deaf.%d.sock", pid), "no\n")
		if _, err := p.reseed([]byte("seed"), 1, "sbx", nil, time.Second); err == nil {
			t.Errorf("pid %d: no error", pid)
		}
	}
}

func TestOtherFilesInTheFolderAreLeftAlone(t *testing.T) {
	p := reseedPlatform(t)
	for _, name := range []string{"file.1.sock", "x", "a.b.sock"} {
		if err := os.WriteFile(filepath.Join(p.path(ReseedFolder), name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if detail, err := p.reseed([]byte("seed"), 1, "sbx", nil, time.Second); err != nil || detail != "" {
		t.Errorf("got %q, %v", detail, err)
	}
}
