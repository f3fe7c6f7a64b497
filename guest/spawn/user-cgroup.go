package spawn

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// UserCgroup is the inner cgroup that users' processes live in, so that a fork bomb meets its limit there and the agent,
// which is outside, still answers.
type UserCgroup struct{ dir string }

// OpenUserCgroup makes the cgroup below root, normally /sys/fs/cgroup, by whichever version is mounted there.
// Without a pids controller it returns nil, which limits nothing.
func OpenUserCgroup(root string) *UserCgroup {
	const name = "torpor-user"
	if controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		if !strings.Contains(" "+strings.TrimSpace(string(controllers))+" ", " pids ") {
			return nil
		}
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+pids"), 0)
	} else {
		root = filepath.Join(root, "pids")
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			return nil
		}
	}
	dir := filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
		return nil
	}
	return &UserCgroup{dir: dir}
}

// Add puts a process into the cgroup. A process that has already ended is no failure.
func (c *UserCgroup) Add(pid int) {
	if c == nil {
		return
	}
	_ = os.WriteFile(filepath.Join(c.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// SetPidsLimit bounds how many processes and threads users may have at once; zero means no limit.
func (c *UserCgroup) SetPidsLimit(limit int) error {
	if c == nil {
		return fmt.Errorf("no pids cgroup is mounted in the sandbox")
	}
	text := "max"
	if limit > 0 {
		text = strconv.Itoa(limit)
	}
	return os.WriteFile(filepath.Join(c.dir, "pids.max"), []byte(text), 0)
}
