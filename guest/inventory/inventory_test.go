package inventory

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// machine lays files out below a folder: those named in old are there before the answer's second value, the rest after.
func machine(t *testing.T, old, fresh map[string]string) (root string, since time.Time) {
	t.Helper()
	root = t.TempDir()
	write := func(files map[string]string) {
		for name, content := range files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(old)
	// The kernel stamps files with the time of its last tick.
	time.Sleep(20 * time.Millisecond)
	since = time.Now()
	time.Sleep(20 * time.Millisecond)
	write(fresh)
	return root, since
}

func TestOnlyFilesChangedSinceTheTemplateAreCounted(t *testing.T) {
	root, since := machine(t, map[string]string{"usr/bin/tool": "old", "etc/hostname": "a"},
		map[string]string{"workspace/a.txt": "12345", "etc/hostname": "b", "run/x": "1", "usr/lib/new": "123"})
	files := changedFiles(context.Background(), root, since)
	if files.ChangedCount != 2 || files.ChangedBytes != 8 || files.Truncated {
		t.Fatalf("got %+v", files)
	}
}

func TestFoldersWithNothingNewBelowThemAreNotWalked(t *testing.T) {
	// On a plain file system a file written again leaves its folder as it was; in a sandbox the folder would be of now.
	root, since := machine(t, map[string]string{"usr/share/doc/a": "1", "usr/lib/b": "2"},
		map[string]string{"usr/share/doc/a": "not seen", "usr/lib/c": "3", "opt/d/e": "45"})
	now := time.Now()
	if err := os.Chtimes(filepath.Join(root, "usr"), now, now); err != nil {
		t.Fatal(err)
	}
	files := changedFiles(context.Background(), root, since)
	if files.ChangedCount != 2 || files.ChangedBytes != 3 {
		t.Fatalf("got %+v", files)
	}
}

func TestPackagesAreThoseAddedSinceTheTemplate(t *testing.T) {
	root, since := machine(t,
		map[string]string{"usr/lib/python3/dist-packages/numpy-1.24.dist-info": "", "var/lib/dpkg/info/bash.list": ""},
		map[string]string{
			"home/user/.local/lib/python3.11/site-packages/left_pad-1.2.dist-info": "",
			"home/user/.npm-global/lib/node_modules/@scope/thing/package.json":     `{"name":"@scope/thing","version":"3.0.0"}`,
			"var/lib/dpkg/info/tree:amd64.list":                                    "",
			"var/lib/dpkg/status":                                                  "Package: bash\nVersion: 5.2\n\nPackage: tree\nStatus: install\nVersion: 2.1\n",
		})
	packages := addedPackages(root, homes(root), since)
	check := func(kind string, got []Package, want Package) {
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %+v, want %+v", kind, got, want)
		}
	}
	check("pip", packages.Pip, Package{"left_pad", "1.2"})
	check("npm", packages.Npm, Package{"@scope/thing", "3.0.0"})
	check("apt", packages.Apt, Package{"tree", "2.1"})
}

func TestCachesAndBrowserProfilesAreSized(t *testing.T) {
	root, _ := machine(t, nil, map[string]string{"home/user/.cache/pip/x/y": "1234567890", "home/user/.config/chromium/Default/Cookies": "abc"})
	if got := caches(context.Background(), root, homes(root)); len(got) != 1 || got[0] != (Cache{"/home/user/.cache/pip", 10}) {
		t.Errorf("caches: got %+v", got)
	}
	if got := browsers(context.Background(), root, homes(root)).Profiles; len(got) != 1 || got[0] != (Profile{"/home/user/.config/chromium", "chromium", 3}) {
		t.Errorf("profiles: got %+v", got)
	}
}

func TestSocketsAreSortedByWhatSurvivesASleep(t *testing.T) {
	lines := `  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000
   1: 0100007F:1F90 0100007F:A000 01 00000000:00000000
   2: 0200C80A:A001 0A7100CB:0050 06 00000000:00000000
   3: 0200C80A:C33F 0100C80A:B000 01 00000000:00000000
   4: 0200C80A:C34F 0100C80A:B001 01 00000000:00000000
`
	root, _ := machine(t, nil, map[string]string{"proc/net/tcp": lines, "proc/net/udp": "header\n 0: 0100007F:0035 00000000:0000 07\n"})
	got := connections(root)
	if len(got.Listening) != 2 || got.Listening[0].Local != "0.0.0.0:8080" || got.Listening[1].Local != "127.0.0.1:53" {
		t.Errorf("listening: %+v", got.Listening)
	}
	if len(got.Loopback) != 1 || got.Loopback[0].Remote != "127.0.0.1:40960" {
		t.Errorf("loopback: %+v", got.Loopback)
	}
	if len(got.External) != 1 || got.External[0].Remote != "203.0.113.10:80" || got.External[0].State != "TIME-WAIT" {
		t.Errorf("external: %+v", got.External)
	}
}

func TestTheRealMachineIsReadWithinTheLimit(t *testing.T) {
	began := time.Now()
	got := Take(context.Background(), "", time.Now())
	if took := time.Since(began); took > 2*timeLimit {
		t.Errorf("took %s", took)
	}
	if len(got.Memory.Processes) == 0 {
		t.Error("this test's own process is not listed")
	}
}
