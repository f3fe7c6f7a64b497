package inventory

import (
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Memory is what lives in RAM: processes, and among them notebook kernels.
type Memory struct {
	RSSBytes  int64     `json:"rss_bytes"`
	Processes []Process `json:"processes"`
	Kernels   []Kernel  `json:"kernels"`
}

// Process is one process of the sandbox's user, the largest first.
type Process struct {
	PID       int       `json:"pid"`
	Command   string    `json:"command"`
	RSSBytes  int64     `json:"rss_bytes"`
	StartedAt time.Time `json:"started_at"`
	args      []string
}

// Kernel is a notebook kernel, known by how it was started.
type Kernel struct {
	PID      int    `json:"pid"`
	Language string `json:"language"`
}

const commandBytesMax = 200

func memory(root string) Memory {
	found := Memory{Processes: []Process{}, Kernels: []Kernel{}}
	for _, p := range processes(root) {
		found.RSSBytes += p.RSSBytes
		if language := kernelLanguage(p.args); language != "" {
			found.Kernels = append(found.Kernels, Kernel{PID: p.PID, Language: language})
		}
		if len(found.Processes) < processesMax {
			found.Processes = append(found.Processes, p)
		}
	}
	return found
}

// processes are all but the platform's own: the agent and the shells it keeps ready.
func processes(root string) []Process {
	dirs, _ := filepath.Glob(filepath.Join(base(root), "proc/[0-9]*"))
	found := []Process{}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == 1 {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if len(line) == 0 || isPlatform(args) {
			continue
		}
		p := Process{PID: pid, Command: strings.Join(args, " "), RSSBytes: rssOf(dir), args: args}
		if len(p.Command) > commandBytesMax {
			p.Command = strings.ToValidUTF8(p.Command[:commandBytesMax], "")
		}
		if info, err := os.Stat(dir); err == nil {
			p.StartedAt = info.ModTime().UTC()
		}
		found = append(found, p)
	}
	sort.Slice(found, func(i, j int) bool { return found[i].RSSBytes > found[j].RSSBytes })
	return found
}

// isPlatform knows a shell that waits for its first command by the script it waits with.
func isPlatform(args []string) bool {
	return len(args) == 4 && args[1] == "-l" && args[2] == "-c" && strings.HasPrefix(args[3], "BASH_EXECUTION_STRING=; . /dev/fd/")
}

func rssOf(dir string) int64 {
	status, _ := os.ReadFile(filepath.Join(dir, "status"))
	for _, line := range strings.Split(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib * 1024
		}
	}
	return 0
}

func kernelLanguage(args []string) string {
	all := strings.Join(args, " ")
	switch {
	case strings.Contains(all, "ipykernel"), strings.Contains(all, "kernels/torpor-python"):
		return "python"
	case strings.Contains(all, "kernels/torpor-bash"), strings.Contains(all, "bash_kernel"):
		return "bash"
	default:
		return ""
	}
}
