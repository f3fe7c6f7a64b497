package inventory

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Files counts what was written or changed since the template. What was deleted is not seen.
type Files struct {
	ChangedCount int           `json:"changed_count"`
	ChangedBytes int64         `json:"changed_bytes"`
	Sample       []ChangedFile `json:"sample"`
	// Truncated says that time or number ran out before all was looked at.
	Truncated bool `json:"truncated"`
}

// ChangedFile is one of them.
type ChangedFile struct {
	Path       string    `json:"path"`
	Size       int64     `json:"size"`
	ModifiedAt time.Time `json:"modified_at"`
}

// Not files of the sandbox, or the platform's own.
var skippedDirs = map[string]bool{"/proc": true, "/sys": true, "/dev": true, "/run": true, "/usr/local/lib/torpor": true}

var platformFiles = map[string]bool{
	"/etc/hostname": true, "/etc/hosts": true, "/etc/machine-id": true, "/etc/resolv.conf": true, "/tmp/.torpor-on-disk": true,
	"/var/lib/dbus/machine-id": true,
}

func changedFiles(ctx context.Context, root string, since time.Time) Files {
	found := Files{Sample: []ChangedFile{}}
	seen := 0
	_ = filepath.WalkDir(base(root), func(path string, entry fs.DirEntry, err error) error {
		name := "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		if err != nil {
			return nil // vanished, or not to be read: not worth failing the rest
		}
		if entry.IsDir() {
			// The runtime copies a folder to the writable layer, as of now, with the first change anywhere below it: one that
			// is older has nothing new in it. Every file that is looked at stays in the runtime's memory, and tens of
			// thousands of them would make each wake after this take half a minute.
			if skippedDirs[name] || name != "/" && !changedSince(path, since) {
				return fs.SkipDir
			}
			return nil
		}
		if seen++; seen > entriesMax || seen%256 == 0 && ctx.Err() != nil {
			found.Truncated = true
			return fs.SkipAll
		}
		var st syscall.Stat_t
		if platformFiles[name] || syscall.Lstat(path, &st) != nil || !time.Unix(st.Ctim.Unix()).After(since) {
			return nil
		}
		found.ChangedCount++
		found.ChangedBytes += st.Size
		if len(found.Sample) < sampleMax {
			found.Sample = append(found.Sample, ChangedFile{Path: name, Size: st.Size, ModifiedAt: time.Unix(st.Mtim.Unix()).UTC()})
		}
		return nil
	})
	return found
}

func base(root string) string {
	if root == "" {
		return "/"
	}
	return root
}

// homes gives the home directories there are.
func homes(root string) []string {
	found := []string{filepath.Join(base(root), "root")}
	more, _ := filepath.Glob(filepath.Join(base(root), "home", "*"))
	return append(found, more...)
}

func changedSince(path string, since time.Time) bool {
	var st syscall.Stat_t
	return syscall.Lstat(path, &st) == nil && time.Unix(st.Ctim.Unix()).After(since)
}
