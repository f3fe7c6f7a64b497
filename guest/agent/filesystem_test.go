package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const fsCall = "/filesystem.Filesystem/"

func TestStatOfEveryKind(t *testing.T) {
	s := newSandbox(t)
	s.put("home/user/file", "four")
	if err := os.Chmod(filepath.Join(s.home, "file"), 0o640); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "file", "dirlink": s.home, "dangling": "nowhere", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(s.home, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(s.home, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		path, kind, permissions string
		mode                    float64
		target                  any
	}{
		{"file", "FILE_TYPE_FILE", "-rw-r-----", 0o640, nil},
		{"~/file", "FILE_TYPE_FILE", "-rw-r-----", 0o640, nil},
		{s.home, "FILE_TYPE_DIRECTORY", "drwxr-xr-x", 0o755, nil},
		{"", "FILE_TYPE_DIRECTORY", "drwxr-xr-x", 0o755, nil},
		{"link", "FILE_TYPE_FILE", "Lrwxrwxrwx", 0o640, s.home + "/file"},
		{"dirlink", "FILE_TYPE_DIRECTORY", "Lrwxrwxrwx", 0o755, s.home},
		{"dangling", "FILE_TYPE_SYMLINK", "Lrwxrwxrwx", 0o777, "nowhere"},
		{"fifo", "", "prw-------", 0o600, nil},
	}
	for _, c := range cases {
		status, answer := s.call(fsCall+"Stat", object{"path": c.path})
		if status != 200 {
			t.Errorf("%s: %v", c.path, answer)
			continue
		}
		e := answer["entry"].(object)
		kind, _ := e["type"].(string)
		if kind != c.kind || e["permissions"] != c.permissions || e["mode"] != c.mode || e["symlinkTarget"] != c.target || e["owner"] == "" {
			t.Errorf("%s: %v", c.path, e)
		}
	}
	_, answer := s.call(fsCall+"Stat", object{"path": "file"})
	if e := answer["entry"].(object); e["size"] != "4" || e["name"] != "file" || e["path"] != s.home+"/file" || e["owner"] != "root" {
		t.Errorf("%v", e)
	}
	for path, code := range map[string]string{"missing": "not_found", "file/x": "invalid_argument", "loop/x": "invalid_argument", "a\x00b": "invalid_argument", strings.Repeat("y", 5000): "invalid_argument"} {
		if _, answer := s.call(fsCall+"Stat", object{"path": path}); answer["code"] != code {
			t.Errorf("%.20q: %v", path, answer)
		}
	}
}

func TestFolders(t *testing.T) {
	s := newSandbox(t)
	call := func(name string, body object) (int, object) { return s.call(fsCall+name, body) }
	if status, answer := call("MakeDir", object{"path": "a/b/c"}); status != 200 || answer["entry"].(object)["owner"] != "user" {
		t.Fatalf("%v", answer)
	}
	s.put("home/user/a/file1.txt", "1")
	s.put("home/user/a/b/c/deep", "2")
	for body, code := range map[string]string{"a/b": "already_exists", "a/file1.txt": "invalid_argument", "a/file1.txt/x": "invalid_argument"} {
		if _, answer := call("MakeDir", object{"path": body}); answer["code"] != code {
			t.Errorf("MakeDir %s: %v", body, answer)
		}
	}
	list := func(path string, depth any) string {
		_, answer := call("ListDir", object{"path": path, "depth": depth})
		entries, ok := answer["entries"].([]any)
		if !ok {
			return fmt.Sprint(answer["code"])
		}
		var names []string
		for _, e := range entries {
			names = append(names, strings.TrimPrefix(e.(object)["path"].(string), s.home+"/"))
		}
		return strings.Join(names, " ")
	}
	if err := os.Symlink("a", filepath.Join(s.home, "la")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path  string
		depth any
		want  string
	}{
		{"a", nil, "a/b a/file1.txt"}, {"a", 1, "a/b a/file1.txt"}, {"a", 2, "a/b a/b/c a/file1.txt"}, {"a", 9, "a/b a/b/c a/b/c/deep a/file1.txt"},
		{"la", 1, "la/b la/file1.txt"}, {"missing", 1, "not_found"}, {"a/file1.txt", 1, "invalid_argument"}, {"a/b/c/", "1", "a/b/c/deep"},
	} {
		if got := list(c.path, c.depth); got != c.want {
			t.Errorf("%s to depth %v: %q", c.path, c.depth, got)
		}
	}
	if status, answer := call("Move", object{"source": "a/file1.txt", "destination": "new/place/f"}); status != 200 || answer["entry"].(object)["path"] != s.home+"/new/place/f" {
		t.Errorf("Move: %v", answer)
	}
	if _, answer := call("Move", object{"source": "a/file1.txt", "destination": "x"}); answer["code"] != "not_found" {
		t.Errorf("Move of nothing: %v", answer)
	}
	for range 2 {
		if status, answer := call("Remove", object{"path": "a"}); status != 200 {
			t.Errorf("Remove: %v", answer)
		}
	}
	for _, path := range []string{"", "/", "/proc/../"} {
		if status, answer := call("Remove", object{"path": path}); status != 400 {
			t.Errorf("Remove %q: %v", path, answer)
		}
	}
}

func TestMoveToAnotherFileSystemIsWhole(t *testing.T) {
	s := newSandbox(t)
	mount := filepath.Join(s.home, "mount")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Unmount(mount, 0) }()
	s.put("home/user/tree/sub/file", "content")
	if err := os.Symlink("sub/file", filepath.Join(s.home, "tree/link")); err != nil {
		t.Fatal(err)
	}
	if status, answer := s.call(fsCall+"Move", object{"source": "tree", "destination": "mount/moved"}); status != 200 {
		t.Fatalf("%v", answer)
	}
	if s.get("home/user/mount/moved/link") != "content" {
		t.Error("the link or the file did not come along")
	}
	if _, err := os.Lstat(filepath.Join(s.home, "tree")); err == nil {
		t.Error("the source is still there")
	}
	s.put("home/user/big", strings.Repeat("x", 1<<20))
	if status, _ := s.call(fsCall+"Move", object{"source": "big", "destination": "mount/big"}); status == 200 {
		t.Error("1 MiB fitted into 256 KiB")
	}
	if len(s.get("home/user/big")) != 1<<20 || len(s.leftovers(mount)) > 0 {
		t.Error("a failed move damaged the source or left a part")
	}
}

func TestWatching(t *testing.T) {
	s := newSandbox(t)
	dir := filepath.Join(s.home, "w")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	st := s.open(fsCall+"WatchDir", object{"path": "w", "recursive": true, "includeEntry": true}, nil)
	defer st.close()
	if message, _, err := st.next(); err != nil || message["start"] == nil {
		t.Fatalf("%v %v", message, err)
	}
	_, polled := s.call(fsCall+"CreateWatcher", object{"path": "w"})
	id := polled["watcherId"]
	until := func(kind, name string) {
		t.Helper()
		for {
			message, last, err := st.next()
			if err != nil || last {
				t.Fatalf("waiting for %s of %s: %v %v", kind, name, message, err)
			}
			if e, ok := message["filesystem"].(object); ok && e["type"] == "EVENT_TYPE_"+kind && e["name"] == name {
				return
			}
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "new/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	until("CREATE", "new")
	until("CREATE", "new/deep")
	s.put("home/user/w/new/deep/file", "x")
	until("WRITE", "new/deep/file")
	if err := os.Chmod(filepath.Join(dir, "new/deep/file"), 0o600); err != nil {
		t.Fatal(err)
	}
	until("CHMOD", "new/deep/file")
	if err := os.Rename(filepath.Join(dir, "new/deep/file"), filepath.Join(dir, "new/moved")); err != nil {
		t.Fatal(err)
	}
	until("RENAME", "new/deep/file")
	until("CREATE", "new/moved")
	if err := os.Remove(filepath.Join(dir, "new/moved")); err != nil {
		t.Fatal(err)
	}
	until("REMOVE", "new/moved")
	eventually(t, "the poller sees the folder, and nothing below it", func() bool {
		_, answer := s.call(fsCall+"GetWatcherEvents", object{"watcherId": id})
		events := answer["events"].([]any)
		return len(events) == 1 && events[0].(object)["name"] == "new"
	})
	if status, _ := s.call(fsCall+"RemoveWatcher", object{"watcher_id": id}); status != 200 {
		t.Error(status)
	}
	if _, answer := s.call(fsCall+"GetWatcherEvents", object{"watcherId": id}); answer["code"] != "not_found" {
		t.Error(answer)
	}
	s.put("home/user/file", "x")
	for path, code := range map[string]string{"missing": "not_found", "file": "invalid_argument"} {
		bad := s.open(fsCall+"WatchDir", object{"path": path}, nil)
		message, _, err := bad.next()
		bad.close()
		if err != nil || message["error"].(object)["code"] != code {
			t.Errorf("%s: %v %v", path, message, err)
		}
	}
}
