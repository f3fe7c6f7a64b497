package agent

import (
	"net/http"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"time"

	"torpor/guest/process"
	"torpor/guest/wire"
)

// statsTopMax is how many processes /torpor/stats names, the largest first.
const statsTopMax = 50

type stats struct {
	Processes int            `json:"processes"`
	Execs     int            `json:"execs"` // clients' processes that run now
	WarmShell int            `json:"warm_shells"`
	Memory    statsMemory    `json:"memory"`
	UptimeMs  int64          `json:"uptime_ms"` // of the agent
	CPU       statsCPU       `json:"cpu"`
	Disk      statsDisk      `json:"disk"`
	Top       []statsProcess `json:"top"`
}

type statsMemory struct {
	TotalBytes     uint64 `json:"total_bytes"`
	UsedBytes      uint64 `json:"used_bytes"`
	CacheBytes     uint64 `json:"cache_bytes"`
	AgentHeapBytes uint64 `json:"agent_heap_bytes"`
}

type statsCPU struct {
	Count   int     `json:"count"`
	UsedPct float64 `json:"used_pct"` // since the last reading
}

type statsDisk struct {
	TotalBytes uint64 `json:"total_bytes"`
	UsedBytes  uint64 `json:"used_bytes"`
}

type statsProcess struct {
	PID      int     `json:"pid"`
	Parent   int     `json:"ppid"`
	Session  int     `json:"session"`
	Name     string  `json:"name"`
	Command  string  `json:"command"`
	State    string  `json:"state"`
	RSSBytes uint64  `json:"rss_bytes"`
	CPUSec   float64 `json:"cpu_seconds"`
	Threads  int     `json:"threads"`
	ExecID   string  `json:"exec_id,omitempty"`
}

func (a *Agent) serveStats(w http.ResponseWriter, _ *http.Request) {
	entries := process.ReadEntries()
	m := a.readMetrics()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	s := stats{
		Processes: len(entries), Execs: a.table.Running(), WarmShell: a.table.Shells().Ready(),
		Memory:   statsMemory{TotalBytes: m.MemTotal, UsedBytes: m.MemUsed, CacheBytes: m.MemCache, AgentHeapBytes: heap.HeapSys - heap.HeapReleased},
		UptimeMs: time.Since(a.startedAt).Milliseconds(),
		CPU:      statsCPU{Count: m.CPUCount, UsedPct: m.CPUUsedPct},
		Disk:     statsDisk{TotalBytes: m.DiskTotal, UsedBytes: m.DiskUsed},
		Top:      []statsProcess{},
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].ResidentPages > entries[j].ResidentPages })
	for _, e := range entries[:min(len(entries), statsTopMax)] {
		s.Top = append(s.Top, statsProcess{PID: e.PID, Parent: e.Parent, Session: e.Session, Name: e.Name, Command: commandLine(e.PID),
			State: string(e.State), RSSBytes: e.ResidentPages * uint64(os.Getpagesize()), CPUSec: float64(e.CPUTicks) / 100,
			Threads: e.Threads, ExecID: a.table.ExecOfSession(e.Session)})
	}
	wire.WriteJSON(w, http.StatusOK, s)
}

// commandLine is a process's arguments, at most 256 bytes of them.
func commandLine(pid int) string {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	defer file.Close()
	text := make([]byte, 256)
	n, _ := file.Read(text)
	return strings.ToValidUTF8(strings.TrimSpace(strings.ReplaceAll(string(text[:n]), "\x00", " ")), "?")
}
