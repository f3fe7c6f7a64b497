package agent

import (
	"bufio"
	"bytes"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"torpor/guest/wire"
)

// metrics is E2B's GET /metrics.
type metrics struct {
	Timestamp  int64   `json:"ts"` // unix seconds
	CPUCount   int     `json:"cpu_count"`
	CPUUsedPct float64 `json:"cpu_used_pct"` // since the last request, 100 for all processors busy
	MemTotal   uint64  `json:"mem_total"`    // bytes, as all that follow
	MemUsed    uint64  `json:"mem_used"`
	MemCache   uint64  `json:"mem_cache"`
	DiskUsed   uint64  `json:"disk_used"`
	DiskTotal  uint64  `json:"disk_total"`
}

// cpuSample remembers the last reading of /proc/stat.
type cpuSample struct {
	mu          sync.Mutex
	busy, total uint64
}

func (a *Agent) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	wire.WriteJSON(w, http.StatusOK, a.readMetrics())
}

func (a *Agent) readMetrics() metrics {
	m := metrics{Timestamp: time.Now().Unix(), CPUCount: runtime.NumCPU(), CPUUsedPct: a.cpu.usedPct()}
	memory := readMeminfo()
	m.MemTotal = memory["MemTotal"]
	m.MemCache = memory["Cached"] + memory["Buffers"]
	if free := memory["MemFree"] + m.MemCache; free < m.MemTotal {
		m.MemUsed = m.MemTotal - free
	}
	var st syscall.Statfs_t
	if syscall.Statfs("/", &st) == nil {
		m.DiskTotal = st.Blocks * uint64(st.Bsize)
		m.DiskUsed = (st.Blocks - st.Bfree) * uint64(st.Bsize)
	}
	return m
}

func (c *cpuSample) usedPct() float64 {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	fields := strings.Fields(string(line))
	var busy, total uint64
	for i, f := range fields {
		n, err := strconv.ParseUint(f, 10, 64)
		if i == 0 || i > 8 || err != nil {
			continue // guest time is part of user time
		}
		total += n
		if i != 4 && i != 5 { // idle, iowait
			busy += n
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.busy, c.total = busy, total }()
	if total <= c.total || busy < c.busy {
		return 0
	}
	return float64(int(10000*float64(busy-c.busy)/float64(total-c.total))) / 100
}

// readMeminfo gives /proc/meminfo in bytes.
func readMeminfo() map[string]uint64 {
	values := map[string]uint64{}
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return values
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(rest)
		if !ok || len(fields) == 0 {
			continue
		}
		if n, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
			values[name] = n << 10
		}
	}
	return values
}
